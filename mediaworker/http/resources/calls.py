"""`/v1/calls`: live and ended calls, their transcripts, and the requests that change, hang up or erase them."""

from __future__ import annotations

import asyncio
from typing import Annotated, cast

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from mediaworker.calls.directory import CallLive, CallOver
from mediaworker.events.schema import CallRecord
from mediaworker.http.context import ApiContext
from mediaworker.http.problem import Problem
from mediaworker.http.requests import body_of, choice, json_response, page_limit, parsed
from mediaworker.transcripts.call import FORMATS, MEDIA_TYPES, TYPES, Format, render, segments

MAX_TEXT = 200


LANGUAGE = r"^([A-Za-z]{2,3}([-_][A-Za-z0-9]{2,8})?)?$"
"""The form of a language: an ISO 639 code with or without a region, or empty."""


class Page(msgspec.Struct, frozen=True):
    """A page of calls. `next` is the `after` of the following page; null on the last page."""

    items: list[CallRecord]
    next: str | None


class Patch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The changes to a call: names by leg, and the language of later utterances (empty: the engine detects it)."""

    names: dict[str, Annotated[str, Meta(max_length=200)]] = {}
    language: Annotated[str, Meta(pattern=LANGUAGE)] | None = None


def routes(context: ApiContext) -> list[Route]:
    calls = Calls(context)
    one = "/v1/calls/{call_id}"
    return [
        Route("/v1/calls", calls.list, methods=["GET"]),
        Route(one, calls.get, methods=["GET"]),
        Route(one, calls.patch, methods=["PATCH"]),
        Route(one, calls.delete, methods=["DELETE"]),
        Route(f"{one}/transcript", calls.transcript, methods=["GET"]),
        Route(f"{one}/hangup", calls.hangup, methods=["POST"]),
    ]


class Calls:
    """The endpoints of `/v1/calls`. Reading needs the scope `events`, changing the scope `admin`."""

    def __init__(self, context: ApiContext) -> None:
        self._context = context

    async def list(self, request: Request) -> Response:
        self._context.authorize(request, "events")
        limit, after = page_limit(request.query_params.get("limit")), request.query_params.get("after")
        if (text := request.query_params.get("text")) is not None:
            return await self._search(text, limit, after)
        # One item more than requested shows whether there is a next page.
        found = await self._context.directory.page(limit + 1, after)
        return json_response(Page(found[:limit], found[limit - 1].call_id if len(found) > limit else None))

    async def _search(self, text: str, limit: int, after: str | None) -> Response:
        """Search transcripts, names and numbers. `after` is a row of the store, from the `next` of the page before."""
        if not text.strip() or len(text) > MAX_TEXT:
            raise Problem(400, f"text must have 1 to {MAX_TEXT} characters")
        if after is not None and not (after.isascii() and after.isdigit() and len(after) < 19):
            raise Problem(400, "after must be the `next` of a page of the same search")
        row = None if after is None else int(after)
        found, last = await self._context.directory.search(text, limit, row)
        return json_response(Page(found, None if last is None else str(last)))

    async def get(self, request: Request) -> Response:
        self._context.authorize(request, "events")
        return json_response(await self._record(request))

    async def transcript(self, request: Request) -> Response:
        self._context.authorize(request, "events")
        format = cast(Format, choice("format", request.query_params.get("format"), FORMATS) or "json")
        record = await self._record(request)
        frames = await self._context.directory.frames(record.call_id, TYPES)
        # A long call has thousands of words, and rendering them here would delay the audio of other calls.
        text = await asyncio.to_thread(lambda: render(record, segments(record, frames), format))
        return Response(text, headers={"Content-Type": MEDIA_TYPES[format]})

    async def patch(self, request: Request) -> Response:
        self._context.authorize(request, "admin")
        patch = parsed(await body_of(request), Patch)
        if patch.language and (why := self._context.unknown_language(patch.language)):
            raise Problem(400, f"language: {why}")
        record = await self._record(request)
        legs = {leg.leg for leg in record.legs}
        if unknown := patch.names.keys() - legs:
            raise Problem(400, f"no such leg: {', '.join(sorted(unknown))}; the call has {', '.join(sorted(legs))}")
        try:
            await self._context.directory.change(record.call_id, patch.names, patch.language)
        except CallOver:
            raise Problem(409, "the call has ended: its language can no longer be set") from None
        return json_response(await self._record(request))

    async def hangup(self, request: Request) -> Response:
        """Answer 202. The call ends after its last finals, or with `after=playback` after its last sound; `call.ended`
        reports it."""
        self._context.authorize(request, "admin")
        after = choice("after", request.query_params.get("after"), ("playback",))
        record = await self._record(request)
        try:
            await self._context.directory.hangup(record.call_id, after_playback=after is not None)
        except CallOver:
            raise Problem(409, "the call has ended") from None
        return json_response(record, 202)

    async def delete(self, request: Request) -> Response:
        access = self._context.authorize(request, "admin")
        record = await self._record(request)
        try:
            await self._context.directory.erase(record.call_id, access.name)
        except CallLive:
            raise Problem(409, "the call has not ended: hang it up first") from None
        return Response(status_code=204)

    async def _record(self, request: Request) -> CallRecord:
        call_id: str = request.path_params["call_id"]
        record = await self._context.directory.record(call_id)
        if record is None:
            raise Problem(404, "no such call")
        return record
