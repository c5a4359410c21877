"""Joins the finals of a leg into turns. A pause ends a final but not a turn, so a phrase may extend over a pause.

A turn ends when another leg speaks or after a long pause. No I/O.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping

from asr.text import joined, words
from mediaworker.events import schema as events

Transcript = events.TranscriptPartial | events.TranscriptFinal

PAUSE_MS = 5000
"""A longer pause ends a turn."""
BACKCHANNEL_WORDS = 2
"""The most words of another leg that are a back-channel ("mhm", "all right") and do not end a turn."""
MAX_CHARS = 1000
"""The length of a turn beyond which its first finals are dropped."""


class Turn:
    """The joined finals of one leg; the last ones may be partials."""

    def __init__(self) -> None:
        self.text = ""
        self.latest = 0
        """The place in the text at which the latest final begins."""
        self.end_ms = 0
        """The end of the latest final, in call time."""
        self._begins: list[tuple[int, int]] = []
        """The place in the text and the start time of each final."""

    def add(self, body: Transcript) -> None:
        text = body.text.strip()
        self.text = joined([self.text, text])
        self.latest, self.end_ms = len(self.text) - len(text), body.end_ms
        self._begins.append((self.latest, body.start_ms))
        while len(self.text) > MAX_CHARS and len(self._begins) > 1:
            cut = self._begins[1][0]
            self.text, self.latest = self.text[cut:], self.latest - cut
            self._begins = [(place - cut, start_ms) for place, start_ms in self._begins[1:]]

    def since(self, place: int) -> tuple[str, int]:
        """Return the text from the final that contains this place, and the start time of that final."""
        begin, start_ms = max(each for each in self._begins if each[0] <= place)
        return self.text[begin:], start_ms


class Turns:
    """The turns of a call, by leg."""

    def __init__(self) -> None:
        self._turns: dict[str, Turn] = {}
        self._partials: dict[str, dict[str, events.TranscriptPartial]] = {}
        """For each leg the latest partial of every utterance that has no final yet."""
        self._spoke: dict[str, tuple[int, int]] = {}
        """For each leg the start and end of its latest final that was more than a back-channel."""

    def on_final(self, final: events.TranscriptFinal) -> Turn | None:
        """Add a final; return the turn that ends with it, or None if it has no text."""
        self._partials.get(final.leg, {}).pop(final.utterance_id, None)
        if not final.text:
            return None
        turn = self._turns.get(final.leg)
        if turn is None or self._is_over(turn, final):
            turn = self._turns[final.leg] = Turn()
        turn.add(final)
        if len(words(final.text)) > BACKCHANNEL_WORDS:
            self._spoke[final.leg] = final.start_ms, final.end_ms
        return turn

    def on_partial(self, partial: events.TranscriptPartial) -> Turn:
        """Return the turn that would end with this partial if it were a final. Earlier utterances of the leg that have
        no finals yet count by their partials."""
        waiting = self._partials.setdefault(partial.leg, {})
        waiting[partial.utterance_id] = partial
        turn = copy.deepcopy(self._turns.get(partial.leg, Turn()))
        for each in waiting.values():
            if self._is_over(turn, each):
                turn = Turn()
            turn.add(each)
        return turn

    def _is_over(self, turn: Turn, body: Transcript) -> bool:
        """Whether what is said here no longer belongs to the turn."""
        return body.start_ms - turn.end_ms > PAUSE_MS or is_interrupted(self._spoke, turn.end_ms, body)


def is_interrupted(spoke: Mapping[str, tuple[int, int]], since_ms: int, body: Transcript) -> bool:
    """Whether another leg has spoken between `since_ms` and the beginning of `body`. `spoke`: the start and the end of
    what each leg has said last."""
    others = (span for leg, span in spoke.items() if leg != body.leg)
    return any(start_ms < body.start_ms and since_ms < end_ms for start_ms, end_ms in others)
