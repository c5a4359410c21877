"""Transcribes one file: chunks from the decoder go through the recogniser's batch lane, a few at a time, and become
segments.

When the engine dies, it takes every chunk in progress with it, although at most one of them is to blame. Each is then
recognised again alone, and only a chunk that fails alone becomes a segment with `error`.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

from asr import text
from asr.client.recognizer import Recognizer
from asr.engines.selection import DETECTING
from asr.languages import base
from asr.utterance import Alignment, EngineStatus, Hypothesis, TimedWord, Utterance
from config import Endpointing
from config.metrics.counters import counter, counter_by
from config.process.tasks import end_tasks
from config.settings import Files
from mediaworker.errors import MediaworkerError
from mediaworker.events.talk import placed
from mediaworker.files.decoder_process import FileFacts, FileRefused, ReadingPlan, RestartingDecoder
from mediaworker.files.messages import Chunk
from mediaworker.files.options import Options
from mediaworker.files.segments import FileSegment

POSITIONS_PER_MS = 8
ATTEMPTS = 3
READINGS, READINGS_SYNCHRONOUS = 3, 2
"""The argument `allowed` of `RestartingDecoder`, for jobs and for requests whose client waits."""
CARRIED_CHARS = 200
"""The length of the preceding text that is the context of a chunk."""
KNOWN_MS = 2000
"""The length of speech that shows the language of a channel, for an engine that is told what was spoken before."""


class EngineUnavailable(MediaworkerError):
    """There is no engine at present; the chunks that were not recognised can be tried again later."""


class SourceChanged(MediaworkerError):
    """The known segments do not match the chunks of the file: it has changed since they were recognised."""


@dataclass(slots=True)
class FileStats:
    """Totals over all files."""

    chunks: int = counter("Counts segments of files that were recognised.", name="file_segments")
    failed_chunks: int = counter(
        "Counts segments of files that ended without text because of an error.", name="file_segments_failed"
    )
    retried_chunks: int = counter(
        "Counts segments of files that were sent again after the engine had died.", name="file_segments_retried"
    )
    audio_s: float = counter(
        "Counts the seconds of audio in files that were read to their end.", name="file_audio_seconds"
    )
    refused: Counter[str] = counter_by(
        "fault", "Counts files that were refused or failed, by fault.", name="files_refused"
    )


@dataclass(slots=True)
class _Work:
    """A chunk at the recogniser."""

    chunk: Chunk
    attempts: int = 0
    hypothesis: Hypothesis | None = None


@dataclass(frozen=True, slots=True)
class FileTask:
    """A file that is to be transcribed, and how.

    Attributes:
        file: a seekable descriptor, which stays the caller's.
        name: the name whose suffix gives the format of a file without a header.
        stream: the file's name for the scheduler, which alternates between streams.
        synchronous: a client waits for the response.
        early: the first chunk is recognised alone, so that its text is there as early as possible.
        known: segments, by chunk, that need not be recognised again.
    """

    file: int
    name: str
    options: Options
    stream: str
    synchronous: bool = False
    early: bool = False
    known: Mapping[int, FileSegment] = field(default_factory=dict)


class FileTranscription:
    """One transcription of one file."""

    def __init__(
        self, task: FileTask, recognizer: Recognizer, settings: Files, endpointing: Endpointing, stats: FileStats
    ) -> None:
        options, synchronous = task.options, task.synchronous
        self._recognizer, self._options, self._stream, self._synchronous = recognizer, options, task.stream, synchronous
        self._known, self._stats = task.known, stats
        self._places = {index: _place(segment) for index, segment in self._known.items()}
        """The (channel, start, end) of each chunk, first those of the known segments."""
        self._uncarried = dict(self._known)
        """The known segments that the decoder has not reached yet: their text is not part of the context yet."""
        plan = ReadingPlan(options.channels, options.endpointing or endpointing, tuple(self._known))
        allowed = READINGS_SYNCHRONOUS if synchronous else READINGS
        self.decoder = RestartingDecoder(task.file, task.name, plan, settings, allowed=allowed)
        self.facts: FileFacts = self.decoder.facts
        self._rows = 1 if options.condition_on_previous_text else settings.parallel_segments
        detects = not options.language and recognizer.engine in DETECTING
        self._first = 1 if task.early or detects else self._rows
        self._spoken: dict[int, str] = {}
        """The language of each channel's first clear segment, by channel. The others are told of it."""
        self._work: dict[str, _Work] = {}
        """The chunks at the recogniser, by utterance id."""
        self._suspects: deque[_Work] = deque()
        """Chunks that were in progress when the engine died; each is recognised again alone."""
        self._unfinished = 0
        """The number of chunks that have arrived and are not segments yet."""
        self._owed = 0
        """The number of grants held back while there are suspects."""
        self._done: asyncio.Queue[FileSegment | Exception | None] = asyncio.Queue()
        self._before: dict[int, str] = {}
        """The end of the text so far, by channel."""
        self._early: dict[int, FileSegment] = {}
        """Segments that were finished before an earlier one, by chunk."""
        self._following = 0
        """The index of the next chunk in the order of the file."""

    @property
    def done_s(self) -> float:
        """The position in the file before which everything is recognised."""
        waiting = [each.chunk.audio_start for each in (*self._work.values(), *self._suspects)]
        return min([self.facts.position_s, *(start / (1000 * POSITIONS_PER_MS) for start in waiting)])

    async def segments(self, *, in_order: bool = False) -> AsyncGenerator[FileSegment, None]:
        """Yield the segments that were not known, as they are finished or in the order of the file. Close the iterator
        (`aclosing`) to cancel the transcription.

        Raises FileRefused, EngineUnavailable, SourceChanged, and OSError when no process can be started.
        """
        reader = asyncio.create_task(self._read(), name=f"file {self._stream}")
        try:
            reading = True
            while reading or self._unfinished:
                done = await self._done.get()
                if done is None:
                    reading = False
                elif isinstance(done, Exception):
                    raise done
                else:
                    self._unfinished -= 1
                    self._allow(1 + self._rows - self._first)
                    self._first = self._rows
                    for segment in self._arrange(done) if in_order else (done,):
                        yield segment
        finally:
            try:
                await end_tasks(reader)
            finally:  # when a client leaves, the task group of its response cancels every await, also the one above
                for utterance_id in self._work:
                    self._recognizer.cancel(utterance_id)
                self._work.clear()
        if self.facts.ended is not None:
            self._stats.audio_s += self.facts.ended.duration_s

    def _arrange(self, segment: FileSegment) -> list[FileSegment]:
        """Return the segments that are now next in the order of the file."""
        self._early[segment.index] = segment
        found = []
        while self._following in self._early or self._following in self._known:
            if (following := self._early.pop(self._following, None)) is not None:
                found.append(following)
            self._following += 1
        return found

    # -- reading ----------------------------------------------------------------------------------------------------

    async def _read(self) -> None:
        try:
            self._allow(self._first)
            async with aclosing(self.decoder.chunks()) as chunks:
                async for chunk in chunks:
                    self._on_chunk(chunk)
            self._done.put_nowait(None)
        except FileRefused as refused:
            self._stats.refused[refused.fault] += 1
            self._done.put_nowait(refused)
        except Exception as error:
            self._done.put_nowait(error)

    def _allow(self, chunks: int) -> None:
        self._owed += chunks
        if self._owed and not self._suspects:
            self.decoder.grant(self._owed)
            self._owed = 0

    def _on_chunk(self, chunk: Chunk) -> None:
        place = (chunk.channel, _ms(chunk.start), _ms(chunk.end))
        if chunk.index not in self._places:
            self._places[chunk.index] = place
            self._unfinished += 1
            self._recognise(_Work(chunk))
        elif self._places[chunk.index] != place:
            raise SourceChanged
        elif (known := self._uncarried.pop(chunk.index, None)) is not None:
            self._carry(known)

    # -- recognition ------------------------------------------------------------------------------------------------

    def _recognise(self, work: _Work) -> None:
        chunk, options = work.chunk, self._options
        work.attempts += 1
        before = self._before.get(chunk.channel, "")
        utterance = Utterance(
            id=f"{self._stream}/{chunk.index}.{work.attempts}",
            format="L16",
            language=options.language,
            context=" ".join(filter(None, (options.prompt, before))),
            live=False,
            previous=before,
            heard=((spoken, 1.0),) if (spoken := self._spoken.get(chunk.channel)) else (),
            stream=self._stream,
            synchronous=self._synchronous,
            words=self._timed_words,
        )
        self._work[utterance.id] = work
        self._recognizer.open(utterance, self._on_hypothesis)
        self._recognizer.append(utterance.id, chunk.audio)
        self._recognizer.final(utterance.id, 1, commit=True)

    @property
    def _timed_words(self) -> bool:
        return self._options.words and bool(self._recognizer.words)

    def _on_hypothesis(self, hypothesis: Hypothesis) -> None:
        work = self._work.get(hypothesis.utterance_id)
        if work is None:
            return
        work.hypothesis = hypothesis
        language = base(hypothesis.language)
        if hypothesis.error is not None:
            self._on_failure(hypothesis.utterance_id, died=hypothesis.died)
        elif self._timed_words and hypothesis.text and language in self._recognizer.words:
            self._recognizer.align(hypothesis.utterance_id, hypothesis.text, language, self._on_alignment)
        else:
            self._recognizer.cancel(hypothesis.utterance_id)  # it may keep the audio for the times of the words
            self._finish(hypothesis.utterance_id)

    def _on_alignment(self, alignment: Alignment) -> None:
        if alignment.utterance_id not in self._work:
            return
        if alignment.died and self._work[alignment.utterance_id].attempts < ATTEMPTS:
            self._on_failure(alignment.utterance_id, died=True)
        else:
            self._finish(alignment.utterance_id, alignment.words)

    def _on_failure(self, utterance_id: str, *, died: bool) -> None:
        work = self._work[utterance_id]
        assert work.hypothesis is not None
        if self._recognizer.state is EngineStatus.FAILED:
            self._done.put_nowait(EngineUnavailable(work.hypothesis.error))
        elif died and work.attempts < ATTEMPTS:
            self._stats.retried_chunks += 1
            self._suspects.append(self._work.pop(utterance_id))
            self._retry_next()
        else:
            self._stats.failed_chunks += 1
            self._finish(utterance_id)

    def _finish(self, utterance_id: str, words: Sequence[TimedWord] = ()) -> None:
        work = self._work.pop(utterance_id)
        segment = _segment(work, words)
        self._stats.chunks += 1
        self._carry(segment)
        self._done.put_nowait(segment)
        self._retry_next()

    def _retry_next(self) -> None:
        """Recognise the next suspect when no other chunk of the file is in progress."""
        if self._suspects and not self._work:
            self._recognise(self._suspects.popleft())

    def _carry(self, segment: FileSegment) -> None:
        """Keep what the following chunks of this channel are told of the segment."""
        if segment.text and segment.language and segment.end_ms - segment.start_ms >= KNOWN_MS:
            self._spoken.setdefault(segment.channel, segment.language)
        if self._options.condition_on_previous_text and segment.text:
            before = self._before.get(segment.channel, "")
            self._before[segment.channel] = text.joined((before, segment.text))[-CARRIED_CHARS:]


def _place(segment: FileSegment) -> tuple[int, int, int]:
    return segment.channel, segment.start_ms, segment.end_ms


def _segment(work: _Work, words: Sequence[TimedWord]) -> FileSegment:
    chunk, found = work.chunk, work.hypothesis
    assert found is not None
    start_ms, end_ms, audio_ms = (_ms(position) for position in (chunk.start, chunk.end, chunk.audio_start))
    timed = placed(words, audio_ms, start_ms, end_ms)
    return FileSegment(
        chunk.index, chunk.channel, start_ms, end_ms, found.text, found.language, timed, chunk.torn, found.error
    )


def _ms(position: int) -> int:
    return round(position / POSITIONS_PER_MS)
