"""Calls with words in them, for the search."""

from __future__ import annotations

from lab.events.samples import ended, final, speech, started
from mediaworker.events.hub import EventHub


async def a_call(hub: EventHub, name: str, *said: str, **fields: object) -> None:
    hub.publish(name, 0, started(**fields))  # type: ignore[arg-type]
    for number, text in enumerate(said):
        hub.publish(name, 0, speech(f"{name}/{number}"))
        hub.publish(name, 0, final(f"{name}/{number}", text))
    hub.publish(name, 0, ended())
    await hub.flush()
