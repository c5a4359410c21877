"""Decides to which addresses a user's URL may connect: to public ones, and to those that the operator allows.

The host name is resolved here, each of its addresses is checked, and the connection is made to an address that has
passed. So a name that changes between the check and the connection (DNS rebinding) has no effect. An address that a URL
spells in decimal, octal or hexadecimal form is checked in the same way, because the resolver has normalised it.
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
"""The prefix of IPv6 addresses that a translator maps to the IPv4 address in them (RFC 6052 section 2.1)."""
TUNNELS = (IPv6Network("2001::/32"), IPv6Network("2002::/16"))
"""Teredo (RFC 4380) and 6to4 (RFC 3056). Their addresses embed an IPv4 address that could be private, and both are out
of use."""
DOCUMENTATION = IPv6Network("3fff::/20")
"""The prefix for documentation (RFC 9637)."""
WITHIN = (IPv4Network("192.0.0.0/24"), IPv4Network("192.88.99.0/24"), IPv4Network("168.63.129.16/32"))
"""Networks that are not public although `is_global` may say so: protocol assignments (RFC 6890), which Python before
3.11.9 reports as global and where one cloud serves its metadata; relays of 6to4 (RFC 7526); and the address at which
Azure serves each machine its configuration."""
LOOKUPS = 4
"""The number of names resolved at once, in threads of their own: a name server that does not answer delays only
webhooks."""


class ForbiddenTarget(MediaworkerError, OSError):
    """None of the host's addresses may be connected to."""


def is_public(address: Address) -> bool:
    """Return whether the address is one of the public Internet."""
    address = _embedded(address)
    if isinstance(address, IPv6Address):
        if address not in GLOBAL_UNICAST or address in DOCUMENTATION or any(address in tunnel for tunnel in TUNNELS):
            return False
    elif any(address in network for network in WITHIN):
        return False
    return address.is_global and not (address.is_multicast or address.is_reserved)


def _embedded(address: Address) -> Address:
    """Return the IPv4 address to which a translator or the kernel maps this one, or else the address itself."""
    if isinstance(address, IPv4Address):
        return address
    if address in NAT64:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address


class Targets:
    """The addresses to which webhooks may connect.

    `allow`: networks (CIDR) that are allowed although they are not public. Raises ConfigError.
    """

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
        """Return whether webhooks may connect to the address."""
        if is_public(address):
            return True
        return any(each in network for each in {address, _embedded(address)} for network in self._allow)

    async def addresses(self, host: str, port: int) -> list[str]:
        """Return the addresses of a host to which webhooks may connect, in the resolver's order.

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
