"""The SIP endpoint of the worker: its listeners, its registrations, and its calls."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from functools import partial

import structlog

from audio import Detector
from config import Settings
from config.metrics.registry import MetricsRegistry
from config.network.access_list import LOOPBACK, AccessList
from config.network.addresses import LOCALHOST, bracketed, split_address
from config.process.tasks import end_tasks, lasting
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
"""The level of PJSIP's own log, which shows errors only. Our log has the events of a call, and `log.sip_trace` its
messages."""
_FAREWELL_S = 2.0
"""How long the shutdown waits for responses to BYE, and again for those to the last REGISTER."""


class SipEndpoint:
    """Answers SIP calls. There can be one per process, because PJSIP keeps its state in globals."""

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
        """Our public addresses, as a STUN server reports them."""
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
        """The TLS port; 0 if TLS is off."""
        return self._listeners.tls_port

    @property
    def calls(self) -> int:
        return len(self.control.calls)

    @property
    def full(self) -> bool:
        """Whether `sip.max_calls` has been reached."""
        return self.control.full

    @property
    def registrations(self) -> list[Registration]:
        return [account.registration for account in self._accounts]

    @property
    def one_worker(self) -> list[RegisteredAccount]:
        """The accounts that only one worker of a cluster registers; they stand by until `hold` is called."""
        return [account for account in self._accounts if account.one_worker]

    @property
    def rtp_sockets(self) -> int:
        return self.control.ports.in_use - self.nat.held

    @property
    def dialogs(self) -> int:
        """The number of dialogs that PJSIP still keeps, of calls and of refusals."""
        return self._stack.dialogs if self._stack else 0

    @property
    def callback_errors(self) -> int:
        """The number of our exceptions in PJSIP's callbacks since the start of the process; each is a bug."""
        return callbacks.callback_errors

    @property
    def transactions(self) -> int:
        return self._stack.transactions if self._stack else 0

    async def start(self, worker: str = "") -> None:
        """Listen and register. `worker`: a unique name that survives restarts; "" for that of the machine.

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
        """Hang up the remaining calls, unregister, and wait for the responses, at most four seconds."""
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
        """Drain: answer with 503 and Retry-After from now on, also to calls that ring."""
        self.control.refuse_new()

    def renew_certificate(self) -> None:
        """Read the files of `sip.tls_cert` and `sip.tls_key` again; open connections are kept."""
        if self._stack is not None:
            self._listeners.renew_certificate(self._stack)

    def allow(self, networks: tuple[str, ...]) -> None:
        """Set the networks that may call (`sip.allow`), in addition to loopback and the registrars."""
        self._access.replace(networks)

    def set_users(self, settings: Settings) -> None:
        """Set the users whose credentials are valid (`sip.users`); earlier challenges become stale."""
        self.admission.set_users(settings.sip)

    def use(self, settings: Settings) -> None:
        """Apply everything else that a reload may change."""
        self.allow(settings.sip.allow)
        self.control.ignore_mixed = settings.siprec.ignore_mixed
        self._traced = settings.log.sip_trace
        if self._stack is not None:
            self._stack.trace(self._traced)
        self.renew_certificate()

    def _select_account(self, text: str, source: str, proposed: int) -> int:
        """The account whose Contact goes into the response, and whose password answers challenges within the call.

        If the call does not identify one of several accounts at its source, any will do: the PBX can reach its Contact.
        """
        if not text.startswith("INVITE "):
            return proposed
        peer, _ = split_address(source)
        try:
            name = self.control.account_of(SipMessage.parse(text), peer)
        except PeerError:
            return proposed  # the request will be refused
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
