"""The media tick: every 32 ms the detector processes the due windows of all legs, and each leg gets its detections."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Iterable

import structlog

from audio import ALL, Shard
from config.metrics.registry import MetricsRegistry
from config.process.tasks import end_tasks, lasting
from mediaworker.calls.call import Call
from mediaworker.calls.registry import CallRegistry
from mediaworker.calls.transcriber import LegTranscriber

TICK_S = 0.032

log = structlog.get_logger()


class MediaLoop:
    """Runs the detector on the event loop; between batches of at most 128 windows the loop serves its sockets.

    `lags_s` holds how long after its due time each of the latest ticks ended, which includes delays by the tick before
    it. `sweep` reads the RTP sockets, a batch at a time; `stepped` is called once the due windows have been processed.
    """

    def __init__(
        self,
        registry: CallRegistry,
        *,
        metrics_s: float = 5.0,
        sweep: Callable[[float, Shard], Iterable[None]] = lambda now, shard: (),
        stepped: Callable[[], None] = lambda: None,
    ) -> None:
        self._calls, self._detector, self._metrics_s = registry, registry.detector, metrics_s
        self._sweep, self._stepped = sweep, stepped
        self._latency, self._guard = registry.parts.latency, registry.parts.guard
        self._task: asyncio.Task[None] | None = None
        self._woken = asyncio.Event()
        self._speaking: dict[LegTranscriber, int] = {}
        """Legs with an open utterance, and the tick at which to send their next audio."""
        self._reports: deque[Call] = deque()
        """Calls whose metrics are still to be published in this period, `_share` of them a tick."""
        self._share, self._report_s = 0, 0.0
        self.ticks = 0
        self.errors = 0
        """Ticks that ended in an exception."""
        self.lag_max_s = 0.0
        """The longest time from when a tick was due until the VAD had processed its last window."""
        self.lags_s: deque[float] = deque(maxlen=4096)

    def add_metrics(self, metrics: MetricsRegistry) -> None:
        detector = self._detector
        metrics.gauge("legs_active", "Shows how many legs are active.", lambda: detector.legs)
        metrics.counter(
            "legs_media",
            (
                "Counts packets and chunks of all legs by kind: those that arrived, and those that "
                "were late, lost or malformed."
            ),
            lambda: detector.counters,
            "kind",
        )
        metrics.counter("vad_windows", "Counts windows of 32 ms that passed through the VAD.", lambda: detector.windows)
        metrics.counter(
            "vad_windows_skipped",
            "Counts windows of digital silence, which skip the VAD.",
            lambda: detector.skipped,
        )
        metrics.counter("media_ticks", "Counts media ticks of 32 ms.", lambda: self.ticks)
        metrics.counter(
            "media_errors", "Counts media ticks that were cut short by an error of the worker.", lambda: self.errors
        )
        metrics.gauge(
            "media_lag_max_seconds", "Shows the longest media tick since the worker started.", lambda: self.lag_max_s
        )

    def start(self) -> None:
        self._task = lasting(self._run, "media")

    async def stop(self) -> None:
        await end_tasks(self._task)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time()
        self._report_s = due + self._metrics_s
        quiet_until = due
        shard = Shard()
        while True:
            number = (shard.number + 1) % shard.of
            shard = Shard(number, shard.of if number else self._detector.shards)
            if self._idle():
                self._woken.clear()
                self._guard.calm()
                await self._woken.wait()
                due = loop.time()
                self._report_s = due + self._metrics_s
            now = loop.time()
            # A loop that is behind by more than a tick takes all due windows in one tick, without a burst of ticks.
            due = max(due + TICK_S / shard.of, now - TICK_S)
            ready = max(due, now)
            await asyncio.sleep(ready - now)
            now = loop.time()
            self._latency.tick(ready, now)
            try:
                await self.tick(now, shard)
                self._latency.ticked(due, done := loop.time())
                self.lags_s.append(done - due)
                self._guard.lagged(done - due, 1 / shard.of)
                self.lag_max_s = max(self.lag_max_s, done - due)
                if shard.number == 0:
                    self._report(now)
            except Exception:
                # Every call's audio passes here: the next tick must come whatever went wrong in this one.
                self.errors += 1
                if now >= quiet_until:
                    quiet_until = now + 60.0
                    log.exception("media tick failed", errors=self.errors)

    def wake(self) -> None:
        """Resume ticking for a new call; without calls the loop does not tick."""
        self._woken.set()

    def _idle(self) -> bool:
        return not (self._detector.legs or self._speaking)

    async def tick(self, now: float, shard: Shard = ALL) -> None:
        """One step of a shard of the legs; `start` makes one step per shard every 32 ms."""
        self.ticks += shard.number == 0
        for _ in self._sweep(now, shard):
            await asyncio.sleep(0)
        for detections in self._detector.step(now, shard):
            for detection in detections:
                transcriber: LegTranscriber | None = detection.leg.key
                if transcriber is not None:
                    transcriber.on_detection(detection)
                    self._speaking[transcriber] = self.ticks
            await asyncio.sleep(0)
        if shard.number == 0:
            self._feed()
        self._stepped()

    def _feed(self) -> None:
        """Send new audio to the engine for the legs that have enough of it."""
        for transcriber in [each for each, tick in self._speaking.items() if tick <= self.ticks]:
            if steps := transcriber.feed():
                self._speaking[transcriber] = self.ticks + steps
            else:
                del self._speaking[transcriber]

    def _report(self, now: float) -> None:
        """Publish each call's metrics once a period, a few calls per tick so that audio is not delayed."""
        if now >= self._report_s:
            self._report_s = now + self._metrics_s
            self._reports = deque(self._calls)
            self._share = math.ceil(2 * len(self._reports) * TICK_S / self._metrics_s)
        for _ in range(min(self._share, len(self._reports))):
            call = self._reports.popleft()
            if not call.ending:
                report(call)


def report(call: Call) -> None:
    """Publish the call's metrics, and any new suspicion about a leg's format; called every few seconds."""
    call.publish_metrics()
    for member in call.members.values():
        if (found := member.suspicion()) is not None:
            call.publish(call.elapsed_ms(), found)
