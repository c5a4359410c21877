"""Who may call: loopback, the resolved registrars, and the networks of `sip.allow` (or of another ingress). No I/O."""

from __future__ import annotations

import ipaddress
from collections import OrderedDict
from collections.abc import Hashable, Iterable

from config import ConfigError

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

LOOPBACK = ("127.0.0.0/8", "::1/128")


class AccessList:
    """Networks fixed by configuration, and addresses that come and go with the registrars' names."""

    def __init__(self, allow: Iterable[str], *, trusted: Iterable[str] = LOOPBACK, key: str = "sip.allow") -> None:
        """`key`: the setting that `allow` comes from. Raises ConfigError when an entry is no address or network."""
        self._key = key
        self._trusted: list[Network] = [ipaddress.ip_network(network) for network in trusted]
        self._networks: list[Network] = []
        self._registrars: dict[str, frozenset[str]] = {}
        self.replace(allow)

    def replace(self, allow: Iterable[str]) -> None:
        """These networks instead of those of before. Raises ConfigError, and then nothing changes."""
        networks = [*self._trusted]
        for index, entry in enumerate(allow):
            try:
                networks.append(ipaddress.ip_network(entry, strict=False))
            except ValueError:
                raise ConfigError(f"{self._key}[{index}]", entry, "expected an IP address or a network") from None
        self._networks = networks

    def set_registrar(self, account: str, addresses: Iterable[str]) -> None:
        """The addresses that an account's registrar has now."""
        self._registrars[account] = frozenset(addresses)

    def account_at(self, address: str) -> str:
        """The one account whose registrar has this address; "" when none or several have it."""
        found = [account for account, addresses in self._registrars.items() if address in addresses]
        return found[0] if len(found) == 1 else ""

    def allows(self, address: str) -> bool:
        if any(address in addresses for addresses in self._registrars.values()):
            return True
        try:
            parsed = ipaddress.ip_address(address)
        except ValueError:
            return False
        if isinstance(parsed, ipaddress.IPv6Address) and parsed.ipv4_mapped:
            parsed = parsed.ipv4_mapped
        return any(parsed.version == network.version and parsed in network for network in self._networks)


class OncePer:
    """Lets a message about a key through once per period, and says how many were held back since."""

    def __init__(self, period_s: float = 60.0, *, max_keys: int = 1024) -> None:
        self._period_s, self._max_keys = period_s, max_keys
        self._last: OrderedDict[Hashable, tuple[float, int]] = OrderedDict()

    def due(self, key: Hashable, now: float) -> int | None:
        """How many were held back since the last one that was due; None when this one is to be held back too."""
        last_s, held = self._last.get(key, (-self._period_s, 0))
        if now - last_s < self._period_s:
            self._last[key] = (last_s, held + 1)
            return None
        while self._last and now - next(iter(self._last.values()))[0] >= self._period_s:
            self._last.popitem(last=False)
        if len(self._last) >= self._max_keys and key not in self._last:
            return None  # sources are easily made up: so many lines in a period are enough
        self._last[key] = (now, 0)
        self._last.move_to_end(key)
        return held


def split_address(text: str) -> tuple[str, int]:
    """`192.0.2.1:5060` or `[2001:db8::1]:5060` → address and port."""
    host, _, port = text.rpartition(":")
    return host.strip("[]"), int(port) if port.isdecimal() else 0
