"""Authorization: one decision from headers, peer address and keys. No I/O, no web framework.

With API keys configured the key is the whole protection, and a browser's Origin is not checked: a page that holds a
key may be served from anywhere. Without keys only two kinds of clients pass: programs on this machine that run as the
worker's user, and pages that were opened by the link which the worker prints at its start.
"""

from __future__ import annotations

import hmac
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import get_args

from config.sections.section import Scope
from config.settings import ApiKey
from mediaworker.access.auth_failures import Reason
from mediaworker.access.local_trust import is_local

SUBPROTOCOL = "bearer"


@dataclass(frozen=True, slots=True)
class Access:
    """The decision. `status` is 200, or the HTTP status to refuse with."""

    status: int
    reason: str = ""
    """The reason for the peer, if refused."""
    failure: Reason | None = None
    """The reason for counters and the log, if refused."""
    name: str = ""
    """The name of the key; without keys `loopback` or `page`."""
    scopes: tuple[Scope, ...] = ()
    """The scopes that the client has."""
    subprotocol: str | None = None
    """The subprotocol for the response to a WebSocket upgrade: a browser drops the connection if none is selected."""
    challenge: str = ""
    """`WWW-Authenticate` for a refusal (RFC 6750 section 3)."""


COVERED_BY: dict[Scope, tuple[Scope, ...]] = {"metrics": ("admin",)}
"""Scope → the other scopes that include it."""
NO_KEYS = (
    "no API keys are configured, so only programs on this machine that run as the worker's user may connect; "
    "configure auth.api_keys, or open the page by the link that the worker prints at its start"
)


def decide(
    headers: Iterable[tuple[str, str]],
    peer: str,
    keys: Sequence[ApiKey],
    scope: Scope | None,
    *,
    direct: bool = True,
    sessions: Collection[str] = (),
) -> Access:
    """Whether this request may use what `scope` covers.

    Args:
        headers: names in any case; a header that was sent several times is contained as often.
        peer: the address at the other end of the TCP connection; empty if there is none.
        scope: the scope that the request needs; None if any authenticated client may make it.
        direct: the result of `local_trust.is_direct`. It counts only without keys.
        sessions: the keys of pages that were opened by the worker's own link. They count only without keys.
    """
    fields = [(name.lower(), value.strip()) for name, value in headers]
    offers = _offers(fields)
    subprotocol = SUBPROTOCOL if SUBPROTOCOL in offers else None
    token = _token(fields, offers)
    if not keys:
        if direct and is_local(fields, peer):
            return Access(200, name="loopback", scopes=get_args(Scope), subprotocol=subprotocol)
        if token is not None and _is_among(token, sessions):
            return Access(200, name="page", scopes=get_args(Scope), subprotocol=subprotocol)
        return Access(401, NO_KEYS, "not_local" if token is None else "unknown_key", challenge="Bearer")
    if token is None:
        return Access(401, "an API key is required: Authorization: Bearer KEY", "no_key", challenge="Bearer")
    found: ApiKey | None = None
    for key in keys:  # always all of them, so that the time does not reveal which key is close
        if hmac.compare_digest(key.key.reveal().encode(), token.encode()):
            found = key
    if found is None:
        return Access(401, "unknown API key", "unknown_key", challenge='Bearer error="invalid_token"')
    if scope is not None and not {scope, *COVERED_BY.get(scope, ())} & set(found.scopes):
        challenge = f'Bearer error="insufficient_scope", scope="{scope}"'
        reason = f"the key `{found.name}` lacks the scope `{scope}`"
        return Access(403, reason, "scope", name=found.name, challenge=challenge)
    return Access(200, name=found.name, scopes=tuple(found.scopes), subprotocol=subprotocol)


def _is_among(token: str, sessions: Collection[str]) -> bool:
    """Whether the token is one of `sessions`; all are compared, so that the time reveals nothing."""
    return any([hmac.compare_digest(session.encode(), token.encode()) for session in sessions])


def _offers(fields: Iterable[tuple[str, str]]) -> list[str]:
    """The subprotocols offered (RFC 6455 section 4.1); none unless the request is a WebSocket upgrade."""
    fields = list(fields)
    if not any(name == "upgrade" and value.lower() == "websocket" for name, value in fields):
        return []
    lines = [value for name, value in fields if name == "sec-websocket-protocol"]
    return [offer.strip() for line in lines for offer in line.split(",")]


def _token(fields: Iterable[tuple[str, str]], offers: Sequence[str]) -> str | None:
    """The credential: that of `Authorization` if the header exists, else the offer that follows `bearer`."""
    values = [value for name, value in fields if name == "authorization"]
    if values:
        scheme, _, token = values[0].partition(" ")
        return token.strip() if len(values) == 1 and scheme.lower() == "bearer" else None
    if SUBPROTOCOL in offers:
        position = offers.index(SUBPROTOCOL) + 1
        return offers[position] if position < len(offers) else None
    return None
