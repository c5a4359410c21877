"""`mediaworker watch` as a user runs it: events as lines, over a cut connection, and nothing steers the terminal."""

from __future__ import annotations

import json
from asyncio.subprocess import Process
from pathlib import Path

from lab.events.samples import ended, final
from lab.http.api_server import ADMIN_KEY, EVENTS_KEY, running_api
from lab.network.cutting_proxy import CuttingProxy
from lab.patience import timeout
from lab.worker.peers import running_command
from mediaworker.events.schema import Alert


async def line(process: Process) -> str:
    assert process.stdout is not None
    async with timeout(20):
        return (await process.stdout.readline()).decode().rstrip("\n")


async def test_lines_of_json_go_on_over_a_cut(tmp_path: Path) -> None:
    async with running_api(tmp_path, keys=True) as api, CuttingProxy() as proxy:
        proxy.target = api.server.port
        api.open_call("c1")
        await api.hub.flush()
        url = f"http://127.0.0.1:{proxy.port}"
        async with running_command(
            "watch", url, "--json", "--key", EVENTS_KEY, "--types", "transcript.final,call.ended"
        ) as shown:
            assert json.loads(await line(shown))["type"] == "hello"
            api.hub.publish("c1", 100, final("u1", "one"))
            assert json.loads(await line(shown))["text"] == "one"
            assert proxy.cut() == 1
            api.hub.publish("c1", 200, final("u2", "two"))
            api.hub.publish("c1", 300, ended())
            events = [json.loads(await line(shown)) for _ in range(3)]
            assert [event["type"] for event in events] == ["hello", "transcript.final", "call.ended"]
            assert events[1]["text"] == "two"


async def test_what_strangers_say_does_not_steer_the_terminal(tmp_path: Path) -> None:
    async with running_api(tmp_path) as api, running_command("watch", api.url, "--once") as shown:
        assert "connected to mediaworker" in await line(shown)
        api.open_call("c1", from_="\x1b]0;evil\x07")
        api.hub.publish("c1", 100, final("u1", "a\x1b[2Jb"))
        api.hub.publish("c1", 100, Alert("cancel", "inbound", "u1", "x", 0, 100, "critical", match="can\x1bcel"))
        lines = [await line(shown) for _ in range(3)]
        assert "\x1b" not in "".join(lines) and "\x07" not in "".join(lines)
        assert "a�[2Jb" in lines[1] and "! critical cancel inbound: can�cel" in lines[2]
        await api.hub.stop()
        async with timeout(20):
            assert await shown.wait() == 0, "--once"
        assert shown.stderr is not None
        assert "waiting for events until the worker closes the connection" in (await shown.stderr.read()).decode()
        await api.hub.store.start()  # the fixture stops the hub once more


async def test_a_refusal_is_one_line(tmp_path: Path) -> None:
    async with running_api(tmp_path, keys=True) as api:
        known = ("--key", EVENTS_KEY)
        for arguments, reason in (
            ((), "wants an API key: give --key"), (("--key", "wrong-key"), "the key is wrong: unknown API key"),
            (("--key", ADMIN_KEY), "lacks the scope `events`"), ((*known, "--types", "x"), "unknown event type"),
        ):  # fmt: skip
            async with running_command("watch", api.url, *arguments) as shown:
                _, errors = await shown.communicate()
                assert shown.returncode == 1 and reason in errors.decode() and errors.count(b"\n") == 1
    async with running_command("watch", "http://127.0.0.1:9") as shown:
        _, errors = await shown.communicate()
        assert shown.returncode == 1 and errors.count(b"\n") == 1
