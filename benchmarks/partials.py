"""When the words of a speaker are shown, whether they stay, and when the final follows: on the sample clock.

    python -m benchmarks.partials [--engine moonshine|qwen] [--every N] [--join N] [--verbose]

The worker's own detector, transcriber and engine in one process, with recorded speech in µ-law. Time is that of the
samples, to which the engine adds the CPU time of each step, as on a core of its own: a busy machine does not blur it.
Each of the prompts is a call of its own; with `--join N` they follow each other without a pause in calls of N.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from asr import messages
from asr.engines.plugin import find
from asr.inference.inference import Inference
from asr.utterance import Hypothesis, Utterance
from audio import WINDOW, Codec, Detector
from audio.codecs.g711 import ulaw_decode, ulaw_encode
from benchmarks.words.score import taken_back
from config import Settings
from mediaworker.calls.live_utterance import Speaker
from mediaworker.calls.parts import LegPlan, TranscriberParts
from mediaworker.calls.transcriber import LegTranscriber
from mediaworker.events import schema as events

TICK_S = WINDOW / 8000
REPOSITORY = Path(__file__).parents[1]
DIGITS = REPOSITORY / "tests/data/digits"
TINY = REPOSITORY / "models/qwen3-asr-tiny"


class Engine:
    """The inference process on a core of its own: a step takes the CPU time that it takes, and the next one waits."""

    def __init__(self, settings: Settings) -> None:
        self._inference = Inference(find(settings.asr.engine).create(replace(settings.asr, threads=1), settings.qwen))
        self._inference.engine.warm_up()
        self._heard: dict[str, Callable[[Hypothesis], None]] = {}
        self._sent: dict[str, int] = {}
        self._answers: deque[tuple[float, Hypothesis]] = deque()
        self._free_s = 0.0
        """When the core has ended its step."""
        self.now = 0.0
        self.cpu_s = 0.0

    def open(self, utterance: Utterance, on_hypothesis: Callable[[Hypothesis], None]) -> None:
        self._heard[utterance.id], self._sent[utterance.id] = on_hypothesis, 0
        self._inference.receive(messages.Open(utterance), self.now)

    def append(self, utterance_id: str, audio: bytes) -> None:
        self._inference.receive(messages.Append(utterance_id, self._sent[utterance_id], audio), self.now)
        self._sent[utterance_id] += len(audio)

    def partial(self, utterance_id: str, revision: int) -> None:
        self._ask(messages.PartialRequest(utterance_id, revision, self._sent[utterance_id]))

    def final(self, utterance_id: str, revision: int, *, commit: bool, wanted_in_ms: int = 0) -> None:
        end = self._sent[utterance_id]
        self._ask(messages.FinalRequest(utterance_id, revision, end, commit=commit, wanted_in_ms=wanted_in_ms))

    def withdraw(self, utterance_id: str) -> None:
        self._inference.receive(messages.Withdraw(utterance_id), self.now)

    def commit(self, utterance_id: str) -> None:
        self._inference.receive(messages.CloseUtterance(utterance_id), self.now)

    cancel = commit

    def release(self, stream: str) -> None:
        pass

    def _ask(self, message: messages.PartialRequest | messages.FinalRequest) -> None:
        self._free_s = max(self._free_s, self.now)
        self._inference.receive(message, self.now)

    def run(self, until_s: float) -> None:
        """Work and answer up to this time."""
        while True:
            while self._answers and self._answers[0][0] <= self._free_s:
                self.now, hypothesis = self._answers.popleft()
                self._heard[hypothesis.utterance_id](hypothesis)
            if self._free_s > until_s or (work := self._inference.choose(self._free_s)) is None:
                break
            begun_s = time.process_time()
            answers = self._inference.perform(work, self._free_s)
            took_s = time.process_time() - begun_s
            self._free_s, self.cpu_s = self._free_s + took_s, self.cpu_s + took_s
            self._answers += [(self._free_s, each.hypothesis) for each in answers if isinstance(each, messages.Heard)]
        self.now = until_s


@dataclass
class Shown:
    """An utterance as a reader saw it."""

    start_s: float
    partials: list[tuple[float, events.TranscriptPartial]] = field(default_factory=list)
    end_s: float = 0.0
    final_s: float = 0.0
    final: events.TranscriptFinal | None = None

    @property
    def texts(self) -> list[str]:
        return [body.text for _, body in self.partials] + ([self.final.text] if self.final is not None else [])

    def broken(self, *, exact: bool) -> int:
        """Partials of whose stable part something is other text in a later revision; unless `exact`, another word."""
        texts = self.texts
        same = (lambda text: text) if exact else _plain
        return sum(
            any(not same(later).startswith(same(body.text[: body.stable_chars])) for later in texts[at + 1 :])
            for at, (_, body) in enumerate(self.partials)
        )


def _plain(text: str) -> str:
    return "".join(each for each in text.casefold() if each.isalnum())


def call(engine: Engine, settings: Settings, samples: NDArray[np.int16], name: str) -> list[Shown]:
    """A call of one leg that says this."""
    detector, found = Detector(), dict[str, Shown]()
    profile = settings.endpointing.assist
    leg = detector.open(Codec.PCMU, profile, transport="stream")
    begun_s = engine.now = max(engine.now, 0.0) + 1.0

    def publish(_: int, body: events.EventBody) -> None:
        now_s = engine.now - begun_s
        match body:
            case events.SpeechStarted():
                found[body.utterance_id] = Shown(body.start_ms / 1000)
            case events.TranscriptPartial():
                found[body.utterance_id].partials.append((now_s, body))
            case events.TranscriptFinal():
                shown = found[body.utterance_id]
                shown.end_s, shown.final_s, shown.final = body.end_ms / 1000, now_s, body

    transcriber = LegTranscriber(
        leg, LegPlan("main", Speaker("customer"), f"{name}/", profile, settings.asr.partial_ms),
        TranscriberParts(engine, lambda: engine.now), publish=publish,
        call_ms=lambda position: position // 8, drained=lambda: None,
    )  # fmt: skip
    codes = bytes(ulaw_encode(samples)) + b"\xff" * 16000
    leg.start(begun_s)
    for at in range(0, len(codes) - WINDOW + 1, WINDOW):
        now = begun_s + (at + WINDOW) / 8000
        engine.run(now)
        leg.receive_chunk(at, codes[at : at + WINDOW], now)
        for detections in detector.step(now):
            for detection in detections:
                transcriber.on_detection(detection)
        transcriber.feed()
    for detection in detector.finish(leg, "hangup"):
        transcriber.on_detection(detection)
    while transcriber.open_utterances:
        engine.run(engine.now + TICK_S)
    detector.close(leg)
    return list(found.values())


def speech(engine: str, every: int) -> list[NDArray[np.int16]]:
    if engine == "qwen":
        return [
            ulaw_decode(np.frombuffer((DIGITS / f"{name}.ulaw").read_bytes(), np.uint8))
            for name in ("agent", "customer", "long")
        ]
    from benchmarks.words.prompts import recorded

    return [prompt.samples(8000) for prompt in recorded()[::every]]


def report(found: Sequence[Shown], engine: Engine, heard_s: float) -> None:
    first = [each.partials[0][0] - each.start_s for each in found if each.partials]
    followed, back = _taken_back([body.text for _, body in each.partials] for each in found)
    to_final, back_to_final = _taken_back(each.texts for each in found)
    partials = sum(len(each.partials) for each in found)
    behind = [1 - body.stable_chars / len(body.text) for each in found for _, body in each.partials]
    print(f"{len(found)} utterances, {heard_s:.0f} s, {partials} partials")
    print(f"{1000 * engine.cpu_s / heard_s:.0f} ms of CPU per second of audio")
    print(f"first partial after {_percentiles(first)} of speech; {len(found) - len(first)} without one")
    print(f"taken back: {back} of {followed} ({100 * back / max(1, followed):.1f} %)")
    print(f"with finals: {back_to_final} of {to_final} ({100 * back_to_final / max(1, to_final):.1f} %)")
    for exact in (False, True):
        broken = sum(each.broken(exact=exact) for each in found)
        what = "characters" if exact else "words"
        print(
            f"stable {what} that changed: in {broken} of {partials} partials ({100 * broken / max(1, partials):.2f} %)"
        )
    print(f"not stable of a partial: {100 * statistics.mean(behind or [0]):.0f} % of its characters")
    for reason in ("endpoint", "max_length"):
        ended = [each for each in found if each.final is not None and each.final.reason == reason]
        if delays := [each.final_s - each.end_s for each in ended]:
            print(f"final after {_percentiles(delays)} of the end, {reason}: {len(delays)}")


def _taken_back(texts: Iterable[Sequence[str]]) -> tuple[int, int]:
    followed, back = zip(*map(taken_back, texts), strict=True)
    return sum(followed), sum(back)


def _percentiles(seconds: Sequence[float]) -> str:
    if not seconds:
        return "-"
    p50, p95, p100 = (1000 * each for each in np.quantile(seconds, (0.5, 0.95, 1.0)))
    return f"{p50:.0f} / {p95:.0f} / {p100:.0f} ms (p50, p95, most)"


def main() -> None:
    arguments = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    arguments.add_argument("--engine", choices=("moonshine", "qwen"), default="moonshine")
    arguments.add_argument("--every", type=int, default=3, help="of the prompts each so many-th")
    arguments.add_argument("--join", type=int, default=1, help="so many prompts in a call, without a pause")
    arguments.add_argument("--verbose", action="store_true", help="every text that was shown")
    given = arguments.parse_args()
    settings = Settings()
    model = str(TINY) if given.engine == "qwen" else settings.asr.model
    settings = replace(settings, asr=replace(settings.asr, engine=given.engine, model=model))
    engine, found, heard_s = Engine(settings), list[Shown](), 0.0
    clips = speech(given.engine, given.every)
    if given.join > 1:
        clips = [_without_pauses(clips[at : at + given.join]) for at in range(0, len(clips), given.join)]
    for number, samples in enumerate(clips):
        heard_s += len(samples) / 8000
        shown = call(engine, settings, samples, str(number))
        found += shown
        for each in shown if given.verbose else ():
            for at_s, body in each.partials:
                print(f"{at_s - each.start_s:7.2f} {body.text[: body.stable_chars]}|{body.text[body.stable_chars :]}")
            print(f"{each.final_s - each.end_s:7.2f} {each.texts[-1]}")
    report(found, engine, heard_s)


def _without_pauses(clips: Sequence[NDArray[np.int16]]) -> NDArray[np.int16]:
    """One behind the other without what is quiet for longer than 60 ms."""
    joined = np.concatenate(clips)
    frames = joined[: len(joined) // 160 * 160].reshape(-1, 160)
    loud = np.abs(frames.astype(np.int32)).max(axis=1) > 400
    kept = loud | np.roll(loud, 1) | np.roll(loud, 2) | np.roll(loud, -1)
    spoken: NDArray[np.int16] = frames[kept].reshape(-1)
    return spoken


if __name__ == "__main__":
    main()
