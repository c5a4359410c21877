"""Who speaks when: the arrivals of the engine benchmark, the same for every design with the same seed. No I/O."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from asr import messages
from asr.messages import ToEngine
from asr.utterance import Utterance
from audio.codecs.g711 import ulaw_decode, ulaw_encode
from mediaworker.calls.live_utterance import FIRST_PARTIAL_MS, until_partial_ms
from mediaworker.calls.transcriber import APPEND_MS

CODES_PER_MS = 8
FRAME = 20 * CODES_PER_MS
SHOWN_MS = 500
"""So long after speech has begun a word is shown, as with Moonshine, whatever the engine here answers: until then
partials follow each other quickly."""
QUIET = 0.02
"""RMS of a frame against that of the loudest one: below it nobody speaks."""
PAUSE_FRAMES = 20
"""So many quiet frames end an utterance."""
LONGEST = 30_000 * CODES_PER_MS
"""Of an utterance, as `max_utterance_s` has it."""
TAIL_MS = 160
"""Of quiet that a final hears, as `speculate_ms` has it."""
LEADS_MS = range(40, 241, 20)
"""Of quiet before speech. It is drawn for each utterance: no two need to be cut into the same frames."""
LISTENS_S = (0.5, 2.5)
"""Between two utterances of a leg."""
STAGGER_S = 2.0
BREATH_MS = 200
"""Between pieces that are said in one utterance: shorter than what ends it."""
SILENCE = b"\xff"
WORDS = "zero one two three four five six seven eight nine".split()
"""Of a context."""


@dataclass(frozen=True, slots=True)
class Spoken:
    """An utterance of a live leg."""

    id: str
    start_s: float
    lead_ms: int
    """Of quiet at its beginning."""
    codes: bytes
    """µ-law, as much as its final hears."""

    @property
    def end_s(self) -> float:
        return self.start_s + len(self.codes) / CODES_PER_MS / 1000


@dataclass(frozen=True, slots=True)
class Arrival:
    time_s: float
    message: ToEngine
    ready_s: float = 0.0
    """Nobody waits for the answer before: it was asked for on suspicion."""
    counts: bool = True
    """Whether the wait for the answer is one of the figures."""


def utterances(clip: bytes) -> list[tuple[int, int]]:
    """Where somebody speaks in a µ-law clip: (start, end), cut at its pauses, and where one grows too long."""
    frames = ulaw_decode(clip[: len(clip) // FRAME * FRAME]).astype(np.float64).reshape(-1, FRAME)
    rms = np.sqrt(np.square(frames).mean(axis=1))
    loud = np.flatnonzero(rms > max(1.0, QUIET * float(rms.max(initial=0.0))))
    found: list[tuple[int, int]] = []
    for frame in loud.tolist():
        start, end = frame * FRAME, (frame + 1) * FRAME
        if found and start - found[-1][1] < PAUSE_FRAMES * FRAME and end - found[-1][0] <= LONGEST:
            found[-1] = (found[-1][0], end)
        else:
            found.append((start, end))
    return found


def cut(clip: bytes, where: tuple[int, int], lead_ms: int) -> bytes:
    """One of them with some quiet around it; where the clip has none, digital silence."""
    lead, tail = lead_ms * CODES_PER_MS, TAIL_MS * CODES_PER_MS
    start, end = where
    before, after = clip[max(0, start - lead) : start], clip[end : end + tail]
    return before.rjust(lead, SILENCE) + clip[start:end] + after.ljust(tail, SILENCE)


def plan(clips: Sequence[bytes], *, calls: int, seconds: float, seed: int, join: int = 1) -> list[Spoken]:
    """What `calls` legs say: each begins at a moment of its own and speaks, listens, speaks. The last utterances begin
    before `seconds` and end after. `join`: pieces of the clips in one utterance, as far as 30 s hold them.
    """
    rng = random.Random(seed)
    known = [(clip, where) for clip in clips for where in utterances(clip)]
    if not known:
        raise ValueError("nobody speaks in these clips")
    spoken: list[Spoken] = []
    for leg in range(calls):
        # A leg's own generator: more legs or more seconds change nothing in what is there already.
        mine = random.Random(f"{seed}/{leg}")
        start_s, number = rng.uniform(0, min(STAGGER_S, seconds / 2)), 0
        while start_s < seconds:
            (clip, where), lead_ms = mine.choice(known), mine.choice(LEADS_MS)
            codes = cut(clip, where, lead_ms)
            for _ in range(join - 1):
                clip, where = mine.choice(known)
                more = cut(clip, where, BREATH_MS - TAIL_MS)
                codes += more if len(codes) + len(more) <= LONGEST else b""
            each = Spoken(f"leg-{leg}/{number}", start_s, lead_ms, codes)
            spoken.append(each)
            start_s, number = each.end_s + mine.uniform(*LISTENS_S), number + 1
    return sorted(spoken, key=lambda each: each.start_s)


def next_partial_ms(at_ms: int, lead_ms: int, partial_ms: int) -> int:
    """When the next partial of an utterance is requested after that at `at_ms`, as a call does it."""
    said_ms = at_ms - lead_ms
    return at_ms + until_partial_ms(said_ms, partial_ms, shown=said_ms > SHOWN_MS)


def arrivals(spoken: Sequence[Spoken], *, partial_ms: int, context: int = 0) -> list[Arrival]:
    """The messages of all legs, in the order of their times. `context`: words that each leg gives the engine with its
    utterances, others than its neighbours."""
    found = [arrival for each in spoken for arrival in _messages(each, partial_ms, context)]
    return sorted(found, key=lambda arrival: arrival.time_s)  # a stable sort: those of an utterance keep their order


def _messages(spoken: Spoken, partial_ms: int, context: int) -> Iterator[Arrival]:
    """As `mediaworker.calls.transcriber` sends them: audio in small pieces, partials while it goes on, then the
    final."""
    length_ms = len(spoken.codes) // CODES_PER_MS
    asks, next_ms = set[int](), spoken.lead_ms + FIRST_PARTIAL_MS
    while next_ms < length_ms:
        asks.add(next_ms)
        next_ms = next_partial_ms(next_ms, spoken.lead_ms, partial_ms)
    sent = revision = 0
    known = random.Random(spoken.id.partition("/")[0]).choices(WORDS, k=context)
    yield Arrival(spoken.start_s, messages.Open(Utterance(spoken.id, "PCMU", context=" ".join(known))))
    for at_ms in sorted({*range(APPEND_MS, length_ms, APPEND_MS), *asks, length_ms}):
        time_s, end = spoken.start_s + at_ms / 1000, at_ms * CODES_PER_MS
        yield Arrival(time_s, messages.Append(spoken.id, sent, spoken.codes[sent:end]))
        sent = end
        if at_ms in asks:
            revision += 1
            yield Arrival(time_s, messages.PartialRequest(spoken.id, revision, end))
    yield Arrival(spoken.end_s, messages.FinalRequest(spoken.id, revision + 1, sent, commit=True))


def pieces(clips: Sequence[bytes]) -> Iterator[bytes]:
    """The utterances of a file without an end, one after the other."""
    found = [cut(clip, where, LEADS_MS[0]) for clip in clips for where in utterances(clip)]
    while True:
        yield from found


LENGTHS = (0.4, 1.6)
"""Times the mean length of an utterance: the shortest and the longest."""


def steady(sound: bytes, *, streams: int, seconds: float, utterance_s: float, seed: int) -> list[Spoken]:
    """`streams` people who never pause: each says one utterance after the other until `seconds` are over, and the first
    begin at different moments. `sound`: µ-law to cut them from."""
    spoken: list[Spoken] = []
    for stream in range(streams):
        mine = random.Random(f"{seed}/{stream}")
        start_s, number = mine.uniform(0, utterance_s), 0
        while start_s < seconds:
            length = min(LONGEST, round(1000 * utterance_s * mine.uniform(*LENGTHS)) * CODES_PER_MS)
            at = mine.randrange(len(sound) - length)
            each = Spoken(f"stream-{stream}/{number}", start_s, 0, sound[at : at + length])
            spoken.append(each)
            start_s, number = each.end_s, number + 1
    return sorted(spoken, key=lambda each: each.start_s)


def babble(seconds: float, seed: int) -> bytes:
    """µ-law of nobody: a hum and noise in syllables, and louder and softer over seconds as speech is."""
    rng = np.random.default_rng(seed)
    time_s = np.arange(int(seconds * 1000 * CODES_PER_MS)) / (1000 * CODES_PER_MS)
    syllables = (0.5 + 0.5 * np.sin(2 * np.pi * 4 * time_s)) ** 2
    phrases = np.interp(time_s, np.arange(int(seconds) + 1), rng.uniform(0.3, 1.0, int(seconds) + 1))
    sound = syllables * phrases * (np.sin(2 * np.pi * 220 * time_s) + 0.3 * rng.standard_normal(len(time_s)))
    return bytes(ulaw_encode((6000 * sound).astype(np.int16)))
