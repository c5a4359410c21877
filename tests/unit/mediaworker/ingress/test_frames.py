"""Frames cut out by us are those that the WebSocket library cuts out."""

from __future__ import annotations

import os

from hypothesis import given
from hypothesis import strategies as st
from websockets.frames import Frame, Opcode
from websockets.protocol import SERVER, Protocol, State

from mediaworker.ingress.frames import split

LIMIT = 1 << 16


def wire(opcode: Opcode, data: bytes, *, fin: bool = True, mask: bool = True) -> bytes:
    return Frame(opcode, data, fin).serialize(mask=mask)


def by_the_library(data: bytes) -> tuple[list[bytes], list[Opcode], bool]:
    """Texts and control frames in order, and whether it all was right."""
    protocol = Protocol(SERVER, state=State.OPEN, max_size=LIMIT)
    protocol.receive_data(data)
    frames = protocol.events_received()
    texts = [bytes(frame.data) for frame in frames if frame.opcode is Opcode.TEXT]
    return texts, [frame.opcode for frame in frames if frame.opcode >= 8], protocol.parser_exc is None


PLAIN = st.one_of(
    st.tuples(st.just(Opcode.TEXT), st.binary(max_size=400)),
    st.tuples(st.just(Opcode.TEXT), st.sampled_from([0, 125, 126, 127, 65535]).map(os.urandom)),
    st.tuples(st.sampled_from([Opcode.PING, Opcode.PONG]), st.binary(max_size=125)),
)


@given(st.lists(PLAIN, max_size=12), st.lists(st.integers(1, 700), max_size=40))
def test_plain_frames_however_they_are_cut(frames: list[tuple[Opcode, bytes]], pieces: list[int]) -> None:
    data = b"".join(wire(opcode, payload) for opcode, payload in frames)
    texts, control, rest, at = [], b"", b"", 0
    for size in [*pieces, len(data)]:
        found = split(rest + data[at : at + size], LIMIT)
        at += size
        texts += found.texts
        control += found.control
        rest = found.rest
        assert found.plain
    assert rest == b""
    assert (texts, [frame for frame, _ in frames if frame >= 8], True) == by_the_library(data)[:1] + (
        by_the_library(control)[1],
        True,
    )


@given(st.lists(PLAIN, max_size=4), st.data())
def test_from_the_first_other_frame_on_all_is_the_librarys(
    frames: list[tuple[Opcode, bytes]], data: st.DataObject
) -> None:
    before = b"".join(wire(opcode, payload) for opcode, payload in frames)
    other = data.draw(
        st.sampled_from(
            [
                wire(Opcode.BINARY, b"x" * 200),
                wire(Opcode.TEXT, b"x" * 200, fin=False),
                wire(Opcode.CONT, b"x" * 200),
                wire(Opcode.TEXT, b"x" * 200, mask=False),
                wire(Opcode.TEXT, b"x" * (LIMIT + 1)),
                bytes([0x81 | 0x40]) + wire(Opcode.TEXT, b"x" * 200)[1:],
                bytes([0x83]) + wire(Opcode.TEXT, b"x" * 200)[1:],
                bytes([0x81, 0xFE, 0xFF, 0xFF]),
            ]
        )
    )
    after = data.draw(st.binary(max_size=300))
    limit = 1000 if other[:4] == b"\x81\xfe\xff\xff" else LIMIT
    if limit == 1000 and any(len(payload) > limit for _, payload in frames):
        return
    found = split(before + other + after, limit)
    assert not found.plain
    assert found.rest == other + after
    assert found.texts == [payload for opcode, payload in frames if opcode is Opcode.TEXT]


@given(st.binary(max_size=2000))
def test_garbage_is_cut_as_the_library_cuts_it(data: bytes) -> None:
    found = split(data, LIMIT)
    consumed = len(data) - len(found.rest)
    texts, control, right = by_the_library(data[:consumed])
    assert found.texts == texts
    assert by_the_library(found.control)[1] == control or not right
