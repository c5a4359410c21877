"""The readiness of the worker for calls, which `/readyz`, the response to OPTIONS and a refused INVITE report."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import structlog

from asr.client.engines import Engines
from asr.client.recognizer import Recognizer
from asr.utterance import EngineStatus
from config import Settings
from config.process.tasks import troubles
from mediaworker.calls.registry import CallRefused, CallRegistry
from mediaworker.jobs.service import JobService
from mediaworker.webhooks.events import EventWebhooks

if TYPE_CHECKING:
    from mediaworker.cluster.member import ClusterMember
    from sip.pjsip.endpoint import SipEndpoint

log = structlog.get_logger()


class Readiness:
    def __init__(
        self,
        settings: Settings,
        calls: CallRegistry,
        recognizer: Recognizer,
        jobs: JobService,
        webhooks: EventWebhooks,
        sip: SipEndpoint | None,
        cluster: ClusterMember | None,
    ) -> None:
        self.settings, self.sip, self._cluster = settings, sip, cluster
        self._calls, self._recognizer, self._jobs, self._webhooks = calls, recognizer, jobs, webhooks

    def use(self, settings: Settings) -> None:
        """Use new settings at a reload; the recognizer must have been reloaded before."""
        self.settings = settings
        self.warn_of_languages()

    def refusal(self) -> CallRefused | None:
        """Why an INVITE would be refused now, or None."""
        refusal = self._calls.refusal()
        if refusal is None and self._recognizer.state is EngineStatus.FAILED:
            return CallRefused(503, "the recognition engine does not start")
        return refusal

    def unfit(self) -> list[str]:
        """Reasons why calls should go to another worker now: with any of them OPTIONS is answered by 503."""
        reasons = []
        if (refusal := self.refusal()) is not None:
            reasons.append(refusal.reason)
        if self.sip is not None and self.sip.full:
            reasons.append(f"all {self.settings.sip.max_calls} SIP calls are taken (sip.max_calls)")
        for trouble in (self._calls.trouble, self._recognizer.trouble):
            if trouble is not None and trouble not in reasons:
                reasons.append(trouble)
        if self._recognizer.preloads and self._recognizer.state in (EngineStatus.IDLE, EngineStatus.WARMING_UP):
            reasons.append("the recognition engine is loading its model")
        return reasons

    def reasons(self) -> list[str]:
        """Reasons why no call can be accepted now, those of the event store included; `/readyz` lists them."""
        reasons = [*self.unfit(), *troubles(stuck=True)]
        for registration in self.sip.registrations if self.sip is not None else ():
            if registration.state not in ("registered", "standby"):
                what = " ".join(part for part in (str(registration.code or ""), registration.reason) if part)
                reasons.append(f"sip account {registration.account}: {registration.state} {what}".rstrip())
        return reasons

    def warnings(self) -> list[str]:
        """Conditions that need an operator's attention, although calls can still be accepted."""
        lacking = self._recognizer.lacking
        found = [f"the engine is loaded and would not start again: {lacking}"] if lacking is not None else []
        found += self._recognizer.warnings
        found += [*self._unknown_languages(), *self._jobs.warnings, *self._webhooks.warnings]
        return [*found, *troubles(stuck=False), *(self._cluster.warnings if self._cluster is not None else ())]

    def report(self) -> tuple[list[str], dict[str, Any]]:
        """See `mediaworker.http.context.ApiContext`."""
        sip = [asdict(registration) for registration in self.sip.registrations] if self.sip is not None else []
        return self.reasons(), {"warnings": self.warnings(), "sip": sip, "engine": engine_status(self._recognizer)}

    def warn_of_languages(self) -> None:
        """Log a warning for each route whose calls will get no text."""
        for sentence in self._unknown_languages():
            log.warning(sentence)

    def _unknown_languages(self) -> list[str]:
        return [
            f"the calls of routes[{number}] will get no text: {why}"
            for number, route in enumerate(self.settings.routes)
            if (why := self._recognizer.unknown(route.language))
        ]


def engine_status(recognizer: Engines) -> dict[str, Any]:
    """The engine's name and state, on which device it computes, each inference process if there are several, and each
    engine server elsewhere."""
    runtime = recognizer.runtime
    shown: dict[str, Any] = {
        "name": recognizer.engine,
        "state": recognizer.state.value,
        **(runtime.shown() if runtime is not None else {}),
    }
    if recognizer.shared:
        shown["servers"] = [
            {
                "address": each.name,
                "state": each.state.value,
                "engine": each.engine,
                "device": each.device,
                "reason": each.reason,
            }
            for each in recognizer.servers
        ]
    elif len(recognizer.servers) > 1:
        shown["processes"] = [{"state": each.state.value, "device": each.device} for each in recognizer.servers]
    return shown
