"""The response to a request or an upgrade that is refused: a problem document (RFC 9457)."""

from __future__ import annotations

from http import HTTPStatus

import msgspec

PROBLEM = "application/problem+json"
RETRY_AFTER_S = 5


def refusal_body(status: int, detail: str, **extra: object) -> bytes:
    """The JSON body; `extra` becomes further members of the object."""
    body = {"type": "about:blank", "title": HTTPStatus(status).phrase, "status": status, "detail": detail, **extra}
    return msgspec.json.encode(body)


def refusal_headers(status: int, challenge: str = "") -> list[tuple[str, str]]:
    headers = [("Retry-After", str(RETRY_AFTER_S))] if status in (429, 503) else []
    return headers + ([("WWW-Authenticate", challenge)] if challenge else [])
