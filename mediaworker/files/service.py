"""Files at this worker: who may have one in work, and one engine for all of them."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping

import structlog

from asr.utterance import EngineState
from config import Settings
from mediaworker.files import sandbox
from mediaworker.files.options import Options
from mediaworker.files.segments import Segment
from mediaworker.files.stats import Stats
from mediaworker.files.transcription import FileTranscription, Recognizer
from mediaworker.metrics import Histogram

FIRST_TEXT_S = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 60.0)
RETRY_S = 5
log = structlog.get_logger()


class Busy(Exception):
    """No more just now; the message says why."""

    retry_after_s = RETRY_S

    def __init__(self, status: int, reason: str) -> None:
        """`status`: of HTTP."""
        self.status = status
        super().__init__(reason)


class FileService:
    """See the module.

    Args:
        in_work: told how many files are open whenever that changes.
    """

    def __init__(self, settings: Settings, recognizer: Recognizer, *, in_work: Callable[[int], None]) -> None:
        self.settings, self.recognizer = settings, recognizer
        self.stats = Stats()
        self.first_text = Histogram(FIRST_TEXT_S)
        """From the end of an upload to the first text of its file."""
        self.rejected = 0
        """Requests answered 429."""
        self.draining = False
        self._in_work = in_work
        self._requests: Counter[str] = Counter()
        self._open = 0
        self._idle = asyncio.Event()
        for sentence in sandbox.shortcomings():
            log.warning(sentence)

    @property
    def requests(self) -> int:
        """Files that somebody waits for."""
        return self._requests.total()

    @property
    def open_files(self) -> int:
        """With those of jobs."""
        return self._open

    @property
    def model(self) -> str:
        """What recognises, as it is configured."""
        return self.settings.asr.model if self.recognizer.engine == "qwen" else self.recognizer.engine

    @contextlib.contextmanager
    def admitted(self, key: str) -> Iterator[None]:
        """A request of this key, from its first byte to its answer. Raises Busy."""
        files = self.settings.files
        if self.draining:
            raise Busy(503, "the worker is shutting down")
        if self.recognizer.state is EngineState.FAILED:
            raise Busy(503, "the recognition engine does not start")
        if self._requests.total() >= files.max_requests:
            self._reject(f"{files.max_requests} requests with files are in work; try again")
        if self._requests[key] >= files.max_requests_per_key:
            self._reject(f"{files.max_requests_per_key} requests of this key are in work; wait for one of them")
        self._requests[key] += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._requests[key] -= 1
            self._requests += Counter()  # keys without requests go
            if not self._requests:
                self._idle.set()

    @contextlib.contextmanager
    def transcription(
        self,
        file: int,
        name: str,
        options: Options,
        *,
        stream: str,
        synchronous: bool = False,
        early: bool = False,
        known: Mapping[int, Segment] | None = None,
    ) -> Iterator[FileTranscription]:
        """One file, for as long as it is in work: the engine stays."""
        self._count(1)
        try:
            yield FileTranscription(
                self.recognizer,
                file,
                name,
                options,
                settings=self.settings.files,
                endpointing=self.settings.endpointing.files,
                stream=stream,
                synchronous=synchronous,
                early=early,
                known=known,
                stats=self.stats,
            )
        finally:
            self._count(-1)

    async def drain(self, grace_s: float) -> None:
        """No more requests; those in work have so long to get their answer."""
        self.draining = True
        if self._requests:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(grace_s):
                    await self._idle.wait()

    def _count(self, change: int) -> None:
        self._open += change
        self._in_work(self._open)

    def _reject(self, reason: str) -> None:
        self.rejected += 1
        raise Busy(429, reason)
