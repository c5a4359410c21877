"""The kernel filter that drops datagrams of other sources before they occupy a stream's receive buffer.

A socket's buffer holds some hundreds of datagrams and is read once per media tick. An attacker who finds the port and
sends ten thousand a second would fill it, and the call's own audio would be lost. A classic BPF program on the socket
(socket(7), SO_ATTACH_FILTER) checks the source address and port of each datagram. It accepts only the stream's own
ones, and those with the stream's SSRC: the stream may have moved, and no other sender knows that number.
"""

from __future__ import annotations

import ctypes
import socket
import struct
from collections.abc import Iterable

from config.network.addresses import SOCKETS, Family, family_of
from sip.media.latching import Address

SO_ATTACH_FILTER, SO_DETACH_FILTER, SO_MEMINFO = 26, 27, 55
"""asm-generic/socket.h; Python has no names for them."""
_DROPS = 8
"""SK_MEMINFO_DROPS"""
_LOAD_WORD, _LOAD_HALF, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x28, 0x15, 0x06
"""BPF_LD | BPF_ABS of four and two bytes, BPF_JMP | BPF_JEQ | BPF_K, BPF_RET | BPF_K (linux/bpf_common.h)."""
_NETWORK_HEADER = 0xFFF00000
"""SKF_NET_OFF: offsets from here are into the IP header, others into the UDP header."""
_SOURCE_AT: dict[Family, int] = {"IP4": 12, "IP6": 8}
_SSRC_AT = 16
"""The offset of the SSRC, which includes the UDP header of 8 bytes. A datagram that is too short for it is dropped."""
_ALL, _NONE = 0xFFFFFFFF, 0

Instruction = tuple[int, int, int, int]
"""A struct sock_filter: code, instructions to skip if true and if false, and operand."""


def program(sources: Iterable[Address], ssrc: int | None = None) -> list[Instruction]:
    """A program that accepts datagrams from these addresses and ports, and RTP packets with this SSRC, only."""
    made: list[Instruction] = []
    for address, port in sources:
        family = family_of(address)
        packed = socket.inet_pton(SOCKETS[family], address)
        words = struct.unpack(f"!{len(packed) // 4}I", packed)
        loads = [(_LOAD_WORD, _NETWORK_HEADER + _SOURCE_AT[family] + 4 * at, word) for at, word in enumerate(words)]
        loads.append((_LOAD_HALF, 0, port))
        length = 2 * len(loads) + 1
        for at, (load, offset, value) in enumerate(loads):
            made.append((load, 0, 0, offset))
            made.append((_JUMP_IF_EQUAL, 0, length - 2 * at - 2, value))  # else on to the next source
        made.append((_RETURN, 0, 0, _ALL))
    if ssrc is not None:
        made += [(_LOAD_WORD, 0, 0, _SSRC_AT), (_JUMP_IF_EQUAL, 0, 1, ssrc), (_RETURN, 0, 0, _ALL)]
    return [*made, (_RETURN, 0, 0, _NONE)]


def attach(sock: socket.socket, sources: Iterable[Address], ssrc: int | None = None) -> None:
    """Accept only these sources from now on, in place of earlier ones. Raises OSError if the kernel has no filters."""
    instructions = program(sources, ssrc)
    code = b"".join(struct.pack("=HBBI", *each) for each in instructions)
    buffer = ctypes.create_string_buffer(code, len(code))  # the kernel copies it
    described = struct.pack("@HP", len(instructions), ctypes.addressof(buffer))  # struct sock_fprog
    sock.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, described)


def detach(sock: socket.socket) -> None:
    """Remove the filter. Raises OSError if none is attached."""
    sock.setsockopt(socket.SOL_SOCKET, SO_DETACH_FILTER, 0)


def drops(sock: socket.socket) -> int:
    """The number of datagrams that the kernel dropped at this socket: filtered, or because its buffer was full."""
    try:
        info = sock.getsockopt(socket.SOL_SOCKET, SO_MEMINFO, 64)
    except OSError:
        return 0
    counts = struct.unpack(f"={len(info) // 4}I", info)
    return int(counts[_DROPS]) if len(counts) > _DROPS else 0
