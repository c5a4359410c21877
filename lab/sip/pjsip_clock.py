"""PJSIP's clock, moved forward at will: what it does after 45 seconds of a session is seen at once.

PJSIP reads the time in `pj_gettickcount`, through the table that the dynamic linker fills (ELF, `DT_JMPREL`): the entry
is pointed at a function of ours. Nothing else in the process sees another time.
"""

from __future__ import annotations

import contextlib
import ctypes
import time
from collections.abc import Iterator
from ctypes import CFUNCTYPE, POINTER, Structure, c_int, c_long, c_uint32, c_uint64
from pathlib import Path

import _pjsua2

_PT_DYNAMIC, _DT_STRTAB, _DT_SYMTAB, _DT_PLTRELSZ, _DT_JMPREL = 2, 5, 6, 2, 23
_PAGE = 4096
_READ_WRITE = 3


class _Time(Structure):
    _fields_ = [("sec", c_long), ("msec", c_long)]


_Function = CFUNCTYPE(c_int, POINTER(_Time))


class PjsipClock:
    def __init__(self) -> None:
        self.ahead_s = 0.0
        self.function = _Function(self._read)

    def _read(self, found: ctypes.Array[_Time]) -> int:
        found[0].sec, found[0].msec = divmod(int(1000 * (time.monotonic() + self.ahead_s)), 1000)
        return 0

    def forward(self, seconds: float) -> None:
        """What is due by then runs when PJSIP next looks at its timers, 20 ms from now at the latest."""
        self.ahead_s += seconds


@contextlib.contextmanager
def pjsip_clock() -> Iterator[PjsipClock]:
    """From before the endpoint is made until after its end: time that went back would stop PJSIP's timers."""
    clock = PjsipClock()
    slot = _slot("pj_gettickcount")
    before = slot.value
    slot.value = ctypes.cast(clock.function, ctypes.c_void_p).value
    try:
        yield clock
    finally:
        slot.value = before


def _slot(name: str) -> c_uint64:
    """The linker's entry for a function that the library calls, made writable."""
    base = _base()
    headers = base + c_uint64.from_address(base + 32).value
    count = ctypes.c_uint16.from_address(base + 56).value
    programs = (headers + 56 * number for number in range(count))
    dynamic = next(p for p in programs if c_uint32.from_address(p).value == _PT_DYNAMIC)
    entries: dict[int, int] = {}
    at = base + c_uint64.from_address(dynamic + 16).value
    while tag := c_uint64.from_address(at).value:
        entries[tag] = c_uint64.from_address(at + 8).value
        at += 16
    for relocation in range(entries[_DT_JMPREL], entries[_DT_JMPREL] + entries[_DT_PLTRELSZ], 24):
        symbol = entries[_DT_SYMTAB] + 24 * c_uint32.from_address(relocation + 12).value
        if ctypes.string_at(entries[_DT_STRTAB] + c_uint32.from_address(symbol).value) == name.encode():
            slot = base + c_uint64.from_address(relocation).value
            page = ctypes.c_void_p(slot & -_PAGE)
            assert ctypes.CDLL(None).mprotect(page, ctypes.c_size_t(2 * _PAGE), _READ_WRITE) == 0
            return c_uint64.from_address(slot)
    raise AssertionError(f"{name} is not called through the linker's table")


def _base() -> int:
    """Where the library begins in memory."""
    library = str(Path(_pjsua2.__file__).resolve())
    for line in Path("/proc/self/maps").read_text().splitlines():
        if line.endswith(library):
            return int(line.partition("-")[0], 16)
    raise AssertionError("the library is not loaded")
