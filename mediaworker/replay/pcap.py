"""Reads capture files (pcap and pcapng, plain or gzipped) and writes pcap. It handles the containers only, not the
packets in them.

Formats: draft-ietf-opsawg-pcap and draft-ietf-opsawg-pcapng.
"""

from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

from mediaworker.errors import MediaworkerError

RAW_IP = 101
"""The link type that `write` uses: IP packets without a link layer."""
MAX_FRAME = 1 << 20
MAX_BLOCK = 1 << 24
_SECTION, _INTERFACE, _PACKET, _SIMPLE, _ENHANCED = 0x0A0D0D0A, 1, 2, 3, 6
_TSRESOL, _TSOFFSET = 9, 14
_PCAP = {
    b"\xa1\xb2\xc3\xd4": (">", 1e6), b"\xd4\xc3\xb2\xa1": ("<", 1e6),
    b"\xa1\xb2\x3c\x4d": (">", 1e9), b"\x4d\x3c\xb2\xa1": ("<", 1e9),
}  # fmt: skip


class CaptureError(MediaworkerError):
    """The user's capture or recording cannot be replayed; the message is one line."""


class CapturedFrame(NamedTuple):
    at_s: float
    """Unix time."""
    link_type: int
    data: bytes


def read(path: str | Path) -> Iterator[CapturedFrame]:
    """Yield the frames in the order of the file. Raises CaptureError, also for a truncated file."""
    try:
        with open(path, "rb") as file:
            zipped = file.read(2) == b"\x1f\x8b"
            file.seek(0)
            if not zipped:
                yield from _frames(file)
                return
            with gzip.open(file) as inside:
                yield from _frames(inside)  # type: ignore[arg-type]  # reads like any binary file
    except (OSError, EOFError, zlib.error) as error:
        raise CaptureError(f"{path}: {getattr(error, 'strerror', None) or error}") from None
    except (CaptureError, struct.error) as error:
        raise CaptureError(f"{path}: {error}") from None


def write(path: str | Path, packets: list[tuple[float, bytes]]) -> None:
    """Write IP packets with their Unix times as pcap."""
    with open(path, "wb") as file:
        file.write(struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, RAW_IP))
        for at_s, packet in packets:
            micros = round(at_s * 1e6)
            file.write(struct.pack("<IIII", micros // 10**6, micros % 10**6, len(packet), len(packet)) + packet)


def _frames(file: BinaryIO) -> Iterator[CapturedFrame]:
    magic = file.read(4)
    if magic in _PCAP:
        return _read_pcap(file, *_PCAP[magic])
    if magic == b"\x0a\x0d\x0d\x0a":
        return _read_pcapng(file)
    raise CaptureError("empty" if not magic else "neither pcap nor pcapng, nor a recorded stream")


def _read_exactly(file: BinaryIO, size: int, what: str) -> bytes:
    data = file.read(size)
    if len(data) != size:
        raise CaptureError(f"cut off in {what}")
    return data


def _read_pcap(file: BinaryIO, order: str, per_second: float) -> Iterator[CapturedFrame]:
    *_, link_type = struct.unpack(f"{order}HHiIII", _read_exactly(file, 20, "the file header"))
    number = 0
    while head := file.read(16):
        number += 1
        if len(head) < 16:
            raise CaptureError(f"cut off in packet {number}")
        seconds, fraction, size, _ = struct.unpack(f"{order}IIII", head)
        if size > MAX_FRAME:
            raise CaptureError(f"packet {number} claims {size} bytes")
        data = _read_exactly(file, size, f"packet {number}")
        # The upper bits of the link type field hold the length of the frame check sequence.
        yield CapturedFrame(seconds + fraction / per_second, link_type & 0xFFFF, data)


def _read_pcapng(file: BinaryIO) -> Iterator[CapturedFrame]:
    order, interfaces, latest = "<", list[tuple[int, float, int]](), 0.0
    file.seek(0)
    number = 0
    while head := file.read(8):
        number += 1
        what = f"block {number}"
        if len(head) < 8:
            raise CaptureError(f"cut off in {what}")
        if head[:4] == b"\x0a\x0d\x0d\x0a":
            mark = _read_exactly(file, 4, what)
            order = ">" if mark == b"\x1a\x2b\x3c\x4d" else "<"
            if mark not in (b"\x1a\x2b\x3c\x4d", b"\x4d\x3c\x2b\x1a"):
                raise CaptureError(f"{what} has no byte order")
            interfaces = []
        else:
            mark = b""
        kind, length = struct.unpack(f"{order}II", head)
        if length < 12 + len(mark) or length % 4 or length > MAX_BLOCK:
            raise CaptureError(f"{what} claims {length} bytes")
        body = _read_exactly(file, length - 12 - len(mark), what)
        if _read_exactly(file, 4, what) != head[4:]:
            raise CaptureError(f"{what} does not end at its length")
        if kind == _INTERFACE:
            interfaces.append(_interface(order, body))
        elif kind in (_PACKET, _SIMPLE, _ENHANCED):
            frame = _packet(order, kind, body, interfaces, latest, what)
            latest = frame.at_s
            yield frame


def _interface(order: str, body: bytes) -> tuple[int, float, int]:
    """Return (link type, ticks per second, offset in seconds) of an interface block."""
    link_type, per_second, offset_s, at = struct.unpack_from(f"{order}H", body)[0], 1e6, 0, 8
    while at + 4 <= len(body):
        code, size = struct.unpack_from(f"{order}HH", body, at)
        value = body[at + 4 : at + 4 + size]
        if code == 0:
            break
        if code == _TSRESOL and size == 1:
            per_second = 2.0 ** (value[0] & 0x7F) if value[0] & 0x80 else 10.0 ** value[0]
        elif code == _TSOFFSET and len(value) == 8:
            (offset_s,) = struct.unpack(f"{order}q", value)
        at += 4 + size + -size % 4
    return link_type, per_second, offset_s


def _packet(
    order: str, kind: int, body: bytes, interfaces: list[tuple[int, float, int]], latest: float, what: str
) -> CapturedFrame:
    if kind == _SIMPLE:
        (size,) = struct.unpack_from(f"{order}I", body)
        index, high, low, start, size = 0, 0, 0, 4, min(size, len(body) - 4)
    elif kind == _ENHANCED:
        index, high, low, size = struct.unpack_from(f"{order}IIII", body)
        start = 20
    else:
        index, _, high, low, size = struct.unpack_from(f"{order}HHIII", body)
        start = 20
    if index >= len(interfaces):
        raise CaptureError(f"{what} is of interface {index}, which is not described")
    if start + size > len(body):
        raise CaptureError(f"{what} claims {size} bytes of packet")
    link_type, per_second, offset_s = interfaces[index]
    # A simple packet block has no timestamp; the time of the packet before it is used.
    at_s = latest if kind == _SIMPLE else offset_s + (high << 32 | low) / per_second
    return CapturedFrame(at_s, link_type, body[start : start + size])
