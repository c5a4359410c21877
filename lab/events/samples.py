"""Bodies and a hub for the event tests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from config import Settings
from config.load import parse
from lab.patience import eventually
from mediaworker.events.frame import decode
from mediaworker.events.hub import EventHub
from mediaworker.events.schema import (
    CallEnded,
    CallStarted,
    Event,
    LegInfo,
    SpeechStarted,
    TranscriptFinal,
    TranscriptPartial,
)
from mediaworker.events.store import EventStore

LEGS = [LegInfo("inbound", "customer", "", "Bea", "PCMU"), LegInfo("outbound", "agent", "", "", "PCMU")]


def started(**fields: Any) -> CallStarted:
    return msgspec.structs.replace(CallStarted("twilio", "inbound", "+1", "+2", "CA1", LEGS, {}), **fields)


def speech(utterance_id: str, leg: str = "inbound", start_ms: int = 0) -> SpeechStarted:
    return SpeechStarted(leg, utterance_id, start_ms)


def partial(utterance_id: str, revision: int, text: str = "hel") -> TranscriptPartial:
    return TranscriptPartial("inbound", "customer", utterance_id, revision, 0, 400, text, 0, "en")


def final(utterance_id: str, text: str = "hello", **fields: Any) -> TranscriptFinal:
    body = TranscriptFinal("inbound", "customer", utterance_id, 9, 0, 500, text, len(text), "en", 0, 20, "endpoint")
    return msgspec.structs.replace(body, **fields)


def ended(reason: str = "hangup") -> CallEnded:
    return CallEnded(reason, 1000, [])


@asynccontextmanager
async def running_hub(directory: Path, settings: Settings | None = None, **options: Any) -> AsyncIterator[EventHub]:
    hub = EventHub(settings or Settings(), EventStore(directory), **options)
    await hub.start()
    try:
        yield hub
    finally:
        await hub.stop()


def small_queue(queue: int) -> Settings:
    return parse({"events": {"queue": queue}})


async def until(condition: Callable[[], bool]) -> None:
    await eventually(condition, 15)


async def take(subscription: Any, count: int) -> list[Event]:
    return [decode(await anext(subscription)) for _ in range(count)]


def kinds(events: list[Event]) -> list[str]:
    return [str(event.body.__struct_config__.tag) for event in events]
