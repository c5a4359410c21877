"""The functions that PJSIP's Python binding lacks, called through ctypes: our C code in the build, and a few counts.

`tools/pjsip/mediaworker.c` is compiled into the binding, and its interface is flat: numbers, byte strings and opaque
handles. This module does not depend on the layout of C structures. An exception must not cross PJSIP's frames; if one
leaves a callback nevertheless, ctypes returns 0, which lets no request pass.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from ctypes import CFUNCTYPE, POINTER, byref, c_char_p, c_int, c_void_p
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Literal

import _pjsua2

from sip.admission.admission import Admission
from sip.admission.request_filter import DROP, PASS, FilterVerdict, RequestHead
from sip.pjsip.server_location import SipServer
from sip.protocol.errors import SipError

INTERFACE = 3
"""MEDIAWORKER_INTERFACE of the C file."""
_ADDRESS_BYTES = 64
_BEGINNING_BYTES = 60
"""The number of bytes of an unreadable message that are logged."""


class _Field(IntEnum):
    """`enum field` of the C file: the indexes of a request's texts."""

    MESSAGE = 0
    METHOD = 1
    CSEQ_METHOD = 2
    CALL_ID = 3
    BRANCH = 4
    TO_TAG = 5
    SOURCE = 6


_TRANSPORTS: tuple[Literal["", "udp", "tcp", "tls"], ...] = ("", "udp", "tcp", "tls")
"""`enum transport` of the C file."""


@dataclass(frozen=True, slots=True)
class NameQuery:
    """A host name whose servers PJSIP needs."""

    host: str
    port: int
    """The port; 0 if the URI has none."""
    transport: Literal["", "udp", "tcp", "tls"]
    """The transport; "" if the URI has none."""
    ipv6_only: bool


_OnRequest = CFUNCTYPE(c_int, c_void_p, c_void_p, c_int, c_int, POINTER(c_void_p), POINTER(c_int))
_OnResponse = CFUNCTYPE(None, c_void_p)
_OnDropped = CFUNCTYPE(None, c_void_p, c_void_p, c_int)
_OnName = CFUNCTYPE(c_int, c_void_p, c_void_p, c_int, c_int, c_int, c_int)

SIGNATURES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    # function: result, arguments
    "mediaworker_interface": (c_int, ()),
    "mediaworker_poll_descriptor": (c_int, ()),
    "mediaworker_filter_start": (c_int, (_OnRequest, _OnResponse)),
    "mediaworker_dropped_start": (c_int, (_OnDropped,)),
    "mediaworker_answer": (c_int, (c_void_p, c_int, c_int, POINTER(c_char_p), POINTER(c_char_p))),
    "mediaworker_describe": (c_int, (c_void_p, c_char_p)),
    "mediaworker_negotiate": (c_int, (c_char_p, c_char_p, c_int, c_char_p, c_int)),
    "mediaworker_names_start": (c_int, (_OnName,)),
    "mediaworker_found": (None, (c_void_p, c_int, POINTER(c_char_p), POINTER(c_int), POINTER(c_int))),
    "mediaworker_peer": (c_int, (c_void_p, c_char_p, c_int, POINTER(c_int))),
    "mediaworker_close": (c_int, (c_void_p,)),
    "mediaworker_tls_restart": (c_int, (c_int, c_char_p)),
    "pj_get_version": (c_char_p, ()),
    "pj_log_set_level": (None, (c_int,)),
    "pjsip_tsx_layer_get_tsx_count": (ctypes.c_uint, ()),
    "pjsip_ua_get_dlg_set_count": (ctypes.c_uint, ()),
    "pjsua_call_get_count": (ctypes.c_uint, ()),
}

library = ctypes.CDLL(_pjsua2.__file__)
for _name, (_result, _arguments) in SIGNATURES.items():
    if hasattr(library, _name):  # else `check_interface` says what to do
        _function = getattr(library, _name)
        _function.restype, _function.argtypes = _result, _arguments


def check_interface() -> None:
    """Raises SipError if the binding was built from other sources than this code expects."""
    found = library.mediaworker_interface() if hasattr(library, "mediaworker_interface") else 0
    if found != INTERFACE:
        version = library.pj_get_version().decode()
        raise SipError(
            f"this is PJSIP {version} with interface {found} of mediaworker's, and interface {INTERFACE} is needed: "
            "build it with tools/build_pjsip.sh"
        )


class RequestModule:
    """A PJSIP module that lets Admission check every request before a transaction exists for it.

    It is registered with PJSIP's endpoint, which must exist, and ends with it. A request that cannot be checked does
    not pass.
    """

    def __init__(self, admission: Admission) -> None:
        """Raises SipError if PJSIP does not accept the module, without which requests would not be filtered."""
        self._admission = admission
        # PJSIP calls these while its endpoint lives.
        self._callbacks = _OnRequest(self._on_request), _OnResponse(self._on_response)
        self._on_dropped = _OnDropped(self._count_dropped)
        status = library.mediaworker_filter_start(*self._callbacks)
        if status := status or library.mediaworker_dropped_start(self._on_dropped):
            raise SipError(f"PJSIP does not take the filter of requests (status {status})")

    def _on_request(self, handle: int, transport: int, connected: int, cseq: int, texts: Any, lengths: Any) -> int:
        """Return 1 if the request may pass. The handle and the texts are invalid after this has returned."""

        def text(field: _Field) -> str:
            return _bytes(texts[field], lengths[field]).decode("latin-1")

        def packet() -> bytes:
            return _bytes(texts[_Field.MESSAGE], lengths[_Field.MESSAGE])

        method = text(_Field.METHOD)
        try:
            self._admission.connections.on_message(transport)
            head = RequestHead(
                method,
                text(_Field.CALL_ID),
                text(_Field.BRANCH),
                text(_Field.TO_TAG),
                text(_Field.SOURCE),
                connected=bool(connected),
            )
            verdict = self._admission.check(head, cseq, packet)
            if verdict.status == PASS:
                verdict = _compare(verdict, handle, method, text(_Field.CSEQ_METHOD))
            # The C file follows the connection in the same cases.
            if connected and head.to_tag and (verdict.status == PASS or verdict.status // 100 == 2):
                address, port, _ = peer_of(transport)
                self._admission.on_connection(head, cseq, (address, port), packet)
        except Exception:
            verdict = FilterVerdict(self._admission.on_error())
        if verdict.status not in (PASS, DROP) and method != "ACK":  # an ACK is never answered
            try:
                answer(handle, verdict)
            except Exception:
                self._admission.on_error()
        return int(verdict.status == PASS)

    def _on_response(self, transport: int) -> None:
        """Note a response, which is not filtered: it belongs to a request of ours, or PJSIP drops it."""
        try:
            self._admission.connections.on_message(transport)
        except Exception:
            self._admission.on_error()

    def _count_dropped(self, transport: int, data: int, length: int) -> None:
        """Count a message that PJSIP could not parse."""
        try:
            self._admission.on_unreadable(_bytes(data, min(length, _BEGINNING_BYTES)).decode("latin-1"))
        except Exception:
            self._admission.on_error()


def _bytes(address: int | None, length: int) -> bytes:
    return ctypes.string_at(address, length) if address and length > 0 else b""


def _compare(verdict: FilterVerdict, handle: int, method: str, cseq_method: str) -> FilterVerdict:
    """The final verdict on a request that may pass: PJSIP gets the description that was checked, or the request is
    refused if PJSIP parses it differently."""
    if method != cseq_method:
        return FilterVerdict(400)  # RFC 3261 section 8.1.1.5: PJSIP goes by either, as it happens
    if (shown := verdict.description) is not None:
        found = library.mediaworker_describe(handle, shown.encode("latin-1") if shown else None)
        if bool(found) != bool(shown) and method != "ACK":  # an ACK is never answered
            return FilterVerdict(400)
    return verdict


def answer(handle: int, verdict: FilterVerdict) -> None:
    """Answer a request without a transaction."""
    texts = c_char_p * len(verdict.headers)
    names = texts(*(name.encode() for name, _ in verdict.headers))
    values = texts(*(value.encode() for _, value in verdict.headers))
    library.mediaworker_answer(handle, verdict.status, len(verdict.headers), names, values)


def on_names(callback: Callable[[int, NameQuery], bool]) -> object:
    """Let `callback` resolve names from now on; returns an object that must be kept while PJSIP's endpoint lives.

    `callback(query, what)` returns whether it will call `found` once, and must not raise.
    """

    def on_name(query: int, name: int, length: int, port: int, transport: int, ipv6_only: int) -> int:
        host = _bytes(name, length).decode("latin-1")
        return int(callback(query, NameQuery(host, port, _TRANSPORTS[transport], bool(ipv6_only))))

    kept = _OnName(on_name)
    library.mediaworker_names_start(kept)
    return kept


def found(query: int, servers: Sequence[SipServer]) -> None:
    """Pass the servers of a name to PJSIP, the best first; none if the name has none."""
    count = len(servers)
    addresses = (c_char_p * count)(*(server.address.encode() for server in servers))
    ports = (c_int * count)(*(server.port for server in servers))
    transports = (c_int * count)(*(_TRANSPORTS.index(server.transport) for server in servers))
    library.mediaworker_found(query, count, addresses, ports, transports)


def peer_of(transport: int) -> tuple[str, int, bool]:
    """(address, port, incoming) of a connection's other end; `incoming` if that end has opened it."""
    address, port = ctypes.create_string_buffer(_ADDRESS_BYTES), c_int()
    incoming = library.mediaworker_peer(transport, address, _ADDRESS_BYTES, byref(port))
    return address.value.decode(), port.value, bool(incoming)


def close_transport(transport: int) -> None:
    """Close a connection whose end PJSIP has not yet reported."""
    library.mediaworker_close(transport)
