"""The proofs by which a worker and an engine server show each other that both know `cluster.token`. No I/O.

The token itself is never sent. The worker sends a nonce, the server responds with another nonce, the worker sends its
proof, and then the server sends its own. Each proof is an HMAC (RFC 2104) over both nonces, the side that sends it, and
both ends of the TCP connection as that side sees them. An impostor at the server's address therefore learns nothing
that it could use elsewhere. It cannot relay the messages to the real server either, because its own connection to that
server has other ends.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

NONCE_BYTES = 32
MAX_BYTES = 4096
"""The most bytes in a frame until the other side has proved that it knows the token."""


def nonce() -> bytes:
    return secrets.token_bytes(NONCE_BYTES)


@lru_cache(maxsize=4)
def key_of(token: str) -> bytes:
    """Derive the key of the proofs by scrypt (RFC 7914). It takes some hundredths of a second, so that somebody who has
    recorded a proof cannot try many tokens. The result is cached, because deriving it blocks the event loop."""
    return hashlib.scrypt(token.encode("utf-8", "replace"), salt=b"mediaworker cluster.token", n=2**13, r=8, p=1)


@dataclass(frozen=True, slots=True)
class Greeting:
    """The values on which both proofs of a connection depend. `worker` and `server` are the ends of the connection, in
    the form of `getsockname`."""

    token: str
    worker_nonce: bytes
    server_nonce: bytes
    worker: Sequence[Any]
    server: Sequence[Any]

    def proof(self, side: Literal["worker", "server"]) -> bytes:
        """Return the proof that this side sends. The length before each part keeps the parts apart."""
        parts = [side.encode(), self.worker_nonce, self.server_nonce, _end(self.worker), _end(self.server)]
        whole = b"".join(len(part).to_bytes(4, "big") + part for part in parts)
        return hmac.digest(key_of(self.token), whole, "sha256")

    def proves(self, side: Literal["worker", "server"], proof: bytes) -> bool:
        """Whether a received proof is the one of this side, compared in constant time."""
        return hmac.compare_digest(self.proof(side), proof)


def _end(name: Sequence[Any]) -> bytes:
    """Return an address and port in a form that is equal on both sides. An IPv4 address is unmapped, because a
    dual-stack socket on one side shows it as `::ffff:a.b.c.d`, and the scope of a link-local one is removed."""
    address = ipaddress.ip_address(str(name[0]).partition("%")[0])
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return f"{mapped or address} {name[1]}".encode()
