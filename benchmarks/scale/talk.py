"""How calls talk: two people take turns, and each utterance asks for what `benchmarks.engine.talk` asks for."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

from asr import messages
from benchmarks.engine.plan import CODES_PER_MS
from benchmarks.engine.talk import requests, talk

BYTES_PER_S = 100
"""Of the audio here: nobody hears it, and real audio of so many calls would take gigabytes."""
SOUND = b"\xff" * (60 * BYTES_PER_S)
SPEAKERS, SECONDS = 100, 30.0
"""Whose utterances are taken as patterns for those of all calls."""
GOES_ON = 0.3
"""How often the same person speaks again."""


class Kind(Enum):
    PARTIAL = "partial"
    SUSPECTED = "suspected"
    """A speculative final."""
    WITHDRAWN = "withdrawn"
    """The speaker has gone on."""
    ENDPOINT = "endpoint"


class Mark(NamedTuple):
    at_s: float
    """After the utterance has begun."""
    kind: Kind
    heard: int
    """Bytes of audio up to here."""


Pattern = tuple[Mark, ...]


def patterns(clips: Sequence[bytes], *, partial_ms: int, seed: int) -> list[Pattern]:
    """What utterances ask for. `clips`: recorded speech, µ-law. Raises ValueError: nobody speaks in it."""
    spoken = talk(clips, people=SPEAKERS, seconds=SECONDS, seed=seed)
    begun_s = {each.id: each.start_s for each in spoken}
    found: dict[str, list[Mark]] = {each.id: [] for each in spoken}
    for arrival in requests(spoken, partial_ms=partial_ms, seconds=SECONDS):
        match arrival.message:
            case messages.PartialRequest(utterance_id=name, end=end):
                kind = Kind.PARTIAL
            case messages.FinalRequest(utterance_id=name, end=end):
                kind = Kind.SUSPECTED
            case messages.Withdraw(utterance_id=name):
                kind, end = Kind.WITHDRAWN, 0
            case messages.CloseUtterance(utterance_id=name):
                kind, end = Kind.ENDPOINT, 0
            case _:
                continue
        heard = end * BYTES_PER_S // (1000 * CODES_PER_MS)
        found[name].append(Mark(arrival.time_s - begun_s[name], kind, heard))
    return [tuple(marks) for marks in found.values()]
