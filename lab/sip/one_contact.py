"""A PBX that takes one contact for an account, as Asterisk with `max_contacts = 1`: a registrar over UDP."""

from __future__ import annotations

import re
import socket
import threading
from types import TracebackType

_COPIED = re.compile(r"(?im)^(?:via|from|to|call-id|cseq):.*$")
_CONTACT = re.compile(r"(?im)^contact:[^<]*<([^>]+)>")
_EXPIRES = re.compile(r"(?im)^expires:[ \t]*(\d+)")


class OneContactRegistrar:
    """Serves in a thread, so that a test may wait for processes meanwhile. Whoever registers pushes out the other.

    `expires_s`: granted to everybody. `remove_existing`: without it a second contact gets 403, as with Asterisk.
    """

    def __init__(self, *, expires_s: int = 300, remove_existing: bool = True) -> None:
        self.contact = ""
        """The URI that calls go to now; empty: there is none."""
        self.history: list[tuple[int, bool]] = []
        """Of each REGISTER taken: the port of its contact, and whether it registers or takes leave."""
        self._expires_s, self._remove_existing = expires_s, remove_existing
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 0))
        self.port: int = self._socket.getsockname()[1]
        self._thread = threading.Thread(target=self._serve)

    def __enter__(self) -> OneContactRegistrar:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as own:
            own.sendto(b"end", ("127.0.0.1", self.port))
        self._thread.join()
        self._socket.close()

    @property
    def uri(self) -> str:
        return f"sip:127.0.0.1:{self.port}"

    @property
    def contact_port(self) -> int:
        """Of the worker that calls go to; 0: none."""
        return _port(self.contact) if self.contact else 0

    def count(self, port: int, *, registers: bool = True) -> int:
        """How often the worker at that port has registered, or taken leave."""
        return self.history.count((port, registers))

    def _serve(self) -> None:
        while True:
            datagram, source = self._socket.recvfrom(65536)
            if datagram == b"end":
                return
            text = datagram.decode()
            if text.startswith("REGISTER"):
                status, contact = self._take(text)
                lines = [f"SIP/2.0 {status}", *(line.strip() for line in _COPIED.findall(text)), *contact]
                self._socket.sendto("\r\n".join([*lines, "Content-Length: 0", "", ""]).encode(), source)

    def _take(self, text: str) -> tuple[str, list[str]]:
        contact, expires = _CONTACT.search(text), _EXPIRES.search(text)
        assert contact and expires
        uri, registers = contact[1], int(expires[1]) > 0
        if registers and not self._remove_existing and self.contact and _port(self.contact) != _port(uri):
            return "403 Forbidden", []
        self.history.append((_port(uri), registers))
        if registers:
            self.contact = uri
        elif self.contact_port == _port(uri):
            self.contact = ""
        return "200 OK", [f"Contact: <{uri}>;expires={self._expires_s}"] if registers else []


def _port(uri: str) -> int:
    found = re.search(r"@[^:;]+:(\d+)", uri)
    assert found, uri
    return int(found[1])
