"""A name server in a thread, with the records that a test gives it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Mapping
from types import TracebackType
from typing import Any

import dns.flags
import dns.message
import dns.rcode
import dns.rdatatype
import dns.resolver
import dns.rrset


class NameServer:
    """`records`: "NAME KIND" → what it holds, as in a zone file. Whatever is not there does not exist.

    `silent`, `failing`: kinds that get no answer, and those that get SERVFAIL.
    """

    def __init__(
        self, records: Mapping[str, tuple[str, ...]], *, silent: tuple[str, ...] = (), failing: tuple[str, ...] = ()
    ) -> None:
        self.records, self.silent, self.failing = dict(records), silent, failing
        self.asked: list[str] = []
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._serve)

    def __enter__(self) -> NameServer:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as own:
            own.sendto(b"end", self._socket.getsockname())
        self._thread.join()
        self._socket.close()

    def resolver(self) -> dns.resolver.Resolver:
        """One that asks here, in the place of the system's."""
        made = dns.resolver.Resolver(configure=False)
        made.nameservers = ["127.0.0.1"]
        made.port = self._socket.getsockname()[1]
        return made

    def _serve(self) -> None:
        while True:
            datagram, source = self._socket.recvfrom(4096)
            if datagram == b"end":
                return
            if (answer := self._answer(dns.message.from_wire(datagram))) is not None:
                self._socket.sendto(answer.to_wire(), source)

    def _answer(self, query: Any) -> Any:
        question = query.question[0]
        name, kind = question.name.to_text(omit_final_dot=True), dns.rdatatype.to_text(question.rdtype)
        self.asked.append(f"{name} {kind}")
        if kind in self.silent:
            return None
        answer = dns.message.make_response(query)
        answer.flags |= dns.flags.RA
        found = self.records.get(f"{name} {kind}", ())
        if kind in self.failing:
            answer.set_rcode(dns.rcode.SERVFAIL)
        elif found:
            answer.answer.append(dns.rrset.from_text(question.name, 60, "IN", kind, *found))
        elif not any(each.startswith(f"{name} ") for each in self.records):
            answer.set_rcode(dns.rcode.NXDOMAIN)
        return answer
