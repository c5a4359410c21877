"""A registrar in a few lines, for what SIPp cannot: what a connection is asked for, and used for."""

from __future__ import annotations

import asyncio
import contextlib
import re
import ssl
from collections.abc import Sequence

from lab.network.authority import Pair
from lab.patience import timeout


class RegistrarPeer:
    """Takes everybody over TCP, or TLS with a certificate, and can call the worker over the connection it has made.

    `answer`: to a REGISTER, status line and more headers; `bindings`: its Contact headers, in which `{own}` stands for
    the one that has been sent, and `{instance}` for the instance in that; by default, that one alone.
    """

    def __init__(
        self,
        pair: Pair | None = None,
        *,
        answer: str = "200 OK\r\nExpires: 300",
        bindings: Sequence[str] = ("{own}",),
        port: int = 0,
        host: str = "127.0.0.1",
    ) -> None:
        self._context: ssl.SSLContext | None = None
        if pair is not None:
            self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self._context.load_cert_chain(pair.cert, pair.key)
            self._context.sni_callback = lambda *handshake: self.names.append(handshake[1])
        self.answer, self.bindings = answer, bindings
        self.port, self.host = port, host
        self.names: list[str | None] = []
        """That the handshakes asked for."""
        self.requests: list[str] = []
        self.answer_contact = ""
        """Of the worker's answer to the last call."""
        self.heard = asyncio.Event()
        self._writer: asyncio.StreamWriter | None = None
        self._answered = asyncio.Event()

    async def __aenter__(self) -> RegistrarPeer:
        self._server = await asyncio.start_server(self._serve, self.host, self.port, ssl=self._context)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *error: object) -> None:
        """Open connections end, and there are no more."""
        self._server.close()
        if self._writer is not None:
            self._writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        with contextlib.closing(writer), contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().lstrip()
                length = re.search(r"(?im)^(?:content-length|l)[ \t]*:[ \t]*(\d+)", head)
                await reader.readexactly(int(length[1]) if length else 0)
                if not head.strip():
                    continue
                if not head.startswith("SIP/2.0"):
                    self.requests.append(head)
                    lines = re.findall(r"(?im)^(?:via|from|to|call-id|cseq):.*$", head)
                    status = "200 OK"
                    if head.startswith("REGISTER"):
                        status = self.answer
                        lines += [f"Contact: {each}" for each in self._bindings(head)]
                    copied = "\r\n".join(line.strip() for line in lines)
                    writer.write(f"SIP/2.0 {status}\r\n{copied}\r\nContent-Length: 0\r\n\r\n".encode())
                    self.heard.set()
                elif head.startswith("SIP/2.0 200") and "INVITE" in head:
                    contact = re.search(r"(?im)^contact:[^<]*<([^>]+)>", head)
                    to = re.search(r"(?im)^to:.*$", head)
                    assert contact and to
                    self.answer_contact = contact[1]
                    writer.write(self._request("ACK", contact[1], to[0].strip(), ""))
                    self._answered.set()

    def _bindings(self, request: str) -> list[str]:
        own = re.search(r"(?im)^contact: *(.*)$", request)
        instance = re.search(r'\+sip\.instance="([^"]*)"', request)
        words = {"{own}": own[1].strip() if own else "", "{instance}": instance[1] if instance else ""}
        return [re.sub(r"{\w+}", lambda found: words[found[0]], each) for each in self.bindings]

    @property
    def uri(self) -> str:
        return f"sip:{self._named}:{self.port};transport={self._kind.lower()}"

    @property
    def _named(self) -> str:
        return f"[{self.host}]" if ":" in self.host else self.host

    @property
    def _kind(self) -> str:
        return "TLS" if self._context else "TCP"

    def hang_up(self) -> None:
        """The connection ends, and another one may come."""
        assert self._writer is not None
        self._writer.transport.abort()

    async def invite(self, uri: str = "") -> None:
        """A call to `uri`, and until it is answered."""
        assert self._writer is not None
        at = f"IN {'IP6' if ':' in self.host else 'IP4'} {self.host}"
        sdp = f"v=0\r\no=- 1 1 {at}\r\ns=-\r\nc={at}\r\nt=0 0\r\nm=audio 40000 RTP/AVP 0\r\n"
        self._writer.write(self._request("INVITE", uri or f"sip:alice@{self._named}", "To: <sip:alice@localhost>", sdp))
        async with timeout(10):
            await self._answered.wait()

    def _request(self, method: str, uri: str, to: str, body: str) -> bytes:
        kind = "Content-Type: application/sdp\r\n" if body else ""
        return (
            f"{method} {uri} SIP/2.0\r\n"
            f"Via: SIP/2.0/{self._kind} {self._named}:{self.port};branch=z9hG4bK{method}{self.port}\r\n"
            f"From: <sip:pbx@localhost>;tag=1\r\n{to}\r\nMax-Forwards: 70\r\n"
            f"Call-ID: {self.port}\r\nCSeq: 1 {method}\r\n"
            f"Contact: <sip:pbx@192.0.2.1:1;transport={self._kind.lower()}>\r\n"
            f"{kind}Content-Length: {len(body)}\r\n\r\n{body}"
        ).encode()
