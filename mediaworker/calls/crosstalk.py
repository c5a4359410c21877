"""Crosstalk between the legs of a call: whoever is heard on another's line is transcribed on his own alone.

An utterance is compared while it lasts, a stretch at a time, with the legs that talk meanwhile. It is a copy as long
as each of its stretches is, and somebody's own for ever with the first that is not. Of two legs with the same sound
the louder one keeps it; if they are as loud, the one that comes first in the call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from audio import Codec, Leg
from audio.codecs import g711
from audio.crosstalk import AFTER, BEFORE, Likeness, likenesses
from audio.ring import HISTORY

SECOND = 8000
LEAST, ENOUGH, LONGEST = SECOND // 4, SECOND, 3 * SECOND
"""Positions of a stretch: fewer say nothing, from ENOUGH on it is no copy if it is not like one; the longest."""
OVERLAP = 3 * SECOND // 2
"""A short new stretch is compared together with what was before it."""
SHARE, SHARE_S = 0.25, 0.35
"""Of a copy the other leg explains SHARE + SHARE_S / seconds: short sounds are alike by chance."""
KNOWN_SHARE, KNOWN_SHARE_S = 0.25, 0.1
"""The same where an earlier utterance was delayed as much."""
LIKELY_SHARE = 0.4
"""From here on a delay is remembered."""
EVEN, LEAST_EVEN = 0.35, 0.2
"""No loud part of a copy is explained less than that part of the whole is, nor less than this: there would be another
voice in it."""
QUIETER_DB = -8.0
"""Of crosstalk, against where it comes from. What is as loud may be a mix that both legs have: """
SAME_SHARE, SAME_DB = 0.8, 3.0

Samples = NDArray[np.int16]


@dataclass(slots=True)
class Comparison:
    """Of one utterance. Positions are its leg's."""

    compared: int
    """It is a copy up to here."""
    copy_of: str = ""
    """The leg whose sound it is as far as is known; empty: nobody's."""
    own: bool = False
    """It is no copy, whatever comes."""
    doubtful: bool = False
    """It is no copy as far as is known, but may well be one: it is like another leg, or that leg is behind."""


class Talker(Protocol):
    """A leg and who talks there."""

    name: str
    leg: Leg

    def talked_ms(self, start_ms: int, end_ms: int) -> int:
        """How long there was speech in that stretch of the call which is no copy."""


class Crosstalk:
    """Of one call. `talkers` gives its legs in order; `call_ms` the call time of a leg's position."""

    def __init__(self, talkers: Callable[[], Iterable[Talker]], call_ms: Callable[[Leg, int], int]) -> None:
        self._talkers, self._call_ms = talkers, call_ms
        self._delays: dict[tuple[str, str], tuple[int, Comparison]] = {}
        """(leg, leg that may be heard there) → the latest likely delay, and in which utterance."""

    def compare(self, name: str, start: int, end: int, found: Comparison, *, last: bool = False) -> bool:
        """Whether the utterance of the leg, which began at `start`, is another leg's sound up to `end`.

        `last`: it has ended, and is its own unless it is a copy.
        """
        talkers = list(self._talkers())
        own_place, own = next((place, each) for place, each in enumerate(talkers) if each.name == name)
        while not found.own and len(talkers) > 1 and (found.compared < end or not found.copy_of):
            low = max(start, min(found.compared, end - OVERLAP))
            high = min(end, low + LONGEST)
            found.doubtful = False
            source = next(
                (
                    each
                    for place, each in enumerate(talkers)
                    if each is not own and self._is_copy(own, each, low, high, found, later=place < own_place)
                ),
                None,
            )
            if source is None:
                found.own = last or high - low >= ENOUGH
                found.copy_of = ""
                break
            found.compared, found.copy_of = high, source.name
        found.doubtful = found.doubtful and not (found.own or found.copy_of)
        return bool(found.copy_of)

    def _is_copy(self, own: Talker, other: Talker, low: int, high: int, found: Comparison, *, later: bool) -> bool:
        """Whether [low, high) of `own` is the sound of `other`. `later`: `own` comes behind `other` in the call."""
        shift = round(((own.leg.origin_s or 0.0) - (other.leg.origin_s or 0.0)) * SECOND)
        high = min(high, other.leg.position - shift)
        if other.leg.closed:
            return False
        talked_ms = other.talked_ms(self._call_ms(own.leg, low - BEFORE), self._call_ms(own.leg, high))
        if 2 * talked_ms * SECOND < 1000 * (high - low):
            return False
        if high - low < LEAST:
            found.doubtful = found.doubtful or talked_ms > 0
            return False
        here = _samples(own.leg, low, high)
        there = _samples(other.leg, low + shift - BEFORE, high + shift + AFTER)
        pair, seconds = (own.name, other.name), len(here) / SECOND
        known, where = self._delays.get(pair, (0, found))
        alike = likenesses(here, there, known if where is not found else None)
        like = next(alike)
        if where is not found and _like(like, KNOWN_SHARE + KNOWN_SHARE_S / seconds, later=later):
            return True
        like = next(alike, like)
        if _like(like, LIKELY_SHARE, later=later):
            self._delays[pair], found.doubtful = (like.delay, found), True
        return _like(like, SHARE + SHARE_S / seconds, later=later)


def _like(found: Likeness, share: float, *, later: bool) -> bool:
    if found.share < min(share, SAME_SHARE) or found.worst < max(LEAST_EVEN, EVEN * min(found.share, 1.0)):
        return False
    same_db = SAME_DB if later else -SAME_DB
    return found.gain_db <= QUIETER_DB or (found.share >= SAME_SHARE and found.gain_db <= same_db)


def _samples(leg: Leg, start: int, end: int) -> Samples:
    """(end - start,) at 8 kHz; zeros where the leg has nothing, or nothing any more."""
    position = leg.position
    low, high = max(start, 0, position - HISTORY), min(end, position)
    samples = np.zeros(end - start, np.int16)
    if low < high:
        samples[low - start : high - start] = _decoded(leg.codec, leg.read(low, high))
    return samples


def _decoded(codec: Codec, data: bytes) -> Samples:
    if not codec.wide:
        return g711.alaw_decode(data) if codec is Codec.PCMA else g711.ulaw_decode(data)
    pairs = np.frombuffer(data, "<i2").reshape(-1, 2).astype(np.int32)
    result: Samples = (pairs.sum(axis=1) >> 1).astype(np.int16)
    return result
