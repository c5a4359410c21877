"""`/v1/calls/{id}/audio`: sound that a bot plays to the caller. It is queued after sound that is still playing."""

from __future__ import annotations

import asyncio
import contextlib
import io
import secrets
from collections.abc import Iterator

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from audio.codecs.g711 import ulaw_encode
from mediaworker.calls.directory import CallOver, NotPlayable
from mediaworker.calls.sound import SoundError, read_wav, resampled
from mediaworker.http.context import ApiContext
from mediaworker.http.problem import Problem
from mediaworker.http.requests import body_of, json_response

RATE_HZ = 8000
MAX_SECONDS = 120
MAX_BYTES = MAX_SECONDS * 48_000 * 2 * 2
"""The largest WAV: two channels of 16-bit samples at 48 kHz."""
MAX_MARK = 200
DECODED_AT_ONCE = 2
ULAW = ("audio/basic", "audio/x-mulaw", "audio/pcmu")
WAV = ("audio/wav", "audio/x-wav", "audio/wave", "audio/vnd.wave")


def routes(context: ApiContext) -> list[Route]:
    playback = Playback(context)
    path = "/v1/calls/{call_id}/audio"
    return [Route(path, playback.play, methods=["POST"]), Route(path, playback.clear, methods=["DELETE"])]


class Playback:
    """The endpoints of a call's playback. They need the scope `admin`."""

    def __init__(self, context: ApiContext) -> None:
        self._context = context
        self._decoding = asyncio.Semaphore(DECODED_AT_ONCE)

    async def play(self, request: Request) -> Response:
        """Queue a sound, and answer 202 with its `duration_ms` and `mark`."""
        self._context.authorize(request, "admin")
        mark = request.query_params.get("mark") or f"sound-{secrets.token_hex(4)}"
        if len(mark) > MAX_MARK:
            raise Problem(400, f"mark has at most {MAX_MARK} characters")
        call_id, directory = request.path_params["call_id"], self._context.directory
        with _answering():
            # Checked before the body is read and again after it: sound must not play that was sent before a `clear`.
            stopped = await directory.playing_stopped(call_id)
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind not in ULAW + WAV:
            raise Problem(415, "audio/wav (PCM), or audio/basic: µ-law at 8 kHz")
        codes = await body_of(request, MAX_BYTES)
        if kind in WAV:
            async with self._decoding:
                codes = await asyncio.to_thread(_codes, codes)
        if not codes or len(codes) > MAX_SECONDS * RATE_HZ:
            raise Problem(400, f"from one sample to {MAX_SECONDS} s of sound")
        with _answering():
            if await directory.playing_stopped(call_id) != stopped:
                raise Problem(409, "playing has been stopped meanwhile")
            await directory.play(call_id, codes, mark)
        return json_response({"duration_ms": len(codes) * 1000 // RATE_HZ, "mark": mark}, 202)

    async def clear(self, request: Request) -> Response:
        """Drop all sound that has not been played yet, for instance because the caller has begun to speak."""
        self._context.authorize(request, "admin")
        with _answering():
            await self._context.directory.stop_playing(request.path_params["call_id"])
        return Response(status_code=204)


@contextlib.contextmanager
def _answering() -> Iterator[None]:
    """Turn errors of the call directory into Problem."""
    try:
        yield
    except CallOver:
        raise Problem(404, "no such live call") from None
    except NotPlayable as error:
        if error.full:
            raise Problem(429, str(error), headers={"Retry-After": "5"}) from None
        raise Problem(409, str(error)) from None


def _codes(body: bytes) -> bytes:
    """Return the sound of a WAV as µ-law at 8 kHz. Raises Problem 400."""
    try:
        samples, rate_hz = read_wav(io.BytesIO(body), max_s=MAX_SECONDS)
    except SoundError as error:
        raise Problem(400, str(error)) from None
    return bytes(ulaw_encode(resampled(samples, rate_hz, RATE_HZ)))
