"""Kills at random under live calls, and what must hold afterwards. Used by test_kills and, for hours, by `make soak`.

A real worker takes calls by SIPp and by the project's Twilio without a pause. A seeded hand kills the inference
process, the media process or both while somebody speaks, while nobody does, and while they start. A subscriber follows
all of it and resumes by its cursor. In the end its events, the store and the callers must tell the same story.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import sqlite3
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake

from audio import Codec
from audio.codecs.g711 import ulaw_encode
from lab.engine.offline import MOONSHINE, packets, utterances
from lab.events.story import check_story
from lab.media.speech import speech
from lab.patience import seconds
from lab.sip.sipp_caller import Sipp
from lab.worker.peers import Worker, alive, launch
from mediaworker.cli.stream import StreamError, StreamTarget, stream
from mediaworker.ingress.twilio.sender import StreamWriter, new_sid, schedule

TWILIO_PROMPTS = ("auth-thankyou", "vm-goodbye")
SIP_PROMPT = "vm-goodbye"
TWILIO_CALLERS, SIP_CALLERS = 2, 1
"""At a time: a backlog would hide what is looked for."""
PAUSE = np.zeros(7200, np.int16)
"""Longer than an endpoint, so that the final belongs to the call and not to its end."""
ORPHAN_S = 5.0
PATIENCE_S = 60.0


@dataclass(frozen=True)
class Kill:
    what: str
    """`inference`, `media`, `both`"""
    when: str
    """`speaking`, `idle`, `starting`"""
    at: float
    """Unix time."""


@dataclass
class Report:
    kills: list[Kill] = field(default_factory=list)
    back_s: list[float] = field(default_factory=list)
    """From the kill of a worker until the next one answers."""
    orphan_s: list[float] = field(default_factory=list)
    """From the kill of a worker until its inference process is gone."""
    calls: Counter[str] = field(default_factory=Counter)
    """By `reason` of their end."""
    utterances: int = 0
    texts: int = 0
    """Finals compared with the undisturbed engine's."""
    lossy: int = 0
    """Finals whose audio had not arrived whole, on a machine that stalled: their text is not compared."""
    given_up: int = 0
    """Finals of utterances that two kills hit."""
    cut: int = 0
    """Finals written at the next start."""
    resumed: int = 0
    events: int = 0

    def lines(self) -> list[str]:
        kinds = Counter((kill.what, kill.when) for kill in self.kills)
        return [
            f"kills                      {len(self.kills)}: "
            + ", ".join(f"{n} {what} {when}" for (what, when), n in sorted(kinds.items())),
            f"calls                      {sum(self.calls.values())}: "
            + ", ".join(f"{n} {reason}" for reason, n in self.calls.most_common()),
            f"speech.started             {self.utterances}, each with one speech.ended and one final",
            f"finals equal to offline    {self.texts} (not compared, audio late: {self.lossy})",
            f"finals failed, two kills   {self.given_up}",
            f"finals of a restart        {self.cut}",
            f"durable events             {self.events}, the same to the subscriber, who resumed {self.resumed} times",
            f"worker back after          {_spread(self.back_s)}",
            f"inference process gone     {_spread(self.orphan_s)} after its worker",
        ]


def _spread(values: list[float]) -> str:
    return f"{sorted(values)[len(values) // 2]:.2f} s (max {max(values):.2f})" if values else "-"


class Subscriber:
    """Follows everything, and comes back with its cursor."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.durable: list[dict[str, Any]] = []
        self.partials: dict[str, int] = {}
        self.finals: set[str] = set()
        self.connections = 0
        self.faults: list[str] = []
        self._cursor = ""

    async def run(self) -> None:
        while True:
            with contextlib.suppress(OSError, InvalidHandshake, TimeoutError):
                after = f"&after={self._cursor}" if self._cursor else ""
                url = f"ws://127.0.0.1:{self.worker.http_port}/v1/events?call=*{after}"
                async with connect(url, max_size=None, ping_interval=None, proxy=None) as socket:
                    self.connections += 1
                    with contextlib.suppress(ConnectionClosed):
                        async for text in socket:
                            self._take(json.loads(text))
                    if socket.close_code in (4008, 4009):
                        self.faults.append(f"closed with {socket.close_code}: {socket.close_reason}")
                        return
            await asyncio.sleep(0.1)

    def _take(self, event: dict[str, Any]) -> None:
        kind = event["type"]
        if kind == "hello":
            if not self._cursor:
                self._cursor = event["cursor"].split(":")[0] + ":0"
                raise TimeoutError  # come back with it, for what has been said before
            return
        if kind == "lagged" or (kind == "metrics" and "durable" not in event):
            return
        if kind == "transcript.partial":
            name, revision = event["utterance_id"], event["revision"]
            if name in self.finals or revision <= self.partials.get(name, 0):
                self.faults.append(f"partial {revision} of {name} out of its order")
            self.partials[name] = revision
            return
        if kind == "transcript.final":
            self.finals.add(event["utterance_id"])
            if event["revision"] <= self.partials.get(event["utterance_id"], 0):
                self.faults.append(f"final of {event['utterance_id']} below its partials")
        event.pop("stored", None)  # a disk that was late has it by now
        self.durable.append(event)
        self._cursor = event["cursor"]


class Chaos:
    """One worker that is killed and started again, its callers and its subscriber."""

    def __init__(self, folder: Path, *, seed: int, **environ: str) -> None:
        self.random = random.Random(seed)
        self.report = Report()
        self.folder, self.sipp = folder, Sipp(folder)
        self.worker = launch(
            folder,
            ASR__ENGINE="moonshine",  # starts in half a second
            MEDIA__SILENCE_AFTER_S="30",  # a stalled caller is no gap in the audio, nor
            RTP__JITTER_MS="800",  # is a late packet lost: what is held to account here is recognition
            SIP__TRANSPORTS='["udp"]',
            **environ,
        )
        self.subscriber = Subscriber(self.worker)
        self.prompts = {name: ulaw_encode(np.concatenate([speech(name), PAUSE])) for name in TWILIO_PROMPTS}
        self.said: dict[str, str] = {}
        """Twilio CallSid → prompt."""
        self.played: set[str] = set()
        """CallSids played to the end without a kill of the worker in between."""
        self._lives = 0
        self._answers_at_kill = 0.0
        self._calling = True
        self._sound = folder / "sip.raw"
        codes = self.prompts[SIP_PROMPT]
        self._sound.write_bytes(codes + codes[-1:] * (-len(codes) % 160))

    # -- callers ----------------------------------------------------------------------------------------------------

    async def call_by_twilio(self, number: int) -> None:
        for turn in count(number):
            if not self._calling:
                return
            name, life, sid = TWILIO_PROMPTS[turn % len(TWILIO_PROMPTS)], self._lives, new_sid("CA")
            writer = StreamWriter(new_sid("MZ"), sid, new_sid("AC"))
            messages = schedule(writer, {"inbound": self.prompts[name]}, {})
            self.said[sid] = name
            try:
                await asyncio.sleep(self.random.uniform(0, 1))
                await stream(StreamTarget(self.worker.twilio, "", {}, False), {}, writer, messages)
                if life == self._lives:
                    self.played.add(sid)
            except StreamError:
                await asyncio.sleep(0.2)

    async def call_by_sip(self, number: int) -> None:
        while self._calling:
            life = self._lives
            call = self.sipp.start(
                "call",
                f"127.0.0.1:{self.worker.sip_port}",
                timeout_s=20,
                port=self._port(number),
                audio=f"{self._sound},1,0,PCMU/8000",
                talk_ms=self._sound.stat().st_size // 8 + 100,
                payload_type=0,
                rtpmap="PCMU/8000",
            )
            while not call.done() and life == self._lives:
                await asyncio.wait([call], timeout=0.1)
            if life != self._lives:
                call.cancel()
            (error,) = await asyncio.gather(call, return_exceptions=True)
            assert error is None or life != self._lives, error

    def _port(self, number: int) -> int:
        """Not the same twice in a row: a kill leaves the caller's old dialog behind."""
        self._ports = getattr(self, "_ports", 0) + 1
        return 22000 + number * 500 + self._ports % 250 * 2

    # -- kills ------------------------------------------------------------------------------------------------------

    async def kill(self) -> None:
        """One kill, or two, and the worker is back when it returns."""
        what = self.random.choices(("inference", "media", "both"), (60, 25, 15))[0]
        when = self.random.choice(("speaking", "idle", "starting", "speaking"))
        if what == "inference":
            await self._answered()
        pid = await self._moment(when) if what != "media" or when != "starting" else self.inference()
        if what == "inference":
            if pid is not None:
                self._kill(what, when, pid)
            self._answers_at_kill = await self._answers()
            return
        started = time.monotonic()
        pids = [self.worker.process.pid] + ([pid] if pid is not None and what == "both" else [])
        self.random.shuffle(pids)
        self._kill(what, when, *pids)
        await self._reap(pid, started)
        if when == "starting":
            self.worker.start_again()
            await asyncio.sleep(self.random.uniform(0, 1.5))
            pid = self.inference()
            self._kill(what, when, self.worker.process.pid)
            await self._reap(pid, time.monotonic())
        self.worker.start_again()
        self._answers_at_kill = 0.0
        await self.until(lambda: asyncio.to_thread(alive, self.worker), "the worker is back")
        self.report.back_s.append(time.monotonic() - started)

    def _kill(self, what: str, when: str, *pids: int) -> None:
        self.report.kills.append(Kill(what, when, time.time()))
        self._lives += self.worker.process.pid in pids
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    async def _reap(self, inference: int | None, killed: float) -> None:
        """The worker is gone, and its inference process with it, by itself."""
        await asyncio.to_thread(self.worker.process.wait)
        if inference is None:
            return
        while _runs(inference):
            assert time.monotonic() - killed < ORPHAN_S, "the inference process outlives its worker"
            await asyncio.sleep(0.02)
        self.report.orphan_s.append(time.monotonic() - killed)

    async def _moment(self, when: str) -> int | None:
        """Wait for it, for a while; the inference process to kill then."""
        pid = self.inference()
        if when == "starting":
            if pid is not None:
                self._kill("inference", "any time", pid)
            await self.until(lambda: self.inference() not in (None, pid), "another inference process")
            await asyncio.sleep(self.random.uniform(0, 0.8))
            return self.inference()
        deadline = time.monotonic() + 3
        while time.monotonic() < deadline:
            speaking = await self.metric("asr_open_utterances") > 0
            if speaking == (when == "speaking"):
                break
            await asyncio.sleep(0.05)
        await asyncio.sleep(self.random.uniform(0, 0.3))
        return self.inference()

    async def _answered(self) -> None:
        """Since the last kill: an engine that dies without ever answering counts as failed, and is not meant here."""
        before = self._answers_at_kill
        await self.until(lambda: self._more_than(before), "an answer of the engine")

    async def _more_than(self, before: float) -> bool:
        return await self._answers() > before

    async def _answers(self) -> float:
        # Partials alone: what a final says may have come before a kill, and its endpoint after.
        return await self.metric("transcripts_partials_total")

    async def metric(self, name: str) -> float:
        return await asyncio.to_thread(self.worker.metric, f"mediaworker_{name}")

    def inference(self) -> int | None:
        folder = Path(f"/proc/{self.worker.process.pid}/task")
        with contextlib.suppress(OSError):
            for thread in folder.iterdir():
                if children := (thread / "children").read_text().split():
                    return int(children[-1])
        return None

    async def until(self, condition: Callable[[], Any], what: str) -> None:
        deadline = time.monotonic() + seconds(PATIENCE_S)
        while True:
            value = condition()
            if await value if isinstance(value, Awaitable) else value:
                return
            assert time.monotonic() < deadline, f"not within {PATIENCE_S:g} s: {what}"
            await asyncio.sleep(0.05)

    # -- the whole --------------------------------------------------------------------------------------------------

    async def run(self, kills: int, progress: Callable[[str], None] = lambda line: None) -> Report:
        """Kill that often, check everything, and say what was seen. The worker is stopped at the end."""
        following = asyncio.create_task(self.subscriber.run())
        callers: list[asyncio.Task[None]] = []
        try:
            await self.until(lambda: asyncio.to_thread(alive, self.worker), "the worker answers")
            callers += [asyncio.create_task(self.call_by_twilio(number)) for number in range(TWILIO_CALLERS)]
            callers += [asyncio.create_task(self.call_by_sip(number)) for number in range(SIP_CALLERS)]
            while len(self.report.kills) < kills:
                await self.kill()
                progress(f"{len(self.report.kills)} kills")
                for caller in callers:
                    assert not caller.done(), caller
            await self._answered()
            self._calling = False
            await asyncio.gather(*callers)
            # Whoever calls now must be heard as if nothing had been.
            self._calling = True
            last = [asyncio.create_task(self.call_by_twilio(0)), asyncio.create_task(self.call_by_sip(0))]
            await asyncio.sleep(0.5)
            self._calling = False
            await asyncio.gather(*last)
            await self.until(self._quiet, "all calls are over")
            await self.until(self._caught_up, "the subscriber has seen everything")
            assert not self.subscriber.faults, self.subscriber.faults
        finally:
            self._calling = False
            following.cancel()
            for caller in callers:
                caller.cancel()
            await asyncio.gather(following, *callers, return_exceptions=True)
            code = await asyncio.to_thread(self.worker.stop)
        log = self.worker.log.read_text(errors="replace")
        assert code == 0 and "Traceback" not in log, log[-6000:]
        return self.check()

    async def _quiet(self) -> bool:
        return await self.metric("calls_active") == 0

    def _caught_up(self) -> bool:
        return bool(self.subscriber.durable) and self.subscriber.durable[-1] == self.stored()[-1]

    def stored(self) -> list[dict[str, Any]]:
        with contextlib.closing(sqlite3.connect(self.worker.data_dir / "events.sqlite3")) as store:
            return [json.loads(row) for (row,) in store.execute("SELECT json FROM events ORDER BY id")]

    # -- what must hold ---------------------------------------------------------------------------------------------

    def check(self) -> Report:
        """Raises AssertionError."""
        report, seen, stored = self.report, self.subscriber.durable, self.stored()
        rows = [int(event["cursor"].split(":")[1]) for event in seen]
        assert rows == sorted(set(rows)), "cursors increase"
        assert seen == stored[: len(seen)], "what was seen is what is stored, without a gap or a double"
        assert all(event["type"] == "engine.state" for event in stored[len(seen) :]), "all of it was seen"
        report.events, report.resumed = len(stored), self.subscriber.connections - 2
        failed = [event for event in stored if event["type"] == "engine.state" and event["state"] == "failed"]
        assert not failed, "the engine always came back"
        expected = {
            name: [u.text for u in utterances(Codec.PCMU, packets(codes), settings=MOONSHINE)]
            for name, codes in self.prompts.items()
        }
        assert all(expected.values())
        calls: dict[str, list[dict[str, Any]]] = {}
        for event in stored:
            if event["call_id"] is not None:
                calls.setdefault(event["call_id"], []).append(event)
        for events in calls.values():
            self._check_call(events, expected)
        known = {events[0]["external_id"] for events in calls.values()}
        assert self.played <= known, "a call that was played to its end is there"
        assert report.texts > 0
        return report

    def _check_call(self, events: list[dict[str, Any]], expected: dict[str, list[str]]) -> None:
        report = self.report
        finals = check_story(events)
        reason = events[-1]["reason"]
        prompt = SIP_PROMPT if events[0]["source"] == "sip" else self.said[events[0]["external_id"]]
        report.calls[reason] += 1
        report.utterances += len(finals)
        whole = all(leg["lost"] == 0 and leg["late"] == 0 for leg in events[-1]["legs"])
        if reason == "hangup" and whole:
            assert len(finals) == len(expected[prompt]), (prompt, finals)
        for final, text in zip(finals, expected[prompt], strict=False):
            if final["reason"] == "failed":
                self._check_failed(final, events)
            elif not whole or final["lost_ms"]:
                report.lossy += 1
            else:
                # Replayed or not, with a worker killed later or not: the same audio gives the same words.
                assert final["text"] == text, (final, text, events)
                report.texts += 1

    def _check_failed(self, final: dict[str, Any], events: list[dict[str, Any]]) -> None:
        if final["error"] == "the worker was restarted":
            assert events[-1]["reason"] == "worker_restart"
            self.report.cut += 1
            return
        (begun,) = [e for e in events if e["type"] == "speech.started" and e["utterance_id"] == final["utterance_id"]]
        span = [datetime.fromisoformat(event["time"]).timestamp() for event in (begun, final)]
        hits = [kill for kill in self.report.kills if span[0] - 0.5 <= kill.at <= span[1]]
        assert len(hits) >= 2 and "signal 9" in final["error"], (final, hits)
        self.report.given_up += 1


def _runs(pid: int) -> bool:
    """A process that is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False
