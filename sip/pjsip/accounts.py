"""The accounts: one per registration, and a local one for the INVITEs of all other callers.

The name of a registrar, or of its proxy, is resolved here and not by PJSIP, whose own look-up would block the loop. The
access list trusts the resolved addresses. Requests go there through a loose route that is not written into them
(PJSIP's `hide`).

An account that only one worker of a cluster registers stands by until `hold` is called.
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

from config.network.access_list import AccessList
from config.network.addresses import Family, bracketed
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
"""The UUID name space of workers (RFC 9562 section 5.5)."""
OnInvite = Callable[["Account", Any], None]


@dataclass(frozen=True, slots=True)
class Registration:
    """The state of one account's registration, for readiness, metrics and the log."""

    account: str
    state: Literal["standby", "resolving", "registering", "registered", "failed", "unregistered"]
    """`standby` means that another worker registers the account; `reason` says why."""
    code: int = 0
    """The status of the registrar's last response; 0 before the first one."""
    reason: str = ""
    registrar: str = ""
    """The registrar, of the account's list, to which this state applies."""


class Account(pj.Account):  # type: ignore[misc]
    """A pjsua2 account that passes its INVITEs to `on_invite`; without registration unless a subclass adds one."""

    def __init__(self, name: str, on_invite: OnInvite) -> None:
        super().__init__()
        self.name = name
        self._on_invite = on_invite
        self.is_open = False
        """Whether PJSIP has the account."""

    def open(self, config: Any, *, default: bool = False) -> None:
        self.is_open = True
        self.create(config, default)

    def close(self) -> None:
        """Remove the account from PJSIP before PJSIP ends, since a later PJSIP would reuse its number."""
        if self.is_open:
            self.is_open = False
            self.shutdown()
            # The destructor would remove whichever account has the number by then.
            self.this.disown()

    @guarded
    def onIncomingCall(self, prm: Any) -> None:
        self._on_invite(self, prm)


class RegisteredAccount(Account):
    """An account that registers with digest credentials (RFC 3261 section 22), and fails over to other registrars.

    PJSIP refreshes the registration; this class decides what follows a failure.
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
        """Whether this worker must register the account."""
        self._standby_reason = "the cluster has not been reached yet"
        self.left = asyncio.Event()
        """Cleared while the registration is being removed at the registrar."""
        self.left.set()
        self._families, self._keepalive_s = families, keepalive_s
        self.registrars = [Registrar.parse(uri) for uri in (settings.registrar, *settings.backups)]
        self.instance = ""
        """The instance ID, set before it registers. With "" PJSIP uses that of the machine."""
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
        """The account's name at every worker: `4711@pbx.example:0`, with 0 for the default port."""
        registrar = self.registrars[0]
        return f"{self._settings.user}@{registrar.host.lower()}:{registrar.port}"

    @property
    def hops(self) -> list[Registrar]:
        """The next hops of its requests: the proxy, or the registrars."""
        return [self.proxy] if self.proxy is not None else self.registrars

    async def follow(self, access: AccessList) -> None:
        """Resolve the registrars' names periodically, and register. Runs until cancelled."""
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
        """Resolve a hop. Known servers stay if name servers do not answer, since the result may be incomplete then."""
        found = await hop.locate(self._families, self.transports)
        if found.servers and (found.certain or hop not in self._located):
            self._located[hop] = found.servers

    def hold(self) -> None:
        """Register the account at this worker: now, and again if it is registered already."""
        self._held = True
        if not self._following or not self.left.is_set():
            return  # it will register when `follow` begins, or when the registrar has answered
        if self.registration.state == "registered":
            self._send_register(True)
        elif self._rotation.current is None:
            self._change("resolving", 0, "")
        elif self.registration.state != "registering":
            self._register()

    def stand_by(self, reason: str) -> bool:
        """Release the account to another worker.

        Returns whether it was registered; then `left` is set when the registrar has removed the registration."""
        self._held, self._standby_reason = False, reason
        self._stop_retry()
        if self.registration.state == "registering":
            self.left.clear()  # two requests at once are not allowed: the second one follows the response
            return True
        if not self.unregister():
            self._change("standby", 0, reason)
        return not self.left.is_set()

    def unregister(self) -> bool:
        """Unregister; returns False if it is not registered. `left` is set when the registrar has answered."""
        self._held = False
        if not self.is_open or self.registration.state != "registered":
            return False
        if self.left.is_set():
            self.left.clear()
            self._send_register(False)
        return True

    def on_connection_lost(self, address: str, port: int) -> None:
        """Register again if the lost connection was this account's: no call can arrive over it any more."""
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
        # Without a response the status is PJSIP's own.
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
        # Do not unregister from a registrar that does not answer, or that has no registration.
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
        """Send a REGISTER that refreshes the registration or removes it."""
        if self.is_open:
            with contextlib.suppress(pj.Error):  # another one is in flight, whose response leads to the next step
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
    """The accounts, each with a unique name."""
    names = [account.name or account.user for account in accounts]
    return [
        msgspec.structs.replace(account, name=name if names.count(name) == 1 else f"{name}@{_host(account)}")
        for account, name in zip(accounts, names, strict=True)
    ]


def line_of(account: SipAccount) -> str:
    """The account's mark in its Contact, which stays the same after a restart, when the registrar still has it."""
    text = f"{account.user}@{account.registrar}".encode(errors="surrogatepass")
    return blake2b(text, digest_size=5).hexdigest()


def instance_of(worker: str) -> str:
    """The instance ID of the worker with that name at registrars (RFC 5626 section 4.1), which is the same after a
    restart."""
    return f"<{uuid5(_WORKERS, worker).urn}>"


def _host(account: SipAccount) -> str:
    registrar = Registrar.parse(account.registrar)
    return bracketed(registrar.host) + (f":{registrar.port}" if registrar.port else "")


def _retry_after_s(answer: str) -> int:
    """The value of Retry-After (RFC 3261 section 20.33) without comment and parameters; 0 without a valid one."""
    with contextlib.suppress(ValueError, PeerError):
        header = SipMessage.parse(answer).header("retry-after")
        return max(0, int(header.split("(")[0].split(";")[0]))
    return 0


def account_config(uri: str, *, incoming: bool = True) -> Any:
    """The configuration that all accounts share, with PJSIP's own media on a loop-back transport without sockets.

    `incoming`: the account accepts calls, and requests session timers in them.
    """
    config = pj.AccountConfig()
    config.idUri = uri
    config.mediaConfig.useLoopMedTp = True
    config.mediaConfig.enableLoopback = False
    # PJSIP must not refuse encrypted media. Our own SDP decides which streams are accepted, and with which keys.
    config.mediaConfig.srtpUse = pj.PJMEDIA_SRTP_OPTIONAL
    config.mediaConfig.srtpSecureSignaling = 0
    config.mediaConfig.lockCodecEnabled = False
    config.mediaConfig.streamKaEnabled = False
    # Use a session timer if the caller can refresh it: PJSIP is patched to ask no other caller (RFC 4028 section 9).
    config.callConfig.timerUse = pj.PJSUA_SIP_TIMER_ALWAYS if incoming else pj.PJSUA_SIP_TIMER_OPTIONAL
    config.callConfig.siprecUse = pj.PJSUA_SIP_SIPREC_OPTIONAL
    return config
