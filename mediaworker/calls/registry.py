"""The registry of live calls: it admits and opens them, builds their legs, and drains them at shutdown."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

import structlog
from uuid_utils import uuid7

from asr.client.recognizer import Recognizer
from audio import Detector, Leg
from config import Settings
from config.metrics.registry import MetricsRegistry
from config.settings import Endpointing
from mediaworker.calls import routing
from mediaworker.calls.call import Call, CallParts
from mediaworker.calls.call_leg import CallLeg, LegSpec
from mediaworker.calls.live_utterance import Speaker
from mediaworker.calls.overload import LoadState
from mediaworker.calls.parts import CallInfo, LegPlan, TranscriberParts
from mediaworker.calls.transcriber import LegTranscriber
from mediaworker.calls.word_timestamps import LegWordTimestamps
from mediaworker.errors import MediaworkerError
from mediaworker.events import schema as events
from mediaworker.ops import logs
from mediaworker.policy.alerts.rules import Rules
from mediaworker.policy.redaction.call import CallPrivacy, Policy

log = structlog.get_logger()

NO_MEMORY_S = 30.0
"""How long the worker is not ready after it had no memory for a call, unless another call succeeds meanwhile."""
FINALS_S = 30.0
"""How long the drain waits for finals. If an engine hangs, the store closes the calls at the next start."""


class CallRefused(MediaworkerError):
    """The worker admits no new call: it is full, overloaded or draining.

    `status` is the HTTP status; SIP answers 486 when `busy`. `challenge` is the `WWW-Authenticate` header of a 401 or
    403. `delay_s` is how long the response is held back.
    """

    def __init__(
        self, status: int, reason: str, *, busy: bool = False, challenge: str = "", delay_s: float = 0.0
    ) -> None:
        self.status, self.reason, self.busy, self.challenge = status, reason, busy, challenge
        self.delay_s = delay_s
        super().__init__(reason)


class CallRegistry:
    """Opens calls, keeps them until they have ended, and counts."""

    def __init__(
        self,
        settings: Settings,
        parts: TranscriberParts,
        *,
        detector: Detector,
        publish: Callable[[str, int, events.EventBody], None],
        aligner: Recognizer | None = None,
        calls_changed: Callable[[int], None] = lambda count: None,
        rules: Callable[[], Rules] | None = None,
    ) -> None:
        """`rules` returns the current rules of alerts. Raises ConfigError for privacy settings that cannot be used."""
        self.stats = parts.stats
        self.opened = 0
        self.refused = 0
        self.draining = False
        self.masked: Counter[str] = Counter()
        """How many texts and digits were masked, by kind."""
        self.detector, self.parts, self._settings = detector, parts, settings
        self._policy, self._rules = Policy(settings), rules
        self._aligner, self._calls_changed = aligner, calls_changed
        self._call_parts = CallParts(detector, publish, parts.clock, self._closed, _later)
        self._no_memory_s: float | None = None
        """When a call was refused for lack of memory; None once a later call has succeeded."""
        self._calls: dict[str, Call] = {}
        self._empty = asyncio.Event()
        self._empty.set()

    def add_metrics(self, metrics: MetricsRegistry) -> None:
        metrics.gauge("calls_active", "Shows how many calls have not ended.", lambda: len(self))
        metrics.counter("calls_opened", "Counts calls since the worker started.", lambda: self.opened)
        metrics.counter(
            "calls_refused",
            "Counts calls that were refused because the worker was full or draining.",
            lambda: self.refused,
        )
        metrics.gauge("draining", "Is 1 while the worker drains before it ends.", lambda: self.draining)
        metrics.counters("transcripts", self.stats)
        self.parts.guard.add_metrics(metrics)
        metrics.counter(
            "redactions",
            "Counts redacted parts of texts and masked digits by kind.",
            lambda: self.masked,
            "kind",
        )

    def __len__(self) -> int:
        return len(self._calls)

    def __iter__(self) -> Iterator[Call]:
        return iter(list(self._calls.values()))

    def get(self, call_id: str) -> Call | None:
        return self._calls.get(call_id)

    def use(self, settings: Settings) -> None:
        """Use these routes, profiles, privacy and limit for calls that begin from now on. Raises ConfigError."""
        self._policy = Policy(settings)
        self._settings = settings

    def refusal(self) -> CallRefused | None:
        """Why a new call would be refused now, or None."""
        if self.draining:
            return CallRefused(503, "the worker is shutting down")
        if len(self._calls) >= self._settings.max_calls:
            return CallRefused(503, f"all {self._settings.max_calls} calls are taken", busy=True)
        if self.parts.guard.load is LoadState.FULL:
            return CallRefused(503, "the worker cannot keep up with the calls it has")
        return None

    @property
    def trouble(self) -> str | None:
        """Why the next call is likely to fail although it would be admitted, or None."""
        if self._no_memory_s is None or self.parts.clock() - self._no_memory_s >= NO_MEMORY_S:
            return None
        return "there was no memory for the last call"

    def open(
        self,
        *,
        source: str,
        legs: Sequence[LegSpec],
        external_id: str = "",
        from_: str = "",
        to: str = "",
        direction: str = "inbound",
        account: str = "",
        custom: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        participants: Sequence[str] = (),
        overrides: Mapping[str, str] | None = None,
    ) -> Call:
        """Open a call, whose legs accept audio from now on. Routes match `headers` and `participants`.

        Raises CallRefused.
        """
        if refusal := self.refusal():
            self.refused += 1
            raise refusal
        info = CallInfo(str(uuid7()), source, external_id, direction, from_, to, account, dict(custom or {}))

        def plan(overrides: Mapping[str, str] | None) -> routing.CallPlan:
            return routing.plan(
                self._settings,
                source=source,
                calling=from_,
                called=to,
                account=account,
                headers=headers,
                participants=participants,
                overrides=overrides,
            )

        call = Call(
            info,
            self._call_parts,
            plan=plan,
            words_wait_s=self._settings.asr.words_wait_s,
            make_leg=lambda call, spec: self._leg(call, spec, plan(overrides)),
            privacy=CallPrivacy(self._policy, self.masked),
            rules=self._rules,
        )
        self._open_legs(call, legs, plan(overrides))
        self._admit(call)
        return call

    def _open_legs(self, call: Call, legs: Sequence[LegSpec], plan: routing.CallPlan) -> None:
        """Open all of the legs, or none of them. Raises CallRefused for lack of memory."""
        try:
            for spec in legs:
                call.add(self._leg(call, spec, plan))
        except BaseException:
            for leg in call.legs.values():
                self.detector.close(leg)
            raise

    def _admit(self, call: Call) -> None:
        source, external_id = call.info.source, call.info.external_id
        self._calls[call.id] = call
        if external_id:
            logs.calls[external_id] = call.id
        self.opened += 1
        self._empty.clear()
        self._calls_changed(len(self._calls))
        log.info("call started", call_id=call.id, source=source, external_id=external_id, legs=len(call.members))
        if (traces := self.parts.traces) is not None:
            direction = call.info.direction
            traces.on_call(call.id, call.start_s, source=source, direction=direction, external_id=external_id)
        call.started()

    async def drain(self, grace_s: float) -> None:
        """Refuse new calls, let the open ones run for `grace_s`, end the rest, and wait up to 30 s for their finals."""
        self.draining = True
        try:
            async with asyncio.timeout(grace_s):
                await self._empty.wait()
        except TimeoutError:
            for call in self:
                call.hangup("shutdown")
            try:
                async with asyncio.timeout(FINALS_S):
                    await self._empty.wait()
            except TimeoutError:
                log.error("finals did not come: the next start will end these calls", calls=len(self))

    def _audio_leg(self, call: Call, spec: LegSpec, endpointing: Endpointing) -> Leg:
        """Open the audio side of a leg. Raises CallRefused for lack of memory."""
        try:
            audio = self.detector.open(
                spec.codec,
                endpointing,
                transport=spec.transport,
                telephone_event=spec.telephone_event,
                payload_type=spec.payload_type,
                event_clock_hz=spec.event_clock_hz,
                stall_s=spec.stall_s,
            )
        except (MemoryError, OSError) as error:
            self.refused += 1
            self._no_memory_s = self.parts.clock()
            log.error("no memory for a call", error=str(error), external_id=call.info.external_id)
            raise CallRefused(503, "there is no memory for another call") from error
        self._no_memory_s = None
        return audio

    def _leg(self, call: Call, spec: LegSpec, plan: routing.CallPlan) -> CallLeg:
        audio = self._audio_leg(call, spec, plan.endpointing)
        leg_plan = LegPlan(
            spec.leg,
            Speaker(plan.roles.get(spec.leg, spec.role), plan.names.get(spec.leg, spec.name)),
            prefix=f"{call.id}/{spec.leg}/",
            endpointing=plan.endpointing,
            partial_ms=self._settings.asr.partial_ms,
            language=plan.language,
            context=plan.context,
        )
        transcriber = LegTranscriber(
            audio,
            leg_plan,
            self.parts,
            publish=call.publish,
            call_ms=lambda position: call.leg_ms(audio, position),
            drained=call.drained,
            words=self._words(call),
            crosstalk=call.crosstalk if self._settings.asr.withhold_crosstalk else None,
        )
        return CallLeg(
            spec=spec,
            audio=audio,
            transcriber=transcriber,
            role_is_set=spec.leg in plan.roles,
            name_is_set=spec.leg in plan.names,
        )

    def _words(self, call: Call) -> LegWordTimestamps | None:
        if self._aligner is None:
            return None
        return LegWordTimestamps(
            self._aligner,
            publish=call.publish,
            clock=self.parts.clock,
            done=call.drained,
            latency=self.parts.latency,
        )

    def _closed(self, call: Call) -> None:
        del self._calls[call.id]
        for leg in call.media:
            if leg.packets:
                self.parts.latency.jitter.observe(leg.jitter_ms / 1000)
        if not self._calls:
            self._empty.set()
        self._calls_changed(len(self._calls))
        if logs.calls.get(call.info.external_id) == call.id:
            del logs.calls[call.info.external_id]
        log.info("call ended", call_id=call.id, external_id=call.info.external_id)


def _later(delay_s: float, run: Callable[[], None]) -> None:
    asyncio.get_running_loop().call_later(delay_s, run)
