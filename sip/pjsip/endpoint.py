"""The worker's SIP side: what it listens on, where it registers, and the calls that come of it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from functools import partial

import structlog

from audio import Detector
from config import Settings
from config.access_list import LOOPBACK, AccessList
from config.addresses import LOCALHOST, bracketed, split_address
from config.metrics.registry import MetricsRegistry
from config.tasks import end_tasks, lasting
from sip.media.own_addresses import OwnAddresses
from sip.pjsip import callbacks
from sip.pjsip.accounts import Account, RegisteredAccount, Registration, account_config, instance_of, line_of, named
from sip.pjsip.call import SipHandler
from sip.pjsip.call_control import CallControl
from sip.pjsip.listeners import Listeners
from sip.pjsip.stack import Stack
from sip.protocol.errors import PeerError, SipError
from sip.protocol.message import SipMessage

log = structlog.get_logger("sip")

PJSIP_LOG_LEVEL = 1
"""PJSIP logs at level 1 of 0 to 6, only errors. Our own log says what a call did, and `log.sip_trace` shows its
messages."""
_FAREWELL_S = 2.0
"""How long the end waits for answers to BYE, and again for those to the last REGISTER."""


class SipEndpoint:
    """Answers calls. One per process, because PJSIP is."""

    def __init__(
        self,
        settings: Settings,
        handler: SipHandler,
        detector: Detector | None = None,
        *,
        trusted: tuple[str, ...] = LOOPBACK,
        ready: Callable[[], bool] = lambda: True,
    ) -> None:
        """`detector`: of the legs that the handler gives to sockets; `trusted`: networks that may always call;
        `ready()`: whether calls should be sent here. While it is False OPTIONS is answered 503, as when calls are
        refused."""
        sip, self._settings = settings.sip, settings.sip
        self._access = AccessList(sip.allow, trusted=trusted)
        self._addresses = OwnAddresses(sip)
        self.nat = self._addresses.nat
        """Our public address, as a STUN server sees it."""
        unasked = AccessList((), trusted=trusted).allows if sip.challenge == "everybody" else None
        self.control = CallControl(
            settings, handler, self._addresses, self._access, detector, unasked=unasked, ready=ready
        )
        self.admission, self.counters = self.control.admission, self.control.counters
        self.rtp, self.receiver = self.control.rtp, self.control.receiver
        self._local = Account("", self.control.on_invite)
        users = [account.user for account in sip.accounts]
        self._accounts = [
            RegisteredAccount(
                account,
                self.control.on_invite,
                self._on_registration,
                self._addresses.families,
                sip.keepalive_s,
                line=line_of(account) if users.count(account.user) > 1 else "",
            )
            for account in named(sip.accounts)
        ]
        self.control.accounts = [account.called for account in self._accounts]
        by_tls = any(hop.transport == "tls" for each in self._accounts for hop in each.hops)
        self._listeners = Listeners(sip, self._addresses, connects_by_tls=by_tls)
        for account in self._accounts:
            account.transports = self._listeners.transports
        self._traced = settings.log.sip_trace
        self._stack: Stack | None = None
        self._tasks: list[asyncio.Task[None]] = []

    def add_metrics(self, metrics: MetricsRegistry) -> None:
        nat, rtp, receiver = self.nat, self.rtp, self.receiver
        metrics.counters("sip", self.counters)
        metrics.counters("sip_door", self.admission.counters)
        metrics.gauge("sip_calls_active", "Shows how many SIP calls are active.", lambda: self.calls)
        metrics.gauge(
            "sip_dialogs", "Shows how many dialogs PJSIP keeps, of calls and of refusals.", lambda: self.dialogs
        )
        metrics.gauge(
            "sip_registered",
            "Is 1 while the account is registered.",
            lambda: {each.account: each.state == "registered" for each in self.registrations},
            "account",
        )
        metrics.gauge(
            "sip_standby",
            "Is 1 while the account is left to another worker (`sip.accounts.one_worker`).",
            lambda: {each.account: each.state == "standby" for each in self.registrations},
            "account",
        )
        metrics.gauge(
            "sip_tcp",
            "Shows how many TCP connections peers have opened to the SIP port.",
            lambda: len(self.admission.connections),
        )
        metrics.counter(
            "sip_stun_answered",
            "Counts ports whose public address the STUN server has returned.",
            lambda: nat.answered,
        )
        metrics.counter(
            "sip_stun_unanswered",
            "Counts how often the STUN server did not answer or its name could not be resolved.",
            lambda: nat.unanswered,
        )
        metrics.counter(
            "sip_callback_errors",
            "Counts errors in the worker's own code during a callback of PJSIP, which is then told to refuse.",
            lambda: self.callback_errors,
        )
        metrics.counters("rtp", rtp)
        metrics.gauge("rtp_sockets", "Shows how many RTP ports are in use.", lambda: self.rtp_sockets)
        metrics.counter(
            "rtp_packets", "Counts RTP packets accepted from the source of their stream.", lambda: rtp.packets
        )
        metrics.counter(
            "rtp_wrong_source",
            "Counts RTP datagrams from a source other than the stream's.",
            lambda: rtp.wrong_source,
        )
        metrics.counter("rtp_receive_errors", "Counts errors while reading RTP sockets.", lambda: receiver.errors)
        metrics.counter("rtp_truncated", "Counts datagrams that were too long for RTP.", lambda: receiver.truncated)

    @property
    def port(self) -> int:
        """The SIP port in use; differs from the configured one only when that is 0."""
        return self._listeners.port

    @property
    def tls_port(self) -> int:
        """0: nobody can call over TLS."""
        return self._listeners.tls_port

    @property
    def calls(self) -> int:
        return len(self.control.calls)

    @property
    def full(self) -> bool:
        """No further call is taken: there are `sip.max_calls` of them."""
        return self.control.full

    @property
    def registrations(self) -> list[Registration]:
        return [account.registration for account in self._accounts]

    @property
    def one_worker(self) -> list[RegisteredAccount]:
        """Accounts that stand by until they are told to `hold`, for one worker of a cluster alone registers them."""
        return [account for account in self._accounts if account.one_worker]

    @property
    def rtp_sockets(self) -> int:
        return self.control.ports.in_use - self.nat.held

    @property
    def dialogs(self) -> int:
        """Calls and refusals that PJSIP has not let go of."""
        return self._stack.dialogs if self._stack else 0

    @property
    def callback_errors(self) -> int:
        """Exceptions of ours in PJSIP's callbacks, since the process began; each is a bug."""
        return callbacks.callback_errors

    @property
    def transactions(self) -> int:
        return self._stack.transactions if self._stack else 0

    async def start(self, worker: str = "") -> None:
        """Listen and register. `worker`: a name of its own, which stays after a restart; "": that of the machine.

        Raises SipError when an address is taken.
        """
        settings = self._settings
        await self.nat.find(settings.port)
        self._stack = Stack(
            max_calls=settings.max_calls,
            log_level=PJSIP_LOG_LEVEL,
            on_rejected=self.control.on_rejected,
            on_lost=self._on_connection_lost,
            on_select=self._select_account,
            admission=self.admission,
            families=self._addresses.families,
        )
        self._stack.trace(self._traced)
        try:
            self._listeners.open(self._stack)
            self._stack.start()
            family = self._addresses.families[0]
            own = bracketed(self._addresses.facing(family, LOCALHOST[family]))
            self._local.open(account_config(f"sip:mediaworker@{own}"), default=True)
        except SipError:
            self._stack.destroy()
            raise
        for account in self._accounts:
            account.instance = instance_of(worker) if worker else ""
        self._tasks = [
            lasting(partial(each.follow, self._access), f"sip account {each.name}") for each in self._accounts
        ]
        reports = bool(self.control.cname)
        self._tasks.append(lasting(partial(self.nat.follow, self.control.ports, reports=reports), "stun"))
        self.control.start()
        log.info(
            "SIP is listening",
            addresses=list(self._addresses.hosts.values()),
            port=self.port,
            transports=settings.transports,
            tls_port=self.tls_port or None,
        )

    async def stop(self) -> None:
        """Hang up what is left, unregister, and wait for the answers; at most four seconds."""
        if self._stack is None:
            return
        self.refuse_new()
        await end_tasks(*self._tasks)
        self.control.stop()
        await self._stack.settle(_FAREWELL_S)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_FAREWELL_S):
                await asyncio.gather(*(account.left.wait() for account in self._accounts if account.unregister()))
        for account in (self._local, *self._accounts):
            account.close()
        self.control.release()
        self._stack.destroy()
        self._stack = None

    def refuse_new(self) -> None:
        """Draining: 503 from now on, with Retry-After, for calls that ring as well."""
        self.control.refuse_new()

    def renew_certificate(self) -> None:
        """Read the files of `sip.tls_cert` and `sip.tls_key` again; connections that are open go on."""
        if self._stack is not None:
            self._listeners.renew_certificate(self._stack)

    def allow(self, networks: tuple[str, ...]) -> None:
        """Who may call from now on (`sip.allow`), beside loopback and the registrars."""
        self._access.replace(networks)

    def set_users(self, settings: Settings) -> None:
        """Whose credentials are good from now on (`sip.users`); earlier challenges are stale."""
        self.admission.set_users(settings.sip)

    def use(self, settings: Settings) -> None:
        """Take over everything else that a reload may change."""
        self.allow(settings.sip.allow)
        self.control.ignore_mixed = settings.siprec.ignore_mixed
        self._traced = settings.log.sip_trace
        if self._stack is not None:
            self._stack.trace(self._traced)
        self.renew_certificate()

    def _select_account(self, text: str, source: str, proposed: int) -> int:
        """The account whose Contact goes into the answer, and whose password answers challenges within the call.

        Of several at the source any will do where the call does not tell: its Contact is one that the PBX can reach.
        """
        if not text.startswith("INVITE "):
            return proposed
        peer, _ = split_address(source)
        try:
            name = self.control.account_of(SipMessage.parse(text), peer)
        except PeerError:
            return proposed  # it will be refused
        names = {name} if name else self._access.accounts_at(peer)
        open_ones = (account for account in self._accounts if account.is_open and account.name in names)
        return int(next(open_ones, self._local).getId())

    def _on_connection_lost(self, address: str, port: int) -> None:
        self.control.peers.on_connection_lost(address, port)
        for account in self._accounts:
            account.on_connection_lost(address, port)

    def _on_registration(self, registration: Registration) -> None:
        if registration.state == "registered":
            self.counters.registrations_ok += 1
        elif registration.state == "failed":
            self.counters.registrations_failed += 1
