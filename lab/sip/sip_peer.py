"""A caller by hand, for what SIPp cannot put in order: requests that cross, come twice or belong to nothing."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import re
import secrets
import socket
from collections.abc import Callable, Sequence

from lab.patience import timeout
from sip.protocol.message import SipMessage


def sdp(
    port: int,
    *lines: str,
    formats: str = "0 101",
    address: str = "127.0.0.1",
    session: Sequence[str] = (),
    version: int = 1,
) -> str:
    """An offer of PCMU and digits; `lines` follow the m-line, those of `session` are before it."""
    family = "IP6" if ":" in address else "IP4"
    head = ["v=0", f"o=- 1 {version} IN IP4 127.0.0.1", "s=-", f"c=IN {family} {address}", "t=0 0", *session]
    return "\r\n".join([*head, f"m=audio {port} RTP/AVP {formats}", "a=rtpmap:101 telephone-event/8000", *lines, ""])


class SipPeer:
    """One UDP socket and one dialog. What comes is in `heard`; nothing is sent unasked, no ACK either."""

    transport = "UDP"
    """As its Via says it."""

    def __init__(self, worker_port: int, *, call_id: str = "", tag: str = "", host: str = "127.0.0.1") -> None:
        """`host`: the worker's address, and its own."""
        self._socket = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind((host, 0))
        self._socket.setblocking(False)
        self._worker = host, worker_port
        self.port: int = self._socket.getsockname()[1]
        self._host = f"[{host}]" if ":" in host else host
        self.contact = f"<sip:4711@{self._host}:{self.port}>"
        self.uri = f"sip:1000@{self._host}:{worker_port}"
        self.call_id = call_id or secrets.token_hex(8)
        self.tag = tag or secrets.token_hex(4)
        self.to_tag = ""
        self.cseq = itertools.count(1)
        self.heard: list[SipMessage] = []
        self._news = asyncio.Event()
        asyncio.get_running_loop().add_reader(self._socket, self._read)

    def _read(self) -> None:
        self.heard.append(SipMessage.parse(self._socket.recv(65536).decode()))
        self._news.set()

    def send(
        self,
        method: str,
        body: str = "",
        *headers: str,
        cseq: int | None = None,
        branch: str = "",
        within: bool = True,
        uri: str = "",
    ) -> int:
        """Returns the CSeq. `branch` is needed for what must be recognised again; `within`: with the tag of To."""
        number = next(self.cseq) if cseq is None else cseq
        branch = f"z9hG4bK{branch or secrets.token_hex(8)}-{self.tag}"
        lines = [
            f"{method} {uri or self.uri} SIP/2.0",
            f"Via: SIP/2.0/{self.transport} {self._host}:{self.port};branch={branch};rport",
            *([] if any(header.startswith("From:") for header in headers) else [self._from()]),
            f"To: <{self.uri}>" + (f";tag={self.to_tag}" if within and self.to_tag else ""),
            f"Call-ID: {self.call_id}",
            f"CSeq: {number} {method}",
            f"Contact: {self.contact}",
            "Max-Forwards: 70",
            *headers,
        ]
        if body and not any(header.startswith("Content-Type") for header in headers):
            lines.append("Content-Type: application/sdp")
        content = body.encode()
        lines.append(f"Content-Length: {len(content)}")
        self.put(("\r\n".join(lines) + "\r\n\r\n").encode() + content)
        return number

    def _from(self) -> str:
        return f"From: <sip:4711@{self._host}:{self.port}>;tag={self.tag}"

    def put(self, datagram: bytes) -> None:
        self._socket.sendto(datagram, self._worker)

    def reply(self, request: SipMessage, status: str, body: str = "", *headers: str) -> None:
        """Answer a request of the worker's."""
        copied = ("via", "from", "to", "call-id", "cseq")
        own = [f"{name}: {value}" for name, value in request.headers if name in copied]
        own += [f"Contact: {self.contact}", *headers]
        if body and not any(header.startswith("Content-Type") for header in headers):
            own.append("Content-Type: application/sdp")
        content = body.encode()
        head = [f"SIP/2.0 {status}", *own, f"Content-Length: {len(content)}", "", ""]
        self.put("\r\n".join(head).encode() + content)

    def answers(self, cseq: int, method: str = "INVITE") -> list[SipMessage]:
        """All responses to that request, in the order in which they came."""
        return [m for m in self.heard if m.header("cseq") == f"{cseq} {method}" and m.start_line.startswith("SIP/2.0")]

    def statuses(self, cseq: int, method: str = "INVITE") -> list[int]:
        """Of the answers, without 100 Trying."""
        found = [int(message.start_line.split()[1]) for message in self.answers(cseq, method)]
        return [status for status in found if status != 100]

    async def answer(self, cseq: int, method: str = "INVITE", *, status: int = 0, timeout_s: float = 10) -> SipMessage:
        """The first with that status, or the first final one. Takes over the tag that it gives to To."""

        def found() -> SipMessage | None:
            for message in self.answers(cseq, method):
                code = int(message.start_line.split()[1])
                if code == status or not status and code >= 200:
                    return message
            return None

        message = await self.wait(found, f"{status or 'final answer'} to {cseq} {method}", timeout_s)
        if method == "INVITE" and not self.to_tag and (tag := re.search(r";tag=([^;\s]+)", message.header("to"))):
            self.to_tag = tag[1]
        return message

    async def request(self, method: str, *, timeout_s: float = 10) -> SipMessage:
        """The worker's first request of that method."""

        def found() -> SipMessage | None:
            return next((m for m in self.heard if m.start_line.startswith(f"{method} ")), None)

        return await self.wait(found, method, timeout_s)

    async def wait(self, found: Callable[[], SipMessage | None], what: str, timeout_s: float) -> SipMessage:
        try:
            async with timeout(timeout_s):
                while (message := found()) is None:
                    self._news.clear()
                    await self._news.wait()
                return message
        except TimeoutError:
            heard = [message.start_line for message in self.heard]
            raise AssertionError(f"no {what} within {timeout_s} s: {heard}") from None

    async def invite(self, body: str, *headers: str) -> SipMessage:
        """A call, or a new offer in it, as it ought to be: the 200, acknowledged."""
        cseq = self.send("INVITE", body, *headers)
        message = await self.answer(cseq, status=200)
        self.send("ACK", cseq=cseq)
        return message

    async def bye(self) -> None:
        assert (await self.answer(self.send("BYE"), "BYE")).start_line == "SIP/2.0 200 OK"

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._socket)
        self._socket.close()


class ConnectedPeer(SipPeer):
    """One that speaks TCP, by one connection after the other: those before stay open, as if their host had died.

    Nobody can connect to what its Contact says.
    """

    transport = "TCP"

    def __init__(self, worker_port: int) -> None:
        super().__init__(worker_port)
        self.contact = "<sip:4711@127.0.0.1:9;transport=tcp>"
        self.heard_by: list[tuple[int, str]] = []
        """The number of the connection, from 0, and the start line of each message."""
        self._writers: list[asyncio.StreamWriter] = []
        self._readers: list[asyncio.Task[None]] = []

    async def connect(self) -> None:
        """What is sent from now on goes by a new connection."""
        reader, writer = await asyncio.open_connection(*self._worker)
        self._readers.append(asyncio.create_task(self._read_from(len(self._writers), reader)))
        self._writers.append(writer)

    async def _read_from(self, number: int, reader: asyncio.StreamReader) -> None:
        while head := await reader.readuntil(b"\r\n\r\n"):
            length = re.search(rb"(?im)^content-length\s*:\s*([0-9]+)", head)
            body = await reader.readexactly(int(length[1]) if length else 0)
            message = SipMessage.parse((head + body).decode())
            self.heard_by.append((number, message.start_line))
            self.heard.append(message)
            self._news.set()

    def put(self, datagram: bytes) -> None:
        self._writers[-1].write(datagram)

    async def disconnect(self, number: int) -> None:
        """Close that connection."""
        self._readers[number].cancel()
        self._writers[number].close()
        with contextlib.suppress(OSError):
            await self._writers[number].wait_closed()

    def close(self) -> None:
        super().close()
        for task, writer in zip(self._readers, self._writers, strict=True):
            task.cancel()
            writer.close()
