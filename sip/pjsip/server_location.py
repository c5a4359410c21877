"""The location of a SIP URI's servers by RFC 3263: transport, address and port.

For a URI with a port, only the address comes from DNS. The servers of one without a port are in SRV records. If it has
no transport either, NAPTR records name the SRV records. Without any of these, the name itself is the server, at the
default port of the transport.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import structlog

log = structlog.get_logger("sip")

Transport = Literal["udp", "tcp", "tls"]
LookUp = Callable[[str], Awaitable[list[str]]]
"""Returns the addresses of a host, the best first; none if it has none."""

ANSWER_S = 3.0
"""The timeout of name servers for one record. Some devices do not answer for record types that they do not know."""
MAX_RECORDS = 16
"""The most records of one type, and servers of one name, that are used."""
_SERVICES: dict[Transport, str] = {"udp": "_sip._udp", "tcp": "_sip._tcp", "tls": "_sips._tcp"}
_NAPTR: dict[str, Transport] = {"SIP+D2U": "udp", "SIP+D2T": "tcp", "SIPS+D2T": "tls"}
_WITHOUT_NAPTR: tuple[Transport, ...] = ("udp", "tcp")
"""The transports tried without NAPTR. TLS is not tried (RFC 3263 section 4.1): a URI or a NAPTR record must name it."""


@dataclass(frozen=True, slots=True)
class SipServer:
    """One of the servers of a URI."""

    transport: Transport
    address: str
    port: int


@dataclass(frozen=True, slots=True)
class Location:
    """The servers of a URI, in the order in which they should be tried."""

    servers: tuple[SipServer, ...] = ()
    certain: bool = True
    """False if a name server did not answer, so that records may be missing."""


Records = tuple[Any, ...] | None
"""Records in the order of their priorities, and by chance within one according to their weights (RFC 2782); None: a
name server gave no answer, so there may be some."""


def default_port(transport: str) -> int:
    return 5061 if transport == "tls" else 5060


async def locate(
    host: str,
    port: int,
    transport: Transport | Literal[""],
    *,
    transports: Collection[str],
    look_up: LookUp,
    executor: Executor | None = None,
) -> Location:
    """The servers of a URI whose host is a name.

    `port`, `transport`: 0 and "" if the URI has none; `transports`: the usable ones; `executor`: runs the DNS queries.
    """
    if port or "." not in host.strip("."):  # a single label is a local name, for which there are no such records
        only = transport or _default(transports)
        return Location(_servers(only, port or default_port(only), await look_up(host)))
    query = partial(_query, executor)
    usable = [each for each in _WITHOUT_NAPTR if each in transports]
    if transport:
        services, uncertain = [(transport, f"{_SERVICES[transport]}.{host}")], False
    else:
        naptr = await query(host, "NAPTR")
        services, uncertain = _services(naptr or (), transports), naptr is None
        services = services or [(each, f"{_SERVICES[each]}.{host}") for each in usable]
    answers = await asyncio.gather(*(query(name, "SRV") for _, name in services))
    uncertain = uncertain or None in answers
    records = [(kind, each) for (kind, _), answer in zip(services, answers, strict=True) for each in answer or ()]
    if not records:
        only = transport or _default(transports)
        return Location(_servers(only, default_port(only), await look_up(host)), certain=not uncertain)
    # The target "." means explicitly that there is no such service (RFC 2782).
    named = [(kind, _text(each.target), each.port) for kind, each in records if _text(each.target)][:MAX_RECORDS]
    found = await asyncio.gather(*(look_up(target) for _, target, _ in named))
    servers = [
        server
        for (kind, _, at), addresses in zip(named, found, strict=True)
        for server in _servers(kind, at, addresses)
    ]
    return Location(tuple(dict.fromkeys(servers))[:MAX_RECORDS], certain=not uncertain)


def _default(transports: Collection[str]) -> Transport:
    return next((each for each in _WITHOUT_NAPTR if each in transports), "udp")


def _servers(transport: Transport, port: int, addresses: list[str]) -> tuple[SipServer, ...]:
    return tuple(SipServer(transport, address, port) for address in addresses)


def _services(records: tuple[Any, ...], transports: Collection[str]) -> list[tuple[Transport, str]]:
    """(transport, name) of the SRV records to which NAPTR records lead, for usable transports."""
    services: list[tuple[Transport, str]] = []
    for record in records:
        kind = _NAPTR.get(record.service.decode("latin-1").upper())
        leads_to_srv = record.flags.lower() == b"s" and not record.regexp
        if kind in transports and leads_to_srv and kind is not None and (name := _text(record.replacement)):
            services.append((kind, name))
    return services


def _text(name: Any) -> str:
    """The text of a name from a record; "" for the root."""
    return str(name.to_text(omit_final_dot=True)).removeprefix(".")


async def _query(executor: Executor | None, name: str, kind: str) -> Records:
    return await asyncio.get_running_loop().run_in_executor(executor, query, name, kind)


def query(name: str, kind: str) -> Records:
    """The SRV or NAPTR records of a name. Waits for the name servers of /etc/resolv.conf, at most `ANSWER_S`."""
    # Loaded with the first such name (14 MB), in a thread: it takes too long for the event loop.
    import dns.exception
    import dns.name
    import dns.resolver

    try:
        query_name = dns.name.from_text(name, origin=dns.name.root)
        answer = resolver().resolve(query_name, kind, lifetime=ANSWER_S)
        return tuple(answer.rrset.processing_order())[:MAX_RECORDS] if answer.rrset else ()
    except (dns.resolver.NXDOMAIN, dns.resolver.NoAnswer):
        return ()
    except (dns.exception.DNSException, OSError, UnicodeError) as error:
        log.debug("name servers gave no answer", name=name, kind=kind, reason=str(error)[:200])
        return None


def resolver() -> Any:
    """A resolver that reads /etc/resolv.conf every time, because that changes with the network."""
    import dns.resolver

    return dns.resolver.Resolver()
