"""What traces cost a worker: CPU time of a final, as a thousand legs have them; and how late timers are.

A hub with a real store publishes utterances. In every other round they are traced, and a collector in a process of its
own takes the spans. Memory is what the first traced round adds.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import uvloop
from uuid_utils import uuid7

from benchmarks.events.script import LEGS
from config.load import parse
from mediaworker.events import schema as events
from mediaworker.events.hub import EventHub
from mediaworker.events.store import EventStore
from mediaworker.service.serve import open_traces
from mediaworker.tracing.traces import FinalTimes, Traces

FINALS_PER_S, ROUND_S, PAIRS = 100, 10.0, 5
PROBE_S = 0.005


class Collector(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None: ...


def collect() -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Collector)
    print(server.server_address[1], flush=True)
    server.serve_forever()


class Rounds:
    def __init__(self, hub: EventHub, traces: Traces) -> None:
        self._hub, self._traces = hub, traces
        self._numbers = itertools.count(1)
        self.late_ms: dict[bool, list[float]] = {False: [], True: []}

    async def run(self, traced: bool) -> float:
        """-> microseconds of CPU a final, whatever thread they were spent on."""
        loop, call_id = asyncio.get_running_loop(), str(uuid7())
        if traced:
            self._traces.on_call(call_id, loop.time(), source="bench", direction="inbound", external_id="x")
        self._hub.publish(call_id, 0, events.CallStarted("bench", "inbound", "1", "2", "x", LEGS, {}))
        probing = asyncio.create_task(self._probe(self.late_ms[traced]))
        before, begun_s, count = _cpu_s(), loop.time(), 0
        while loop.time() - begun_s < ROUND_S:
            self._utterance(call_id, traced)
            count += 1
            await asyncio.sleep(max(0.0, begun_s + count / FINALS_PER_S - loop.time()))
        spent_s = _cpu_s() - before
        probing.cancel()
        self._hub.publish(call_id, 0, events.CallEnded("hangup", 0, []))
        await self._hub.flush()
        return 1e6 * spent_s / count

    def _utterance(self, call_id: str, traced: bool) -> None:
        name, now_s = f"{call_id}/inbound/{next(self._numbers)}", asyncio.get_running_loop().time()
        self._hub.publish(call_id, 0, events.SpeechStarted("inbound", name, 0))
        self._hub.publish(call_id, 0, events.SpeechEnded("inbound", name, 2000))
        if traced and self._traces.utterance(name):
            end_s = now_s - 0.6
            self._traces.on_final(
                FinalTimes(
                    name, "inbound", "endpoint", 600, end_s - 2, end_s, now_s - 0.1, end_s + 0.2, 0.1, 0.4, now_s
                )
            )
        final = events.TranscriptFinal(
            "inbound", "customer", name, 2, 0, 2000, "nine oh five", 12, "en", 0, 600, "endpoint"
        )
        self._hub.publish(call_id, 2600, final)

    async def _probe(self, late_ms: list[float]) -> None:
        while True:
            due_s = time.monotonic() + PROBE_S
            await asyncio.sleep(PROBE_S)
            late_ms.append(1000 * (time.monotonic() - due_s))


async def main(port: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        before = _rss_mb()
        settings = parse({"data_dir": folder, "traces": {"url": f"http://127.0.0.1:{port}/v1/traces"}})
        hub = EventHub(settings, EventStore(Path(folder)))
        await hub.start()
        traces = open_traces(settings, "bench")
        assert traces is not None
        loaded = _rss_mb()
        hub.on_shown.append(traces.on_shown)
        rounds, pairs = Rounds(hub, traces), []
        for _ in range(PAIRS):
            pairs.append((await rounds.run(False), await rounds.run(True)))
        await traces.stop()
        await hub.stop()
    without, with_ = (statistics.median(pair[i] for pair in pairs) for i in (0, 1))
    more = statistics.median(b - a for a, b in pairs)
    print(f"CPU a final: {without:.0f} µs without traces, {with_:.0f} with, {more:.0f} more (medians of {PAIRS} pairs)")
    for traced, late in rounds.late_ms.items():
        late.sort()
        p50, p99 = (late[len(late) * part // 100] for part in (50, 99))
        print(f"a timer is late by {p50:.1f} / {p99:.1f} / {late[-1]:.1f} ms (p50 / p99 / max){', traced' * traced}")
    print(f"memory: {loaded - before:.1f} MB for the packages, {_rss_mb() - loaded:.1f} MB after all rounds")
    print(f"spans: {traces._sender.counters}")


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _rss_mb() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


if __name__ == "__main__":
    if sys.argv[1:] == ["collect"]:
        collect()
    else:
        with subprocess.Popen(
            [sys.executable, "-m", "benchmarks.traces", "collect"], stdout=subprocess.PIPE
        ) as process:
            assert process.stdout is not None
            try:
                uvloop.run(main(process.stdout.readline().decode().strip()))
            finally:
                process.kill()
