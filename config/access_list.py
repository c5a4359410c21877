"""The networks that may call or connect: loopback, the resolved registrars, and those of an `allow` setting. No I/O."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable

LOOPBACK = ("127.0.0.0/8", "::1/128")


class AccessList:
    """Networks fixed by configuration, and addresses that come and go with the registrars' names."""

    def __init__(self, allow: Iterable[str], *, trusted: Iterable[str] = LOOPBACK) -> None:
        self._trusted = tuple(trusted)
        self._registrars: dict[str, frozenset[str]] = {}
        self.replace(allow)

    def replace(self, allow: Iterable[str]) -> None:
        """These addresses and networks instead of those of before."""
        self._networks = [ipaddress.ip_network(each, strict=False) for each in (*self._trusted, *allow)]

    def set_registrar(self, account: str, addresses: Iterable[str]) -> None:
        """The addresses that an account's registrar has now."""
        self._registrars[account] = frozenset(addresses)

    def accounts_at(self, address: str) -> frozenset[str]:
        """The accounts whose registrars have this address."""
        return frozenset(account for account, addresses in self._registrars.items() if address in addresses)

    def allows(self, address: str) -> bool:
        if self.accounts_at(address):
            return True
        try:
            parsed = ipaddress.ip_address(address)
        except ValueError:
            return False
        if isinstance(parsed, ipaddress.IPv6Address) and parsed.ipv4_mapped:
            parsed = parsed.ipv4_mapped
        return any(parsed.version == network.version and parsed in network for network in self._networks)
