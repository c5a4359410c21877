"""Which addresses a URL that a user gave may lead to: public ones, and those that the operator allows.

The name is looked up here, each of its addresses is checked, and the connection goes to an address that has passed: a
name that changes between the check and the connection (DNS rebinding) changes nothing. What a URL spells in decimal,
octal or hexadecimal is an address by then like any other.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

from config import ConfigError
from mediaworker.errors import MediaworkerError

Address = IPv4Address | IPv6Address
GLOBAL_UNICAST = IPv6Network("2000::/3")
NAT64 = IPv6Network("64:ff9b::/96")
"""RFC 6052 section 2.1: an IPv4 address behind a translator."""
TUNNELS = (IPv6Network("2001::/32"), IPv6Network("2002::/16"))
"""Teredo (RFC 4380) and 6to4 (RFC 3056), which hold an IPv4 address, and which nobody needs any more."""
DOCUMENTATION = IPv6Network("3fff::/20")
"""RFC 9637."""
WITHIN = (IPv4Network("192.0.0.0/24"), IPv4Network("192.88.99.0/24"), IPv4Network("168.63.129.16/32"))
"""Protocol assignments (RFC 6890), which Python took for public before 3.11.9, and where one cloud has its metadata;
relays of 6to4 (RFC 7526); and the address at which Azure tells each of its machines its configuration."""
LOOKUPS = 4
"""Names looked up at once, in threads of their own: a name server that does not answer holds up webhooks alone."""


class ForbiddenTarget(MediaworkerError, OSError):
    """The name stands for no address that may be connected to."""


def is_public(address: Address) -> bool:
    """Whether anybody on the Internet could connect to it."""
    address = _embedded(address)
    if isinstance(address, IPv6Address):
        if address not in GLOBAL_UNICAST or address in DOCUMENTATION or any(address in tunnel for tunnel in TUNNELS):
            return False
    elif any(address in network for network in WITHIN):
        return False
    return address.is_global and not (address.is_multicast or address.is_reserved)


def _embedded(address: Address) -> Address:
    """The IPv4 address that packets to this one end at, or the address itself."""
    if isinstance(address, IPv4Address):
        return address
    if address in NAT64:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address


class Targets:
    """`allow`: networks (CIDR) that may be reached though they are not public. Raises ConfigError."""

    def __init__(self, allow: Sequence[str]) -> None:
        self._allow = []
        for index, text in enumerate(allow):
            try:
                self._allow.append(ip_network(text, strict=False))
            except ValueError:
                key = f"jobs.webhook_allow[{index}]"
                raise ConfigError(key, text, "expected an IP address or a network") from None
        self._threads = ThreadPoolExecutor(LOOKUPS, thread_name_prefix="webhook-dns")

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    def may(self, address: Address) -> bool:
        """Whether it may be connected to."""
        if is_public(address):
            return True
        return any(each in network for each in {address, _embedded(address)} for network in self._allow)

    async def addresses(self, host: str, port: int) -> list[str]:
        """The addresses of this host that may be connected to, in the resolver's order.

        Raises OSError when there is no such host, ForbiddenTarget when none of its addresses may be connected to.
        """
        loop = asyncio.get_running_loop()
        found = await loop.run_in_executor(self._threads, _look_up, host, port)
        # A zone (`fe80::1%eth0`) belongs to link-local addresses, which are never public.
        allowed = [text for text in found if "%" not in text and self.may(ip_address(text))]
        if not allowed:
            raise ForbiddenTarget(f"{host} is not public ({', '.join(found)}), and jobs.webhook_allow does not name it")
        return allowed


def _look_up(host: str, port: int) -> list[str]:
    answers = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in answers))
