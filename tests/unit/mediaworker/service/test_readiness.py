"""What `/readyz`, OPTIONS and a refused INVITE say, by the state of each part."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from asr.runtime import Runtime
from asr.utterance import EngineStatus
from config.load import parse
from mediaworker.calls.registry import CallRefused
from mediaworker.service.readiness import Readiness


@dataclass
class Registration:
    account: str
    state: str
    code: int | None = None
    reason: str = ""


@dataclass
class Server:
    device: str
    state: EngineStatus = EngineStatus.READY


@dataclass
class Parts:
    """What is asked of the calls, the recognizer, the jobs and the SIP endpoint."""

    trouble: str | None = None
    refused: CallRefused | None = None
    state: EngineStatus = EngineStatus.READY
    preloads: bool = False
    lacking: str | None = None
    runtime: Runtime | None = None
    engine: str = "qwen"
    warnings: list[str] = field(default_factory=list)
    full: bool = False
    registrations: list[Registration] = field(default_factory=list)
    servers: tuple[Server, ...] = ()
    shared: bool = False

    def refusal(self) -> CallRefused | None:
        return self.refused

    def unknown(self, language: str) -> str | None:
        return "it knows no Klingon" if language == "tlh" else None


def readiness(settings: dict[str, Any] | None = None, *, sip: bool = True, **parts: Any) -> Readiness:
    calls, recognizer, jobs = Parts(), Parts(), Parts()
    for name, value in parts.items():
        part = calls if name in ("refused", "calls_trouble") else jobs if name == "jobs" else recognizer
        setattr(part, {"calls_trouble": "trouble", "jobs": "warnings"}.get(name, name), value)
    webhooks = Parts(warnings=parts.get("webhooks", []))
    endpoint = Parts(full=parts.get("full", False), registrations=parts.get("registrations", [])) if sip else None
    return Readiness(parse(settings or {}), calls, recognizer, jobs, webhooks, endpoint, None)  # type: ignore[arg-type]


def test_a_worker_that_is_well() -> None:
    for sip in (True, False):
        worker = readiness(sip=sip)
        assert worker.refusal() is None and worker.unfit() == worker.reasons() == worker.warnings() == []
        engine = {"name": "qwen", "state": "ready"}
        assert worker.report() == ([], {"warnings": [], "sip": [], "engine": engine})


def test_of_several_inference_processes_each_is_shown() -> None:
    servers = (Server("cuda:0"), Server("cuda:1", EngineStatus.FAILED))
    shown = readiness(runtime=Runtime(device="cuda:0"), servers=servers).report()[1]["engine"]
    assert (shown["state"], shown["device"]) == ("ready", "cuda:0")
    assert shown["processes"] == [
        {"state": "ready", "device": "cuda:0"}, {"state": "failed", "device": "cuda:1"},
    ]  # fmt: skip


def test_refusals() -> None:
    full = CallRefused(486, "busy")
    assert readiness(refused=full).refusal() is full and readiness(refused=full).unfit() == ["busy"]
    failed = readiness(state=EngineStatus.FAILED)
    refusal = failed.refusal()
    assert refusal is not None and (refusal.status, refusal.reason) == (503, "the recognition engine does not start")
    assert failed.unfit() == ["the recognition engine does not start"]
    both = readiness(refused=full, state=EngineStatus.FAILED)
    assert both.refusal() is full


def test_reasons_to_send_calls_elsewhere() -> None:
    assert readiness({"sip": {"max_calls": 7}}, full=True).unfit() == ["all 7 SIP calls are taken (sip.max_calls)"]
    assert readiness(trouble="no weights", calls_trouble="disk").unfit() == ["disk", "no weights"]
    assert readiness(trouble="disk", calls_trouble="disk").unfit() == ["disk"], "said once"
    assert readiness(refused=CallRefused(503, "disk"), calls_trouble="disk").unfit() == ["disk"]
    loading = ["the recognition engine is loading its model"]
    for state in EngineStatus:
        wanted = loading if state in (EngineStatus.IDLE, EngineStatus.WARMING_UP) else []
        if state is not EngineStatus.FAILED:
            assert readiness(state=state, preloads=True).unfit() == wanted
            assert readiness(state=state).unfit() == []


def test_registrations_concern_readiness_and_not_options() -> None:
    registrations = [
        Registration("pbx", "registered", 200, "OK"), Registration("b", "failed", 403, "Forbidden"),
        Registration("c", "trying"), Registration("d", "standby", 0, "another worker registers it"),
    ]  # fmt: skip
    worker = readiness(registrations=registrations)
    assert worker.unfit() == []
    assert worker.reasons() == ["sip account b: failed 403 Forbidden", "sip account c: trying"]
    assert worker.report()[1]["sip"][0] == {"account": "pbx", "state": "registered", "code": 200, "reason": "OK"}


def test_warnings_keep_no_call_away() -> None:
    warnings = ["on the CPU by mistake"]
    routes = [{"language": "en"}, {"language": "tlh"}]
    worker = readiness({"routes": routes}, lacking="torch is gone", warnings=warnings, jobs=["jobs are not stored"])
    assert worker.warnings() == [
        "the engine is loaded and would not start again: torch is gone", "on the CPU by mistake",
        "the calls of routes[1] will get no text: it knows no Klingon", "jobs are not stored",
    ]  # fmt: skip
    assert worker.unfit() == []


def test_routes_that_get_no_text_are_logged(capsys: pytest.CaptureFixture[str]) -> None:
    readiness({"routes": [{"language": "tlh"}]}).warn_of_languages()
    assert "the calls of routes[0] will get no text: it knows no Klingon" in capsys.readouterr().out
    readiness({"routes": [{"language": "en"}]}).warn_of_languages()
    assert capsys.readouterr().out == ""
