"""Which language somebody speaks: what one utterance shows, on top of what those before it have shown.

A belief is a probability for each language that a leg may be in. Each utterance multiplies it with what the network
hears there (Bayes' rule). Between two utterances a part of it is spread over all languages, so that a speaker who
changes the language is followed after a clear sentence, and one doubtful word changes nothing. Pure functions: the
belief travels with the utterances (`Utterance.heard`, `Hypothesis.heard`), so that one that is sent again after a
crash is understood in the same language.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

SURE = 0.7
"""A language with this probability is the leg's."""
CHANGES = 0.1
"""The part of the belief that is spread over all languages before each utterance."""
FULL_S = 2.0
"""What a shorter piece of speech shows counts less."""
LEAST = 1e-3
"""Languages below this probability are left out of a belief."""

Belief = tuple[tuple[str, float], ...]
"""Codes and their probabilities, the most likely first. Empty: nothing is known."""


def updated(belief: Belief, odds: Mapping[str, float], among: Sequence[str], seconds: float) -> Belief:
    """The belief after an utterance.

    Args:
        odds: the probability of each language, as the network hears the utterance alone.
        among: the languages that are possible.
        seconds: the length of the audio in which it heard them.
    """
    weight = min(1.0, seconds / FULL_S)
    before = dict(belief)
    spread = CHANGES if before else 1.0
    # No language is ruled out for good: a network that was quite sure of the wrong one must be overruled some day.
    found = {
        code: ((1 - spread) * before.get(code, 0.0) + spread / len(among)) * max(odds.get(code, 0.0), LEAST) ** weight
        for code in among
    }
    total = sum(found.values())
    ranked = sorted(((code, chance / total) for code, chance in found.items()), key=lambda each: -each[1])
    return tuple((code, round(chance, 4)) for code, chance in ranked if chance >= LEAST)


def likeliest(belief: Belief) -> str:
    """The code of the most likely language; empty without a belief."""
    return belief[0][0] if belief else ""


def settled(belief: Belief) -> str:
    """The code of the language that the belief is sure of; empty when there is none."""
    return belief[0][0] if belief and belief[0][1] >= SURE else ""
