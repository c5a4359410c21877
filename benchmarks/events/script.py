"""What happens in the calls of the event benchmark: who says what when, one pair of people a call."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable

from mediaworker.events import schema as events

LEGS = [
    events.LegInfo("inbound", "customer", "inbound", "", "PCMU"),
    events.LegInfo("outbound", "agent", "outbound", "", "PCMU"),
]
PARTIAL_S = 0.5
METRICS_S = 5.0
WORDS = "well I would like to know whether my order has arrived because I have been waiting for two weeks now".split()

Publish = Callable[[str, int, events.EventBody], None]


def opened(publish: Publish, call_id: str) -> None:
    publish(call_id, 0, events.CallStarted("twilio", "inbound", "+15550100", "+15550199", call_id, LEGS, {}))


async def talk(publish: Publish, call_id: str, seed: int) -> None:
    """For ever: one speaks for some seconds, with partials, then the other. Texts begin with when they were said."""
    rng, begun = random.Random(seed), time.monotonic()
    await asyncio.sleep(rng.uniform(0, 4))
    number, reported_s = 0, begun
    while True:
        number += 1
        leg, name = LEGS[number % 2], f"{call_id}/{number}"
        start_ms = round((time.monotonic() - begun) * 1000)
        publish(call_id, start_ms, events.SpeechStarted(leg.leg, name, start_ms))
        partials = rng.randint(2, 12)
        for revision in range(1, partials + 1):
            await asyncio.sleep(PARTIAL_S)
            now_ms = start_ms + round(revision * PARTIAL_S * 1000)
            text = f"{time.monotonic():.6f} {' '.join(WORDS[: 2 * revision])}"
            partial = events.TranscriptPartial(leg.leg, leg.role, name, revision, start_ms, now_ms, text, 10, "en")
            publish(call_id, now_ms, partial)
        await asyncio.sleep(PARTIAL_S)
        end_ms = start_ms + round((partials + 1) * PARTIAL_S * 1000)
        publish(call_id, end_ms, events.SpeechEnded(leg.leg, name, end_ms))
        text = f"{time.monotonic():.6f} {' '.join(WORDS[: 2 * partials])}"
        publish(
            call_id,
            end_ms,
            events.TranscriptFinal(
                leg.leg, leg.role, name, partials + 1, start_ms, end_ms, text, len(text), "en", 0, 20, "endpoint"
            ),
        )
        if time.monotonic() - reported_s > METRICS_S:
            reported_s = time.monotonic()
            publish(call_id, end_ms, events.Metrics({"inbound": 1, "outbound": 1}, 0, 0, 0, {"inbound": 0.5}))
        await asyncio.sleep(rng.uniform(0.2, 1.5))
