"""People who all talk, as the engine hears them: utterances of 2 to 8 s, partials, speculative finals. No I/O.

What a call asks for is what `mediaworker.calls.transcriber` asks for: a first partial 250 ms after speech has begun,
more that follow quickly until a word is shown, and one every `partial_ms` from then on; a speculative final after
160 ms of quiet, also in the midst of an utterance; and the next partial 250 ms after the speaker has gone on. The last
speculative final is the one that counts: it is wanted 340 ms later, when the quiet has lasted for 500 ms and the
utterance is over.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from asr import messages
from asr.utterance import Utterance
from audio.codecs.g711 import ulaw_decode
from benchmarks.engine.plan import (
    BREATH_MS,
    CODES_PER_MS,
    FRAME,
    LEADS_MS,
    QUIET,
    SILENCE,
    TAIL_MS,
    Arrival,
    Spoken,
    cut,
    next_partial_ms,
    utterances,
)
from config.settings import Endpointing
from mediaworker.calls.live_utterance import FIRST_PARTIAL_MS
from mediaworker.calls.transcriber import APPEND_MS

FRAME_MS = FRAME // CODES_PER_MS
WARM_S = 5.0
"""What is asked in the first seconds is not counted: not everybody talks yet."""
LENGTHS_S = (2.0, 7.0)
"""An utterance takes in pieces of the clips until it is at least so long, which is drawn."""
LONGEST_S = 8.0
"""An utterance that has become longer is cut at a quiet spot in its last second."""
ENDS_MS = Endpointing().min_silence_ms - TAIL_MS
"""From the speculative final to the end of the utterance."""


def talk(clips: Sequence[bytes], *, people: int, seconds: float, seed: int) -> list[Spoken]:
    """What `people` say who say one utterance after the other until `WARM_S + seconds` are over. `clips`: µ-law.

    Raises:
        ValueError: nobody speaks in the clips.
    """
    known = [clip[start:end] for clip in clips for start, end in utterances(clip)]
    if not known:
        raise ValueError("nobody speaks in these clips")
    spoken: list[Spoken] = []
    for person in range(people):
        # A generator of their own: more people change nothing in what the others say.
        mine = random.Random(f"{seed}/{person}")
        start_s, number = mine.uniform(0, WARM_S), 0
        while start_s < WARM_S + seconds:
            codes, lead_ms = _phrase(mine, known), mine.choice(LEADS_MS)
            each = Spoken(f"leg-{person}/{number}", start_s, lead_ms, cut(codes, (0, len(codes)), lead_ms))
            spoken.append(each)
            start_s, number = each.end_s + ENDS_MS / 1000, number + 1
    return sorted(spoken, key=lambda each: each.start_s)


def _phrase(rng: random.Random, known: Sequence[bytes]) -> bytes:
    wanted, codes = rng.uniform(*LENGTHS_S) * 1000 * CODES_PER_MS, rng.choice(known)
    while len(codes) < wanted:
        codes += SILENCE * BREATH_MS * CODES_PER_MS + rng.choice(known)
    longest = round(LONGEST_S * 1000 / FRAME_MS)
    if len(codes) <= longest * FRAME:
        return codes
    last = _power(codes)[longest - 1000 // FRAME_MS : longest]
    return codes[: (longest - len(last) + int(last.argmin())) * FRAME]


def _power(codes: bytes) -> NDArray[np.float64]:
    frames = ulaw_decode(codes[: len(codes) // FRAME * FRAME]).astype(np.float64).reshape(-1, FRAME)
    power: NDArray[np.float64] = np.square(frames).mean(axis=1)
    return power


def requests(spoken: Sequence[Spoken], *, partial_ms: int, seconds: float) -> list[Arrival]:
    """The messages about all of them, in the order of their times.

    Args:
        partial_ms: between partials; 0: there are none.
        seconds: the requests of so many after the first `WARM_S` count.
    """
    found = [arrival for each in spoken for arrival in _messages(each, partial_ms, WARM_S + seconds)]
    return sorted(found, key=lambda arrival: arrival.time_s)  # a stable sort: those of an utterance keep their order


def _messages(spoken: Spoken, partial_ms: int, until_s: float) -> Iterator[Arrival]:
    def arrival(at_ms: int, message: messages.ToEngine, *, ready_s: float = 0.0, counts: bool = True) -> Arrival:
        time_s = spoken.start_s + at_ms / 1000
        return Arrival(time_s, message, ready_s, counts and WARM_S <= time_s < until_s)

    name, sent_ms, revision = spoken.id, 0, 0

    def append(at_ms: int) -> Arrival:
        nonlocal sent_ms
        audio = spoken.codes[sent_ms * CODES_PER_MS : at_ms * CODES_PER_MS]
        message = messages.Append(name, sent_ms * CODES_PER_MS, audio)
        sent_ms = at_ms
        return arrival(at_ms, message)

    yield arrival(0, messages.Open(Utterance(name, "PCMU")))
    length_ms, next_ms, paused = len(spoken.codes) // CODES_PER_MS, spoken.lead_ms + FIRST_PARTIAL_MS, False
    for at_ms, quiet_ms in quiet(spoken.codes, spoken.lead_ms):
        if quiet_ms >= TAIL_MS:
            if not paused:
                yield append(at_ms)
                revision += 1
                suspected = messages.FinalRequest(
                    name, revision, at_ms * CODES_PER_MS, commit=False, wanted_in_ms=ENDS_MS
                )
                yield arrival(at_ms, suspected, counts=False)
            paused = True
            continue
        if paused:  # goes on
            paused, next_ms, revision = False, at_ms + FIRST_PARTIAL_MS, revision + 1
            yield arrival(at_ms, messages.Withdraw(name))
        if at_ms >= next_ms and partial_ms:
            yield append(at_ms)
            revision, next_ms = revision + 1, next_partial_ms(at_ms, spoken.lead_ms, partial_ms)
            yield arrival(at_ms, messages.PartialRequest(name, revision, at_ms * CODES_PER_MS))
        elif at_ms - sent_ms >= APPEND_MS:
            yield append(at_ms)
    yield append(length_ms)
    ready_s = spoken.end_s + ENDS_MS / 1000
    last = messages.FinalRequest(name, revision + 1, length_ms * CODES_PER_MS, commit=False, wanted_in_ms=ENDS_MS)
    yield arrival(length_ms, last, ready_s=ready_s)
    yield Arrival(ready_s, messages.CloseUtterance(name))


def quiet(codes: bytes, lead_ms: int) -> Iterator[tuple[int, int]]:
    """(ms, how long it has been quiet by then) for each frame but the last ones, which end the utterance. The quiet
    before the first `lead_ms` is none."""
    power = _power(codes)
    limit = QUIET**2 * float(power.max(initial=1.0))
    quiet_ms = 0
    for frame, loud in enumerate((power > limit).tolist(), 1):
        at_ms = frame * FRAME_MS
        quiet_ms = 0 if loud or at_ms <= lead_ms else quiet_ms + FRAME_MS
        if at_ms <= len(codes) // CODES_PER_MS - TAIL_MS:
            yield at_ms, quiet_ms
