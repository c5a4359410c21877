"""Bodies that are read whole."""

from __future__ import annotations

from starlette.requests import Request

from mediaworker.http.problem import Problem

MAX_BODY_BYTES = 65536


async def small_body(request: Request) -> bytes:
    """Raises Problem 413, ClientDisconnect."""
    return await body_of(request, MAX_BODY_BYTES)


async def body_of(request: Request, limit: int) -> bytes:
    """At most so many bytes. Raises Problem 413, ClientDisconnect."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > limit:
            raise Problem(413, f"at most {limit} bytes", headers={"Connection": "close"})
    return bytes(body)
