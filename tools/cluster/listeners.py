"""Three subscribers of all events, through HAProxy, who come back with their cursor; and what they have heard."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from mediaworker.client import Client
from tools.cluster.parts import KEY, PROXY_ADDRESS

Event = dict[str, Any]
NOT_DURABLE = ("hello", "lagged", "transcript.partial")


@dataclass
class Listener:
    """One subscriber."""

    name: str
    calls: dict[str, list[Event]] = field(default_factory=lambda: defaultdict(list))
    """The durable events of each call, as they came; with `heard_at`, in Unix time."""
    faults: list[str] = field(default_factory=list)
    connections: int = 0
    servers: Counter[str] = field(default_factory=Counter)
    """Versions of the workers that it has been connected to."""
    _revisions: dict[str, int] = field(default_factory=dict)

    async def run(self, tls: ssl.SSLContext) -> None:
        client = Client(f"https://{PROXY_ADDRESS}", key=KEY, tls=tls)
        async for frame in client.events(patient=True).frames():
            self._take(msgspec.json.decode(frame))

    def _take(self, event: Event) -> None:
        kind = event["type"]
        if kind == "hello":
            self.connections += 1
            self.servers[event["server"]] += 1
        elif kind == "transcript.partial":
            name = event["utterance_id"]
            if event["revision"] <= self._revisions.get(name, 0):
                self.faults.append(f"partial {event['revision']} of {name} came after {self._revisions[name]}")
            self._revisions[name] = event["revision"]
        elif kind not in NOT_DURABLE and event["call_id"] and (kind != "metrics" or event.get("durable")):
            self.calls[event["call_id"]].append({**event, "heard_at": time.time()})

    @property
    def open_calls(self) -> int:
        return sum(all(each["type"] != "call.ended" for each in events) for events in self.calls.values())

    def save(self, folder: Path) -> None:
        with (folder / f"{self.name}.jsonl").open("wb") as file:
            for events in self.calls.values():
                file.writelines(msgspec.json.encode(event) + b"\n" for event in events)


async def caught_up(listeners: list[Listener], within_s: float) -> None:
    """Until every subscriber knows the end of every call that any of them has heard of. Raises AssertionError."""
    deadline = time.monotonic() + within_s
    while True:
        known = {call_id for each in listeners for call_id in each.calls}
        open_calls = [each.open_calls + len(known - set(each.calls)) for each in listeners]
        if not any(open_calls):
            return
        assert time.monotonic() < deadline, f"calls without an end, by subscriber: {open_calls}"
        await asyncio.sleep(0.2)


def moment(event: Event) -> float:
    """When it was published, in Unix time."""
    return datetime.fromisoformat(event["time"]).timestamp()
