"""The batch of `mediaworker transcribe`: it runs its own engine over the files, shows progress and writes results."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import stat
import sys
import tempfile
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import aclosing, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
from tqdm import tqdm

from asr.client.recognizer import Recognizer
from asr.utterance import EngineStatus
from config import Settings
from config.log.text import printable
from config.process.tasks import end_tasks
from mediaworker.cli.terminal.output import OK, CommandError, for_output, print_error
from mediaworker.cli.transcription import INCOMPLETE, UNREADABLE, UNWRITTEN, result_marks
from mediaworker.cli.transcription.result_marks import Mark, NotOurResult
from mediaworker.cli.transcription.result_names import result_name, target
from mediaworker.files.decoder_process import FileRefused
from mediaworker.files.options import Options
from mediaworker.files.partial import Heading, PartialFile
from mediaworker.files.segments import arranged
from mediaworker.files.service import FileService
from mediaworker.files.transcription import EngineUnavailable, FileTask, SourceChanged
from mediaworker.storage.durable import sync_file
from mediaworker.transcripts.file import FileTranscript, Format, render

ONE_RESULT = (
    errno.EACCES, errno.EEXIST, errno.EINVAL, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.ENOENT,
    errno.ENOTDIR, errno.EPERM, errno.ETXTBSY,
)  # fmt: skip
"""Errors that concern the place of a single result. After any other error nothing more can be written."""
RENDERED: dict[str, Format] = {"txt": "text", "json": "verbose_json", "srt": "srt", "vtt": "vtt"}
TOGETHER = 2
"""The number of files in progress: while one is being opened, the other keeps the engine busy."""
SHOW_S = 0.2
HEADING = "==> {} <=="
"""The heading of each file if several are printed, as in head(1)."""
BAR = "{l_bar}{bar}| {n:.0f}/{total:.0f} s [{elapsed}<{remaining}{postfix}]"


@dataclass(slots=True)
class _File:
    path: Path
    duration_s: float | None = None
    done_s: float = 0.0
    over: bool = False
    printed: str | None = None
    """The text to be printed once all earlier files have been; None if there is none."""


class Batch:
    """Transcribes files, and writes or prints their results.

    Args:
        folder: the folder for the results; None prints them.
        spool: the folder with the copy of standard input.
    """

    def __init__(
        self,
        settings: Settings,
        files: Sequence[Path],
        folder: Path | None,
        formats: Sequence[str],
        options: Options,
        *,
        force: bool,
        spool: Path,
    ) -> None:
        self._settings, self._folder, self._formats, self._options = settings, folder, formats, options
        self._force, self._spool = force, spool
        self._files = [_File(path) for path in files]
        self._unprinted = deque(self._files)
        # JSON objects contain their file's name, so they need no heading and the output stays JSON.
        self._headings = len(files) > 1 and tuple(formats) != ("json",)
        self._outcome = OK
        self._engine_why = ""
        self._bar: Any = None

    async def run(self) -> int:
        """Process all files and return the exit code. Raises CommandError if the rest cannot be processed."""
        recognizer = Recognizer(self._settings, on_state=self._engine_state)
        self._service = FileService(self._settings, recognizer, in_work=lambda count: recognizer.keep_alive(count > 0))
        await recognizer.start()
        waiting = iter(self._files)
        self._bar = tqdm(total=0, unit="s", file=sys.stderr, disable=None, bar_format=BAR, dynamic_ncols=True)
        with self._bar:
            showing = asyncio.create_task(self._show(), name="progress")
            workers = [asyncio.create_task(self._work(waiting)) for _ in range(TOGETHER)]
            try:
                await asyncio.gather(*workers)
            finally:
                await end_tasks(*workers, showing)
                self._draw()
                self._print(all_of_it=True)
                await recognizer.stop()
        return self._outcome

    async def _work(self, waiting: Iterator[_File]) -> None:
        for file in waiting:
            try:
                await self._transcribe(file)
            except FileRefused as refused:
                self._worse(UNREADABLE, f"{file.path}: {refused.reason}")
            except SourceChanged:
                self._worse(UNREADABLE, f"{file.path}: it has changed while it was read")
            except NotOurResult as foreign:
                self._worse(UNWRITTEN, f"{file.path}: {foreign}")
            except EngineUnavailable:
                raise CommandError(f"there is no engine: {self._engine_why}") from None
            except OSError as error:
                why = f"{error.filename or file.path}: {error.strerror or error}"
                if error.errno not in ONE_RESULT:
                    raise CommandError(why) from None
                self._worse(UNWRITTEN, f"{file.path}: its result cannot be written: {why}")
            finally:
                file.over = True
                self._print()

    async def _transcribe(self, file: _File) -> None:
        """Raises FileRefused, SourceChanged, NotOurResult, EngineUnavailable, OSError."""
        try:
            opened = await asyncio.to_thread(_open, file.path)  # a pipe waits for its writer
        except OSError as error:
            raise FileRefused("unreadable", error.strerror or "cannot be opened") from None
        with opened as source:
            mark = self._mark(file, source.fileno())
            if self._complete(file, mark) and not self._force:
                return
            with closing(self._partial(file, mark)) as partial:
                if self._force:
                    partial.start_over()
                try:
                    transcript = await self._recognise(file, source.fileno(), partial)
                except SourceChanged:
                    partial.start_over()
                    transcript = await self._recognise(file, source.fileno(), partial)
                self._write(file, transcript, mark)
                partial.done()
        for warning in transcript.warnings:
            self._worse(OK if transcript.whole else INCOMPLETE, f"{file.path}: {warning}")

    async def _recognise(self, file: _File, descriptor: int, partial: PartialFile) -> FileTranscript:
        # What is no UTF-8 in a name cannot be told to other processes.
        name, stream, known = printable(file.path.name), printable(str(file.path)), dict(partial.known)
        with self._service.transcription(FileTask(descriptor, name, self._options, stream, known=known)) as work:
            async with aclosing(work.segments()) as found:
                async for segment in found:
                    partial.add(segment)
                    if (opened := work.facts.opened) is not None:
                        file.duration_s = opened.duration_s
                    file.done_s = max(file.done_s, work.done_s)
            segments = self._service.shown(arranged(partial.known.values()))
            transcript = FileTranscript.of(work.facts, segments, self._options.speakers)
            file.duration_s = file.done_s = transcript.duration_s
            return transcript

    # -- results ----------------------------------------------------------------------------------------------------

    def _mark(self, file: _File, descriptor: int) -> Mark:
        """The mark of the file's results."""
        found = os.fstat(descriptor)
        path = "-" if file.path.parent == self._spool else printable(str(file.path.absolute()))
        return Mark(path, found.st_size, found.st_mtime_ns)

    def _complete(self, file: _File, mark: Mark) -> bool:
        """Whether an earlier run has written all results of the file in its present state.

        Raises NotOurResult, OSError.
        """
        if self._folder is None:
            return False
        targets = [target(self._folder, file.path, format) for format in self._formats]
        return all([result_marks.check(each, mark) for each in targets])

    def _partial(self, file: _File, mark: Mark) -> PartialFile:
        """In the folder of its results, which is there then. Raises OSError."""
        engine = self._service.recognizer.engine
        model = self._settings.asr.model if engine == "qwen" else engine
        path, name = printable(str(file.path.absolute())), None
        if self._folder is not None:
            name = self._folder / result_name(file.path)
            name.parent.mkdir(parents=True, exist_ok=True)
            name = name.with_name(f".{name.name}.partial")
        return PartialFile(name, Heading(path, mark.bytes, mark.mtime_ns, model, self._options))

    def _write(self, file: _File, transcript: FileTranscript, mark: Mark) -> None:
        self._complete(file, mark)  # raises if another program has put a file in the result's place meanwhile
        for format in self._formats:
            text = render(transcript, RENDERED[format], granularities=("segment", "word"))
            if self._folder is None:
                file.printed = (file.printed or "") + (self._json_line(file, text) if format == "json" else text)
                continue
            result = target(self._folder, file.path, format)
            half = result.with_name(f".{result.name}.part")
            half.write_text(text, encoding="utf-8")
            result_marks.write(half, result, mark)
            sync_file(half)  # a file under the final name counts as complete, even after a power cut
            os.replace(half, result)

    def _json_line(self, file: _File, text: str) -> str:
        if len(self._files) > 1:
            named = {"file": printable(str(file.path))} | msgspec.json.decode(text, type=dict[str, Any])
            text = msgspec.json.encode(named).decode()
        return f"{text}\n"

    # -- the terminal -----------------------------------------------------------------------------------------------

    def _engine_state(self, state: EngineStatus, why: str) -> None:
        self._engine_why = why

    async def _show(self) -> None:
        while True:
            self._draw()
            await asyncio.sleep(SHOW_S)

    def _draw(self) -> None:
        bar = self._bar
        known = [file.duration_s for file in self._files if file.duration_s is not None]
        guess = sum(known) / len(known) if known else 0.0
        # Files that have not been opened count with the mean length of the others.
        bar.total = sum(
            file.duration_s if file.duration_s is not None else 0.0 if file.over else guess for file in self._files
        )
        bar.n = min(bar.total, sum(file.done_s for file in self._files))
        elapsed_s = bar.format_dict["elapsed"]
        over = sum(file.over for file in self._files)
        rate = f"{bar.n / elapsed_s:.0f}x real time, " if elapsed_s > 0 and bar.n else ""
        bar.set_postfix_str(f"{rate}{over}/{len(self._files)} files", refresh=True)

    def _print(self, *, all_of_it: bool = False) -> None:
        """Print results in the order of the command line: a file waits for all earlier ones."""
        while self._unprinted and (self._unprinted[0].over or all_of_it):
            file = self._unprinted.popleft()
            if file.printed is None:
                continue
            with tqdm.external_write_mode(file=sys.stdout):
                if self._headings:
                    print(HEADING.format(printable(str(file.path))))
                print(for_output(file.printed, sys.stdout), end="", flush=True)
            file.printed = None

    def _worse(self, outcome: int, line: str) -> None:
        with tqdm.external_write_mode(file=sys.stderr):
            print_error(line)
        # A file that could not be read says more than a stretch that could not.
        self._outcome = min(filter(None, (self._outcome, outcome)), default=OK)


def _open(path: Path) -> BinaryIO:
    """Open a file. A pipe is read to its end into a temporary file, since FFmpeg has to seek. Raises OSError."""
    file = os.fdopen(os.open(path, os.O_RDONLY | os.O_CLOEXEC), "rb")
    kind = os.fstat(file.fileno()).st_mode
    if stat.S_ISREG(kind):
        return file
    with file:
        if not stat.S_ISFIFO(kind):
            raise OSError(0, "it is no file")
        spool = tempfile.TemporaryFile()
        try:
            shutil.copyfileobj(file, spool, 1 << 20)
            spool.seek(0)
        except BaseException:
            spool.close()
            raise
        return spool
