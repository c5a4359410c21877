"""The access list: loopback, the resolved registrars and the networks of an `allow` setting may connect. No I/O."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable

LOOPBACK = ("127.0.0.0/8", "::1/128")


class AccessList:
    """Networks fixed by configuration, and addresses that change with the registrars' DNS records."""

    def __init__(self, allow: Iterable[str], *, trusted: Iterable[str] = LOOPBACK) -> None:
        self._trusted = tuple(trusted)
        self._registrars: dict[str, frozenset[str]] = {}
        self.replace(allow)

    def replace(self, allow: Iterable[str]) -> None:
        """Replace the configured addresses and networks."""
        self._networks = [ipaddress.ip_network(each, strict=False) for each in (*self._trusted, *allow)]

    def set_registrar(self, account: str, addresses: Iterable[str]) -> None:
        """Set the present addresses of an account's registrar."""
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
