"""Traces of real calls: workers, an engine server and NATS, and a collector that takes spans, refuses them or hangs."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from lab.deploy.metrics import families
from lab.engine.listener import LISTENER, LISTENER_PATH
from lab.events.story import check_story
from lab.http.collectors import Collector, Received, collector
from lab.network.nats_servers import nats
from lab.network.ports import free_port
from lab.patience import seconds, until
from lab.worker.cluster import environ, following, joined, say
from lab.worker.engine_servers import TOKEN, Server, engine_server
from lab.worker.peers import COMMAND, Worker, worker
from lab.worker.readiness import states
from mediaworker.tracing.otlp import BATCH, WAITING, OtlpSender
from mediaworker.tracing.traces import Span

MS = 1_000_000
STANDARD = {
    "OTEL_BSP_SCHEDULE_DELAY": "200",
    "OTEL_EXPORTER_OTLP_HEADERS": "x-tenant=telephony",
    "OTEL_RESOURCE_ATTRIBUTES": "deployment.environment.name=tests",
    **LISTENER_PATH,
}


@pytest.fixture(scope="module")
def taking() -> Iterator[Collector]:
    with collector() as found:
        yield found


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory, taking: Collector) -> Iterator[Server]:
    with engine_server(tmp_path_factory.mktemp("engine"), STANDARD, TRACES__URL=taking.url, **LISTENER) as server:
        yield server


@pytest.fixture(scope="module")
def pair(
    tmp_path_factory: pytest.TempPathFactory, taking: Collector, engine: Server
) -> Iterator[tuple[Worker, Worker]]:
    """Two workers that know each other's calls and share an engine server, all of which are traced."""
    with ExitStack() as stack:
        folder = tmp_path_factory.mktemp("traced")
        (queue,) = stack.enter_context(nats(folder))
        shared = {"ASR__SERVERS": json.dumps([engine.address]), "CLUSTER__TOKEN": TOKEN, "TRACES__URL": taking.url}
        shared |= LISTENER
        both = []
        for name in ("a", "b"):
            (folder / name).mkdir()
            both.append(stack.enter_context(worker(folder / name, STANDARD, **environ(queue, **shared))))
        for running in both:
            until(lambda running=running: joined(running))
            until(lambda running=running: states(running) == ["ready"], 60)
        yield both[0], both[1]


async def test_a_call_is_one_trace_over_all_machines(pair: tuple[Worker, Worker], taking: Collector) -> None:
    a, b = pair
    async with following(b) as follower:
        call_id = await say(a, speed=1)
        await follower.until("call.ended")
    finals = check_story(a.events(call_id))
    assert finals
    until(lambda: len(taking.named("relay", call_id)) == len(finals) and taking.named("call", call_id))
    spans = [span for span in taking.spans if span.trace_id == call_id.replace("-", "")]
    by_id = {span.span_id: span for span in spans}
    assert len(by_id) == len(spans)
    (call,) = taking.named("call", call_id)
    assert call.parent_id == "" and {span.name for span in spans if span.parent_id == call.span_id} == {"utterance"}
    (record,) = [each for each in a.calls() if each["call_id"] == call_id]
    assert call.attributes == {
        "call_id": call_id, "source": "websocket", "direction": "inbound", "external_id": record["external_id"],
    }  # fmt: skip
    for final in finals:
        (utterance,) = [span for span in spans if span.attributes.get("utterance_id") == final["utterance_id"]
                        and span.name == "utterance"]  # fmt: skip
        check_utterance(final, utterance, call, [span for span in spans if span.parent_id == utterance.span_id])
    assert {span.service for span in spans} == {"mediaworker", "mediaworker-engine"}
    assert len({span.resource["service.instance.id"] for span in spans}) == 3
    assert {span.resource["deployment.environment.name"] for span in spans} == {"tests"}
    assert taking.headers["x-tenant"] == "telephony"
    said = " ".join(final["text"] for final in finals)
    assert said and not [word for word in said.lower().split() if len(word) > 3 and word in repr(spans).lower()]


def check_utterance(final: dict[str, Any], utterance: Received, call: Received, parts: list[Received]) -> None:
    """Its parts stand where they should, and what was measured lies between the end of speech and the commit."""
    assert call.start <= utterance.start < utterance.end <= call.end
    assert utterance.attributes["latency_ms"] == final["latency_ms"] and not utterance.failed
    named = {part.name: part for part in parts if part.name not in ("recognise", "relay")}
    assert {"speech", "endpoint", "engine", "commit"} <= named.keys() <= {*named, "queue"}
    for part in named.values():
        assert utterance.start <= part.start <= part.end <= utterance.end and part.service == "mediaworker"
    speech, endpoint, engine, commit = (named[name] for name in ("speech", "endpoint", "engine", "commit"))
    assert (speech.start, commit.end) == (utterance.start, utterance.end)
    assert speech.end == endpoint.start and endpoint.end <= commit.start
    assert speech.end - speech.start == pytest.approx((final["end_ms"] - final["start_ms"]) * MS, abs=2 * MS)
    assert commit.start - speech.end == pytest.approx(final["latency_ms"] * MS, abs=2 * MS)
    assert max(endpoint.end, engine.end) == pytest.approx(commit.start, abs=5 * MS), "nothing is left out"
    asked = named.get("queue", engine)
    recognised = [part for part in parts if part.name == "recognise"]
    assert recognised and {part.service for part in recognised} == {"mediaworker-engine"}
    last = max(recognised, key=lambda part: part.start)
    assert asked.start - 5 * MS <= last.start < last.end <= engine.end + 5 * MS
    assert last.attributes["engine"] == "listener" and last.attributes["queue_ms"] >= 0
    (relay,) = [part for part in parts if part.name == "relay"]
    assert relay.resource["service.instance.id"] != utterance.resource["service.instance.id"]
    assert commit.start - MS <= relay.start < relay.end


def test_metrics_are_those_of_the_documentation(pair: tuple[Worker, Worker], engine: Server) -> None:
    names = [name for name in families() if name.startswith("mediaworker_traces_")]
    assert len(names) == 3
    for running in (*pair, engine):
        assert [name for name in names if running.metric(name)] == ["mediaworker_traces_sent_spans_total"]


@pytest.mark.parametrize("behaviour", ["absent", "unavailable", "hangs"])
async def test_a_collector_that_takes_nothing_costs_a_line_in_the_log(
    behaviour: str, engine: Server, tmp_path: Path
) -> None:
    with collector("hangs" if behaviour == "hangs" else "unavailable") as found:
        url = found.url if behaviour != "absent" else f"http://127.0.0.1:{free_port()}/v1/traces"
        shared = {"ASR__SERVERS": json.dumps([engine.address]), "CLUSTER__TOKEN": TOKEN, "SIP__ENABLED": "false"}
        with worker(tmp_path, STANDARD, TRACES__URL=url, **LISTENER, **shared) as running:
            finals = check_story(running.events(await say(running)))
            assert finals and all(final["text"] and final.get("error") is None for final in finals)
            if behaviour != "absent":
                assert await asyncio.to_thread(found.asked.wait, seconds(30))
            running.process.send_signal(signal.SIGTERM)
            # Well before the half minute for which the SDK itself would wait.
            assert await asyncio.to_thread(running.process.wait, 20) == 0
        log = running.log.read_text()
        assert log.count("traces cannot be sent") <= 1
        assert "traces cannot be sent" in log or "has not taken the last spans" in log


async def test_spans_that_wait_are_bounded() -> None:
    """Half an utterance is never made: all its spans go, or none."""
    utterance = [Span(1, number, 0, "x", 1, 2) for number in range(1, 8)]
    with collector("hangs") as found:
        sender = OtlpSender(found.url, "tests", 1)
        for _ in range(2 * WAITING // len(utterance)):  # of which a batch may be under way
            sender.send(utterance)
        await asyncio.to_thread(found.asked.wait)
        counters = sender.counters
        assert counters.dropped_spans >= WAITING - BATCH - len(utterance) and counters.dropped_spans % 7 == 0
        assert counters.sent_spans == counters.failed_spans == 0
        found.behaviour = "takes"
        found.released.set()
        await sender.stop()
        assert len(found.spans) == counters.sent_spans and counters.sent_spans % 7 == 0


@pytest.mark.parametrize("command", ["serve", "engine"])
def test_missing_packages_are_named_in_a_sentence(command: str, tmp_path: Path) -> None:
    (tmp_path / "opentelemetry.py").write_text("raise ImportError('there is none here')")
    variables = os.environ | {
        "PYTHONPATH": str(tmp_path), "MEDIAWORKER_DATA_DIR": str(tmp_path / "data"),
        "MEDIAWORKER_TRACES__URL": "http://127.0.0.1:4318/v1/traces", "MEDIAWORKER_CLUSTER__TOKEN": TOKEN,
    }  # fmt: skip
    done = subprocess.run(
        [*COMMAND, command], env=variables, cwd=tmp_path, capture_output=True, text=True, timeout=seconds(60)
    )
    assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr
    assert "traces.url" in done.stderr and "pip install 'mediaworker[tracing]'" in done.stderr
