"""A recording client (RFC 7866) that records many calls at once: two streams each, both sides of what is being said.

Run as its own process: `python -m benchmarks.media.sip_sender PORT CALLS SECONDS [noise]`; PORT is the worker's SIP
port. Prints a JSON object when done.
"""

from __future__ import annotations

import json
import select
import socket
import sys
import time
from dataclasses import dataclass, field

from benchmarks.media.rtp_sender import opened, stream
from sip.protocol.message import SipMessage
from sip.protocol.sdp import SessionDescription

CALLS_PER_S = 25.0
RETRY_S = 1.0
PATIENCE_S = 30.0
_METADATA = """<?xml version="1.0" encoding="UTF-8"?>
<recording xmlns="urn:ietf:params:xml:ns:recording:1">
<datamode>complete</datamode>
<session session_id="s{number}"/>
<participant participant_id="c{number}"><nameID aor="sip:customer{number}@example.com"/></participant>
<participant participant_id="a{number}"><nameID aor="sip:agent{number}@example.com"/></participant>
<stream stream_id="1{number}" session_id="s{number}"><label>1</label></stream>
<stream stream_id="2{number}" session_id="s{number}"><label>2</label></stream>
<participantstreamassoc participant_id="c{number}"><send>1{number}</send></participantstreamassoc>
<participantstreamassoc participant_id="a{number}"><send>2{number}</send></participantstreamassoc>
</recording>
"""


@dataclass(slots=True)
class Session:
    """One recorded call. Requests are repeated until they are answered, as over any network that may lose them."""

    number: int
    request: bytes = b""
    sent_s: float = 0.0
    ports: list[int] = field(default_factory=list)
    """Where the worker receives; empty until it has answered."""
    to: str = ""
    contact: str = ""

    @property
    def call_id(self) -> str:
        return f"bench-{self.number}"


class Recorder:
    def __init__(self, port: int, calls: int) -> None:
        self._worker = ("127.0.0.1", port)
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        self._socket.bind(("127.0.0.1", 0))
        self._port = self._socket.getsockname()[1]
        self._sessions = {session.call_id: session for session in map(Session, range(calls))}
        self.repeated = 0

    def begin(self, media_port: int) -> list[int]:
        """INVITE all, one after the other; the ports at which the worker wants their audio."""
        self._run([self._invite(session, media_port) for session in self._sessions.values()])
        return [port for session in self._sessions.values() for port in session.ports]

    def end(self) -> None:
        self._run([self._request(session, "BYE", 2) for session in self._sessions.values()])

    def _run(self, requests: list[bytes]) -> None:
        sessions, begun = list(self._sessions.values()), time.monotonic()
        open_: set[str] = set()
        placed = 0
        while placed < len(sessions) or open_:
            now = time.monotonic()
            if now - begun > len(sessions) / CALLS_PER_S + PATIENCE_S:
                raise RuntimeError(f"{len(open_)} calls were not answered")
            while placed < len(sessions) and now - begun >= placed / CALLS_PER_S:
                session = sessions[placed]
                session.request, session.sent_s = requests[placed], now
                self._socket.sendto(session.request, self._worker)
                open_.add(session.call_id)
                placed += 1
            for call_id in open_:
                session = self._sessions[call_id]
                if now - session.sent_s > RETRY_S:
                    session.sent_s = now
                    self._socket.sendto(session.request, self._worker)
                    self.repeated += 1
            while select.select([self._socket], [], [], 0.005)[0]:
                self._receive(self._socket.recv(65536), open_)

    def _receive(self, datagram: bytes, open_: set[str]) -> None:
        message = SipMessage.parse(datagram.decode())
        status = message.start_line.split()[1]
        session = self._sessions[message.header("call-id")]
        if status.startswith("1") or session.call_id not in open_:
            return
        if status != "200":
            raise RuntimeError(message.start_line)
        open_.discard(session.call_id)
        if message.header("cseq").endswith("INVITE"):
            answer = SessionDescription.parse(message.part("application/sdp"))
            session.ports = [media.port for media in answer.media]
            session.to = message.header("to")
            session.contact = message.header("contact").split("<")[1].split(">")[0]
            self._socket.sendto(self._request(session, "ACK", 1), self._worker)

    def _invite(self, session: Session, media_port: int) -> bytes:
        lines = ["v=0", f"o=- {session.number} 1 IN IP4 127.0.0.1", "s=-", "c=IN IP4 127.0.0.1", "t=0 0"]
        for label in (1, 2):
            lines += [f"m=audio {media_port} RTP/AVP 0", "a=rtpmap:0 PCMU/8000", f"a=label:{label}", "a=sendonly"]
        parts = [
            ("application/sdp", "\r\n".join(lines) + "\r\n"),
            ("application/rs-metadata+xml", _METADATA.format(number=session.number)),
        ]
        body = "".join(f"--b\r\nContent-Type: {kind}\r\n\r\n{text}\r\n" for kind, text in parts) + "--b--\r\n"
        more = ["Require: siprec", "Content-Type: multipart/mixed;boundary=b"]
        return self._request(session, "INVITE", 1, more, body)

    def _request(
        self, session: Session, method: str, number: int, more: list[str] | None = None, body: str = ""
    ) -> bytes:
        own = f"127.0.0.1:{self._port}"
        lines = [
            f"{method} {session.contact or f'sip:srs@127.0.0.1:{self._worker[1]}'} SIP/2.0",
            f"Via: SIP/2.0/UDP {own};rport;branch=z9hG4bK{method}{session.number}",
            "Max-Forwards: 70",
            f"From: <sip:src@{own}>;tag=t{session.number}",
            f"To: {session.to or f'<sip:srs@127.0.0.1:{self._worker[1]}>'}",
            f"Call-ID: {session.call_id}",
            f"CSeq: {number} {method}",
            f"Contact: <sip:src@{own}>;+sip.src",
            *(more or []),
            f"Content-Length: {len(body.encode())}",
        ]
        return ("\r\n".join(lines) + "\r\n\r\n" + body).encode()


def main(port: int, calls: int, seconds: float, *, noise: bool) -> dict[str, float]:
    out, recorder = opened(), Recorder(port, calls)
    begun = time.monotonic()
    ports = recorder.begin(out.getsockname()[1])
    took_s = time.monotonic() - begun
    figures = stream(out, ports, seconds, noise=noise)
    recorder.end()
    return figures | {"repeated": recorder.repeated, "setup_s": round(took_s, 2)}


if __name__ == "__main__":
    given = [float(argument) for argument in sys.argv[1:4]]
    sys.stdout.write(json.dumps(main(int(given[0]), int(given[1]), given[2], noise=sys.argv[4:] == ["noise"])))
