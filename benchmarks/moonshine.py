"""What Moonshine costs: where its time goes, how long its process takes to start, and how much memory it keeps.

    python -m benchmarks.moonshine profile|start|memory

What is said are Asterisk's recorded prompts (asterisk-core-sounds-en-wav), or the digits of the repository.
"""

from __future__ import annotations

import os
import socket
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from asr import messages
from asr.messages import (
    Append,
    Configure,
    EngineReady,
    FinalRequest,
    Heard,
    Open,
    PartialRequest,
    decode_from_engine,
)
from asr.utterance import Utterance
from benchmarks.engine import run as engine
from config import Settings
from config.process.framing import FramedMessage, Frames, encode

PEOPLE, SECONDS = 4, 12.0
STARTS = 7
SHORT, LONG, LONG_S = 200, 10, 30
STEP = 32_000
"""Bytes between two partials."""


def main() -> None:
    audio = engine.clips(engine.prompts())
    {"profile": profile, "start": start, "memory": memory}[sys.argv[1]](audio)


# -- where the time goes -----------------------------------------------------------------------------------------------


class Profile:
    """CPU time of the calling thread in functions, each without what the others in it take."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.spent_ns: Counter[str] = Counter()
        self._inner_ns: list[int] = []

    def watch(self, owner: Any, function: str, name: Callable[..., str]) -> None:
        """`name`: of the entry, from the arguments of a call."""
        original = getattr(owner, function)

        def watched(*arguments: Any) -> Any:
            begun_ns = time.thread_time_ns()
            self._inner_ns.append(0)
            try:
                return original(*arguments)
            finally:
                took_ns, entry = time.thread_time_ns() - begun_ns, name(*arguments)
                self.spent_ns[entry] += took_ns - self._inner_ns.pop()
                self.calls[entry] += 1
                if self._inner_ns:
                    self._inner_ns[-1] += took_ns

        setattr(owner, function, watched)


def profile(audio: list[bytes]) -> None:
    """Per second of audio, with partials every 500 ms and speculative finals."""
    from asr.engines.moonshine import plugin, session
    from asr.engines.moonshine.model import Model
    from asr.engines.speech import SpeechDetector
    from asr.samples import Wideband
    from benchmarks.engine.arrivals import Clock, Run
    from benchmarks.engine.moonshine_designs import MeteredEngine
    from benchmarks.engine.talk import requests, talk

    folder = plugin.assets()
    assert folder is not None, "the weights are not installed"
    made = MeteredEngine(Model(folder), 1)
    made.warm_up()
    watched = Profile()
    watched.watch(Model, "encode", lambda *_: "encoder")
    watched.watch(Model, "begin", lambda _, audio, said: f"first pass of the decoder, {'a draft' if said else 'plain'}")
    watched.watch(
        Model, "advance", lambda _, audio, said, cache: f"decoder, {'a guess' if len(said) > 1 else 'a token'}"
    )
    watched.watch(Model, "keep", lambda *_: "cutting the cache")
    watched.watch(SpeechDetector, "first", lambda *_: "is it speech")
    watched.watch(Wideband, "feed", lambda *_: "to 16 kHz")
    watched.watch(session.MoonshineSession, "advance", lambda *_: "the rest of a session, argmax included")
    coming = requests(talk(audio, people=PEOPLE, seconds=SECONDS, seed=1), partial_ms=500, seconds=SECONDS)
    run, begun_s = Run(made, coming, iter(()), SECONDS, Clock(cpu=True)), time.process_time()
    run.run()
    took_s, heard_s = time.process_time() - begun_s, sum(map(len, run.tally.audio.values())) / 8000
    watched.spent_ns["scheduler, clean-up, the benchmark"] = round(1e9 * took_s) - sum(watched.spent_ns.values())
    print(f"{heard_s:.0f} s of audio in {len(run.tally.audio)} utterances, {1000 * took_s / heard_s:.1f} ms of CPU a s")
    for name, spent_ns in watched.spent_ns.most_common():
        each = (
            f"{spent_ns / 1e6 / watched.calls[name]:6.2f} ms in {watched.calls[name]}" if name in watched.calls else ""
        )
        print(f"{spent_ns / 1e6 / heard_s:7.2f} ms per s of audio  {name}  {each}")


# -- the inference process ---------------------------------------------------------------------------------------------


class Child:
    """The process as the worker starts it."""

    def __init__(self) -> None:
        self.begun_s = time.monotonic()
        self._requests, theirs = socket.socketpair()
        self._answers, also_theirs = socket.socketpair()
        ends = [theirs.fileno(), also_theirs.fileno()]
        self.process = subprocess.Popen([sys.executable, "-m", "asr.inference.process", *map(str, ends)], pass_fds=ends)
        theirs.close()
        also_theirs.close()
        settings, self._frames, self._count = Settings(), Frames(), 0
        self._received = self._receive()
        self.send(Configure("moonshine", settings.asr, settings.qwen, "error", "console"))
        while not isinstance(next(self._received), EngineReady):
            pass
        self.times_s = [self._time_s()]

    def _time_s(self) -> tuple[float, float]:
        """Since its start, and of CPU."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(") ", 1)[1].split()
        return time.monotonic() - self.begun_s, (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def send(self, message: FramedMessage) -> None:
        self._requests.sendall(encode(message))

    def _receive(self) -> Iterator[messages.FromEngine]:
        while data := self._answers.recv(1 << 16):
            for body in self._frames.feed(data):
                yield decode_from_engine(body)
        raise RuntimeError("the process has ended")

    def transcribe(self, codes: bytes) -> str:
        """With a partial every four seconds."""
        self._count += 1
        name, at, ends = f"u{self._count}", 0, [*range(STEP, len(codes), STEP), len(codes)]
        self.send(Open(Utterance(name, "PCMU")))
        for revision, end in enumerate(ends, 1):
            self.send(Append(name, at, codes[at:end]))
            at, last = end, end == len(codes)
            self.send(FinalRequest(name, revision, end, commit=True) if last else PartialRequest(name, revision, end))
            for message in self._received:
                if isinstance(message, Heard) and message.hypothesis.revision == revision:
                    break
        self.times_s.append(self._time_s())
        return message.hypothesis.text if isinstance(message, Heard) else ""

    def memory_mb(self) -> str:
        fields = dict(line.split(":", 1) for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines())
        return f"{int(fields['VmRSS'].split()[0]) / 1024:.0f} MB, at most {int(fields['VmHWM'].split()[0]) / 1024:.0f}"

    def end(self) -> None:
        self._requests.close()
        self.process.wait()
        self._answers.close()


def start(audio: list[bytes]) -> None:
    """From the start of the process to its readiness, and to the first final, of two seconds of audio."""
    found = []
    for _ in range(STARTS):
        child = Child()
        child.transcribe(max(audio, key=len)[:16000])
        found.append(child.times_s)
        child.end()
    for name, values in zip(("ready", "first answer"), zip(*found, strict=True), strict=True):
        seconds, cpu_s = ([value[at] for value in values] for at in (0, 1))
        waits = f"{statistics.median(seconds):.2f} s, {min(seconds):.2f} to {max(seconds):.2f}"
        print(f"{name}: {waits} in {STARTS} starts; CPU {statistics.median(cpu_s):.2f} s")


def memory(audio: list[bytes]) -> None:
    """Of the process, after utterances and after long ones."""
    child, said = Child(), [clip for clip in audio if len(clip) > 12_000]
    print(f"loaded: {child.memory_mb()}, {len(os.listdir(f'/proc/{child.process.pid}/task'))} threads")
    joined = b"".join(said)
    for turn in range(2):
        for number in range(SHORT):
            child.transcribe(said[number % len(said)][:64_000])
            if number + 1 in (SHORT // 2, SHORT):
                print(f"{turn * SHORT + number + 1} utterances: {child.memory_mb()}")
        for number in range(LONG):
            at = number * 8000 * LONG_S % max(1, len(joined) - 8000 * LONG_S)
            child.transcribe(joined[at : at + 8000 * LONG_S])
        print(f"and {(turn + 1) * LONG} of {LONG_S} s: {child.memory_mb()}")
    child.end()


if __name__ == "__main__":
    main()
