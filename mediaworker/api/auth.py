"""Who may do what: one decision over headers, peer address and keys. No I/O, no web framework.

With API keys configured the key is the whole protection, and the Origin of a browser is not looked at: a page that
holds a key may be anywhere. Without keys only a program on this machine, or a page of this worker, passes (`is_local`).
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from config.settings import ApiKey, Scope
from mediaworker.ingress.access import is_local

SUBPROTOCOL = "bearer"


@dataclass(frozen=True, slots=True)
class Access:
    """The decision. `status` is 200, or the HTTP status to refuse with."""

    status: int
    reason: str = ""
    """For the peer, when refused."""
    name: str = ""
    """The key's name, or `loopback`."""
    subprotocol: str | None = None
    """To answer on a WebSocket upgrade: a browser drops the connection when none of its offers is taken."""
    challenge: str = ""
    """`WWW-Authenticate` for a refusal (RFC 6750 section 3)."""

    @property
    def allowed(self) -> bool:
        return self.status == 200


def decide(headers: Iterable[tuple[str, str]], peer: str, keys: Sequence[ApiKey], scope: Scope) -> Access:
    """Whether this request may use what `scope` covers.

    Args:
        headers: in any case; a repeated header is there as often as it was sent.
        peer: the address at the other end of the TCP connection; empty when there is none.
    """
    fields = [(name.lower(), value.strip()) for name, value in headers]
    offers = _offers(fields)
    subprotocol = SUBPROTOCOL if SUBPROTOCOL in offers else None
    if not keys:
        if is_local(fields, peer):
            return Access(200, name="loopback", subprotocol=subprotocol)
        return Access(401, "no API keys are configured, so only this machine may connect", challenge="Bearer")
    token = _token(fields, offers)
    if token is None:
        return Access(401, "an API key is required: Authorization: Bearer KEY", challenge="Bearer")
    found: ApiKey | None = None
    for key in keys:  # all of them, always: the time taken says nothing about which one is close
        if hmac.compare_digest(str.__str__(key.key).encode(), token.encode()):
            found = key
    if found is None:
        return Access(401, "unknown API key", challenge='Bearer error="invalid_token"')
    if scope not in found.scopes:
        challenge = f'Bearer error="insufficient_scope", scope="{scope}"'
        return Access(403, f"the key `{found.name}` lacks the scope `{scope}`", name=found.name, challenge=challenge)
    return Access(200, name=found.name, subprotocol=subprotocol)


def _offers(fields: Iterable[tuple[str, str]]) -> list[str]:
    """Subprotocols offered (RFC 6455 section 4.1); none unless the request is a WebSocket upgrade."""
    fields = list(fields)
    if not any(name == "upgrade" and value.lower() == "websocket" for name, value in fields):
        return []
    lines = [value for name, value in fields if name == "sec-websocket-protocol"]
    return [offer.strip() for line in lines for offer in line.split(",")]


def _token(fields: Iterable[tuple[str, str]], offers: Sequence[str]) -> str | None:
    """The credential: `Authorization`, when it is there, else the offer behind `bearer`."""
    values = [value for name, value in fields if name == "authorization"]
    if values:
        scheme, _, token = values[0].partition(" ")
        return token.strip() if len(values) == 1 and scheme.lower() == "bearer" else None
    if SUBPROTOCOL in offers:
        position = offers.index(SUBPROTOCOL) + 1
        return offers[position] if position < len(offers) else None
    return None
