"""Accounts: one per registration, and a local one that takes the INVITEs of everybody else who may call.

A registrar's name is resolved here, not by PJSIP, whose own look-up would block the loop; the addresses are what the
access list trusts, and requests go there through a loose route that is not written into them (PJSIP's `hide`).
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
import socket
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import pjsua2 as pj
import structlog

from config import ConfigError
from config.settings import SipAccount
from sip.access import AccessList
from sip.stack import guarded

log = structlog.get_logger("sip")

RESOLVE_S = 60.0
_RETRY_S = 30
_URI = re.compile(r"(?:sip:)?(?:[^@]*@)?([^:;>\[\]\s]+)(?::([0-9]{1,5}))?(?:;transport=(udp|tcp))?", re.IGNORECASE)

OnInvite = Callable[["Account", Any], None]


@dataclass(frozen=True, slots=True)
class Registration:
    """State of one account's registration, for readiness, metrics and the log."""

    account: str
    state: Literal["resolving", "registering", "registered", "failed", "unregistered"]
    code: int = 0
    """Of the registrar's last answer; 0 before one has come."""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Registrar:
    """Where an account registers."""

    host: str
    port: int
    """0: the scheme's default."""
    transport: Literal["udp", "tcp"]

    @classmethod
    def parse(cls, text: str) -> Registrar:
        """`sip:HOST[:PORT][;transport=udp|tcp]`, with or without the scheme. Raises ConfigError."""
        found = _URI.fullmatch(text.strip())
        if not found:
            raise ConfigError("sip.accounts.registrar", text, "expected sip:HOST[:PORT][;transport=udp|tcp]")
        return cls(found[1], int(found[2] or 0), "tcp" if (found[3] or "").lower() == "tcp" else "udp")

    def __str__(self) -> str:
        port = f":{self.port}" if self.port else ""
        return f"sip:{self.host}{port}" + (";transport=tcp" if self.transport == "tcp" else "")

    def route(self, address: str) -> str:
        port = f":{self.port}" if self.port else ""
        return f"<sip:{address}{port};lr;hide;transport={self.transport}>"


class Account(pj.Account):  # type: ignore[misc]
    """A pjsua2 account that hands its INVITEs to `on_invite`; without registration unless a subclass adds one."""

    def __init__(self, name: str, on_invite: OnInvite) -> None:
        super().__init__()
        self.name = name
        self._on_invite = on_invite
        self._created = False

    def open(self, config: Any, *, default: bool = False) -> None:
        self._created = True
        self.create(config, default)

    def close(self) -> None:
        """Take the account out of PJSIP, before PJSIP ends: a later one would find it under the same number."""
        if self._created:
            self._created = False
            self.shutdown()

    @guarded
    def onIncomingCall(self, prm: Any) -> None:
        self._on_invite(self, prm)


class RegisteredAccount(Account):
    """Registers with digest credentials (RFC 3261 section 22) and refreshes; PJSIP keeps the timers."""

    def __init__(self, settings: SipAccount, on_invite: OnInvite, on_change: Callable[[Registration], None]) -> None:
        name = settings.name or settings.user
        super().__init__(name, on_invite)
        self._settings = settings
        self._on_change = on_change
        self._address = ""
        self.left = asyncio.Event()
        self.registrar = Registrar.parse(settings.registrar)
        self.registration = Registration(name, "resolving")

    async def follow(self, access: AccessList) -> None:
        """Resolve the registrar's name again and again, and register at its address. Runs until cancelled."""
        while True:
            addresses = await _resolve(self.registrar)
            if addresses:
                access.set_registrar(self.name, addresses)
                if self._address not in addresses:
                    self._register_at(addresses[0])
            elif not self._address:
                self._change("failed", 0, f"cannot resolve {self.registrar.host}")
            await asyncio.sleep(RESOLVE_S if addresses else _RETRY_S)

    def unregister(self) -> bool:
        """Take the registration back; False when there is none. `left` is set when the registrar has answered."""
        if not self._created or self.registration.state != "registered":
            return False
        self.left.clear()
        self.setRegistration(False)
        return True

    @guarded
    def onRegState(self, prm: Any) -> None:
        if not self._created:
            return
        active = self.getInfo().regIsActive
        if prm.code // 100 == 2:
            self._change("registered" if active else "unregistered", prm.code, prm.reason)
        else:
            self._change("failed", prm.code, prm.reason)

    def _register_at(self, address: str) -> None:
        self._address = address
        config = account_config(f"sip:{self._settings.user}@{self.registrar.host}")
        config.regConfig.registrarUri = str(self.registrar)
        config.regConfig.registerOnAdd = not self._created
        config.regConfig.timeoutSec = self._settings.expires_s
        config.regConfig.retryIntervalSec = _RETRY_S
        config.regConfig.firstRetryIntervalSec = 2
        config.regConfig.randomRetryIntervalSec = 3
        config.sipConfig.proxies.append(self.registrar.route(address))
        credentials = pj.AuthCredInfo(
            "digest", self._settings.realm, self._settings.user, 0, str.__str__(self._settings.password)
        )
        config.sipConfig.authCreds.append(credentials)
        self._change("registering", 0, "")
        try:
            if self._created:
                self.modify(config)
            else:
                self.open(config)
        except pj.Error as error:
            self._change("failed", 0, error.reason)

    def _change(self, state: Any, code: int, reason: str) -> None:
        before, self.registration = self.registration, replace(
            self.registration, state=state, code=code, reason=reason
        )
        if before != self.registration:
            write = log.warning if state == "failed" else log.info
            write("registration", account=self.name, state=state, code=code, reason=reason)
        if state != "registered":
            self.left.set()
        self._on_change(self.registration)


def account_config(uri: str) -> Any:
    """What all accounts share: PJSIP's own media goes nowhere (a loop-back transport needs no socket)."""
    config = pj.AccountConfig()
    config.idUri = uri
    config.mediaConfig.useLoopMedTp = True
    config.mediaConfig.enableLoopback = False
    # So that encrypted media is not refused; which of it is taken, and the keys, is our own SDP's business.
    config.mediaConfig.srtpUse = pj.PJMEDIA_SRTP_OPTIONAL
    config.mediaConfig.srtpSecureSignaling = 0
    config.mediaConfig.lockCodecEnabled = False
    config.mediaConfig.streamKaEnabled = False
    config.callConfig.siprecUse = pj.PJSUA_SIP_SIPREC_OPTIONAL
    return config


async def _resolve(registrar: Registrar) -> list[str]:
    """IPv4 addresses, sorted so that the choice is stable."""
    try:
        return [str(ipaddress.IPv4Address(registrar.host))]
    except ValueError:
        pass
    kind = socket.SOCK_STREAM if registrar.transport == "tcp" else socket.SOCK_DGRAM
    try:
        found = await asyncio.get_running_loop().getaddrinfo(
            registrar.host, registrar.port or 5060, family=socket.AF_INET, type=kind
        )
    except OSError:
        return []
    return sorted({str(entry[4][0]) for entry in found})
