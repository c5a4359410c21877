"""The outbox and a real NATS: what is refused or not answered is published again, in order, and never twice."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import nats as nats_client
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from nats.js import JetStreamContext
from websockets.asyncio.client import connect

from config.settings import Cluster
from lab.events.samples import ended, final, partial, running_hub, speech, started
from lab.network.cutting_proxy import CuttingProxy
from lab.network.nats_servers import NatsServer, nats
from lab.patience import eventually, timeout
from lab.worker.cluster import environ, following, joined
from lab.worker.peers import alive, launch
from lab.worker.ws_calls import config, url
from mediaworker.cluster.connection import NatsConnection
from mediaworker.cluster.outbox import OPEN, PARTIALS, ClusterOutbox, refusal
from mediaworker.events.hub import EventHub

STREAM = "MEDIAWORKER_EVENTS"
WITHIN_S = 30.0


@pytest.fixture
def server(tmp_path: Path) -> Iterator[NatsServer]:
    with nats(tmp_path / "nats") as (only,):
        yield only


@dataclass
class Publishing:
    hub: EventHub
    outbox: ClusterOutbox
    js: JetStreamContext

    def talk(self, call_id: str, utterances: int) -> None:
        self.hub.publish(call_id, 0, started())
        for number in range(utterances):
            self.hub.publish(call_id, number, speech(f"{call_id}/{number}"))
            self.hub.publish(call_id, number, final(f"{call_id}/{number}"))
        self.hub.publish(call_id, utterances, ended())

    async def taken(self, events: int) -> None:
        await until(lambda: self.outbox.counters.published >= events)

    async def refuse_longer_than(self, length: int) -> None:
        """The stream refuses such messages from now on; -1: it takes all."""
        config = (await self.js.stream_info(STREAM)).config
        await self.js.update_stream(config, max_msg_size=length)

    async def stored(self) -> list[tuple[str, int]]:
        return await stored(self.js)


async def stored(js: JetStreamContext) -> list[tuple[str, int]]:
    """(call, `seq`) of each event in the stream, in its order."""
    state = (await js.stream_info(STREAM)).state
    found = []
    for number in range(state.first_seq, state.last_seq + 1):
        data = (await js.get_msg(STREAM, number)).data
        assert data is not None
        found += [json.loads(frame) for frame in data.decode().split("\n")]
    return [(event["call_id"], event["seq"]) for event in found]


async def until(done: Callable[[], bool]) -> None:
    await eventually(done, WITHIN_S)


@asynccontextmanager
async def publishing(folder: Path, server: NatsServer) -> AsyncIterator[Publishing]:
    joined = asyncio.Event()

    async def ready() -> None:
        await connection.stream_id()
        joined.set()

    connection = NatsConnection(Cluster(nats=(server.url,), replicas=1), worker="test", on_ready=ready)
    other = await nats_client.connect(server.url)
    connection.start()
    try:
        async with timeout(WITHIN_S), running_hub(folder) as hub:
            await joined.wait()
            outbox = ClusterOutbox(hub, connection, on_written=lambda row: None)
            await outbox.start()
            try:
                yield Publishing(hub, outbox, other.jetstream())
            finally:
                await outbox.stop(0)
    finally:
        await connection.stop()
        await other.close()


def whole(call_id: str, utterances: int) -> list[tuple[str, int]]:
    return [(call_id, seq) for seq in range(1, 2 * utterances + 3)]


async def test_a_backlog_is_published_in_order(tmp_path: Path, server: NatsServer) -> None:
    async with publishing(tmp_path, server) as made:
        for number in range(4):
            made.talk(f"c{number}", OPEN // 4)
        await made.taken(4 * len(whole("c", OPEN // 4)))
        stored = await made.stored()
        assert made.outbox.counters.retries == 0 and made.outbox.counters.messages < len(stored) / 8
        for number in range(4):
            assert [each for each in stored if each[0] == f"c{number}"] == whole(f"c{number}", OPEN // 4)


async def test_what_the_stream_refuses_is_published_when_it_takes_it(tmp_path: Path, server: NatsServer) -> None:
    async with publishing(tmp_path, server) as made:
        await made.refuse_longer_than(10)
        made.talk("c1", 2)
        await until(lambda: made.outbox.counters.retries > 0)
        assert made.outbox.lag_s > 0 and made.outbox.counters.published == 0
        await made.refuse_longer_than(-1)
        await made.taken(len(whole("c1", 2)))
        assert await made.stored() == whole("c1", 2) and made.outbox.lag_s == 0


async def test_without_a_stream_the_outbox_waits_for_one(tmp_path: Path, server: NatsServer) -> None:
    async with publishing(tmp_path, server) as made:
        config = (await made.js.stream_info(STREAM)).config
        await made.js.delete_stream(STREAM)
        made.talk("c1", 2)
        await until(lambda: made.outbox.counters.retries > 0)
        await made.js.add_stream(config)
        await made.taken(len(whole("c1", 2)))
        assert await made.stored() == whole("c1", 2)


async def test_what_was_taken_without_an_answer_is_no_double(tmp_path: Path, server: NatsServer) -> None:
    """NATS stands still and takes in, later, both what was sent and what was sent again."""
    async with publishing(tmp_path, server) as made:
        made.talk("c1", 2)
        await made.taken(len(whole("c1", 2)))
        server.process.send_signal(signal.SIGSTOP)
        made.talk("c2", 2)
        await until(lambda: made.outbox.counters.retries > 0)
        server.process.send_signal(signal.SIGCONT)
        await made.taken(2 * len(whole("c2", 2)))
        assert await made.stored() == [*whole("c1", 2), *whole("c2", 2)]


async def test_a_call_does_not_wait_for_another(tmp_path: Path, server: NatsServer) -> None:
    async with publishing(tmp_path, server) as made:
        await made.refuse_longer_than(1500)
        made.hub.publish("long", 0, started(custom={"note": "x" * 2000}))
        await until(lambda: made.outbox.lag_s > 0)
        made.talk("c1", 0)
        await made.taken(len(whole("c1", 0)))
        made.hub.publish("long", 0, ended())
        assert await made.stored() == whole("c1", 0)
        await made.refuse_longer_than(-1)
        await made.taken(2 * len(whole("c1", 0)))
        assert await made.stored() == [*whole("c1", 0), *whole("long", 0)]


async def test_a_message_that_is_too_long_for_nats_holds_up_no_other(tmp_path: Path, server: NatsServer) -> None:
    async with publishing(tmp_path, server) as made:
        made.hub.publish("long", 0, started(custom={"note": "x" * 2_000_000}))
        made.talk("c1", 2)
        await made.taken(len(whole("c1", 2)))
        assert await made.stored() == whole("c1", 2)
        await until(lambda: made.outbox.counters.retries > 0)


async def test_what_is_erased_before_the_stream_has_it_never_gets_there(tmp_path: Path, server: NatsServer) -> None:
    async with publishing(tmp_path, server) as made:
        await made.refuse_longer_than(10)
        made.talk("c1", 2)
        await until(lambda: made.outbox.counters.retries > 0)
        await made.hub.ended_calls.erase("c1")
        assert made.outbox.lag_s == 0
        await made.refuse_longer_than(-1)
        made.talk("c2", 2)
        await made.taken(len(whole("c2", 2)))
        assert await made.stored() == whole("c2", 2)


async def test_what_a_killed_worker_has_told_is_known_to_the_others(tmp_path: Path, server: NatsServer) -> None:
    """It is killed before it has learnt that the stream has it."""
    async with AsyncExitStack() as stack:
        proxy = await stack.enter_async_context(CuttingProxy())
        proxy.target = server.port
        running = launch(tmp_path, **environ(f"nats://127.0.0.1:{proxy.port}"))
        stack.callback(running.stop)
        await until(lambda: alive(running))
        await until(lambda: joined(running))
        follower = await stack.enter_async_context(following(running))
        proxy.answers.clear()
        for _ in range(5):
            socket = await stack.enter_async_context(connect(url(running, "asr"), compression=None))
            await socket.send(json.dumps(config()))
        await follower.until("call.started", 5)
        running.process.kill()
        told = {(each["call_id"], each["seq"]) for each in follower.heard if each["type"] == "call.started"}
        other = await nats_client.connect(server.url)
        stack.push_async_callback(other.close)
        async with timeout(WITHIN_S):
            while not told <= set(await stored(other.jetstream())):  # noqa: ASYNC110
                await asyncio.sleep(0.1)


async def test_partials_are_heard_and_bounded(tmp_path: Path, server: NatsServer) -> None:
    async with publishing(tmp_path, server) as made:
        listener = await nats_client.connect(server.url)
        heard = await listener.subscribe("mediaworker.partials.>")
        await listener.flush()
        made.hub.publish("c1", 0, started())
        made.hub.publish("c1", 0, speech("c1/1"))
        await made.taken(2)
        for revision in range(1, PARTIALS + 3):  # in one step of the loop: none can be sent meanwhile
            made.hub.publish("c1", 0, partial("c1/1", revision))
        revisions: list[int] = []
        while len(revisions) < PARTIALS:
            message = await heard.next_msg(timeout=WITHIN_S)
            revisions += [json.loads(frame)["revision"] for frame in message.data.decode().split("\n")]
        assert revisions == list(range(3, PARTIALS + 3)), "the oldest go"
        await listener.close()


@given(st.binary())
@example(b"")
@example(b'{"stream":""}')
@example(b'{"error":{"code":503,"err_code":10077}}')
@example(b'{"error":{"code":400,"description":"message size exceeds maximum allowed"}}')
def test_what_is_no_acknowledgement_is_a_refusal(answer: bytes) -> None:
    assert refusal(answer)


@given(st.integers(1), st.booleans())
def test_an_acknowledgement_is_none(seq: int, duplicate: bool) -> None:
    assert refusal(json.dumps({"stream": STREAM, "seq": seq, "duplicate": duplicate}).encode()) == ""
