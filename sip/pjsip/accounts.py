"""Accounts: one per registration, and a local one that takes the INVITEs of everybody else who may call.

A registrar's name, or that of the proxy before it, is resolved here, not by PJSIP, whose own look-up would block the
loop; the addresses are what the access list trusts, and requests go there through a loose route that is not written
into them (PJSIP's `hide`).

An account that only one worker of a cluster registers stands by until it is told to `hold`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any, Literal
from uuid import UUID, uuid5

import msgspec
import pjsua2 as pj
import structlog

from config.access_list import AccessList
from config.addresses import Family, bracketed
from config.settings import SipAccount
from sip.pjsip.callbacks import guarded
from sip.pjsip.registrar import Registrar, RegistrarTarget, Rotation
from sip.pjsip.server_location import SipServer
from sip.protocol.called_account import LINE, CalledAccount
from sip.protocol.errors import PeerError
from sip.protocol.message import SipMessage

log = structlog.get_logger("sip")

RESOLVE_S = 60.0
_UNRESOLVED_S = 30.0
_WORKERS = UUID("a6b9e036-6eca-4586-bbbd-25ea908baa56")
"""The name space of workers (RFC 9562 section 5.5)."""
OnInvite = Callable[["Account", Any], None]


@dataclass(frozen=True, slots=True)
class Registration:
    """State of one account's registration, for readiness, metrics and the log."""

    account: str
    state: Literal["standby", "resolving", "registering", "registered", "failed", "unregistered"]
    """`standby`: it is left to another worker; `reason` says why."""
    code: int = 0
    """The status of the registrar's last answer; 0 before one has come."""
    reason: str = ""
    registrar: str = ""
    """The registrar of the account's list that this is about."""


class Account(pj.Account):  # type: ignore[misc]
    """A pjsua2 account that hands its INVITEs to `on_invite`; without registration unless a subclass adds one."""

    def __init__(self, name: str, on_invite: OnInvite) -> None:
        super().__init__()
        self.name = name
        self._on_invite = on_invite
        self.is_open = False
        """PJSIP has it."""

    def open(self, config: Any, *, default: bool = False) -> None:
        self.is_open = True
        self.create(config, default)

    def close(self) -> None:
        """Take the account out of PJSIP, before PJSIP ends: a later one would find it under the same number."""
        if self.is_open:
            self.is_open = False
            self.shutdown()
            # Its destructor would take out whoever has the number by then.
            self.this.disown()

    @guarded
    def onIncomingCall(self, prm: Any) -> None:
        self._on_invite(self, prm)


class RegisteredAccount(Account):
    """Registers with digest credentials (RFC 3261 section 22) where it can, and goes elsewhere when it no longer can.

    PJSIP refreshes; what happens after a failure is decided here.
    """

    def __init__(
        self,
        settings: SipAccount,
        on_invite: OnInvite,
        on_change: Callable[[Registration], None],
        families: tuple[Family, ...] = ("IP4",),
        keepalive_s: int = 15,
        *,
        line: str = "",
    ) -> None:
        """`families`: by which it may register; `keepalive_s`: between two line ends that keep a NAT open for UDP;
        `line`: tells its Contact from that of another account with the same user."""
        name = settings.name or settings.user
        super().__init__(name, on_invite)
        self._settings = settings
        self._on_change = on_change
        self._rotation = Rotation()
        self._retry: asyncio.TimerHandle | None = None
        self._following = False
        self.one_worker = settings.one_worker
        self._held = not settings.one_worker
        """Whether it is for this worker to register it."""
        self._standby_reason = "the cluster has not been reached yet"
        self.left = asyncio.Event()
        """Clear while the registration is being taken back."""
        self.left.set()
        self._families, self._keepalive_s = families, keepalive_s
        self.registrars = [Registrar.parse(uri) for uri in (settings.registrar, *settings.backups)]
        self.instance = ""
        """Set before it registers; "": PJSIP names the machine, and two workers there have one binding."""
        self.transports: Collection[str] = ("udp", "tcp")
        """NAPTR and SRV records choose one of these."""
        self.proxy = Registrar.parse(settings.proxy) if settings.proxy else None
        self._located: dict[Registrar, tuple[SipServer, ...]] = {}
        hosts = frozenset(registrar.host.lower() for registrar in self.registrars)
        self.called = CalledAccount(name, settings.user, hosts, line)
        self.registration = Registration(name, "resolving")
        if not self._held:
            self.registration = Registration(name, "standby", reason=self._standby_reason)

    @property
    def address(self) -> str:
        """Names the account at its PBX, equally at every worker: `4711@pbx.example:0`, with 0 for the default port."""
        registrar = self.registrars[0]
        return f"{self._settings.user}@{registrar.host.lower()}:{registrar.port}"

    @property
    def hops(self) -> list[Registrar]:
        """Where its requests go: to the proxy, or to the registrars."""
        return [self.proxy] if self.proxy is not None else self.registrars

    async def follow(self, access: AccessList) -> None:
        """Look for the servers of the registrars' names again and again, and register. Runs until cancelled."""
        self._following = True
        try:
            while True:
                await asyncio.gather(*(self._locate(hop) for hop in self.hops))
                targets = [
                    RegistrarTarget(registrar, server, self.proxy)
                    for registrar in self.registrars
                    for server in self._located.get(self.proxy or registrar, ())
                ]
                if targets:
                    access.set_registrar(self.name, [target.server.address for target in targets])
                    if self._rotation.found(targets) and self._held:
                        self._register()
                elif self._rotation.current is None:
                    names = ", ".join(hop.host for hop in self.hops)
                    self._change("failed", 0, f"cannot resolve {names}")
                await asyncio.sleep(RESOLVE_S if targets else _UNRESOLVED_S)
        finally:
            self._following = False
            self._stop_retry()

    async def _locate(self, hop: Registrar) -> None:
        """Servers that were found stay while name servers are silent: what is found then may not be all there is."""
        found = await hop.locate(self._families, self.transports)
        if found.servers and (found.certain or hop not in self._located):
            self._located[hop] = found.servers

    def hold(self) -> None:
        """This worker is to register the account: now, and once more where it has done so already."""
        self._held = True
        if not self._following or not self.left.is_set():
            return  # it registers when it begins, or when the registrar has answered
        if self.registration.state == "registered":
            self._send_register(True)
        elif self._rotation.current is None:
            self._change("resolving", 0, "")
        elif self.registration.state != "registering":
            self._register()

    def stand_by(self, reason: str) -> bool:
        """Leave the account to another worker. True: it was registered, and `left` is set when the registrar has taken
        that back."""
        self._held, self._standby_reason = False, reason
        self._stop_retry()
        if self.registration.state == "registering":
            self.left.clear()  # two requests at once are not allowed: the second one follows the answer
            return True
        if not self.unregister():
            self._change("standby", 0, reason)
        return not self.left.is_set()

    def unregister(self) -> bool:
        """Take the registration back; False when there is none. `left` is set when the registrar has answered."""
        self._held = False
        if not self.is_open or self.registration.state != "registered":
            return False
        if self.left.is_set():
            self.left.clear()
            self._send_register(False)
        return True

    def on_connection_lost(self, address: str, port: int) -> None:
        """A connection that went there has ended. When it was this account's, nobody can call by it any more."""
        at = self._rotation.current
        if self.registration.state != "registered" or at is None or at.server.transport == "udp":
            return
        if (address, port) == (at.server.address, at.server.port):
            self._change("failed", 0, "the connection was lost")
            self._again(0)

    @guarded
    def onRegState(self, prm: Any) -> None:
        if not self.is_open:
            return
        active = self.getInfo().regIsActive
        if prm.code // 100 == 2:
            self._rotation.registered()
            soon, was_leaving = asyncio.get_running_loop().call_soon, not self.left.is_set()
            self._change("registered" if active else "unregistered", prm.code, prm.reason)
            if active and not self._held:
                soon(self._send_register, False)
            elif active:
                self.left.set()
            elif was_leaving and self._held and self._following:
                soon(self._register)
            return
        self._change("failed", prm.code, prm.reason)
        # Without an answer the status is PJSIP's own.
        answer = prm.rdata.wholeMsg
        self._again(prm.code if answer else 0, _retry_after_s(answer) if answer else 0)

    def _again(self, code: int, retry_after_s: int = 0) -> None:
        if not self._following or not self._held:
            return
        self._stop_retry()
        wait_s = self._rotation.failed(code, retry_after_s)
        self._retry = asyncio.get_running_loop().call_later(wait_s, self._register)

    def _stop_retry(self) -> None:
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None

    def _register(self) -> None:
        target = self._rotation.current
        assert target is not None
        self._stop_retry()
        config = account_config(f"sip:{self._settings.user}@{bracketed(target.registrar.host)}")
        if self.called.line:
            config.sipConfig.contactUriParams = f";{LINE}={self.called.line}"
        config.regConfig.registrarUri = str(target.registrar)
        config.regConfig.timeoutSec = self._settings.expires_s
        config.regConfig.retryIntervalSec = 0
        config.natConfig.udpKaIntervalSec = self._keepalive_s
        config.natConfig.sipOutboundInstanceId = self.instance
        # Nobody takes leave of a registrar that does not answer, or where there is no registration.
        there = self.registration.state in ("registering", "registered")
        config.regConfig.disableRegOnModify = self.is_open and not there
        config.sipConfig.proxies.append(target.route)
        known_as = self._settings.auth_user or self._settings.user
        credentials = pj.AuthCredInfo("digest", "*", known_as, 0, self._settings.password.reveal())
        config.sipConfig.authCreds.append(credentials)
        self._change("registering", 0, "", str(target))
        try:
            if not self.is_open:
                self.open(config)
            else:
                self.modify(config)
                if config.regConfig.disableRegOnModify:
                    self.setRegistration(True)
        except pj.Error as error:
            self._change("failed", 0, error.reason)
            self._again(0)

    def _send_register(self, registered: bool) -> None:
        """Send a REGISTER: refresh the registration, or take it back."""
        if self.is_open:
            with contextlib.suppress(pj.Error):  # one is under way, and its answer brings the next step
                self.setRegistration(registered)

    def _change(self, state: Any, code: int, reason: str, registrar: str | None = None) -> None:
        if self._following and not self._held and state in ("failed", "unregistered"):
            state, code, reason = "standby", 0, self._standby_reason
        where = self.registration.registrar if registrar is None else registrar
        before, self.registration = (
            self.registration,
            replace(self.registration, state=state, code=code, reason=reason, registrar=where),
        )
        if before != self.registration:
            write = log.warning if state == "failed" else log.info
            write("registration", account=self.name, state=state, code=code, reason=reason, registrar=where)
        if state != "registered":
            self.left.set()
        self._on_change(self.registration)


def named(accounts: Sequence[SipAccount]) -> list[SipAccount]:
    """The accounts with a name each, and another one for each."""
    names = [account.name or account.user for account in accounts]
    return [
        msgspec.structs.replace(account, name=name if names.count(name) == 1 else f"{name}@{_host(account)}")
        for account, name in zip(accounts, names, strict=True)
    ]


def line_of(account: SipAccount) -> str:
    """Stands for the account in its Contact, and is the same after a restart, when the registrar still has that."""
    text = f"{account.user}@{account.registrar}".encode(errors="surrogatepass")
    return blake2b(text, digest_size=5).hexdigest()


def instance_of(worker: str) -> str:
    """The instance ID that tells the worker of that name from others at a registrar (RFC 5626 section 4.1), the same at
    each start."""
    return f"<{uuid5(_WORKERS, worker).urn}>"


def _host(account: SipAccount) -> str:
    registrar = Registrar.parse(account.registrar)
    return bracketed(registrar.host) + (f":{registrar.port}" if registrar.port else "")


def _retry_after_s(answer: str) -> int:
    """Retry-After (RFC 3261 section 20.33), which may have a comment and parameters behind it; 0 without a good one."""
    with contextlib.suppress(ValueError, PeerError):
        header = SipMessage.parse(answer).header("retry-after")
        return max(0, int(header.split("(")[0].split(";")[0]))
    return 0


def account_config(uri: str, *, incoming: bool = True) -> Any:
    """The configuration that all accounts share: PJSIP's own media goes nowhere (a loop-back transport needs no
    socket).

    `incoming`: the account takes calls, and asks for session timers in them.
    """
    config = pj.AccountConfig()
    config.idUri = uri
    config.mediaConfig.useLoopMedTp = True
    config.mediaConfig.enableLoopback = False
    # So that encrypted media is not refused; which of it is taken, and the keys, is our own SDP's business.
    config.mediaConfig.srtpUse = pj.PJMEDIA_SRTP_OPTIONAL
    config.mediaConfig.srtpSecureSignaling = 0
    config.mediaConfig.lockCodecEnabled = False
    config.mediaConfig.streamKaEnabled = False
    # A session timer where the caller can refresh it: PJSIP is patched not to ask anybody else (RFC 4028 section 9).
    config.callConfig.timerUse = pj.PJSUA_SIP_TIMER_ALWAYS if incoming else pj.PJSUA_SIP_TIMER_OPTIONAL
    config.callConfig.siprecUse = pj.PJSUA_SIP_SIPREC_OPTIONAL
    return config
