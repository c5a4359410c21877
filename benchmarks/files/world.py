"""What a worker has for files, without a worker: the recogniser with its inference process, and the file service."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from asr.client.recognizer import Recognizer
from asr.utterance import EngineStatus
from benchmarks.engine.run import BenchError
from config import Settings
from mediaworker.files.decoder_process import FileRefused
from mediaworker.files.options import Options
from mediaworker.files.service import FileService
from mediaworker.files.transcription import EngineUnavailable, FileTask, FileTranscription
from mediaworker.ops.blas import one_thread


class World:
    """`async with`; its engine starts with the first file."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.recognizer = Recognizer(settings, on_state=self._entered)
        self.service = FileService(settings, self.recognizer, in_work=self._in_work)
        self._works: set[FileTranscription] = set()
        self._settled = asyncio.Event()
        self._why = ""
        self._stays = False

    async def __aenter__(self) -> World:
        await self.recognizer.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.recognizer.stop()

    async def ready(self) -> int:
        """The engine is there, with nothing to do, and stays; its process. Raises BenchError."""
        self._stays = True
        self._in_work(0)
        await self._settled.wait()
        if self.recognizer.state is EngineStatus.FAILED or not self.recognizer.pids:
            raise BenchError(f"--model: {self._why}")
        return self.recognizer.pids[0]

    @contextlib.asynccontextmanager
    async def file(self, path: Path, stream: str) -> AsyncIterator[FileTranscription]:
        """As a job has it in work. What ends it raises BenchError."""
        with (
            path.open("rb") as file,
            self.service.transcription(FileTask(file.fileno(), path.name, Options(), stream)) as work,
        ):
            self._works.add(work)
            try:
                yield work
            except EngineUnavailable:
                raise BenchError(f"--model: {self._why}") from None
            except FileRefused as refused:
                raise BenchError(f"a file could not be read: {refused.reason}") from None
            finally:
                self._works.remove(work)

    def check(self) -> None:
        """Raises BenchError when something that was said has got no text."""
        if failed := self.service.stats.failed_chunks:
            raise BenchError(f"{failed} stretches of files could not be recognised")

    def readers(self) -> list[int]:
        """Processes that read just now."""
        return [work.decoder.pid for work in self._works if work.decoder.pid is not None]

    def _entered(self, state: EngineStatus, why: str) -> None:
        self._why = why
        if state in (EngineStatus.READY, EngineStatus.FAILED):
            self._settled.set()
        else:
            self._settled.clear()

    def _in_work(self, count: int) -> None:
        self.recognizer.keep_alive(self._stays or count > 0)


def settings(model: Path, data_dir: Path, *, rows: int) -> Settings:
    """The defaults, but for what has been asked for."""
    from msgspec.structs import replace

    one_thread()  # in the processes to come, too
    usual = Settings()
    return replace(
        usual,
        data_dir=str(data_dir),
        asr=replace(usual.asr, engine="qwen", model=str(model)),
        files=replace(usual.files, parallel_segments=rows),
        log=replace(usual.log, level="error"),
    )
