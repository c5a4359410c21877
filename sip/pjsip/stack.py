"""pjsua2 on the event loop: signalling only, no threads, no media.

PJSIP keeps its sockets in one epoll set. The loop watches that set, so a message is handled when it arrives and an idle
worker sleeps. A slow timer drives PJSIP's own timers (T1 is 500 ms). So every callback runs on the loop's thread. With
the `null` sound device and loop-back media transports, pjsua opens no media socket and runs no media clock.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pjsua2 as pj
import structlog

from config.network.addresses import ANYWHERE, Family, bracketed, family_of
from sip.admission.admission import Admission
from sip.pjsip.callbacks import StackLog, guarded
from sip.pjsip.native import RequestModule, check_interface, close_transport, library, peer_of
from sip.pjsip.resolver import Resolver
from sip.protocol import trace
from sip.protocol.errors import SipError

log = structlog.get_logger("sip")

TIMER_S = 0.020
_EVENTS_PER_POLL = 32
_MAX_CALLS = 1024
"""PJSUA_MAX_CALLS of the build."""
_DESTROY_NO_NETWORK = 3
EXPIRE_S = 1.0
_HANDSHAKE_MS = 5000
_AUTHORITIES = (
    "/etc/ssl/certs/ca-certificates.crt",  # Debian, Ubuntu, Alpine
    "/etc/pki/tls/certs/ca-bundle.crt",  # Red Hat
    "/etc/ssl/ca-bundle.pem",  # SUSE
)

_TRANSPORTS = {
    "IP4": {"udp": pj.PJSIP_TRANSPORT_UDP, "tcp": pj.PJSIP_TRANSPORT_TCP, "tls": pj.PJSIP_TRANSPORT_TLS},
    "IP6": {"udp": pj.PJSIP_TRANSPORT_UDP6, "tcp": pj.PJSIP_TRANSPORT_TCP6, "tls": pj.PJSIP_TRANSPORT_TLS6},
}


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """The PEM files for TLS, and their use. Without a certificate no incoming connection succeeds."""

    cert: str = ""
    key: str = ""
    """The private key; "" if it is in the certificate's file."""
    ca: str = ""
    """The authorities for peers' certificates; "" for those of the system."""
    verify: bool = True
    """Whether the certificates of servers to which we connect are verified."""
    clients: bool = False
    """Whether clients that connect to us must present a verified certificate."""


class Stack:
    """The process's one pjsua2 endpoint: PJSIP keeps its state in globals."""

    _alive = False

    def __init__(
        self,
        *,
        max_calls: int,
        log_level: int = 0,
        on_rejected: Callable[[int], None] = lambda status: None,
        on_lost: Callable[[str, int], None] = lambda address, port: None,
        on_select: Callable[[str, str, int], int] = lambda message, source, account: account,
        admission: Admission | None = None,
        families: Sequence[Family] = ("IP4", "IP6"),
        user_agent: str = "mediaworker",
    ) -> None:
        """`on_rejected(status)`: pjsua itself has refused an INVITE, before any of our code was called.

        `on_lost(address, port)`: a connection to that address has ended.

        `on_select(message, source, account)` returns the id of the account that a request is for; PJSIP proposes one.

        `families`: the address families for which names are resolved.

        `admission` checks every request before PJSIP has a transaction for it; without it all requests pass.

        Raises SipError: there is an endpoint already, or the binding is not the one that this code was made for.
        """
        check_interface()
        if Stack._alive:
            raise SipError("this process has a SIP endpoint already")
        Stack._alive = True
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._descriptor = -1
        # PJSIP writes to standard output at its own default level until libInit has taken the configured one.
        library.pj_log_set_level(0)
        self._endpoint: Any = _Endpoint(self)
        self._admission, self._on_lost = admission, on_lost
        self.on_rejected, self.on_select = on_rejected, on_select
        self._listening: set[str] = set()
        """The kinds of transport that have been opened."""
        self._request_module: RequestModule | None = None
        self._resolver: Resolver | None = None
        self._expiry: asyncio.TimerHandle | None = None
        self._log = StackLog(log_level)
        self._endpoint.libCreate()
        try:
            self._endpoint.libInit(_config(max_calls, self._log, user_agent))
            self.trace(False)
            self._endpoint.audDevManager().setNoDev()
            self._resolver = Resolver(families, self._listening)
            if admission is not None:
                self._request_module = RequestModule(admission)
        except pj.Error as error:
            self.destroy()
            raise SipError(error.reason) from None
        except SipError:
            self.destroy()
            raise

    def trace(self, on: bool) -> None:
        """Switch the logging of all messages on or off."""
        self._log.traced = on
        # PJSIP formats nothing that lies above its own level.
        library.pj_log_set_level(max(self._log.level, trace.LEVEL) if on else self._log.level)

    def listen(
        self,
        kind: Literal["udp", "tcp", "tls"],
        host: str,
        port: int,
        *,
        public_address: str = "",
        files: TlsFiles | None = None,
    ) -> tuple[int, int]:
        """Open a transport at an address; `port` 0 for any. Returns its id and its port. `files`: those for TLS.

        One for an IPv6 address speaks no IPv4, so the port may be open for both.

        PJSIP connects by no TLS without a port that listens, so there is one without a certificate too.

        Raises:
            SipError: naming the address.
        """
        config = pj.TransportConfig()
        config.port = port
        config.boundAddress = _bound(host)
        config.publicAddress = public_address
        if kind == "tls":
            _secure(config.tlsConfig, files or TlsFiles())
        problem = ""
        try:
            transport = self._endpoint.transportCreate(_TRANSPORTS[family_of(host)][kind], config)
        except pj.Error as error:
            problem = error.reason
        if problem:  # raised here: in there it would keep PJSIP's frame, and with it the endpoint
            raise SipError(f"cannot listen on {kind} {bracketed(host)}:{port}: {problem}")
        self._listening.add(kind)
        info = self._endpoint.transportGetInfo(transport)
        bound = int(info.localName.rpartition(":")[2])
        return transport, bound

    def renew(self, transport: int, host: str) -> None:
        """Read the files of a TLS transport on `host` again; connections that are open go on. Raises SipError."""
        port = int(self._endpoint.transportGetInfo(transport).localName.rpartition(":")[2])
        if status := library.mediaworker_tls_restart(transport, _bound(host).encode()):
            raise SipError(f"cannot listen on tls port {port} again: {self._endpoint.utilStrError(status)}")

    def start(self) -> None:
        self._endpoint.libStart()
        self._descriptor = library.mediaworker_poll_descriptor()
        self._loop.add_reader(self._descriptor, self._poll)
        self._tick()
        if self._admission is not None:
            self._close_expired(self._admission)

    @property
    def transactions(self) -> int:
        """Transactions alive; over UDP each stays for 32 s after its end, against repetitions (RFC 3261 section 17)."""
        return int(library.pjsip_tsx_layer_get_tsx_count())

    @property
    def calls(self) -> int:
        """Calls whose last message is not settled: one that was hung up counts until its BYE is answered."""
        return int(library.pjsua_call_get_count())

    @property
    def dialogs(self) -> int:
        return int(library.pjsip_ua_get_dlg_set_count())

    async def settle(self, timeout_s: float) -> None:
        """Wait until every BYE and CANCEL is answered, but no longer than `timeout_s`."""
        deadline = self._loop.time() + timeout_s
        await asyncio.sleep(0)  # what callbacks have put off until later
        while self.calls and self._loop.time() < deadline:  # noqa: ASYNC110 - PJSIP says nothing of it
            await asyncio.sleep(TIMER_S)

    def destroy(self) -> None:
        """End it without waiting for the network. Another Stack may be made afterwards."""
        for timer in (self._timer, self._expiry):
            if timer is not None:
                timer.cancel()
        self._timer = self._expiry = None
        if self._descriptor >= 0:
            self._loop.remove_reader(self._descriptor)
            self._descriptor = -1
        if self._resolver is not None:
            self._resolver.close()
            self._resolver = None
        if self._endpoint is not None:
            self._endpoint.libDestroy(_DESTROY_NO_NETWORK)
            self._endpoint = None  # the C++ object goes with it, and only one may exist
            Stack._alive = False

    def on_transport(self, handle: int, state: int) -> None:
        """Called in PJSIP's callback: a connection that may not stay is closed from the loop, if it is still there
        then."""
        if self._admission is None:
            return
        address, port, incoming = peer_of(handle)
        if state == pj.PJSIP_TP_STATE_DISCONNECTED:
            self._loop.call_soon(self._on_lost, address, port)
        if state != pj.PJSIP_TP_STATE_CONNECTED:
            self._admission.connections.remove(handle)
        elif incoming and not self._admission.on_connected(handle, address):
            self._loop.call_soon(self._close, self._admission, handle)

    def _close(self, admission: Admission, handle: int) -> None:
        if self._endpoint is not None and admission.connections.remove(handle):
            close_transport(handle)

    def _close_expired(self, admission: Admission) -> None:
        self._expiry = self._loop.call_later(EXPIRE_S, self._close_expired, admission)
        for handle in admission.expired():
            self._close(admission, handle)

    def _tick(self) -> None:
        self._timer = self._loop.call_later(TIMER_S, self._tick)
        self._poll()

    def _poll(self) -> None:
        # The number is bounded: further events keep the descriptor readable, so the loop can run in between.
        for _ in range(_EVENTS_PER_POLL):
            if self._endpoint.libHandleEvents(0) <= 0:
                return


def _bound(host: str) -> str:
    return "" if host in ANYWHERE.values() else host


def _secure(config: Any, files: TlsFiles) -> None:
    config.certFile, config.privKeyFile = files.cert, files.key or files.cert
    if files.verify or files.clients:
        config.CaListFile = files.ca or next(filter(os.path.exists, _AUTHORITIES), "")
        if not config.CaListFile:
            raise SipError("this system has no list of certificate authorities: set sip.tls_ca")
    config.verifyServer = files.verify
    config.verifyClient = config.requireClientCert = files.clients
    config.proto = pj.PJ_SSL_SOCK_PROTO_TLS1_2 | pj.PJ_SSL_SOCK_PROTO_TLS1_3
    config.msecTimeout = _HANDSHAKE_MS


class _Endpoint(pj.Endpoint):  # type: ignore[misc]
    def __init__(self, stack: Stack) -> None:
        super().__init__()
        self._stack = stack

    @guarded
    def onSelectAccount(self, prm: Any) -> None:
        prm.accountIndex = self._stack.on_select(prm.rdata.wholeMsg, prm.rdata.srcAddress, prm.accountIndex)

    @guarded
    def onTransportState(self, prm: Any) -> None:
        self._stack.on_transport(int(prm.hnd), prm.state)

    @guarded
    def onRejectedIncomingCall(self, prm: Any) -> None:
        self._stack.on_rejected(prm.statusCode)


def numbers(max_calls: int) -> int:
    """Numbers of calls that PJSIP has: those that are allowed, and room for others.

    Some are being refused, and those of a peer that is gone are kept for the 32 s in which PJSIP repeats its BYE, while
    new ones may come.
    """
    return min(_MAX_CALLS, 2 * max_calls + 64)


def _config(max_calls: int, writer: StackLog, user_agent: str) -> Any:
    config = pj.EpConfig()
    config.uaConfig.threadCnt = 0
    config.uaConfig.mainThreadOnly = True
    config.uaConfig.maxCalls = numbers(max_calls)
    config.uaConfig.userAgent = user_agent
    config.medConfig.threadCnt = 0
    config.medConfig.hasIoqueue = False
    # PJSIP sets up a stream for each call that never sees a packet: keep its resampler cheap, or unneeded.
    config.medConfig.clockRate = config.medConfig.sndClockRate = 8000
    config.medConfig.quality = 1
    # PJSIP deletes the writer: Python must not.
    config.logConfig.writer = writer.__disown__()
    # What is printed is settled while running (`Stack.trace`); the message printer sleeps below its level.
    config.logConfig.level = config.logConfig.consoleLevel = 6
    config.logConfig.msgLogging = 1
    config.logConfig.decor = pj.PJ_LOG_HAS_SENDER
    return config
