"""Crosstalk between the legs of a call: a voice that leaks into another leg is transcribed on its own leg only.

An utterance is compared while it lasts, a segment at a time, with the legs that have speech at the same time. It
counts as a copy while each of its segments is one. The first segment that is not makes it genuine for good. Of two legs
with the same sound the louder one keeps it; if both are equally loud, the leg that comes first in the call does.
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
"""Lengths of a compared segment in positions. A segment below LEAST decides nothing. One of ENOUGH that resembles no
other leg is genuine. No segment is longer than LONGEST."""
OVERLAP = 3 * SECOND // 2
"""A short new segment is compared together with the audio before it, up to this length."""
SHARE, SHARE_S = 0.25, 0.35
"""In a copy the other leg explains at least SHARE + SHARE_S / seconds of the sound: short sounds are alike by
chance."""
KNOWN_SHARE, KNOWN_SHARE_S = 0.25, 0.1
"""The same limit where an earlier utterance had the same delay between the two legs."""
LIKELY_SHARE = 0.4
"""From this share on the delay between the two legs is remembered for later utterances."""
EVEN, LEAST_EVEN = 0.35, 0.2
"""Each loud part of a copy is explained to at least EVEN times the share of the whole, and to at least LEAST_EVEN. A
part that is explained less has another voice in it."""
QUIETER_DB = -8.0
"""The highest level of crosstalk relative to its source. A sound that is as loud may be a mix that both legs carry."""
SAME_SHARE, SAME_DB = 0.8, 3.0
"""Limits for such a mix: the least share that the other leg explains, and the difference of levels up to which both
legs count as equally loud."""

Samples = NDArray[np.int16]


@dataclass(slots=True)
class Comparison:
    """The state of one utterance's comparison with the other legs. Positions are those of its own leg."""

    compared: int
    """The position up to which the utterance has been compared."""
    copy_of: str = ""
    """The leg that the sound comes from, by what has been compared so far; empty if it is no copy."""
    own: bool = False
    """The utterance is genuine: later audio cannot make it a copy."""
    doubtful: bool = False
    """The utterance is no copy so far, but may become one: it resembles another leg, or that leg's audio lags."""


class Talker(Protocol):
    """A leg and the speech on it."""

    name: str
    leg: Leg

    def talked_ms(self, start_ms: int, end_ms: int) -> int:
        """The duration of speech in this part of the call, without copies."""


class Crosstalk:
    """The comparison of one call's legs.

    `talkers` returns the legs in the order of the call; `call_ms` returns the call time of a leg's position.
    """

    def __init__(self, talkers: Callable[[], Iterable[Talker]], call_ms: Callable[[Leg, int], int]) -> None:
        self._talkers, self._call_ms = talkers, call_ms
        self._delays: dict[tuple[str, str], tuple[int, Comparison]] = {}
        """(leg, leg that leaks into it) → the latest likely delay, and the comparison that found it."""

    def compare(self, name: str, start: int, end: int, found: Comparison, *, last: bool = False) -> bool:
        """Whether the utterance of the leg, which began at `start`, is another leg's sound up to `end`.

        `last`: the utterance has ended. If it is no copy by now, it is genuine.
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
        """Whether [low, high) of `own` is the sound of `other`. `later`: `own` comes after `other` in the call."""
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
    """(end - start,) at 8 kHz; zeros where the leg has no audio yet, or has overwritten it."""
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
