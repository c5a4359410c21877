"""Calls for the tests of the page, and the way to them."""

from __future__ import annotations

from playwright.async_api import expect

from lab.events.samples import final, speech
from lab.http.api_server import Running
from lab.http.browser import Screen
from mediaworker.events.schema import Alert, CallHeld, CallResumed, Dtmf, Metrics, SpeechEnded, TranscriptPartial


def partial(utterance_id: str, revision: int, text: str, stable: int) -> TranscriptPartial:
    return TranscriptPartial("inbound", "customer", utterance_id, revision, 1000, 2000, text, stable, "en")


def say(api: Running, call_id: str, number: int, text: str, *, leg: str = "inbound", reply: bool = False) -> str:
    """An utterance of 2 s, from second 3·number on; a reply starts before it has ended."""
    utterance, start = f"{call_id}/{leg}/{number}", 3000 * number + (1500 if reply else 0)
    role = "customer" if leg == "inbound" else "agent"
    api.hub.publish(call_id, start, speech(utterance, leg, start))
    api.hub.publish(call_id, start + 2000, SpeechEnded(leg, utterance, start + 2000))
    fields = {"leg": leg, "role": role, "start_ms": start, "end_ms": start + 2000}
    api.hub.publish(call_id, start + 2050, final(utterance, text, **fields))
    return utterance


async def story(api: Running, call_id: str = "c1") -> None:
    """A call with one of everything."""
    api.open_call(call_id, custom={"agent_id": "ann-7"})
    hello = say(api, call_id, 0, "Good morning, I would like to cancel my contract.")
    say(api, call_id, 0, "Good morning. May I have your number?", leg="outbound", reply=True)
    api.hub.publish(call_id, 2100, Alert("cancellation", "inbound", hello, "cancel my contract", 0, 2000, "warning"))
    for at, digit in enumerate("4711#"):
        api.hub.publish(call_id, 5000 + 300 * at, Dtmf("inbound", digit, 80))
    api.hub.publish(call_id, 8000, CallHeld("outbound"))
    api.hub.publish(call_id, 15_000, CallResumed("outbound"))
    say(api, call_id, 6, "")
    say(api, call_id, 7, "Danke, einen Augenblick.", leg="outbound")
    talk, shares = {"inbound": 4000, "outbound": 12_000}, {"inbound": 0.25, "outbound": 0.75}
    api.hub.publish(call_id, 24_000, Metrics(talk, 500, 7000, 7000, shares, durable=True))
    await api.hub.flush()


async def show(shown: Screen, call_id: str = "c1", key: str = "") -> None:
    if key:
        await shown.page.add_init_script(f"sessionStorage.setItem('mediaworker.key', {key!r})")
    await shown.open(f"/#/calls/{call_id}")
    await expect(shown.page.locator(".call h2")).to_be_visible()
