"""What each leg has said since somebody else spoke: a pause ends a final but no turn, and a phrase may lie over it.

Pure.
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
"""So few words of somebody else ("mhm", "all right") do not end a turn."""
MAX_CHARS = 1000
"""So much of a turn is remembered, in whole finals."""


class Turn:
    """Finals of one leg, joined; the last ones may be partials."""

    def __init__(self) -> None:
        self.text = ""
        self.latest = 0
        """Where in the text the latest final begins."""
        self.end_ms = 0
        self._begins: list[tuple[int, int]] = []
        """Where in the text each final begins, and when."""

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
        """The text from the final on in which this place is, and when that began."""
        begin, start_ms = max(each for each in self._begins if each[0] <= place)
        return self.text[begin:], start_ms


class Turns:
    """The turns of a call, by leg."""

    def __init__(self) -> None:
        self._turns: dict[str, Turn] = {}
        self._partials: dict[str, dict[str, events.TranscriptPartial]] = {}
        """Leg → utterance → its latest partial, until its final comes."""
        self._spoke: dict[str, tuple[int, int]] = {}
        """Leg → the start and the end of its latest final that was more than a back-channel."""

    def on_final(self, final: events.TranscriptFinal) -> Turn | None:
        """The turn that ends with this final; None if it has no text."""
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
        """The turn that would end with this partial if it were a final. Earlier utterances may have no finals yet."""
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
