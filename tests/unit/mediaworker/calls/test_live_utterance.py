"""What an utterance remembers of the engine's hypotheses while it is spoken."""

from __future__ import annotations

from asr.utterance import Hypothesis
from mediaworker.calls.live_utterance import LiveUtterance, Speaker


def test_a_hypothesis_that_names_no_language_leaves_the_one_that_was_heard() -> None:
    utterance = LiveUtterance(
        id="u",
        engine_id="u",
        start=0,
        audio_start=0,
        start_ms=0,
        sent=0,
        next_partial=0,
        cut_from=0,
        language="",
        speaker=Speaker("customer"),
    )
    languages = []
    for number, (text, language) in enumerate([("eins", "de"), ("eins zwei", ""), ("one two", "en")]):
        partial = utterance.partial("main", Hypothesis("u", number, text, language, 0, False), 100)
        assert partial is not None and (partial.text, partial.revision) == (text, number + 1)
        languages.append(partial.language)
    assert languages == ["de", "de", "en"]
    assert utterance.partial("main", Hypothesis("u", 3, "one two", "en", 0, False), 100) is None
