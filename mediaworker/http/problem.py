"""Errors as `application/problem+json` (RFC 9457), for plain requests and for WebSocket upgrades alike; and as the
object that OpenAI's clients turn into their exceptions."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec
import structlog
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from mediaworker.access.refusals import PROBLEM, refusal_body
from mediaworker.calls.directory import OwnerAway
from mediaworker.errors import MediaworkerError
from mediaworker.storage.database_thread import StoreError

OPENAI = ("/v1/audio/", "/v1/models")
"""Paths whose clients expect OpenAI's errors begin so."""
OPENAI_CODES = {
    401: "invalid_api_key", 403: "insufficient_permissions", 404: "not_found", 429: "rate_limit_exceeded",
    507: "insufficient_storage",
}  # fmt: skip
_KINDS = {
    "str": "text", "int": "a whole number", "float": "a number", "bool": "true or false", "array": "a list",
    "object": "an object",
}  # fmt: skip
"""Words for msgspec's names of JSON types."""
log = structlog.get_logger()


class Problem(MediaworkerError):
    """The answer to a request that cannot be served.

    Args:
        field: of the form that was sent: what is wrong, for clients of OpenAI's routes.
        code: OpenAI's word for it, where the status alone does not say it.
        extra: becomes further members of the object.
    """

    def __init__(
        self,
        status: int,
        detail: str,
        *,
        field: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
        **extra: Any,
    ) -> None:
        self.status, self.detail, self.headers, self.extra = status, detail, headers, extra
        self.field, self.code = field, code or OPENAI_CODES.get(status)
        super().__init__(f"{status} {detail}")

    def response(self, *, openai: bool = False) -> Response:
        body = self.openai if openai else refusal_body(self.status, self.detail, **self.extra)
        return Response(body, self.status, self.headers, "application/json" if openai else PROBLEM)

    @property
    def openai(self) -> bytes:
        """OpenAI's object."""
        status = self.status
        kind = "requests" if status == 429 else "invalid_request_error" if status < 500 else "server_error"
        error = {"message": self.detail, "type": kind, "param": self.field, "code": self.code}
        return msgspec.json.encode({"error": error})


def described(error: Exception, names: Mapping[str, str] = {}) -> str:
    """Return a sentence for the client about an invalid field: its name, and what its value must be.

    Args:
        error: msgspec's error, or the one of text that is not UTF-8.
        names: the client's names of fields, where they differ from those of the struct.
    """
    if isinstance(error, UnicodeDecodeError):
        return "the text is not UTF-8"
    reason, _, path = str(error).partition(" - at `$")
    field = path.strip("`").lstrip(".").removesuffix("[...]")
    if found := re.fullmatch(r"Expected `([\w |]+)`(.*)", reason):
        reason = f"must be {_kinds(found[1])}" + re.sub(", got `(.*)`", lambda got: f", not {_kinds(got[1])}", found[2])
    reason = re.sub("^Object contains unknown field", "there is no field", reason)
    reason = re.sub("^Object missing required field (.*)", r"the field \1 is missing", reason)
    reason = re.sub("^Invalid enum value", "must not be", reason)
    return f"{names.get(field, field)}: {reason}" if field else reason


def _kinds(names: str) -> str:
    return " or ".join(_KINDS.get(name, name) for name in names.split(" | "))


def problem_of(path: str, error: Exception) -> Problem:
    """Return the response to an error that ends a request at this path."""
    match error:
        case Problem():
            return error
        case HTTPException():  # Starlette's own: no such route, wrong method
            return Problem(error.status_code, error.detail, headers=error.headers)
        case StoreError():
            store = "job" if path.startswith("/v1/jobs") else "event"
            return Problem(503, f"the {store} store: {error}", headers={"Retry-After": "5"})
        case OwnerAway():
            return Problem(503, str(error), headers={"Retry-After": "5"})
        case ClientDisconnect():  # the client left in the middle of its request and does not read this
            return Problem(400, "incomplete request")
    # A fault of the worker. The server writes the traceback to the log; the peer does not see it.
    return Problem(500, "the worker failed to answer; its log says why")
