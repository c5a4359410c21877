"""`/v1/audio/transcriptions` and `/v1/models` as OpenAI defines them, so that its clients work unchanged. A further
route streams the text as server-sent events while it is recognised.

The upload is received completely before decoding begins, because many containers have their index at the end. When the
client disconnects, the transcription ends.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Collection, Iterator, Sequence
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from uuid_utils import uuid7

from asr.text import joined
from mediaworker.files.decoder_process import FileRefused
from mediaworker.files.disk import IncomingFile
from mediaworker.files.segments import FileSegment, arranged, mend
from mediaworker.files.service import Busy, FileService
from mediaworker.files.transcription import EngineUnavailable, FileTask, FileTranscription
from mediaworker.http.context import ApiContext
from mediaworker.http.openai.form import ALIASES, Can, TranscriptionForm, is_model, no_model, parse
from mediaworker.http.problem import Problem
from mediaworker.http.requests import json_response
from mediaworker.http.streams import ServerSentEvents, beating, begun, while_there
from mediaworker.http.uploads import receive, upload_errors
from mediaworker.transcripts.file import (
    MEDIA_TYPES,
    FileTranscript,
    diarized_segment,
    render,
    segment_id,
    spoken_line,
    warnings_of,
)

MB = 1024 * 1024


def routes(context: ApiContext, files: FileService) -> list[Route]:
    audio = Transcriptions(context, files)
    return [
        Route("/v1/audio/transcriptions", audio.create, methods=["POST"]),
        Route("/v1/audio/transcriptions/stream", audio.stream, methods=["POST"]),
        Route("/v1/audio/translations", audio.translate, methods=["POST"]),
        Route("/v1/models", audio.models, methods=["GET"]),
        Route("/v1/models/{model:path}", audio.model, methods=["GET"]),
    ]


class Transcriptions:
    """The endpoints of OpenAI's API. All need the scope `batch`."""

    def __init__(self, context: ApiContext, files: FileService) -> None:
        self._context, self._files = context, files

    async def create(self, request: Request) -> Response:
        return await self._serve(request, stream=False)

    async def stream(self, request: Request) -> Response:
        return await self._serve(request, stream=True)

    async def translate(self, request: Request) -> Response:
        self._context.authorize(request, "batch")
        reason = "translation is not supported; /v1/audio/transcriptions writes what was said in its own language"
        raise Problem(400, reason, code="unsupported_operation", headers={"Connection": "close"})

    async def models(self, request: Request) -> Response:
        self._context.authorize(request, "batch")
        return json_response({"object": "list", "data": [self._model(name) for name in self._names()]})

    async def model(self, request: Request) -> Response:
        self._context.authorize(request, "batch")
        name = request.path_params["model"]
        if not is_model(name, self._names()):
            raise no_model(name, self._names())
        return json_response(self._model(name))

    def _model(self, name: str) -> dict[str, Any]:
        """Return the object of a model; its member `languages` is an extension of OpenAI's form."""
        known = sorted(self._files.recognizer.languages)
        return {"id": name, "object": "model", "created": 0, "owned_by": "mediaworker", "languages": known}

    def _names(self) -> list[str]:
        return [self._files.model, *ALIASES]

    async def _serve(self, request: Request, *, stream: bool) -> Response:
        access = self._context.authorize(request, "batch")
        settings = self._context.settings
        with upload_errors():
            async with contextlib.AsyncExitStack() as stack:
                try:
                    await stack.enter_async_context(self._files.admitted(access.name))
                except Busy as busy:
                    headers = {"Retry-After": str(busy.retry_after_s)}
                    raise Problem(busy.status, str(busy), headers=headers) from None
                file = IncomingFile(Path(settings.data_dir), min_free_bytes=settings.files.min_free_mb * MB)
                stack.enter_context(contextlib.closing(file))
                name, form = await self._receive(request, file, stream=stream)
                descriptor, stream_id = file.file.fileno(), str(uuid7())
                task = FileTask(descriptor, name, form.options, stream_id, synchronous=True, early=form.stream)
                work = stack.enter_context(self._files.transcription(task))
                answer = TranscriptionAnswer(work, form, self._files)
                if not form.stream:
                    return await while_there(request, answer.whole())
                events = await stack.enter_async_context(begun(answer.events(settings.events.heartbeat_s)))
                return ServerSentEvents(events, stack.pop_all())

    async def _receive(self, request: Request, file: IncomingFile, *, stream: bool) -> tuple[str, TranscriptionForm]:
        """The file's name, and what was asked for with it; the file itself goes to `file`. Raises Problem,
        DiskFull."""
        settings, recognizer = self._context.settings, self._files.recognizer
        upload = await receive(request, file, max_bytes=settings.files.max_upload_mb * MB)
        can = Can(self._names(), recognizer.languages, bool(recognizer.words), settings.endpointing.files)
        form = parse(upload.fields, can)
        return upload.filename, replace(form, stream=form.stream or stream)


class TranscriptionAnswer:
    """The response to one transcription request, as one document or as a stream."""

    def __init__(self, work: FileTranscription, form: TranscriptionForm, files: FileService) -> None:
        self._work, self._form, self._files = work, form, files
        self._asked_s = asyncio.get_running_loop().time()
        self._has_text = False

    async def whole(self) -> Response:
        """Raises Problem."""
        found = list[FileSegment]()
        with _refusals():
            async with aclosing(self._work.segments()) as segments:
                async for segment in segments:
                    self._note_text()
                    found.append(segment)
            self._note_text()
        shown = await asyncio.to_thread(self._files.shown, arranged(found))  # a film has a second's work of numbers
        text = render(self._transcript(shown), self._form.format, granularities=self._form.granularities)
        return Response(text, headers={"Content-Type": MEDIA_TYPES[self._form.format]})

    async def events(self, heartbeat_s: float) -> AsyncGenerator[bytes, None]:
        """Server-sent events. Raises Problem before the first of them; later ones are events."""
        begun, whole, languages = False, "", set[str]()
        last: dict[int, FileSegment] = {}
        try:
            with _refusals():
                async with aclosing(beating(self._work.segments(in_order=True), heartbeat_s)) as segments:
                    async for segment in segments:
                        if segment is None:
                            if self._work.facts.opened is not None:
                                begun = True  # until the file is opened, a fault of it can still be an HTTP status
                                yield b": still at it\n\n"
                            continue
                        self._note_text()
                        begun = True
                        [mended] = self._files.shown([mend(last.get(segment.channel), segment)])
                        last[segment.channel] = segment
                        longer = self._longer(whole, mended)
                        if longer != whole:
                            languages.add(mended.language)
                            delta = {"type": "transcript.text.delta", "delta": longer[len(whole) :]}
                            whole = longer
                            if self._form.format == "diarized_json":
                                yield _event(delta | {"segment_id": segment_id(mended)})
                                yield _event(diarized_segment(self._transcript(()), mended))
                            else:
                                yield _event(delta)
                self._note_text()
            yield _event({"type": "transcript.text.done", "text": whole, **self._about(languages)})
        except Problem as problem:
            if not begun:
                raise
            yield b"event: error\ndata: " + problem.openai + b"\n\n"

    def _note_text(self) -> None:
        """Measure the time to the first text."""
        if not self._has_text:
            self._has_text = True
            self._files.first_text.observe(asyncio.get_running_loop().time() - self._asked_s)

    def _transcript(self, segments: Sequence[FileSegment]) -> FileTranscript:
        return FileTranscript.of(self._work.facts, segments, self._form.options.speakers)

    def _longer(self, whole: str, segment: FileSegment) -> str:
        transcript = self._transcript(())
        if self._form.format == "text" and transcript.channels > 1 and segment.text:
            return whole + spoken_line(transcript, segment)
        return joined((whole, segment.text))

    def _about(self, languages: Collection[str]) -> dict[str, Any]:
        found: dict[str, Any] = {"languages": [{"code": code} for code in sorted(languages) if code]}
        if warnings := warnings_of(self._transcript(()), self._form.format):
            found["warnings"] = warnings
        return found


@contextlib.contextmanager
def _refusals() -> Iterator[None]:
    """Turn the refusal of a file, or an unavailable engine, into a Problem with the status that it deserves."""
    try:
        yield
    except FileRefused as refused:
        status = {"too_large": 413, "crashed": 500, "internal": 500}.get(refused.fault, 400)
        raise Problem(status, refused.reason, field="file", code=refused.fault) from None
    except EngineUnavailable as error:
        reason = f"the recognition engine is not available: {error}"
        raise Problem(503, reason, headers={"Retry-After": "10"}) from None


def _event(value: dict[str, Any]) -> bytes:
    return b"data: " + msgspec.json.encode(value) + b"\n\n"
