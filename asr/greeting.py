"""Lets a worker and an engine server show each other that both know `cluster.token`, which neither sends. No I/O.

The worker sends a nonce, the server one of its own, the worker proves the token, and then the server does. Each proof
is an HMAC (RFC 2104) over both nonces, the side that it comes from, and both ends of the TCP connection as that side
sees them. So whoever listens at the server's address in its stead learns nothing that it could use anywhere else, and
cannot pass the messages on to the real server: that one sees another connection.
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
"""Bytes of a frame before the other side is known."""


def nonce() -> bytes:
    return secrets.token_bytes(NONCE_BYTES)


@lru_cache(maxsize=4)
def key_of(token: str) -> bytes:
    """The key of the proofs. It costs some hundredths of a second, so that whoever has seen a proof cannot try
    many tokens."""
    return hashlib.scrypt(token.encode("utf-8", "replace"), salt=b"mediaworker cluster.token", n=2**13, r=8, p=1)


@dataclass(frozen=True, slots=True)
class Greeting:
    """One connection, of which both nonces are known. `worker` and `server`: its ends, as `getsockname` has them."""

    token: str
    worker_nonce: bytes
    server_nonce: bytes
    worker: Sequence[Any]
    server: Sequence[Any]

    def proof(self, side: Literal["worker", "server"]) -> bytes:
        parts = [side.encode(), self.worker_nonce, self.server_nonce, _end(self.worker), _end(self.server)]
        whole = b"".join(len(part).to_bytes(4, "big") + part for part in parts)
        return hmac.digest(key_of(self.token), whole, "sha256")

    def proves(self, side: Literal["worker", "server"], proof: bytes) -> bool:
        return hmac.compare_digest(self.proof(side), proof)


def _end(name: Sequence[Any]) -> bytes:
    """An address and a port, the same on both sides of a connection: IPv4 may be written as IPv6 on one of them."""
    address = ipaddress.ip_address(str(name[0]).partition("%")[0])
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return f"{mapped or address} {name[1]}".encode()
