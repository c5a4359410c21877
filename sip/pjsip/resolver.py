"""Names of hosts that PJSIP sends to, looked up beside the event loop: a Contact may be one, and PJSIP would wait.

PJSIP asks here (its `pjsip_ext_resolver`); the build's patch makes that so for names only. The structures are those of
PJSIP 2.17, as in `sip.pjsip.native`.
"""

from __future__ import annotations

import asyncio
import ctypes
import socket
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from ctypes import POINTER, Structure, byref, c_int, c_uint, c_void_p
from typing import Any

import structlog

from config.addresses import Family, family_of, socket_address
from sip.access import OncePer
from sip.pjsip.callbacks import report
from sip.pjsip.native import HostPort, SocketAddress, Str

log = structlog.get_logger("sip")

getaddrinfo = socket.getaddrinfo
THREADS = 4
WAITING = 64
"""Names that are asked for at one time, beyond which none is found: they are those of calls."""
ADDRESSES = 8
_MAX_ADDRESSES = 32
"""PJSIP_MAX_RESOLVED_ADDRESSES of the build."""
_NOT_FOUND = 70018
"""PJ_ERESOLVE"""
_RELIABLE, _SECURE = 1, 2
"""pjsip_transport_flags_e"""
_UDP, _TCP, _TLS, _IPV6 = 1, 2, 3, 128
"""pjsip_transport_type_e"""
_PORTS = {_UDP: 5060, _TCP: 5060, _TLS: 5061}


class _Target(Structure):
    """pjsip_host_info"""

    _fields_ = [("flag", c_uint), ("type", c_int), ("addr", HostPort)]


class _Record(Structure):
    """pjsip_server_address_record"""

    _fields_ = [
        ("name", Str),
        ("type", c_int),
        ("priority", c_uint),
        ("weight", c_uint),
        ("addr", SocketAddress),
        ("addr_len", c_int),
    ]


class _Addresses(Structure):
    """pjsip_server_addresses"""

    _fields_ = [("count", c_uint), ("entry", _Record * _MAX_ADDRESSES)]


_Found = ctypes.CFUNCTYPE(None, c_int, c_void_p, c_void_p)
_Resolve = ctypes.CFUNCTYPE(None, c_void_p, c_void_p, POINTER(_Target), c_void_p, c_void_p)


class _Resolver(Structure):
    """pjsip_ext_resolver"""

    _fields_ = [("resolve", _Resolve)]


class Resolver:
    """PJSIP's, from now until `close`, which comes before PJSIP's end."""

    def __init__(self, library: ctypes.CDLL, families: Sequence[Family] = ("IP4", "IP6")) -> None:
        """`families`: addresses of others are not found; the first comes first."""
        self._families = tuple(families)
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False
        self._once = OncePer()
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="sip-names")
        self._struct = _Resolver(_Resolve(self._resolve))  # PJSIP keeps a pointer to it
        library.pjsua_get_pjsip_endpt.restype = c_void_p
        library.pjsip_endpt_set_ext_resolver(c_void_p(library.pjsua_get_pjsip_endpt()), byref(self._struct))

    def close(self) -> None:
        """Nobody is looked for any more, and nothing is found: PJSIP asks for some while it ends."""
        self._closed = True
        for task in self._tasks:
            task.cancel()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _resolve(self, resolver: int, pool: int, target: Any, token: int, found: int) -> None:
        """In PJSIP's frames: no exception may leave it, and what it was given is not there later."""
        try:
            wanted = target.contents
            kind = wanted.type or (_TLS if wanted.flag & _SECURE else _TCP if wanted.flag & _RELIABLE else _UDP)
            if self._closed or len(self._tasks) >= WAITING:
                _Found(found)(_NOT_FOUND, token, None)
                return
            answer = self._answer(str(wanted.addr.host), wanted.addr.port, kind, token, _Found(found))
            task = self._loop.create_task(answer)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        except Exception:
            report("resolve")
            _Found(found)(_NOT_FOUND, token, None)  # else what is to be sent there would wait for ever

    async def _answer(self, name: str, port: int, kind: int, token: int, tell: Any) -> None:
        try:
            records = await self._records(name, port, kind)
        except Exception:
            report("resolve")
            records = None
        if records is None:
            tell(_NOT_FOUND, token, None)
        else:
            tell(0, token, byref(records))

    async def _records(self, name: str, port: int, kind: int) -> _Addresses | None:
        """For PJSIP; None when there are none. What they point to lives as long as they do."""
        addresses = await self._look_up(name, kind)
        if not addresses:
            if (held_back := self._once.due(name, self._loop.time())) is not None:
                log.info("the name of a SIP peer has no address", name=name, held_back=held_back)
            return None
        records = _Addresses(count=len(addresses))
        kept = name.encode()
        for record, address in zip(records.entry, addresses, strict=False):
            raw = socket_address(address, port or _PORTS[kind & ~_IPV6])
            record.name = Str(ctypes.cast(ctypes.c_char_p(kept), c_void_p), len(kept))
            record.type = kind | _IPV6 if family_of(address) == "IP6" else kind
            ctypes.memmove(record.addr, raw, len(raw))
            record.addr_len = len(raw)
        records.kept = kept
        return records

    async def _look_up(self, name: str, kind: int) -> list[str]:
        families: Sequence[Family] = ("IP6",) if kind & _IPV6 else self._families
        try:
            found = await self._loop.run_in_executor(self._threads, getaddrinfo, name, None)
        except (OSError, UnicodeError):
            return []
        addresses = [each for each in dict.fromkeys(str(entry[4][0]) for entry in found) if "%" not in each]
        return [each for family in families for each in addresses if family_of(each) == family][:ADDRESSES]
