"""The worker's media path as the benchmarks measure it: rings, VAD, endpointing, events and their store.

Everything is the real thing but recognition, which lives in another process: here it answers every final at once with
no words.
"""

from __future__ import annotations

import asyncio
import gc
import json
import resource
import sys
import tempfile
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from asr.utterance import Hypothesis, Utterance
from audio import Detector, Shard
from config import Settings
from mediaworker.access.connections import raise_open_files
from mediaworker.calls.media_loop import MediaLoop
from mediaworker.calls.parts import TranscriberParts
from mediaworker.calls.registry import CallRegistry
from mediaworker.events.hub import EventHub
from mediaworker.events.store import EventStore

Figures = dict[str, float | None]


class NoWords:
    """A recognizer that takes audio as the real client does and knows no words."""

    def __init__(self) -> None:
        self.bytes = 0
        self._heard: dict[str, Callable[[Hypothesis], None]] = {}

    def open(self, utterance: Utterance, on_hypothesis: Callable[[Hypothesis], None]) -> None:
        self._heard[utterance.id] = on_hypothesis

    def append(self, utterance_id: str, audio: bytes) -> None:
        self.bytes += len(audio)

    def partial(self, utterance_id: str, revision: int) -> None:
        self._answer(utterance_id, revision, "…", final=False)

    def final(self, utterance_id: str, revision: int, *, commit: bool, wanted_in_ms: int = 0) -> None:
        self._answer(utterance_id, revision, "", final=True)

    def withdraw(self, utterance_id: str) -> None:
        """Answered already, or about to be."""

    def commit(self, utterance_id: str) -> None:
        self._heard.pop(utterance_id, None)

    def cancel(self, utterance_id: str) -> None:
        self._heard.pop(utterance_id, None)

    def release(self, stream: str) -> None:
        """There is one engine."""

    def _answer(self, utterance_id: str, revision: int, text: str, *, final: bool) -> None:
        heard = self._heard.get(utterance_id)
        if heard is not None:
            hypothesis = Hypothesis(
                utterance_id=utterance_id, revision=revision, text=text, language="", stable_chars=0, final=final
            )
            asyncio.get_running_loop().call_soon(heard, hypothesis)


class Harness:
    """A worker without its ports, on the running loop."""

    def __init__(self, data_dir: str) -> None:
        raise_open_files()
        self.settings = Settings(data_dir=data_dir, max_calls=100_000)
        settings = self.settings
        self.hub = EventHub(settings, EventStore(data_dir))
        self.detector = Detector(jitter_s=settings.rtp.jitter_ms / 1000, stall_s=settings.media.silence_after_s)
        self.calls = CallRegistry(
            settings,
            TranscriberParts(NoWords(), asyncio.get_running_loop().time),
            detector=self.detector,
            publish=self.hub.publish,
            calls_changed=lambda count: self._media.wake() if self._media is not None else None,
        )
        self._media: MediaLoop | None = None

    async def measure(
        self,
        seconds: float,
        *,
        sweep: Callable[[float, Shard], Iterable[None]] = lambda now, turn: (),
        stepped: Callable[[], None] = lambda: None,
        ready: Callable[[], Awaitable[None]] | None = None,
    ) -> Figures:
        """Say "ready", run the media tick for `seconds` from when `ready` has been waited for, and give the figures."""
        await self.hub.flush()
        media = self._media = MediaLoop(self.calls, sweep=sweep, stepped=stepped)
        media.lags_s = deque()  # all of a run's, not the latest: `_Speed` finds them by their number
        media.start()
        gc.collect()
        gc.freeze()
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        if ready is not None:
            await ready()
            media.lags_s.clear()
            media.lag_max_s = 0.0
            gc.collect()
            gc.freeze()
        stalls: list[float] = []
        speed = _Speed(media.lags_s)
        probes = [asyncio.create_task(_probe(stalls)), asyncio.create_task(speed.watch())]
        before, begun = resource.getrusage(resource.RUSAGE_SELF), time.monotonic()
        await asyncio.sleep(seconds)
        wall_s, after = time.monotonic() - begun, resource.getrusage(resource.RUSAGE_SELF)
        for probe in probes:
            probe.cancel()
        result = {
            "wall_s": wall_s,
            "cpu_s": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
            "loop_stall_p99_ms": round(float(np.percentile(np.array(stalls), 99)) * 1000, 2),
            "vad_lag_p50_ms": round(float(np.percentile(np.array(media.lags_s), 50)) * 1000, 2),
            "vad_lag_p99_ms": round(float(np.percentile(np.array(media.lags_s), 99)) * 1000, 2),
            "vad_lag_max_ms": round(media.lag_max_s * 1000, 2),
            "vad_lag_steady_p99_ms": speed.steady_p99_ms(),
            "slowed_share": round(float(speed.slowed().mean()), 2),
            "utterances": self.calls.stats.utterances,
            "events": sum(self.hub.published.values()),
            "rss_mb": round(after.ru_maxrss / 1024, 1),
        }
        for call in self.calls:
            call.end("hangup")
        await media.stop()
        await self.hub.stop()
        return result


async def _probe(stalls: list[float]) -> None:
    """How late a timer is that asks for every 5 ms: what anybody else on this loop would have to wait."""
    while True:
        due = time.monotonic() + 0.005
        await asyncio.sleep(0.005)
        stalls.append(max(0.0, time.monotonic() - due))


class _Speed:
    """How fast the processor is meanwhile: virtual ones change their speed, some by half and every other second."""

    EVERY_S = 0.05
    SLOWED = 4 / 3
    """Times what a piece of work takes in the best tenth of the run."""
    CALM = 12
    """Looks in a row without slowing, after which a lag is the worker's own: it has caught up by then."""

    def __init__(self, lags_s: Sequence[float]) -> None:
        self._lags_s = lags_s
        self._looks: list[tuple[int, float]] = []
        """How many ticks there had been, and how long the same small piece of work took."""

    async def watch(self) -> None:
        while True:
            await asyncio.sleep(self.EVERY_S)
            begun = time.perf_counter()
            sum(range(2000))
            self._looks.append((len(self._lags_s), time.perf_counter() - begun))

    def slowed(self) -> NDArray[np.bool_]:
        """Of each look."""
        took = np.array([took_s for _, took_s in self._looks])
        slowed: NDArray[np.bool_] = took > self.SLOWED * np.percentile(took, 10)
        return slowed

    def steady_p99_ms(self) -> float | None:
        """The 99th percentile of the lags at full speed; None when there was no such time."""
        slowed, lags = self.slowed(), list(self._lags_s)
        steady: list[float] = []
        for look in range(self.CALM, len(slowed)):
            if not slowed[look - self.CALM : look + 1].any():
                steady += lags[self._looks[look - 1][0] : self._looks[look][0]]
        return round(float(np.percentile(steady, 99)) * 1000, 2) if steady else None


def run(main: Callable[[Harness], Awaitable[Figures]]) -> None:
    """Run a receiver and print its figures as JSON."""
    import uvloop

    from mediaworker.ops.logs import configure

    configure(Settings().log.__class__(level="error"))

    async def measured() -> Figures:
        with tempfile.TemporaryDirectory() as folder:
            harness = Harness(folder)
            await harness.hub.start()
            return await main(harness)

    sys.stdout.write(json.dumps(uvloop.run(measured())))
