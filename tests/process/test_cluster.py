"""Workers that share NATS JetStream: events of all at each of them, and what kills of NATS and of workers cost."""

from __future__ import annotations

import asyncio
import json
import signal
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import nats as nats_client
import pytest
from websockets.asyncio.client import ClientConnection, connect

from lab.deploy.metrics import families
from lab.engine.listener import LISTENER, LISTENER_PATH, WORDS
from lab.events.story import check_story
from lab.network.nats_servers import NatsServer, nats
from lab.patience import seconds, timeout, until
from lab.worker.cluster import environ, following, joined, leases_renewed, members, say, transient
from lab.worker.peers import Worker, worker
from lab.worker.ws_calls import CODES, config, until_final, url
from mediaworker.cluster.leases import MISSED, RENEW_S


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    with nats(tmp_path_factory.mktemp("nats")) as (only,):
        yield only


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory, server: NatsServer) -> Iterator[tuple[Worker, Worker]]:
    with members(tmp_path_factory.mktemp("pair"), "ab", server) as (a, b):
        yield a, b


@asynccontextmanager
async def talking(running: Worker) -> AsyncIterator[tuple[ClientConnection, str]]:
    """A live call that has had its first final. -> its socket and id."""
    async with connect(url(running, "asr"), compression=None, max_size=None, ping_interval=None) as socket:
        await socket.send(json.dumps(config()))
        session = json.loads(await socket.recv())["session_id"]
        await socket.send(CODES)
        await until_final(socket)
        (call,) = [each for each in running.calls() if each["external_id"] == session]
        yield socket, call["call_id"]


def request(running: Worker, method: str, path: str, body: object = None) -> tuple[int, Any]:
    data = None if body is None else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(
            urllib.request.Request(running.url + path, data, method=method), timeout=seconds(20)
        ) as answer:
            return answer.status, json.loads(answer.read() or b"null")
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read() or b"null")


async def test_every_worker_tells_the_events_of_all(pair: tuple[Worker, Worker]) -> None:
    a, b = pair
    await asyncio.gather(say(a), say(b))  # their engines are loaded: the first call of a worker may have no partials
    async with following(a) as at_a, following(b) as at_b:
        one, other = await asyncio.gather(say(a, speed=2), say(b, speed=2))
        for follower in (at_a, at_b):
            await follower.until("call.ended", 2)
        for call_id in (one, other):
            mine, others = at_a.story(call_id), at_b.story(call_id)
            strip = [{key: value for key, value in each.items() if key != "cursor"} for each in mine]
            assert strip == [{key: value for key, value in each.items() if key != "cursor"} for each in others]
            assert check_story(mine)
        assert any(each["type"] == "transcript.partial" and each["call_id"] == one for each in at_b.heard)
        assert {each["cursor"].split(":")[0] for each in at_a.heard + at_b.heard} == {
            at_a.hello["cursor"].split(":")[0]
        }


def test_metrics_are_those_of_the_documentation(pair: tuple[Worker, Worker]) -> None:
    shown = pair[0].get("/metrics")
    names = [name for name in families() if name.startswith("mediaworker_cluster_")]
    assert len(names) > 5 and all(f"\n{name} " in shown for name in names)
    assert pair[0].metric("mediaworker_cluster_connected") == 1
    assert pair[0].metric("mediaworker_cluster_strays_total") == 0


async def test_a_cursor_of_one_worker_is_valid_at_the_other(pair: tuple[Worker, Worker]) -> None:
    """A subscriber goes from one to the other after every few events, and misses and repeats nothing."""
    a, b = pair
    async with following(a) as first:
        cursor = first.hello["cursor"]
    calls = [asyncio.create_task(say(running)) for running in (a, b, a, b)]
    heard: list[dict[str, Any]] = []
    for turn in range(400):
        async with connect(f"ws://127.0.0.1:{(a, b)[turn % 2].http_port}/v1/events?after={cursor}") as socket:
            await socket.recv()  # hello
            for _ in range(1 + turn % 3):
                try:
                    event = json.loads(await asyncio.wait_for(socket.recv(), 1.0))
                except TimeoutError:
                    break
                heard.append(event)
                cursor = event["cursor"]
        if sum(event["type"] == "call.ended" for event in heard) == 4:
            break
    for call_id in await asyncio.gather(*calls):
        story = [event for event in heard if event["call_id"] == call_id and not transient(event)]
        assert [event["seq"] for event in story] == list(range(1, len(story) + 1)) and check_story(story)


async def test_calls_of_the_other_worker_are_read_and_changed(pair: tuple[Worker, Worker]) -> None:
    a, b = pair
    async with talking(a) as (socket, call_id), following(b) as follower:
        live = [each for each in follower.hello["calls"] if each["call_id"] == call_id]
        assert [each["state"] for each in live] == ["live"], "the snapshot has it"
        assert request(b, "GET", f"/v1/calls/{call_id}")[1]["state"] == "live"
        assert call_id in [each["call_id"] for each in b.calls()]
        status, changed = request(b, "PATCH", f"/v1/calls/{call_id}", {"names": {"main": "Ada"}, "language": "en"})
        assert status == 200
        await follower.until("leg.updated")
        assert request(b, "GET", f"/v1/calls/{call_id}")[1]["legs"][0]["name"] == "Ada"
        assert request(b, "PATCH", f"/v1/calls/{call_id}", {"names": {"nobody": "x"}})[0] == 400
        assert request(b, "DELETE", f"/v1/calls/{call_id}")[0] == 409, "it has not ended"
        assert request(b, "POST", f"/v1/calls/{call_id}/hangup")[0] == 202
        await follower.until("call.ended")
        await socket.wait_closed()
    until(lambda: request(b, "GET", f"/v1/calls/{call_id}")[1]["state"] == "ended")
    mine, others = (request(each, "GET", f"/v1/calls/{call_id}/transcript")[1] for each in pair)
    assert mine == others and mine["segments"]
    word = mine["segments"][0]["text"].split()[0].strip(".,")
    assert call_id in [each["call_id"] for each in request(b, "GET", f"/v1/calls?text={word}")[1]["items"]]
    assert request(b, "POST", f"/v1/calls/{call_id}/hangup")[0] == 409
    assert request(b, "PATCH", f"/v1/calls/{call_id}", {"language": "en"})[0] == 409
    # Named after its end, at both.
    assert request(b, "PATCH", f"/v1/calls/{call_id}", {"names": {"main": "Grace"}})[0] == 200
    for running in pair:
        until(lambda running=running: request(running, "GET", f"/v1/calls/{call_id}")[1]["legs"][0]["name"] == "Grace")


async def test_a_call_is_erased_everywhere(pair: tuple[Worker, Worker], server: NatsServer) -> None:
    a, b = pair
    call_id = await say(a)
    until(lambda: request(b, "GET", f"/v1/calls/{call_id}")[1].get("state") == "ended")
    assert request(b, "DELETE", f"/v1/calls/{call_id}")[0] == 204
    assert request(b, "GET", f"/v1/calls/{call_id}")[0] == 404
    until(lambda: request(a, "GET", f"/v1/calls/{call_id}")[0] == 404)
    client = await nats_client.connect(server.url)
    info = await client.jetstream().stream_info("MEDIAWORKER_EVENTS", subjects_filter=f"mediaworker.events.*.{call_id}")
    await client.close()
    left = [subject.split(".")[2] for subject in info.state.subjects or {}]
    assert left == ["changes"], "of the call itself nothing is left in the stream"
    files = [each.data_dir / name for each in pair for name in ("events.sqlite3", "cluster/events.sqlite3")]
    files += [file.with_name(f"{file.name}-wal") for file in files]
    said = f"{call_id}/".encode()  # its utterances; that it was erased, and by whom, is told by its id
    until(lambda: not [file for file in files if file.exists() and said in file.read_bytes()])


async def test_without_nats_calls_go_on_and_the_others_hear_of_them_later(tmp_path: Path) -> None:
    with nats(tmp_path / "nats") as (server,), members(tmp_path, "ab", server) as (a, b):
        async with following(a) as at_a, following(b) as at_b:
            before = await say(a)
            await at_b.until("call.ended")
            server.kill()
            during = await say(a)
            await at_a.until("call.ended", 2)
            assert check_story(at_a.story(during)), "its own subscribers wait for nothing"
            assert during in [each["call_id"] for each in a.calls()]
            until(lambda: "the cluster is not there" in a.log.read_text())
            assert any("cluster: " in warning for warning in a.get("/readyz")["warnings"])
            assert at_b.story(during) == []
            server.start_again()
            await at_b.until("call.ended", 2, within_s=60)
            for call_id in (before, during):
                assert [each["seq"] for each in at_b.story(call_id)] == [each["seq"] for each in at_a.story(call_id)]
                assert check_story(at_b.story(call_id))
            after = await say(b)
            await at_a.until("call.ended", 3)
            assert check_story(at_a.story(after))


async def test_a_worker_begins_without_nats_and_joins_later(tmp_path: Path) -> None:
    with nats(tmp_path / "nats") as (server,):
        server.kill()
        with worker(tmp_path, LISTENER_PATH, **environ(server, **LISTENER)) as running:
            call_id = await say(running)
            until(lambda: "cluster.nats cannot be reached" in running.log.read_text())
            assert not joined(running) and "cluster.nats cannot be reached" in running.log.read_text()
            async with following(running) as alone:
                assert "." not in alone.hello["cursor"], "its own events, until there is a cluster"
            server.start_again()
            until(lambda: joined(running), 30)
            async with following(running) as follower:
                assert "." in follower.hello["cursor"]
                other = await say(running)
                await follower.until("call.ended")
                assert check_story(follower.story(other))
            assert {call_id, other} == {each["call_id"] for each in running.calls()}


async def test_a_killed_worker_repeats_nothing_and_a_new_one_learns_the_past(
    tmp_path: Path, server: NatsServer
) -> None:
    with members(tmp_path, "ab", server, CLUSTER__NAME="killed") as (a, b):
        async with following(b) as at_b:
            calls = [await say(a) for _ in range(3)]
            async with talking(a) as (_, open_call):
                a.process.kill()
                a.process.wait()
            a.start_again()
            await at_b.until("call.ended", 4)
            for call_id in (*calls, open_call):
                assert check_story(at_b.story(call_id))
            assert at_b.story(open_call)[-1]["reason"] == "worker_restart"
            until(lambda: a.log.read_text().count("cluster joined") == 2)
            last = await say(a)
            await at_b.until("call.ended", 5)
            assert check_story(at_b.story(last))
        with members(tmp_path, "c", server, CLUSTER__NAME="killed") as (c,):
            until(lambda: len(c.calls()) == 5)
            async with following(c, f"{at_b.hello['cursor'].split(':')[0]}:0") as at_c:
                await at_c.until("call.ended", 5)
                for call_id in (*calls, open_call, last):
                    assert [each["seq"] for each in at_c.story(call_id)] == [
                        each["seq"] for each in at_b.story(call_id)
                    ]


async def test_calls_of_a_worker_that_is_gone_are_ended_once_with_what_they_owe(
    tmp_path: Path,
) -> None:
    with nats(tmp_path / "nats") as (server,), members(tmp_path, "abc", server) as (a, b, c):
        async with following(b) as at_b, following(c) as at_c:
            quiet = await say(b)
            async with connect(url(a, "asr"), compression=None, max_size=None) as socket:
                await socket.send(json.dumps(config()))
                # Up to the middle of a later utterance, when it has had a partial.
                partial = None
                for start in range(0, 10 * len(CODES), 800):
                    at = start % len(CODES)
                    await socket.send(CODES[at : at + 800])
                    await asyncio.sleep(0.1)
                    told = [each for each in at_b.heard if each["call_id"] != quiet and "utterance_id" in each]
                    if told and told[-1]["type"] == "transcript.partial":
                        if any(each["type"] == "transcript.final" for each in told):
                            partial = told[-1]
                            break
                assert partial is not None, "not one partial behind a final in ten times the audio"
                a.process.kill()
                a.process.wait()
                for follower in (at_b, at_c):
                    await follower.until("call.ended", 2)
            call_id = partial["call_id"]
            partial = [each for each in at_b.heard if each["type"] == "transcript.partial"][-1]
            stories = [follower.story(call_id) for follower in (at_b, at_c)]
            assert [each["seq"] for each in stories[0]] == [each["seq"] for each in stories[1]]
            (*_, final) = check_story(stories[0])
            assert (final["reason"], final["error"], final["text"]) == (
                "failed",
                "the worker was lost",
                partial["text"],
            )
            assert final["utterance_id"] == partial["utterance_id"] and final["text"]
            assert stories[0][-1]["reason"] == "worker_lost"
            assert sum(each.metric("mediaworker_cluster_closed_calls_total") for each in (b, c)) == 1
            a.start_again()
            until(lambda: a.log.read_text().count("cluster joined") == 2)
            await leases_renewed(server, 6)
            for running in (a, b, c):
                shown = request(running, "GET", f"/v1/calls/{call_id}")[1]
                assert (shown["state"], shown["reason"]) == ("ended", "worker_lost"), "it does not argue"
                transcript = request(running, "GET", f"/v1/calls/{call_id}/transcript")[1]
                assert transcript["segments"][-1]["text"] == partial["text"]
            assert [each["seq"] for each in at_b.story(call_id)] == [each["seq"] for each in stories[0]]


async def test_a_worker_that_stands_still_finds_its_calls_ended_and_a_slow_nats_ends_none(tmp_path: Path) -> None:
    with nats(tmp_path / "nats") as (server,), members(tmp_path, "ab", server) as (a, b):
        async with following(a) as at_a, following(b) as at_b, talking(a) as (socket, call_id):
            await leases_renewed(server, 4)
            server.process.send_signal(signal.SIGSTOP)
            await asyncio.sleep(RENEW_S * (MISSED + 1))  # longer than a worker is waited for
            server.process.send_signal(signal.SIGCONT)
            await leases_renewed(server, 4)
            assert request(b, "GET", f"/v1/calls/{call_id}")[1]["state"] == "live", "nobody could renew anything"
            a.process.send_signal(signal.SIGSTOP)
            await at_b.until("call.ended")
            await socket.send(CODES)
            a.process.send_signal(signal.SIGCONT)
            await at_a.until("call.ended")
            await leases_renewed(server, 4)
            assert at_b.story(call_id)[-1]["reason"] == "worker_lost"
            stories = [
                [{key: value for key, value in each.items() if key != "cursor"} for each in follower.story(call_id)]
                for follower in (at_a, at_b)
            ]
            assert stories[0] == stories[1], "its own subscribers hear what the others do, and nothing behind it"
            assert request(a, "GET", f"/v1/calls/{call_id}")[1]["reason"] == "worker_lost"
            status, _ = request(a, "POST", f"/v1/calls/{call_id}/hangup")
            assert status == 202, "its own side keeps it until it ends"
        until(lambda: a.metric("mediaworker_calls_active") == 0)
        await leases_renewed(server, 4)
        assert request(b, "GET", f"/v1/calls/{call_id}")[1]["reason"] == "worker_lost"


async def test_a_killed_leader_holds_up_nobody_at_the_workers_themselves(tmp_path: Path) -> None:
    with nats(tmp_path / "nats", 3) as servers, members(tmp_path, "ab", *servers, CLUSTER__REPLICAS="3") as (a, b):
        async with following(a) as at_a, following(b) as at_b:
            await say(a)
            await at_b.until("call.ended")
            client = await nats_client.connect([server.url for server in servers])
            info = await client.jetstream().stream_info("MEDIAWORKER_EVENTS")
            await client.close()
            assert info.cluster is not None and info.config.num_replicas == 3
            leader = servers[int(str(info.cluster.leader).removeprefix("n"))]
            leader.kill()
            during = await say(a)
            await at_a.until("call.ended", 2, within_s=5)
            assert check_story(at_a.story(during))
            await at_b.until("call.ended", 2, within_s=60)
            assert check_story(at_b.story(during))


async def test_what_is_redacted_never_leaves_the_worker(tmp_path: Path, server: NatsServer) -> None:
    patterns = '[{name = "any", pattern = "[a-z]+"}]'
    options = {"CLUSTER__NAME": "private", "PRIVACY__PATTERNS": patterns, "ASR__PARTIAL_MS": "200"}
    with members(tmp_path, "a", server, **options) as (running,):
        client = await nats_client.connect(server.url)
        partials: list[bytes] = []

        async def heard(message: Any) -> None:
            partials.append(message.data)

        await client.subscribe("private.partials.*", cb=heard)
        call_id = await say(running)
        js, stored = client.jetstream(), list[bytes]()
        async with timeout(30):
            while not any(b'"call.ended"' in each for each in stored):
                info = await js.stream_info("PRIVATE_EVENTS")
                following_ones = range(len(stored) + 1, info.state.last_seq + 1)
                stored += [(await js.get_msg("PRIVATE_EVENTS", seq)).data for seq in following_ones]
        await client.close()
        finals = [each for each in running.events(call_id) if each["type"] == "transcript.final"]
        assert finals and all(set(each["text"].split()) == {"[any]"} for each in finals)
        everything = b"\n".join(stored + partials).decode()
        assert "[any]" in everything and not [word for word in WORDS if word in everything]
