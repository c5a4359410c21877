"""The test phone of the `call` command and of tests: it places a call, plays samples, and hangs up."""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from socket import SOCK_DGRAM
from typing import Any, Literal

import numpy as np
import pjsua2 as pj
from numpy.typing import NDArray

from audio.codecs.codec import Codec
from audio.codecs.g711 import alaw_encode, ulaw_encode
from audio.rtp.silence_ticker import PTIME_S, SAMPLES, SilenceTicker
from config.network.addresses import ANYWHERE, bracketed, family_of
from sip.media.own_addresses import facing
from sip.media.ports import RtpPorts
from sip.media.receiver import RtpReceiver
from sip.media.rtp_socket import RtpCounters, RtpSocket
from sip.pjsip.accounts import Account, account_config
from sip.pjsip.callbacks import guarded
from sip.pjsip.stack import Stack, TlsFiles
from sip.protocol.errors import PeerError, SipError
from sip.protocol.message import SipMessage
from sip.protocol.offer_answer import NegotiatedStream, accept_answer
from sip.protocol.own_description import make_offer
from sip.protocol.sdp import SessionDescription

_FAREWELL_S = 2.0
_TARGET = re.compile(r"sips?:(?:[^@]+@)?(\[[^\]]+\]|[^:;?]+)(?::([0-9]+))?.*", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class PhoneResult:
    """The result of a call."""

    status: int
    """The SIP status of the INVITE: 200 if the call was established, 408 without any response."""
    reason: str
    packets_sent: int
    packets_received: int
    hung_up_by_peer: bool
    """The peer ended the call before everything was played."""

    @property
    def ok(self) -> bool:
        return self.status == 200 and not self.hung_up_by_peer


@dataclass(frozen=True, slots=True)
class PhoneCall:
    """An answered call, as long as audio is sent over it."""

    stream: NegotiatedStream
    socket: RtpSocket
    receiver: RtpReceiver
    over: asyncio.Event
    """Set when the peer has hung up."""


Speak = Callable[[PhoneCall], Awaitable[None]]


class SipPhone:
    """Places one call at a time. It uses pjsua2, so no SipEndpoint may live in the same process."""

    def __init__(
        self,
        *,
        codec: Codec = Codec.PCMU,
        transport: Literal["udp", "tcp", "tls"] = "udp",
        tls: TlsFiles | None = None,
        user: str = "phone",
        password: str = "",
        headers: Sequence[tuple[str, str]] = (),
        rtp_ports: tuple[int, int] = (20000, 29998),
        log_level: int = 0,
    ) -> None:
        self._codec, self._tls, self._rtp_ports, self._log_level = codec, tls, rtp_ports, log_level
        self._transport: Literal["udp", "tcp", "tls"] = transport
        self._user, self._password, self._headers = user, password, headers

    async def talk(self, uri: str, speak: Speak, *, answer_s: float = 30.0) -> PhoneResult:
        """Call `uri`, run `speak` once the call is answered, and hang up.

        Cancelling the task cancels the call or hangs it up.

        Raises:
            SipError: not a SIP URI, or no local address to call from.
        """
        found = _TARGET.fullmatch(uri)
        if not found:
            raise SipError(f"not a SIP URI: {uri}")
        loop = asyncio.get_running_loop()
        peer = await _resolve(found[1].strip("[]"))
        family, address = family_of(peer), facing(peer)
        stack = Stack(max_calls=1, log_level=self._log_level, user_agent="mediaworker-phone")
        counters = RtpCounters()
        account = Account("", _refuse)
        socket: RtpSocket | None = None
        dialog: _Outgoing | None = None
        try:
            _, port = stack.listen(self._transport, ANYWHERE[family], 0, files=self._tls)
            stack.start()
            config = account_config(f"sip:{self._user}@{bracketed(address)}:{port}", incoming=False)
            # PJSIP must use only those addresses of a name that the single transport can reach.
            six = family == "IP6"
            config.sipConfig.ipv6Use = pj.PJSUA_IPV6_ENABLED_USE_IPV6_ONLY if six else pj.PJSUA_IPV6_DISABLED
            if self._password:
                config.sipConfig.authCreds.append(pj.AuthCredInfo("digest", "*", self._user, 0, self._password))
            account.open(config, default=True)
            ports = RtpPorts(*self._shuffled(), host6=ANYWHERE["IP6"], quarantine_s=0.0)
            receiver = RtpReceiver()
            socket = RtpSocket(ports, receiver, counters, SilenceTicker(loop), loop, family=family)
            dialog = _Outgoing(account, self._codec, socket.port, address, loop)
            dialog.place(self._with_transport(uri), self._headers)
            return await self._talk(dialog, socket, receiver, speak, answer_s)
        finally:
            if dialog is not None:
                dialog.finish()
                await stack.settle(_FAREWELL_S)
            if socket is not None:
                socket.close()
            account.close()
            del dialog
            stack.destroy()

    async def _talk(
        self, dialog: _Outgoing, socket: RtpSocket, receiver: RtpReceiver, speak: Speak, answer_s: float
    ) -> PhoneResult:
        try:
            async with asyncio.timeout(answer_s):
                stream = await asyncio.shield(dialog.answered)
        except TimeoutError:
            return PhoneResult(408, "no answer", 0, 0, False)
        except CallFailed as failure:
            return PhoneResult(failure.status, failure.reason, 0, 0, False)
        socket.expect(stream.remote, stream.codec, stream.payload_type, silence=False)
        await speak(PhoneCall(stream, socket, receiver, dialog.over))
        hung_up_by_peer = dialog.over.is_set()
        return PhoneResult(200, "OK", socket.sent, socket.packets, hung_up_by_peer)

    def _shuffled(self) -> tuple[int, int]:
        """The port range with a random start, so that two phones on one machine seldom try the same ports."""
        first, last = self._rtp_ports
        return first + 2 * secrets.randbelow(max(1, (last - first) // 4)), last

    def _with_transport(self, uri: str) -> str:
        return uri if self._transport == "udp" or "transport=" in uri.lower() else f"{uri};transport={self._transport}"


class CallFailed(SipError):
    """The INVITE was answered with `status`."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(f"{status} {reason}")
        self.status = status
        self.reason = reason


def encode(samples: NDArray[np.int16], codec: Codec) -> list[bytes]:
    """The samples as payloads of 20 ms; the last one is padded with silence."""
    per_packet = SAMPLES * (2 if codec.wide else 1)
    padded = np.zeros(-(-len(samples) // per_packet) * per_packet, np.int16)
    padded[: len(samples)] = samples
    match codec:
        case Codec.PCMU:
            payload = ulaw_encode(padded)
        case Codec.PCMA:
            payload = alaw_encode(padded)
        case Codec.G722:
            from audio.codecs.g722 import G722Encoder

            payload = G722Encoder().encode(padded)
        case Codec.OPUS:
            from audio.codecs.opus import OpusEncoder

            encoder = OpusEncoder()
            return [encoder.encode(padded[at : at + per_packet]) for at in range(0, len(padded), per_packet)]
        case _:
            raise SipError(f"{codec.rtp_name} is not played over RTP")
    return [payload[start : start + SAMPLES] for start in range(0, len(payload), SAMPLES)]


async def play(line: PhoneCall, packets: list[bytes]) -> None:
    """Send one packet every 20 ms on an absolute schedule, so that no delay adds up, until the peer hangs up.

    Packets that arrive meanwhile are counted.
    """
    loop = asyncio.get_running_loop()
    start_s = loop.time()
    for index, packet in enumerate(packets):
        line.socket.send(packet)
        over_now = await _reached(start_s + (index + 1) * PTIME_S, line.over)
        for _ in line.receiver.sweep(loop.time()):
            pass
        if over_now:
            return


async def _resolve(host: str) -> str:
    """An address of the host, by IPv4 if it has one. Raises SipError."""
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, None, type=SOCK_DGRAM)
    except OSError as error:
        raise SipError(f"no address of {host}: {error.strerror or error}") from None
    return min((str(entry[4][0]) for entry in found), key=lambda address: ":" in address)


async def _reached(when_s: float, over: asyncio.Event) -> bool:
    """Wait until `when_s` by the loop's clock; returns True if the call ended first."""
    try:
        async with asyncio.timeout_at(when_s):
            await over.wait()
    except TimeoutError:
        return False
    return True


def _refuse(account: Account, prm: Any) -> None:
    """Ignore a call to the phone: without a call object PJSIP refuses it."""


class _Outgoing(pj.Call):  # type: ignore[misc]
    def __init__(
        self, account: Account, codec: Codec, port: int, address: str, loop: asyncio.AbstractEventLoop
    ) -> None:
        super().__init__(account)
        self._codec, self._port, self._address, self._loop = codec, port, address, loop
        self.answered: asyncio.Future[NegotiatedStream] = loop.create_future()
        # Retrieve the exception, in case no task waits for it any more.
        self.answered.add_done_callback(lambda future: future.cancelled() or future.exception())
        self.over = asyncio.Event()

    def place(self, uri: str, headers: Sequence[tuple[str, str]]) -> None:
        prm = pj.CallOpParam(True)
        for name, value in headers:
            header = pj.SipHeader()
            header.hName, header.hValue = name, value
            prm.txOption.headers.append(header)
        prm.opt.audioCount, prm.opt.videoCount, prm.opt.textCount = 1, 0, 0
        try:
            self.makeCall(uri, prm)
        except pj.Error as error:
            raise SipError(f"cannot call {uri}: {error.reason}") from None

    def finish(self) -> None:
        if not self.over.is_set():
            try:
                self.hangup(pj.CallOpParam())
            except pj.Error:
                self.over.set()

    @guarded
    def onCallSdpCreated(self, prm: Any) -> None:
        template = SessionDescription.parse(prm.sdp.wholeSdp)
        self._offer = make_offer((self._codec,), self._port, address=self._address, origin=template.origin)
        prm.sdp.wholeSdp = str(self._offer)

    @guarded
    def onCallTsxState(self, prm: Any) -> None:
        event = prm.e.body.tsxState
        if event.tsx.role != pj.PJSIP_ROLE_UAC or event.type != pj.PJSIP_EVENT_RX_MSG:
            return
        if event.tsx.method == "INVITE" and event.tsx.statusCode // 100 == 2 and not self.answered.done():
            self._answer(SipMessage.parse(event.src.rdata.wholeMsg).part("application/sdp"))

    def _answer(self, body: str) -> None:
        try:
            (stream, *_) = accept_answer(self._offer, SessionDescription.parse(body), (self._codec,))
        except PeerError as error:
            self.answered.set_exception(CallFailed(488, str(error)))
        else:
            self.answered.set_result(stream)

    @guarded
    def onCallState(self, prm: Any) -> None:
        info = self.getInfo()
        if info.state != pj.PJSIP_INV_STATE_DISCONNECTED:
            return
        self._loop.call_soon(self.over.set)
        if not self.answered.done():
            self.answered.set_exception(CallFailed(info.lastStatusCode, info.lastReason))
