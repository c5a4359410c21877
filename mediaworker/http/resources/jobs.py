"""`/v1/jobs`: files that are transcribed in the background.

A key sees only the jobs that it has created; a key with the scope `admin` sees all jobs.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from uuid_utils import uuid7

from asr import languages
from mediaworker.access.keys import Access
from mediaworker.files.messages import Channels
from mediaworker.files.options import Options
from mediaworker.files.segments import FileSegment, arranged
from mediaworker.files.service import FileService
from mediaworker.http.context import ApiContext
from mediaworker.http.problem import Problem, described
from mediaworker.http.requests import body_of, choice, json_response, page_limit, parsed
from mediaworker.http.uploads import receive, upload_errors
from mediaworker.jobs.record import Job, Source, Webhook, public
from mediaworker.jobs.service import JobService, TooMany
from mediaworker.jobs.sources import SourceError
from mediaworker.transcripts.file import MEDIA_TYPES, FileTranscript, Format, render
from mediaworker.webhooks.post import wrong_with_url

MB = 1024 * 1024
RESULTS: dict[str, Format] = {
    "json": "verbose_json", "verbose_json": "verbose_json", "diarized_json": "diarized_json",
    "txt": "text", "text": "text", "srt": "srt", "vtt": "vtt",
}  # fmt: skip
STATES = ("queued", "running", "completed", "failed", "cancelled")
Text = Annotated[str, Meta(max_length=8000)]


class Wanted(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The parameters of a new job: the body of a JSON request, or the fields beside an upload."""

    path: str = ""
    """The path of the file on the worker's machine, under `jobs.roots`; empty for an upload."""
    filename: Annotated[str, Meta(max_length=255)] = ""
    language: Annotated[str, Meta(max_length=35)] = ""
    prompt: Text = ""
    channels: Channels = "mix"
    speakers: Annotated[list[Annotated[str, Meta(max_length=200)]], Meta(max_length=64)] = []
    words: bool = True
    """The result has the times of its words, where the worker can time them."""
    condition_on_previous_text: bool = False
    webhook_url: str = ""


def routes(context: ApiContext, jobs: JobService, files: FileService) -> list[Route]:
    api = JobRoutes(context, jobs, files)
    return [
        Route("/v1/jobs", api.create, methods=["POST"]),
        Route("/v1/jobs", api.list, methods=["GET"]),
        Route("/v1/jobs/{job_id}", api.get, methods=["GET"]),
        Route("/v1/jobs/{job_id}", api.delete, methods=["DELETE"]),
        Route("/v1/jobs/{job_id}/result", api.result, methods=["GET"]),
    ]


class JobRoutes:
    """The endpoints of `/v1/jobs`. All need the scope `batch`."""

    def __init__(self, context: ApiContext, jobs: JobService, files: FileService) -> None:
        self._context, self._jobs, self._files = context, jobs, files

    async def create(self, request: Request) -> Response:
        """Answer 201 with the job, which is on the disk by then."""
        access = self._context.authorize(request, "batch")
        if self._files.draining:
            raise Problem(503, "the worker is shutting down", headers={"Retry-After": "5"})
        try:
            self._jobs.check_room(access.name)
            if request.headers.get("content-type", "").partition(";")[0].strip().lower() == "application/json":
                job = await self._named(request, access)
                await self._jobs.submit(job)
            else:
                job = await self._uploaded(request, access)
        except TooMany as error:
            headers = {"Retry-After": "60", "Connection": "close"}
            raise Problem(429, str(error), headers=headers) from None
        return json_response(public(job), 201, {"Location": f"/v1/jobs/{job.id}"})

    async def list(self, request: Request) -> Response:
        access = self._context.authorize(request, "batch")
        query = request.query_params
        limit = page_limit(query.get("limit"))
        state = choice("status", query.get("status"), STATES)
        owner = None if self._sees_all(access) else access.name
        # One item more than requested shows whether there is a next page.
        found = await self._jobs.page(limit + 1, after=query.get("after"), owner=owner, state=state)
        following = found[limit - 1].id if len(found) > limit else None
        return json_response({"items": [public(job) for job in found[:limit]], "next": following})

    async def get(self, request: Request) -> Response:
        return json_response(public(await self._job(request)))

    async def delete(self, request: Request) -> Response:
        """Cancel a job that has not ended and answer 200 with it; erase one that has ended and answer 204."""
        access = self._context.authorize(request, "batch")
        job = await self._job(request)
        if job.active and (cancelled := await self._jobs.cancel(job.id)) is not None:
            return json_response(public(cancelled))
        await self._jobs.erase(job.id, access.name)
        return Response(status_code=204)

    async def result(self, request: Request) -> Response:
        format = RESULTS[choice("format", request.query_params.get("format", "json"), tuple(RESULTS)) or "json"]
        job = await self._job(request)
        if job.state != "completed":
            what = f": {job.error}" if job.state == "failed" else ""
            raise Problem(409, f"the job is {job.state}{what}", status_of_job=job.state)
        if format == "diarized_json" and job.channels == 1:
            raise Problem(400, "the job has one channel: speakers are told apart by channel (channels=split)")
        found = await self._jobs.store.segments(job.id)
        text = await asyncio.to_thread(
            self._render, job, found, format
        )  # thousands of words would block the event loop
        return Response(text, headers={"Content-Type": MEDIA_TYPES[format]})

    # -- inside -----------------------------------------------------------------------------------------------------

    async def _job(self, request: Request) -> Job:
        """Return the request's job, which the key must own unless it is an admin's. Raises Problem."""
        access = self._context.authorize(request, "batch")
        job = await self._jobs.get(request.path_params["job_id"])
        if job is None or not (job.owner == access.name or self._sees_all(access)):
            raise Problem(404, "no such job")
        return job

    def _sees_all(self, access: Access) -> bool:
        keys = self._context.settings.auth.api_keys
        return any(key.name == access.name and "admin" in key.scopes for key in keys)

    async def _named(self, request: Request, access: Access) -> Job:
        wanted = parsed(await body_of(request), Wanted)
        if not wanted.path:
            raise Problem(400, "`path` is missing; to send a file use multipart/form-data")
        try:
            source = await asyncio.to_thread(self._jobs.sources.named, wanted.path)
        except SourceError as error:
            raise Problem(400, f"path: {error}") from None
        return self._made(str(uuid7()), access, source, wanted)

    async def _uploaded(self, request: Request, access: Access) -> Job:
        """Receive an upload and submit its job."""
        settings, sources = self._context.settings, self._jobs.sources
        job_id = str(uuid7())
        async with contextlib.AsyncExitStack() as stack:
            with upload_errors():
                incoming = await asyncio.to_thread(sources.incoming, job_id)
                stack.push_async_callback(asyncio.to_thread, sources.drop, job_id)
                stack.callback(incoming.close)
                upload = await receive(request, incoming, max_bytes=settings.files.max_upload_mb * MB)
                wanted = parse_fields(upload.fields)
                job = self._made(job_id, access, Source(wanted.filename or upload.filename, incoming.size), wanted)
                await incoming.finish(sync=True)
                await asyncio.to_thread(sources.keep, job)
            await self._jobs.submit(job)
            incoming.close()
            stack.pop_all()
        return job

    def _made(self, job_id: str, access: Access, source: Source, wanted: Wanted) -> Job:
        """Return a new job of these parameters. Raises Problem 400."""
        recognizer, jobs = self._files.recognizer, self._context.settings.jobs
        if source.bytes == 0:
            raise Problem(400, "the file is empty")
        language = languages.requested(wanted.language)
        if language and language not in recognizer.languages:
            known = ", ".join(sorted(recognizer.languages))
            raise Problem(400, f"language: {wanted.language!r} is none of the engine's: {known}")
        if wanted.webhook_url:
            if not jobs.webhook_secret:
                raise Problem(400, "webhook_url: jobs.webhook_secret is not set, so nothing could be signed")
            if wrong := wrong_with_url(wanted.webhook_url):
                raise Problem(400, f"webhook_url {wrong}")
        options = Options(
            language=language,
            prompt=wanted.prompt,
            channels=wanted.channels,
            speakers=wanted.speakers,
            words=wanted.words and bool(recognizer.words),
            condition_on_previous_text=wanted.condition_on_previous_text,
        )
        webhook = Webhook(wanted.webhook_url) if wanted.webhook_url else None
        return Job(job_id, access.name, source, options, created_s=time.time(), webhook=webhook)

    def _render(self, job: Job, segments: Sequence[FileSegment], format: Format) -> str:
        found, speakers = self._files.shown(arranged(segments)), job.options.speakers
        transcript = FileTranscript(found, job.duration_s or 0.0, job.channels, speakers, job.damaged, job.jumps)
        return render(transcript, format, granularities=("segment", "word"))


def parse_fields(fields: Mapping[str, Sequence[str]]) -> Wanted:
    """Return the parameters of the fields beside an upload. Raises Problem 400."""
    found: dict[str, Any] = {}
    for name, values in fields.items():
        bare = name.removesuffix("[]")
        if bare == "path":
            raise Problem(400, "path: the form has a file already")
        found[bare] = [*found.get(bare, ()), *values] if bare == "speakers" else values[-1]
    try:
        return msgspec.convert(found, Wanted, strict=False)
    except msgspec.ValidationError as error:
        raise Problem(400, described(error)) from None
