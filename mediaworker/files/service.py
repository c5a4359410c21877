"""The file service of a worker: it admits requests with files, and transcribes all files with one engine.

A request beyond the limits waits for up to `files.queue_s`, before its upload is read. Waiting requests are admitted in
the order of arrival, except that a key at its own limit does not block the other keys. Per key and in all, `WAITING`
times as many requests may wait as may be in progress; further ones are answered 429 at once.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import structlog

from asr.client.recognizer import Recognizer
from asr.engines import weights
from asr.utterance import EngineStatus
from config import Settings
from config.metrics.counters import Histogram
from config.metrics.registry import MetricsRegistry
from config.process.tasks import within
from mediaworker.errors import MediaworkerError
from mediaworker.files import sandbox
from mediaworker.files.segments import FileSegment, in_digits
from mediaworker.files.transcription import FileStats, FileTask, FileTranscription
from mediaworker.policy.inverse_normalisation import wants_digits

FIRST_TEXT_S = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 60.0)
RETRY_S = 5
WAITING = 8
"""How many requests may wait for each one that may be in progress. A waiting request costs only its connection."""
SHUTTING_DOWN = "the worker is shutting down"
log = structlog.get_logger()


@dataclass(frozen=True, slots=True, eq=False)
class _Waiting:
    """A request that waits to be admitted under its key; `place` is done when it is."""

    key: str
    place: asyncio.Future[None]


class Busy(MediaworkerError):
    """The worker accepts no further request at present; the message is the reason, for the client."""

    retry_after_s = RETRY_S

    def __init__(self, status: int, reason: str) -> None:
        """`status`: the HTTP status of the response."""
        self.status = status
        super().__init__(reason)


class FileService:
    """Admits requests with files, and makes a `FileTranscription` for each file.

    Args:
        in_work: called with the number of open files whenever it changes.
    """

    def __init__(self, settings: Settings, recognizer: Recognizer, *, in_work: Callable[[int], None]) -> None:
        self.settings, self.recognizer = settings, recognizer
        self.stats = FileStats()
        self.first_text = Histogram(FIRST_TEXT_S)
        """The time from the end of an upload to the first text of its file."""
        self.rejected = 0
        """The number of requests answered 429."""
        self.draining = False
        self._in_work = in_work
        self._requests: Counter[str] = Counter()
        self._waiting: list[_Waiting] = []
        """The waiting requests, in the order of their arrival."""
        self.open_files = 0
        """The number of files in progress, those of jobs included."""
        self._idle = asyncio.Event()
        for sentence in sandbox.shortcomings():
            log.warning(sentence)

    def use(self, settings: Settings) -> None:
        """Apply reloaded settings to files that arrive from now on."""
        self.settings = settings

    def add_metrics(self, metrics: MetricsRegistry) -> None:
        metrics.counters("file", self.stats)
        metrics.gauge(
            "files_open", "Shows how many files are in progress, of requests and of jobs.", lambda: self.open_files
        )
        metrics.gauge("file_requests", "Shows how many requests with a file are being answered.", lambda: self.requests)
        metrics.gauge(
            "file_requests_queued",
            "Shows how many requests with a file are waiting for their turn (files.queue_s).",
            lambda: self.waiting,
        )
        metrics.counter(
            "file_requests_rejected", "Counts requests with a file that were answered with 429.", lambda: self.rejected
        )
        metrics.histogram(
            "file_first_text_seconds",
            "Measures the time from the end of an upload to the first text of its file.",
            self.first_text,
        )

    @property
    def requests(self) -> int:
        """The number of admitted requests."""
        return self._requests.total()

    @property
    def model(self) -> str:
        """The model's name for clients: its name on the hub or that of its folder, or else the engine's name."""
        if self.recognizer.engine != "qwen":
            return self.recognizer.engine
        model = self.settings.asr.model.rstrip("/")
        if weights.is_hub_name(model) and not Path(model).is_dir():
            return model
        return Path(model).expanduser().resolve().name

    @property
    def waiting(self) -> int:
        """The number of requests that wait to be admitted."""
        return len(self._waiting)

    @contextlib.asynccontextmanager
    async def admitted(self, key: str) -> AsyncIterator[None]:
        """Admit a request of this key until the context ends with its response; wait first if need be. Raises Busy."""
        if self.draining:
            raise Busy(503, SHUTTING_DOWN)
        if self.recognizer.state is EngineStatus.FAILED:
            raise Busy(503, "the recognition engine does not start")
        if self._full(key):
            await self._queue(key)
        else:
            self._admit(key)
        try:
            yield
        finally:
            self._leave(key)

    async def _queue(self, key: str) -> None:
        """Wait until a request of this key is admitted. Raises Busy."""
        files, reason = self.settings.files, self._full(key)
        of_key = sum(each.key == key for each in self._waiting)
        if of_key >= WAITING * files.max_requests_per_key or len(self._waiting) >= WAITING * files.max_requests:
            self._reject(reason)
        waiting = _Waiting(key, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        try:
            async with asyncio.timeout(files.queue_s):
                await asyncio.shield(waiting.place)
        except TimeoutError:
            if not waiting.place.done():
                self._reject(reason)
            waiting.place.result()
        except asyncio.CancelledError:
            if waiting.place.done() and not waiting.place.exception():
                self._leave(key)
            raise
        finally:
            if waiting in self._waiting:
                self._waiting.remove(waiting)

    def _full(self, key: str) -> str:
        """Return why a request of this key cannot be admitted now; empty when it can."""
        files = self.settings.files
        if self._requests.total() >= files.max_requests:
            return f"{files.max_requests} requests with files are being served (files.max_requests)"
        if self._requests[key] >= files.max_requests_per_key:
            return f"{files.max_requests_per_key} requests of this key are being served (files.max_requests_per_key)"
        return ""

    def _admit(self, key: str) -> None:
        self._requests[key] += 1
        self._idle.clear()

    def _leave(self, key: str) -> None:
        self._requests[key] -= 1
        self._requests += Counter()  # drops keys without requests
        if not self._requests:
            self._idle.set()
        for waiting in tuple(self._waiting):
            if not waiting.place.done() and not self._full(waiting.key):
                self._admit(waiting.key)
                self._waiting.remove(waiting)
                waiting.place.set_result(None)

    @contextlib.contextmanager
    def transcription(self, task: FileTask) -> Iterator[FileTranscription]:
        """Transcribe one file; while the context is open, the engine is not unloaded."""
        self._count(1)
        try:
            yield FileTranscription(
                task, self.recognizer, self.settings.files, self.settings.endpointing.files, self.stats
            )
        finally:
            self._count(-1)

    def shown(self, segments: Sequence[FileSegment]) -> Sequence[FileSegment]:
        """Return arranged segments as clients get them: with their numbers in digits, if the settings ask for it."""
        return in_digits(segments) if wants_digits(self.settings) else segments

    async def drain(self, grace_s: float) -> None:
        """Refuse further requests, and wait up to `grace_s` for the responses of those in progress."""
        self.draining = True
        for waiting in self._waiting:
            waiting.place.set_exception(Busy(503, SHUTTING_DOWN))
        self._waiting.clear()
        if self._requests:
            async with within(grace_s):
                await self._idle.wait()

    def _count(self, change: int) -> None:
        self.open_files += change
        self._in_work(self.open_files)

    def _reject(self, reason: str) -> NoReturn:
        self.rejected += 1
        raise Busy(429, f"{reason}; try again later")
