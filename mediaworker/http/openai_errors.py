"""Errors of the OpenAI routes: the object that OpenAI's clients turn into their exceptions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from starlette.responses import Response

from mediaworker.errors import MediaworkerError
from mediaworker.http.problem import Problem

PREFIXES = ("/v1/audio/", "/v1/models")
CODES = {
    401: "invalid_api_key", 403: "insufficient_permissions", 404: "not_found", 429: "rate_limit_exceeded",
    507: "insufficient_storage",
}  # fmt: skip


class OpenAIError(MediaworkerError):
    """The answer to a request that cannot be served."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.status, self.headers = status, headers
        kind = "requests" if status == 429 else "invalid_request_error" if status < 500 else "server_error"
        self.error: dict[str, Any] = {
            "message": message, "type": kind, "param": param, "code": code or CODES.get(status),
        }  # fmt: skip
        super().__init__(f"{status} {message}")

    @classmethod
    def of(cls, problem: Problem) -> OpenAIError:
        return cls(problem.status, problem.detail, param=problem.field, headers=problem.headers)

    @property
    def body(self) -> bytes:
        return msgspec.json.encode({"error": self.error})

    def response(self) -> Response:
        return Response(self.body, self.status, self.headers, "application/json")
