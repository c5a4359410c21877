"""How much crosstalk is withheld, and how many utterances of a leg's own are withheld by mistake.

Two people talk at random, often at once, in Asterisk's recorded prompts: every other one faster, which is another
voice. What one of them says is heard on the other's line: quieter, later, through a room or not. Legs, voice activity
detection and transcribers are the worker's; the recogniser answers at once, with a word for every WORD_MS.

    python -m benchmarks.crosstalk [--minutes 30] [--seed 1]
"""

from __future__ import annotations

import argparse
import random
import sys
import time
import wave
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from asr.client.recognizer import Recognizer
from asr.utterance import Hypothesis
from audio import Codec, Detector, Leg
from audio.codecs.g711 import ulaw_encode
from config import Endpointing
from lab.media.speech import SPEECH
from mediaworker.calls.crosstalk import Crosstalk
from mediaworker.calls.live_utterance import Speaker
from mediaworker.calls.parts import LegPlan, TranscriberParts
from mediaworker.calls.transcriber import LegTranscriber
from mediaworker.events import schema as events

HZ = 8000
CALL_S = 60
WORD_MS = 700
OWN_MS = 200
"""An utterance with so much speech of its own is not crosstalk, whatever else is heard in it."""
ROOMS = ("line", "room")
LEVELS_DB = (-15, -25, -35)
NOISE_DB = -65

Floats = NDArray[np.float32]


@dataclass
class Outcome:
    counted: Counter[str] = field(default_factory=Counter)
    first_ms: list[int] = field(default_factory=list)
    """From the beginning of each own utterance to its first partial."""
    cpu_s: float = 0.0


def prompts() -> list[Floats]:
    found = []
    for path in sorted(SPEECH.rglob("*.wav")):
        with wave.open(str(path)) as file:
            samples = np.frombuffer(file.readframes(file.getnframes()), np.int16).astype(np.float32)
        if len(samples) > HZ // 2 and np.sqrt(np.mean(samples**2)) > 300:
            found.append(samples)
    return found


def voice(samples: Floats, faster: float) -> Floats:
    at = np.arange(0, len(samples) - 1, faster)
    return np.interp(at, np.arange(len(samples)), samples).astype(np.float32)


def talk(chance: random.Random, said: list[Floats], faster: float) -> Floats:
    """CALL_S seconds of one person, who talks about half of the time."""
    pieces, length = [np.zeros(0, np.float32)], 0
    while length < CALL_S * HZ:
        gap = np.zeros(int(chance.uniform(0.7, 6.0) * HZ), np.float32)
        pieces += [gap, voice(chance.choice(said), faster)]
        length += len(pieces[-1]) + len(gap)
    return np.concatenate(pieces)[: CALL_S * HZ]


def room(chance: np.random.Generator) -> Floats:
    """An echo that falls by 60 dB in 0.15 to 0.4 s, the direct sound 6 to 15 dB below what it adds up to."""
    length = int(chance.uniform(0.15, 0.4) * HZ)
    answer = chance.normal(0, 1, length) * np.exp(-6.9 * np.arange(length) / length)
    answer[0] = chance.uniform(2, 6)
    return cast(Floats, (answer / np.sqrt(np.sum(answer**2))).astype(np.float32))


def heard(said: Floats, level_db: float, delay: int, answer: Floats | None) -> Floats:
    sound = said if answer is None else np.convolve(said, answer)[: len(said)]
    return np.concatenate([np.zeros(delay, np.float32), sound])[: len(said)] * np.float32(10 ** (level_db / 20))


def call(lines: dict[str, Floats], own: dict[str, Floats], chance: np.random.Generator, outcome: Outcome) -> None:
    detector, profile = Detector(), Endpointing()
    published: list[tuple[int, Any]] = []
    transcribers: dict[str, LegTranscriber] = {}
    crosstalk = Crosstalk(transcribers.values, lambda leg, position: max(0, position // 8))
    codes = {}
    for name, line in lines.items():
        noisy = line + chance.normal(0, 32768 * 10 ** (NOISE_DB / 20), len(line))
        codes[name] = ulaw_encode(np.clip(np.round(noisy), -32768, 32767).astype(np.int16))
        leg = detector.open(Codec.PCMU, profile, transport="stream")
        leg.start(0.0)
        transcribers[name] = LegTranscriber(
            leg, LegPlan(name, Speaker("unknown"), f"{name}/", profile, 500),
            TranscriberParts(cast(Recognizer, Counting()), lambda: 0.0),
            publish=partial(_note, published, leg), call_ms=lambda position: position // 8,
            drained=lambda: None, crosstalk=Timed(crosstalk, outcome),  # type: ignore[arg-type]
        )  # fmt: skip
        leg.key = transcribers[name]
    for at in range(0, CALL_S * HZ, 160):
        for name, transcriber in transcribers.items():
            transcriber.leg.receive_chunk(at, codes[name][at : at + 160], at / HZ)
        for detections in detector.step((at + 160) / HZ):
            for detection in detections:
                detection.leg.key.on_detection(detection)
        for transcriber in transcribers.values():
            transcriber.feed()
    firsts: dict[str, int] = {}
    for at_ms, body in published:
        if isinstance(body, events.TranscriptPartial):
            firsts.setdefault(body.utterance_id, at_ms - body.start_ms)
        elif isinstance(body, events.TranscriptFinal):
            _count(body, own[body.leg], firsts.get(body.utterance_id), outcome)


def _note(published: list[tuple[int, Any]], leg: Leg, at_ms: int, body: Any) -> None:
    published.append((leg.position // 8, body))


def _count(final: events.TranscriptFinal, own: Floats, first_ms: int | None, outcome: Outcome) -> None:
    """`own`: what the leg's own speaker said, without anything else; `first_ms`: when the first partial was shown."""
    part = own[final.start_ms * 8 : final.end_ms * 8]
    frames = part[: len(part) // 80 * 80].reshape(-1, 80)
    own_ms = 10 * int(np.sum(np.sqrt(np.mean(frames**2, axis=1)) > 100)) if len(frames) else 0
    kind = "own" if own_ms >= OWN_MS else "crosstalk"
    outcome.counted[kind] += 1
    outcome.counted[f"{kind} withheld"] += bool(final.crosstalk)
    outcome.counted["shown before"] += bool(final.crosstalk) and first_ms is not None
    if kind == "own" and first_ms is not None:
        outcome.first_ms.append(first_ms)


class Counting:
    """A recogniser that answers at once, with as many words as there is time for."""

    def open(self, utterance: Any, on_hypothesis: Any) -> None:
        self.answer, self.heard = on_hypothesis, 0

    def append(self, utterance_id: str, audio: bytes) -> None:
        self.heard += len(audio)

    def partial(self, utterance_id: str, revision: int) -> None:
        self._say(utterance_id, revision, final=False)

    def final(self, utterance_id: str, revision: int, *, commit: bool, wanted_in_ms: int = 0) -> None:
        self._say(utterance_id, revision, final=True)

    def _say(self, utterance_id: str, revision: int, *, final: bool) -> None:
        text = " ".join(["word"] * (self.heard // (8 * WORD_MS)))
        self.answer(Hypothesis(utterance_id, revision, text, "", 0, final))

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **more: None


@dataclass
class Timed:
    crosstalk: Crosstalk
    outcome: Outcome

    def compare(self, *args: Any, **more: Any) -> bool:
        start_s = time.process_time()
        try:
            return self.crosstalk.compare(*args, **more)
        finally:
            self.outcome.cpu_s += time.process_time() - start_s


def measure(level_db: float | None, place: str, minutes: float, seed: int) -> Outcome:
    """`level_db`: None: nobody is heard on the other's line."""
    chance, numbers, said, outcome = random.Random(seed), np.random.default_rng(seed), prompts(), Outcome()
    for _ in range(max(1, round(minutes * 60 / CALL_S))):
        faster = chance.choice([0.85, 1.0, 1.2])
        own = {"agent": talk(chance, said, 1.0), "customer": talk(chance, said, faster)}
        own["agent"] *= np.float32(10 ** (chance.uniform(-6, 6) / 20))
        lines = dict(own)
        if level_db is not None:
            answer = room(numbers) if place == "room" else None
            delay = chance.randrange(300 * HZ // 1000)
            lines["agent"] = own["agent"] + heard(own["customer"], level_db, delay, answer)
        call(lines, own, numbers, outcome)
    return outcome


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=30.0, help="of calls, each line of the table")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    print("crosstalk            own  withheld  first partial ms   of crosstalk  withheld  after partials   CPU ms/min")
    cases = [(None, "line"), *((level, place) for place in ROOMS for level in LEVELS_DB)]
    for level_db, place in cases:
        found = measure(level_db, place, given.minutes, given.seed)
        name = "none" if level_db is None else f"{level_db} dB, {place}"
        count = found.counted
        print(
            f"{name:17s} {count['own']:6,}  {count['own withheld']:8,}  {np.mean(found.first_ms):16.0f}"
            f"   {count['crosstalk']:12,}  {count['crosstalk withheld']:8,}  {count['shown before']:14,}"
            f"   {1000 * found.cpu_s / given.minutes:6.0f}"
        )
        sys.stdout.flush()


if __name__ == "__main__":
    main()
