"""Functions that routes share: they read query parameters and bodies of requests, and write JSON responses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from mediaworker.http.problem import Problem, described

T = TypeVar("T")
LIMIT_DEFAULT, LIMIT_MAX = 50, 500
MAX_BODY_BYTES = 65536


def page_limit(text: str | None) -> int:
    """Return the number of items of a page, from the parameter `limit`. Raises Problem 400."""
    if text is None:
        return LIMIT_DEFAULT
    if not (text.isascii() and text.isdigit() and len(text) <= 4 and 1 <= int(text) <= LIMIT_MAX):
        raise Problem(400, f"limit must be a number from 1 to {LIMIT_MAX}")
    return int(text)


def choice(name: str, text: str | None, choices: Sequence[str]) -> str | None:
    """Return the parameter, which must be one of the choices or absent. Raises Problem 400."""
    if text is not None and text not in choices:
        raise Problem(400, f"{name} must be one of {', '.join(choices)}")
    return text


async def body_of(request: Request, limit: int = MAX_BODY_BYTES) -> bytes:
    """Return the request's body of at most `limit` bytes. Raises Problem 413, ClientDisconnect."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > limit:
            raise Problem(413, f"at most {limit} bytes", headers={"Connection": "close"})
    return bytes(body)


def parsed(body: bytes, kind: type[T]) -> T:
    """Return the JSON of a body as a value of `kind`. Raises Problem 400."""
    try:
        return msgspec.json.decode(body, type=kind)
    except ValueError as error:
        raise Problem(400, described(error)) from None
    except RecursionError:
        raise Problem(400, "the JSON is nested too deep") from None


def json_response(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(value), status, headers, "application/json")
