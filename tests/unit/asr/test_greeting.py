"""What a proof of the token is worth: that of one side, one connection and one pair of nonces."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asr.greeting import NONCE_BYTES, Greeting, nonce

GREETING = Greeting("token", b"w" * NONCE_BYTES, b"s" * NONCE_BYTES, ("127.0.0.1", 40000), ("127.0.0.1", 9095))


def test_both_sides_reckon_the_same() -> None:
    ours = replace(GREETING, worker=("::ffff:127.0.0.1", 40000, 0, 0), server=("::ffff:7f00:1", 9095, 0, 0))
    for side in ("worker", "server"):
        assert GREETING.proves(side, ours.proof(side)), "a socket of IPv6 shows IPv4 its own way"
    six = replace(GREETING, worker=("fe80::1%eth0", 1, 0, 2), server=("fe80:0::1", 2, 0, 3))
    assert six.proves("worker", replace(six, worker=("fe80::1%lo", 1, 0, 9)).proof("worker"))


@pytest.mark.parametrize(
    "other",
    [
        replace(GREETING, token="Token"),
        replace(GREETING, token=""),
        replace(GREETING, worker_nonce=b"w" * (NONCE_BYTES - 1) + b"x"),
        replace(GREETING, server_nonce=b"w" * NONCE_BYTES),
        replace(GREETING, worker_nonce=GREETING.server_nonce, server_nonce=GREETING.worker_nonce),
        replace(GREETING, worker_nonce=b"w" * (NONCE_BYTES - 1), server_nonce=b"ws" + b"s" * (NONCE_BYTES - 1)),
        replace(GREETING, worker=("127.0.0.1", 40001)),
        replace(GREETING, worker=("127.0.0.2", 40000)),
        replace(GREETING, server=("127.0.0.1", 9096)),
        replace(GREETING, server=("::1", 9095)),
        replace(GREETING, worker=GREETING.server, server=GREETING.worker),
    ],
)
def test_a_proof_holds_nowhere_else(other: Greeting) -> None:
    for side in ("worker", "server"):
        assert not GREETING.proves(side, other.proof(side))
        assert not GREETING.proves("server" if side == "worker" else "worker", GREETING.proof(side))


@given(st.binary(max_size=64))
def test_no_bytes_of_chance_prove_anything(proof: bytes) -> None:
    assert not GREETING.proves("worker", proof) and not GREETING.proves("server", proof)


def test_nonces_differ() -> None:
    assert len({nonce() for _ in range(100)}) == 100
