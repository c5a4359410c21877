"""Waves of calls that end in every way calls end, and what a worker holds before and after. For test_leaks and soak."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import socket
import sqlite3
import struct
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from audio.codecs.g711 import ulaw_encode
from lab.events.story import check_story
from lab.media.speech import speech
from lab.patience import until
from lab.sip.sipp_caller import Sipp
from lab.worker.peers import Worker
from mediaworker.ingress.twilio.sender import StreamWriter, new_sid
from mediaworker.ingress.twilio.webhook import sign
from sip.media.own_addresses import facing

TOKEN = "12345"
PAGE = os.sysconf("SC_PAGE_SIZE")
RATE = 24
"""Calls a second, all kinds together."""
GAUGES = (
    "calls_active",
    "legs_active",
    "rtp_sockets",
    "sip_calls_active",
    "sip_dialogs",
    "media_connections",
    "asr_open_utterances",
    "asr_backlog_bytes",
    "tasks",
    "open_fds",
)
"""What must be back to where it was."""
REFUSED_SDP = """v=0
      o=caller 1 1 IN IP4 [local_ip]
      s=-
      c=IN IP4 [media_ip]
      t=0 0
      m=audio 9 RTP/AVP 3
      a=rtpmap:3 GSM/8000"""
SHARES = {
    "sip call": 22,
    "sip call with speech": 1,
    "sip cancelled": 8,
    "sip refused 488": 6,
    "sip refused 403": 5,
    "sip until media timeout": 8,
    "sip without BYE": 3,
    "sip without ACK": 3,
    "twilio call": 19,
    "twilio call with speech": 1,
    "twilio dropped": 6,
    "twilio reset": 6,
    "twilio without start": 4,
    "twilio wrong signature": 4,
    "twilio wrong path": 2,
    "twilio no upgrade": 2,
}
"""Of a hundred calls. Most of them are over before anything is said: it is their ends that are looked at."""
SLOW = ("sip without BYE", "sip without ACK")
"""RFC 3261 lets the worker's BYE, or its 200, go unanswered for 32 s before it may give up."""
EARLY = (*SLOW, "sip refused 403")
"""Begun in the first quarter of a wave, so that their ends do not hold up the next one. Of those that are refused with
403 most are never told, and wait."""


@dataclass(frozen=True)
class Holdings:
    """What a worker holds."""

    gauges: dict[str, float]
    threads: int
    children: int
    rss: int
    """Bytes."""
    engine_rss: int
    """Of the inference process."""
    store: int
    """Bytes of the database and its log."""

    @classmethod
    def of(cls, worker: Worker) -> Holdings:
        pid = worker.process.pid
        status = Path(f"/proc/{pid}/status").read_text()
        threads = int(status.split("Threads:")[1].split()[0])
        threads_of = Path(f"/proc/{pid}/task").iterdir()
        children = [child for thread in threads_of for child in (thread / "children").read_text().split()]
        gauges = {name: worker.metric(f"mediaworker_{name}") for name in GAUGES}
        rss = int(worker.metric("mediaworker_resident_memory_bytes"))
        store = sum(path.stat().st_size for path in worker.data_dir.glob("events.sqlite3*"))
        engine_rss = sum(int(Path(f"/proc/{child}/statm").read_text().split()[1]) * PAGE for child in children)
        return cls(gauges, threads, len(children), rss, engine_rss, store)

    def left(self, before: Holdings) -> dict[str, float]:
        """What is more than before."""
        now = self.gauges | {"threads": self.threads, "children": self.children}
        then = before.gauges | {"threads": before.threads, "children": before.children}
        return {name: now[name] - then[name] for name in now if now[name] > then[name]}


@dataclass
class Waves:
    """Callers of one worker."""

    worker: Worker
    folder: Path
    done: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._sipp = Sipp(self.folder)
        self._ports = itertools.cycle(range(23000, 31000, 2))
        silence, words = self.folder / "silence.raw", self.folder / "words.raw"
        silence.write_bytes(b"\xff" * 2400)
        self._words = bytes(ulaw_encode(np.concatenate([speech("vm-goodbye"), np.zeros(7200, np.int16)])))
        self._words += b"\xff" * (-len(self._words) % 160)
        words.write_bytes(self._words)
        self._files = {False: silence, True: words}

    @staticmethod
    def environ() -> dict[str, str]:
        """What the worker must be started with."""
        return {
            "ASR__ENGINE": "moonshine",
            "TWILIO__AUTH_TOKEN": f'"{TOKEN}"',
            "TWILIO__PUBLIC_URL": "https://calls.test",
            "SIP__MEDIA_TIMEOUT_S": "2",
            "SIP__MAX_CALLS": "1000",
            "MEDIA__START_TIMEOUT_S": "2",
        }

    async def first_call(self) -> Holdings:
        """One call that is heard, so that what comes with the first and stays is there; what is held after it."""
        await self._twilio("call with speech")
        await asyncio.to_thread(until, lambda: self.worker.metric("mediaworker_calls_active") == 0)
        return await asyncio.to_thread(Holdings.of, self.worker)

    async def run(self, calls: int, *, slow: bool = True) -> None:
        """That many, mixed by `SHARES`, at `RATE`; returns when the callers are through. Slow kinds come first."""
        kinds = [kind for kind in SHARES if slow or kind not in SLOW]
        total = sum(SHARES[kind] for kind in kinds)
        counts = {kind: max(1, round(calls * SHARES[kind] / total)) for kind in kinds}
        seconds = sum(counts.values()) / RATE
        running = [asyncio.create_task(self._kind(kind, count, seconds)) for kind, count in counts.items()]
        try:
            await asyncio.gather(*running)
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    async def _kind(self, kind: str, count: int, seconds: float) -> None:
        if kind in EARLY:
            seconds /= 4
        source, _, rest = kind.partition(" ")
        if source == "sip":
            await self._sip(rest, count, seconds)
        else:
            started: set[asyncio.Task[None]] = set()
            for _ in range(count):
                started.add(asyncio.create_task(self._twilio(rest)))
                await asyncio.sleep(seconds / count)
            await asyncio.gather(*started)
        self.done[kind] += count

    # -- SIP --------------------------------------------------------------------------------------------------------

    async def _sip(self, kind: str, count: int, seconds: float) -> None:
        speaking = kind.endswith("speech")
        file = self._files[speaking]
        values: dict[str, object] = {
            "payload_type": 0,
            "rtpmap": "PCMU/8000",
            "audio": f"{file},1,0,PCMU/8000",
            "talk_ms": file.stat().st_size // 8 + 100,
            "sdp": REFUSED_SDP,
        }
        media = 2000 + 1000 * [name for name in SHARES if name.startswith("sip")].index(f"sip {kind}")
        address = "127.0.0.1"
        scenario = {
            "cancelled": "cancel",
            "refused 488": "refused",
            "refused 403": "refused",
            "until media timeout": "until_bye",
            "without BYE": "no_bye",
            "without ACK": "no_ack",
        }.get(kind, "call")
        if scenario == "refused":
            values |= {"status": int(kind.split()[1]), "header": f"SIP/2.0 {kind.split()[1]}"}
        if kind == "refused 403":
            address = facing("192.0.2.1")
            assert not address.startswith("127."), "this machine has no address beside loopback"
        exchange = self._sipp.run(
            scenario,
            f"{address}:{self.worker.sip_port}",
            source=address,
            port=next(self._ports),
            calls=count,
            at_once=count,
            rate=count,
            transport="t1" if kind == "cancelled" else "u1",
            timeout_s=round(seconds) + (5 if kind == "refused 403" else 120),
            # Several SIPp at once look for their RTP ports in the same place and fall over each other.
            options=("-mp", str(media), "-rp", str(round(1000 * seconds))),
            **values,
        )
        # Whether a CANCEL comes before the answer is for the machine to say; then SIPp ends the call by itself. And of
        # many strangers only some are told that they are refused.
        with contextlib.suppress(*[AssertionError] if kind in ("cancelled", "refused 403") else []):
            await exchange

    # -- Twilio -----------------------------------------------------------------------------------------------------

    async def _twilio(self, kind: str) -> None:
        if kind == "no upgrade":
            reader, writer = await asyncio.open_connection("127.0.0.1", self.worker.media_port)
            writer.write(b"GET /twilio/stream HTTP/1.1\r\n")
            with contextlib.suppress(ConnectionError):
                await reader.read()
            writer.close()
            return
        path = "/twilio/nothing" if kind == "wrong path" else "/twilio/stream"
        signature = sign("wrong" if kind == "wrong signature" else TOKEN, "wss://calls.test/twilio/stream")
        try:
            async with connect(
                f"ws://127.0.0.1:{self.worker.media_port}{path}",
                additional_headers={"X-Twilio-Signature": signature},
                compression=None,
                ping_interval=None,
                proxy=None,
            ) as socket:
                await self._stream(socket, kind)
        except InvalidStatus as error:
            expected = {"wrong path": 404, "wrong signature": 403}
            assert error.response.status_code == expected.get(kind), (kind, error)
        except (ConnectionClosed, ConnectionError):
            assert kind in ("reset", "dropped", "without start"), kind

    async def _stream(self, websocket: ClientConnection, kind: str) -> None:
        writer = StreamWriter(new_sid("MZ"), new_sid("CA"), new_sid("AC"))
        await websocket.send(writer.connected())
        if kind == "without start":
            await websocket.wait_closed()
            return
        await websocket.send(writer.start(["inbound"], {}))
        codes = self._words if kind.endswith("speech") else b"\xff" * 2400
        for index in range(len(codes) // 160):
            await websocket.send(writer.media("inbound", index, codes[index * 160 : (index + 1) * 160]))
            await asyncio.sleep(0.02)
        if kind == "reset":
            linger = struct.pack("ii", 1, 0)
            websocket.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        if kind in ("reset", "dropped"):
            websocket.transport.abort()
            return
        await websocket.send(writer.stop())

    # -- afterwards -------------------------------------------------------------------------------------------------

    async def settled(self, before: Holdings, timeout_s: float) -> Holdings:
        """Until nothing is held that was not held before. Raises AssertionError."""
        deadline = time.monotonic() + timeout_s
        while left := (now := await asyncio.to_thread(Holdings.of, self.worker)).left(before):
            assert time.monotonic() < deadline, f"still held after {timeout_s:g} s: {left}"
            await asyncio.sleep(0.5)
        return now


def check_stories(worker: Worker) -> Counter[str]:
    """Every call in the store keeps every promise; how many ended why."""
    calls: dict[str, list[dict[str, Any]]] = {}
    with contextlib.closing(sqlite3.connect(worker.data_dir / "events.sqlite3")) as store:
        for call_id, frame in store.execute("SELECT call_id, json FROM events WHERE call_id NOT NULL ORDER BY id"):
            calls.setdefault(call_id, []).append(json.loads(frame))
    reasons: Counter[str] = Counter()
    for events in calls.values():
        check_story(events)
        reasons[events[-1]["reason"]] += 1
    return reasons
