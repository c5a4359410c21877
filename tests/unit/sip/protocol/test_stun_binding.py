"""STUN: when a question is repeated, and which answer counts."""

from __future__ import annotations

import struct

import pytest
from aioice.stun import Class, Message, Method
from hypothesis import given
from hypothesis import strategies as st

from config import ConfigError
from config.load import parse
from sip.protocol.stun import GIVE_UP_S, REQUESTS_S, Binding

MAPPED = ("198.51.100.7", 40000)


def answer(request: bytes, *, kind: Class = Class.RESPONSE, **attributes: object) -> bytes:
    named = {name.replace("_", "-"): value for name, value in attributes.items()}
    return bytes(Message(Method.BINDING, kind, request[8:20], named))


def test_a_question_is_repeated_and_given_up() -> None:
    binding = Binding(5.0)
    sent = []
    while not binding.over:
        sent.append((round(binding.next_s - 5.0, 6), binding.request(binding.next_s)))
    assert [when for when, _ in sent] == [*REQUESTS_S, GIVE_UP_S]
    assert len({request for _, request in sent[:-1]}) == 1 and sent[-1][1] == b"", "always the same one"
    assert binding.mapped is None


def test_nothing_goes_out_before_its_time() -> None:
    binding = Binding(5.0)
    assert binding.request(5.0)[:2] == b"\x00\x01"
    assert binding.request(5.05) == b""


@pytest.mark.parametrize("attribute", ["XOR_MAPPED_ADDRESS", "MAPPED_ADDRESS"])
def test_the_answer_says_where_it_appears(attribute: str) -> None:
    binding = Binding(0.0)
    assert binding.receive(answer(binding.request(0.0), **{attribute: MAPPED}))
    assert binding.over and binding.mapped == MAPPED


def test_a_refusal_is_an_answer() -> None:
    binding = Binding(0.0)
    assert binding.receive(answer(binding.request(0.0), kind=Class.ERROR, ERROR_CODE=(400, "Bad Request")))
    assert binding.over and binding.mapped is None


def test_only_the_answer_counts() -> None:
    binding = Binding(0.0)
    request = binding.request(0.0)
    other = answer(Binding(0.0).request(0.0), XOR_MAPPED_ADDRESS=MAPPED)
    for datagram in (b"", other, request, answer(request), b"\x80" + bytes(30), answer(request)[:19]):
        assert not binding.receive(datagram)
    assert not binding.over


@given(st.binary(max_size=60), st.integers(0, 3), st.integers(0, 0xFFFF))
def test_whatever_comes_is_an_answer_or_is_not(body: bytes, first: int, kind: int) -> None:
    binding = Binding(0.0)
    request = binding.request(0.0)
    for length in (len(body), kind):
        header = bytes([first, kind & 0xFF]) + struct.pack("!H", length) + request[4:20]
        binding.receive(header + body)
        binding.receive(header[:20])
    binding.receive(body)


@pytest.mark.parametrize("name", ["a b", "stun.example:0", "stun.example:66000", ":3478", "stun:a:b", "[::1"])
def test_a_bad_server_is_named(name: str) -> None:
    with pytest.raises(ConfigError, match="sip.stun"):
        parse({"sip": {"stun": name}})
