"""A PJSIP module in Python: sees every message after PJSIP has parsed it and before any transaction does.

The Python binding has no such thing, so the C structures are declared here, as far as they are used. They are those of
PJSIP 2.17, which the build script fixes; with any other version the hook stays out, and says so.
"""

from __future__ import annotations

import ctypes
import socket
import sys
from collections.abc import Callable
from ctypes import POINTER, Structure, byref, c_char, c_int, c_long, c_ssize_t, c_uint32, c_void_p
from typing import Any

from sip.errors import SipError
from sip.protocol.offer_check import METHODS, is_described
from sip.request_filter import DROP, PASS, FilterVerdict, RequestHead

VERSION = "2.17"
_BUILD = "build it with tools/build_pjsip.sh"
PACKET_BYTES = 65536
"""PJSIP_MAX_PKT_LEN of the build."""
_PRIORITY = 12
"""Between the transport layer (8) and the transaction layer (16)."""
_RELIABLE = 1
"""PJSIP_TRANSPORT_RELIABLE"""
_INCOMING = 2
"""PJSIP_TP_DIR_INCOMING"""


class Str(Structure):
    _fields_ = [("ptr", c_void_p), ("slen", c_ssize_t)]

    def __str__(self) -> str:
        return ctypes.string_at(self.ptr, self.slen).decode("latin-1") if self.ptr and self.slen > 0 else ""


class _Header(Structure):
    _fields_ = [
        ("prev", c_void_p),
        ("next", c_void_p),
        ("type", c_int),
        ("name", Str),
        ("sname", Str),
        ("vptr", c_void_p),
    ]


class HostPort(Structure):
    _fields_ = [("host", Str), ("port", c_int)]


class _To(_Header):
    _fields_ = [("uri", c_void_p), ("tag", Str)]


class _CallId(_Header):
    _fields_ = [("id", Str)]


class _Method(Structure):
    _fields_ = [("id", c_int), ("name", Str)]


class _CSeq(_Header):
    _fields_ = [("cseq", c_int), ("method", _Method)]


class _Via(_Header):
    _fields_ = [
        ("transport", Str),
        ("sent_by", HostPort),
        ("ttl", c_int),
        ("rport", c_int),
        ("maddr", Str),
        ("received", Str),
        ("branch", Str),
    ]


SocketAddress = c_uint32 * 7
"""union pj_sockaddr"""


class _Transport(Structure):
    _fields_ = [
        ("obj_name", c_char * 32),
        ("pool", c_void_p),
        ("ref_cnt", c_void_p),
        ("lock", c_void_p),
        ("grp_lock", c_void_p),
        ("flags", c_int * 3),
        ("key_type", c_long),
        ("key_address", SocketAddress),
        ("type_name", c_void_p),
        ("flag", c_int),
        ("info", c_void_p),
        ("addr_len", c_int),
        ("local_addr", SocketAddress),
        ("has_addr_name", c_int),
        ("local_name", HostPort),
        ("remote_name", HostPort),
        ("dir", c_int),
    ]


class _RxData(Structure):
    _fields_ = [
        ("pool", c_void_p),
        ("transport", c_void_p),
        ("tp_data", c_void_p),
        ("op_key", c_void_p * 35),
        ("timestamp", c_long * 2),
        ("packet", c_char * PACKET_BYTES),
        ("zero", c_uint32),
        ("len", c_ssize_t),
        ("src_addr", SocketAddress),
        ("src_addr_len", c_int),
        ("src_name", c_char * 46),
        ("src_port", c_int),
        ("msg_buf", c_void_p),
        ("msg_len", c_int),
        ("msg", c_void_p),
        ("info", c_void_p),
        ("cid", POINTER(_CallId)),
        ("from_", c_void_p),
        ("to", POINTER(_To)),
        ("via", POINTER(_Via)),
        ("cseq", POINTER(_CSeq)),
    ]


class _Message(Structure):
    """Of a request."""

    _fields_ = [("type", c_int), ("method", _Method), ("uri", c_void_p), ("headers", _Header), ("body", c_void_p)]


class _Description(Structure):
    """pjsip_sdp_info"""

    _fields_ = [("body", Str), ("error", c_int), ("parsed", c_void_p)]


_Callback = ctypes.CFUNCTYPE(c_int, POINTER(_RxData))


class _Module(Structure):
    _fields_ = [
        ("prev", c_void_p),
        ("next", c_void_p),
        ("name", Str),
        ("id", c_int),
        ("priority", c_int),
        ("life", c_void_p * 4),
        ("on_rx_request", _Callback),
        ("on_rx_response", _Callback),
        ("rest", c_void_p * 3),
    ]


class Hook:
    """Registered with PJSIP's endpoint, which must exist; it goes with the endpoint.

    `judge(request, cseq, packet)` says what becomes of a request; what it answers needs no transaction. `packet()` is
    the whole message. `failed()`, within the handling of an exception of `judge`, returns the status to answer with or
    `gate.DROP`: nothing passes that has not been judged. `spoke(handle)` hears of every message of the transport with
    that address.
    """

    def __init__(
        self,
        library: ctypes.CDLL,
        judge: Callable[[RequestHead, int, Callable[[], bytes]], FilterVerdict],
        spoke: Callable[[int], None],
        failed: Callable[[], int],
        *,
        retry_after_s: int,
    ) -> None:
        """Raises SipError when PJSIP does not take it: without it requests would not be filtered."""
        self._library, self._judge, self._spoke, self._failed = library, judge, spoke, failed
        library.pj_get_version.restype = ctypes.c_char_p
        version = library.pj_get_version().decode()
        if version != VERSION:
            raise SipError(f"this is PJSIP {version}, and requests can be filtered with {VERSION} alone: {_BUILD}")
        library.pjsua_get_pjsip_endpt.restype = c_void_p
        library.pjsua_pool_create.restype = c_void_p
        library.pjsip_retry_after_hdr_create.restype = c_void_p
        library.pjsip_generic_string_hdr_create.restype = c_void_p
        library.pjsip_get_sdp_info.restype = POINTER(_Description)
        self._endpoint = c_void_p(library.pjsua_get_pjsip_endpt())
        pool = c_void_p(library.pjsua_pool_create(b"gate", ctypes.c_size_t(1024), ctypes.c_size_t(1024)))
        self._retry = _chain([library.pjsip_retry_after_hdr_create(pool, retry_after_s)])
        # PJSIP keeps pointers to all of these.
        self._name = ctypes.create_string_buffer(b"mod-mediaworker-gate")
        self._module = _Module(
            name=Str(ctypes.addressof(self._name), len(self._name.value)),
            id=-1,
            priority=_PRIORITY,
            on_rx_request=_Callback(self._on_request),
            on_rx_response=_Callback(self._on_response),
        )
        status = library.pjsip_endpt_register_module(self._endpoint, byref(self._module))
        if status:
            raise SipError(f"PJSIP does not take the filter of requests (status {status})")

    def _on_request(self, pointer: Any) -> int:
        """Whether it has been dealt with. An exception must not travel through PJSIP's frames."""
        try:
            verdict = self._verdict(pointer.contents)
        except Exception:
            verdict = FilterVerdict(self._failed())
        if verdict.status == PASS:
            return 0
        if verdict.status != DROP:
            try:
                self._answer(pointer, verdict)
            except Exception:
                self._failed()
        return 1

    def _verdict(self, rdata: Any) -> FilterVerdict:
        # RFC 3261 section 18.2.2 sends answers to any address, or name, that the Via gives as `maddr`. The only use of
        # that is multicast, and everybody else's addresses can be put there: answers go to the source.
        rdata.via.contents.maddr = Str()
        self._spoke(rdata.transport)
        method = str(_Message.from_address(rdata.msg).method.name)
        request = RequestHead(
            method,
            str(rdata.cid.contents.id),
            str(rdata.via.contents.branch),
            str(rdata.to.contents.tag),
            rdata.src_name.decode("latin-1"),
            connected=bool(_Transport.from_address(rdata.transport).flag & _RELIABLE),
        )
        packet: Callable[[], bytes] = lambda: ctypes.string_at(rdata.msg_buf, rdata.msg_len)  # noqa: E731
        verdict = self._judge(request, rdata.cseq.contents.cseq, packet)
        if verdict.status == PASS and method != str(rdata.cseq.contents.method.name):
            return FilterVerdict(400)  # RFC 3261 section 8.1.1.5: PJSIP goes by either, as it happens
        if verdict.status == PASS and method in METHODS and method != "ACK":
            if not is_described(packet(), self._described(rdata)):
                return FilterVerdict(400)
        for closed in verdict.closed:
            assert 0 <= closed.start <= closed.stop <= rdata.msg_len
            ctypes.memset(rdata.msg_buf + closed.start, ord("0"), closed.stop - closed.start)
        return verdict

    def _described(self, rdata: Any) -> slice | None:
        """Where PJSIP finds a session description; None when it finds none. What it reads goes with the request."""
        body = _Message.from_address(rdata.msg).body
        if not body:
            return None
        found = self._library.pjsip_get_sdp_info(c_void_p(rdata.pool), c_void_p(body), None, None).contents.body
        if not found.ptr or found.slen <= 0:
            return None
        start = found.ptr - rdata.msg_buf
        return slice(start, start + found.slen)

    def _answer(self, pointer: Any, verdict: FilterVerdict) -> None:
        if str(_Message.from_address(pointer.contents.msg).method.name) == "ACK":
            return  # nobody answers one
        more = self._headers(pointer.contents.pool, verdict.headers) if verdict.headers else None
        if verdict.status == 503 and more is None:
            more = self._retry
        headers = byref(more) if more is not None else None
        respond = self._library.pjsip_endpt_respond_stateless
        respond(self._endpoint, pointer, verdict.status, None, headers, None)

    def _headers(self, pool: int, headers: tuple[tuple[str, str], ...]) -> _Header:
        """In the pool of the request, with which they go."""
        create = self._library.pjsip_generic_string_hdr_create
        strings = [(_string(name.encode()), _string(value.encode())) for name, value in headers]
        return _chain([create(c_void_p(pool), byref(name), byref(value)) for name, value in strings])

    def _on_response(self, pointer: Any) -> int:
        try:
            self._spoke(pointer.contents.transport)
        except Exception:
            self._failed()  # it is not filtered: it belongs to a request of ours, or to nothing
        return 0

    def close_transport(self, handle: int) -> None:
        """Close a connection whose handle PJSIP has not yet reported as gone."""
        self._library.pjsip_transport_shutdown2(c_void_p(handle), 1)


def _string(text: bytes) -> Str:
    """A pj_str_t. Its buffer lives as long as the caller keeps it."""
    buffer = ctypes.create_string_buffer(text)
    found = Str(ctypes.addressof(buffer), len(text))
    found.buffer = buffer
    return found


def _chain(headers: list[int]) -> _Header:
    """A list's head: PJSIP walks from it and clones what it finds."""
    head = _Header()
    addresses = [ctypes.addressof(head), *headers]
    elements = [head, *(ctypes.cast(header, POINTER(_Header)).contents for header in headers)]
    for index, element in enumerate(elements):
        element.prev, element.next = addresses[index - 1], addresses[(index + 1) % len(addresses)]
    return head


def other_end(handle: int) -> tuple[str, int]:
    """Address and port that a connection goes to."""
    raw = bytes(_Transport.from_address(handle).key_address)  # struct sockaddr_in or sockaddr_in6
    family, port = int.from_bytes(raw[:2], sys.byteorder), int.from_bytes(raw[2:4], "big")
    return socket.inet_ntop(family, raw[8:24] if family == socket.AF_INET6 else raw[4:8]), port


def caller(handle: int) -> str:
    """The address at the other end of a transport that it has opened; "" when we have."""
    transport = _Transport.from_address(handle)
    return str(transport.remote_name.host) if transport.dir == _INCOMING else ""
