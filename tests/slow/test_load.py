"""Overload: partials go first, then new calls are refused, and calls in progress lose nothing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from audio import Codec, Shard
from audio.codecs.g711 import ulaw_encode
from lab.calls.desks import Desk, Engine
from lab.media.speech import speech
from lab.patience import timeout
from mediaworker.calls.call_leg import LegSpec
from mediaworker.calls.media_loop import MediaLoop
from mediaworker.calls.overload import HORIZON, LoadGuard, LoadState
from mediaworker.calls.parts import TranscriberParts
from mediaworker.calls.registry import CallRefused, CallRegistry
from mediaworker.events import schema as events


def test_a_hiccup_is_no_overload() -> None:
    guard = LoadGuard(shed_s=0.1, refuse_s=0.5)
    guard.lagged(5.0)
    assert guard.load is LoadState.NORMAL
    for _ in range(HORIZON):
        guard.lagged(0.005)
    assert guard.takes_partial() and guard.shed_partials == 0


def test_lasting_lag_sheds_then_refuses_and_is_left_when_it_has_halved() -> None:
    guard = LoadGuard(shed_s=0.1, refuse_s=0.5)
    seen = []
    for lag_s in [0.2] * 300 + [0.7] * 300 + [0.3] * 300 + [0.06] * 300 + [0.01] * 300:
        guard.lagged(lag_s)
        if not seen or seen[-1] is not guard.load:
            seen.append(guard.load)
    assert seen == [LoadState.NORMAL, LoadState.SHEDDING, LoadState.FULL, LoadState.SHEDDING, LoadState.NORMAL]
    assert not LoadGuard(shed_s=0.0, refuse_s=1.0).load
    guard.lagged(100.0)
    guard.calm()
    assert guard.load is LoadState.NORMAL and guard.mean_s == 0.0


@given(st.floats(0.032, 1.0), st.floats(0.032, 1.0), st.lists(st.floats(0.0, 3.0), max_size=300))
def test_the_state_follows_from_the_mean(shed_s: float, refuse_s: float, lags: list[float]) -> None:
    guard = LoadGuard(shed_s=shed_s, refuse_s=refuse_s)
    for lag_s in lags:
        guard.lagged(lag_s)
        if guard.mean_s >= max(shed_s, refuse_s):
            assert guard.load is LoadState.FULL
        if guard.mean_s < shed_s / 2:
            assert guard.load is LoadState.NORMAL


class Listener(Engine):
    """Also remembers who asked for partials."""

    def __init__(self) -> None:
        super().__init__()
        self.partials = 0

    def partial(self, utterance_id: str, revision: int) -> None:
        self.partials += 1


class BusyDesk(Desk):
    """The real media loop, with other work that may take longer than a tick."""

    def __init__(self) -> None:
        super().__init__()
        self.engine, self.work_s = Listener(), 0.0
        self.guard = LoadGuard(shed_s=0.05, refuse_s=0.09)
        self.registry = CallRegistry(
            self.registry._settings,
            TranscriberParts(self.engine, asyncio.get_running_loop().time, guard=self.guard),
            detector=self.detector,
            publish=lambda call_id, at_ms, body: self.published.append(body),
            calls_changed=lambda count: self.media.wake(),
        )
        self.media = MediaLoop(self.registry, sweep=self.work)

    def work(self, now: float, turn: Shard) -> Iterator[None]:
        time.sleep(self.work_s)
        yield

    async def talk(self, codes: bytes) -> None:
        """One call, in real time, from its start to its hang-up."""
        call = self.registry.open(source="twilio", legs=[LegSpec("inbound", Codec.PCMU, transport="stream")])
        leg, begun = call.legs["inbound"], time.monotonic()
        for at in range(0, len(codes), 160):
            leg.receive_chunk(at, codes[at : at + 160], asyncio.get_running_loop().time())
            if (wait_s := begun + (at + 160) / 8000 - time.monotonic()) > 0:
                await asyncio.sleep(wait_s)
        call.end("hangup")

    async def until(self, load: LoadState) -> None:
        async with timeout(60):
            while self.guard.load is not load:  # noqa: ASYNC110
                await asyncio.sleep(0.01)


@pytest.mark.timeout(180)
async def test_calls_in_progress_lose_nothing_while_new_ones_are_refused() -> None:
    codes = ulaw_encode(speech("vm-intro")) + b"\xff" * 8000
    calm = BusyDesk()
    calm.media.start()
    await calm.talk(codes)
    await calm.media.stop()
    texts = [final.text for final in calm.of(events.TranscriptFinal)]
    assert texts and calm.engine.partials > 3 and calm.guard.shed_partials == 0

    desk = BusyDesk()
    held = desk.registry.open(source="sip", legs=[LegSpec("main", Codec.PCMU)])  # so that there are ticks
    desk.media.start()
    desk.work_s = 0.15
    talking = asyncio.create_task(desk.talk(codes))
    await desk.until(LoadState.FULL)
    partials = desk.engine.partials
    with pytest.raises(CallRefused, match="cannot keep up") as refused:
        desk.registry.open(source="sip", legs=[LegSpec("main", Codec.PCMU)])
    assert refused.value.status == 503 and not refused.value.busy
    assert desk.registry.refusal() is not None
    await talking
    assert [final.text for final in desk.of(events.TranscriptFinal)] == texts
    assert desk.guard.shed_partials > 0 and desk.engine.partials == partials

    desk.work_s = 0.0
    await desk.until(LoadState.NORMAL)
    assert desk.registry.refusal() is None
    desk.registry.open(source="sip", legs=[LegSpec("main", Codec.PCMU)]).end("hangup")
    held.end("hangup")
    await desk.media.stop()
