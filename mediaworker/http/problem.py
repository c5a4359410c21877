"""Errors as `application/problem+json` (RFC 9457), for plain requests and for WebSocket upgrades alike."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import msgspec
import structlog
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection
from starlette.responses import Response

from mediaworker.storage.database_thread import StoreError

log = structlog.get_logger()


class Problem(Exception):
    """The answer to a request that cannot be served; `extra` becomes further members of the object."""

    def __init__(self, status: int, detail: str, *, headers: Mapping[str, str] | None = None, **extra: Any) -> None:
        self.status, self.detail, self.headers, self.extra = status, detail, headers, extra
        super().__init__(f"{status} {detail}")

    def response(self) -> Response:
        title = HTTPStatus(self.status).phrase
        body = {"type": "about:blank", "title": title, "status": self.status, "detail": self.detail, **self.extra}
        return Response(msgspec.json.encode(body), self.status, self.headers, "application/problem+json")


async def on_problem(connection: HTTPConnection, error: Exception) -> Response:
    assert isinstance(error, Problem)
    return error.response()


async def on_http_exception(connection: HTTPConnection, error: Exception) -> Response:
    """Starlette's own: no such route, wrong method, body too large."""
    assert isinstance(error, HTTPException)
    return Problem(error.status_code, error.detail, headers=error.headers).response()


async def on_store_error(connection: HTTPConnection, error: Exception) -> Response:
    """A store cannot be read or written just now."""
    assert isinstance(error, StoreError)
    store = "job" if connection.url.path.startswith("/v1/jobs") else "event"
    return Problem(503, f"the {store} store: {error}", headers={"Retry-After": "5"}).response()


async def on_disconnect(connection: HTTPConnection, error: Exception) -> Response:
    """The peer has gone in the middle of its request: nobody reads this."""
    return Problem(400, "incomplete request").response()


async def on_error(connection: HTTPConnection, error: Exception) -> Response:
    """Ours. The traceback goes to the log by way of the server; the peer learns nothing of it."""
    return Problem(500, "the worker failed to answer; its log says why").response()
