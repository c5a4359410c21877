"""`client.js` in Node 18, 20, 22 and 24: with Node's own WebSocket where there is one, and with that of `ws`."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from lab.http.api_server import running_api
from lab.network.cutting_proxy import CuttingProxy
from lab.network.ports import ports
from lab.patience import eventually, timeout
from lab.worker.peers import ROOT, running_program
from mediaworker.events.schema import Dtmf

CLIENT = ROOT / "mediaworker" / "web" / "client.js"
OWN = (22, 24)
"""Those that have a WebSocket."""
ALL = (18, 20, *OWN)

FOLLOW = """
const show = (what) => console.log(JSON.stringify(what));
const stream = client.events({
  onState: (state, { reason }) => show([state, reason ?? null]),
  onEvent: ({ type, digit }) => {
    if (type !== "dtmf") return;
    show([digit, null]);
    if (digit === "#") stream.close();
  },
});
"""

SEEN = """class extends WebSocket {
  constructor(...of) {
    super(...of);
    this.addEventListener("message", ({ data }) => console.log(JSON.stringify([JSON.parse(data).type, null])));
  }
}"""


@pytest.fixture(scope="module")
def nodes() -> Path:
    done = subprocess.run([ROOT / "tools" / "install_node.sh", sys.executable], capture_output=True, text=True)
    assert done.returncode == 0, f"tools/install_node.sh: {done.stderr}"
    return Path(done.stdout.splitlines()[-1])


@pytest.fixture
def module(nodes: Path, tmp_path: Path) -> Path:
    """A folder with the client, in which `ws` is found."""
    (tmp_path / "client.mjs").write_text(CLIENT.read_text(encoding="utf-8"), encoding="utf-8")
    (tmp_path / "node_modules").symlink_to(nodes / "node_modules")
    return tmp_path


@asynccontextmanager
async def program(nodes: Path, folder: Path, version: int, options: str, script: str) -> AsyncIterator[Process]:
    text = f'import {{ Client }} from "./client.mjs";\nconst client = new Client({{ {options} }});\n{script}'
    if "WebSocket" in options:
        text = f'import {{ WebSocket }} from "ws";\n{text}'
    name = f"{version}-{'ws' if 'WebSocket' in options else 'own'}.mjs"
    (folder / name).write_text(text, encoding="utf-8")
    node = nodes / str(version) / "node"
    async with running_program(node, "--no-warnings", name, cwd=folder) as process:
        yield process


async def shown(process: Process, first: str) -> list[list[Any]]:
    """What the program shows, up to a line that begins so."""
    assert process.stdout is not None and process.stderr is not None
    lines: list[list[Any]] = []
    async with timeout(30):
        while not lines or lines[-1][0] != first:
            line = await process.stdout.readline()
            assert line, f"it has ended: {(await process.stderr.read()).decode()}"
            lines.append(json.loads(line))
    return lines


async def test_a_worker_that_is_not_there_is_waited_for_in_every_node(nodes: Path, module: Path) -> None:
    """A refused connection neither ends the process (`ws`) nor leaves the client connecting for ever (Node 22)."""
    (port,) = ports(1)
    url = f'url: "http://127.0.0.1:{port}/"'
    kinds = [(version, f"{url}, WebSocket") for version in ALL] + [(version, url) for version in OWN]
    async with AsyncExitStack() as stack:
        running = [
            await stack.enter_async_context(program(nodes, module, version, options, FOLLOW))
            for version, options in kinds
        ]
        for _ in range(2):
            for process in running:
                assert (await shown(process, "waiting"))[0][0] == "connecting"
        api = await stack.enter_async_context(
            running_api(module / "data", http={"host": "127.0.0.1", "port": port, "max_connections": 128})
        )
        for process in running:
            states = [state for state, _ in await shown(process, "open")]
            assert set(states) == {"connecting", "waiting", "open"} or states == ["connecting", "open"]
        api.open_call("c1")
        for digit in "1#":
            api.hub.publish("c1", 100, Dtmf("inbound", digit, 80))
        for process in running:
            assert await shown(process, "closed") == [["1", None], ["#", None], ["closed", None]]
            async with timeout(20):
                assert await process.wait() == 0
                assert await process.stderr.read() == b"", "nothing is left that holds the process or complains"


async def test_a_network_that_hangs_is_survived(nodes: Path, module: Path) -> None:
    """What is asked while it hangs is never answered, also when the network is back: neither the WebSocket nor the
    request that asks why there is none may be waited for without an end."""
    async with (
        running_api(module / "data") as api,
        CuttingProxy(api.server.port) as ours,
        CuttingProxy(api.server.port) as theirs,
        program(nodes, module, 24, f'url: "http://127.0.0.1:{ours.port}/"', FOLLOW) as own,
        program(nodes, module, 18, f'url: "http://127.0.0.1:{theirs.port}/", WebSocket', FOLLOW) as with_ws,
    ):
        both = ((own, ours), (with_ws, theirs))
        for process, proxy in both:
            await shown(process, "open")
            proxy.swallows = True
            proxy.cut()
            await shown(process, "connecting")
        for _, proxy in both:
            await eventually(lambda proxy=proxy: proxy.connections == 2, 15)
            proxy.cut()  # it asks why
            await eventually(lambda proxy=proxy: proxy.connections == 3, 15)
            proxy.swallows = False
        api.open_call("c1")
        for process, _ in both:
            assert [state for state, _ in await shown(process, "open")] == ["waiting", "connecting", "open"]
        api.hub.publish("c1", 100, Dtmf("inbound", "#", 80))
        for process, _ in both:
            assert await shown(process, "closed") == [["#", None], ["closed", None]]


@pytest.mark.parametrize("version", [18, 24])
async def test_no_answer_is_waited_for_for_ever(nodes: Path, module: Path, version: int) -> None:
    """Neither its beginning nor its end; and the deadline of an answer that has come holds no process."""
    script = """
const show = (what) => console.log(JSON.stringify(what));
const refused = ({ name, message }) => show([name, message]);
await client.request("v1/calls", { timeoutMs: 200 }).catch(refused);
await client.request("v1/half", { timeoutMs: 200 }).then((answer) => answer.json()).catch(refused);
show(await client.request("v1/whole").then((answer) => answer.json()));
const deaf = new Client({ url: client.url.href, fetch: () => new Promise(() => {}) });
await deaf.request("v1/calls", { timeoutMs: 200 }).catch(refused);
show(["end"]);
"""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await reader.read(4096)
        if b"whole" in request or b"half" in request:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 7\r\n\r\n[1,")
            writer.write(b"2,3]" if b"whole" in request else b"")
        await reader.read()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with (
        server,
        program(nodes, module, version, f'url: "http://127.0.0.1:{port}/", WebSocket', script) as process,
    ):
        late = ["TypeError", "the worker has not answered within 0.2 s"]
        first, half, *rest = await shown(process, "end")
        assert first == late and half[0] in ("TypeError", "AbortError")  # the latter in Node 18
        assert rest == [[1, 2, 3], late, ["end"]]
        async with timeout(20):
            assert await process.wait() == 0


async def test_a_line_that_dies_is_noticed_before_a_minute_is_over(nodes: Path, module: Path) -> None:
    """The worker's heartbeats stop; no event, and no other sign of life, is awaited from it."""
    follow = FOLLOW.replace("client.events({", "client.events({ heartbeatS: 1,")
    async with running_api(module / "data") as api, CuttingProxy(api.server.port) as proxy:
        options = f'url: "http://127.0.0.1:{proxy.port}/", WebSocket: {SEEN}'
        async with program(nodes, module, 24, options, follow) as process:
            await shown(process, "heartbeat")
            proxy.answers.clear()
            lines = await shown(process, "connecting")
            assert {state for state, _ in lines} <= {"heartbeat", "connecting"}
            proxy.answers.set()
            await shown(process, "open")


async def test_a_stream_closed_before_it_is_open_ends_no_process(nodes: Path, module: Path) -> None:
    """`ws` reports a connection that is given up as an error."""
    options = f'url: "http://127.0.0.1:{ports(1)[0]}/", WebSocket'
    for version in (18, 24):
        async with program(nodes, module, version, options, "client.events().close();") as process:
            _, errors = await process.communicate()
            assert process.returncode == 0, errors.decode()


@pytest.mark.parametrize("version", sorted({*ALL} - {*OWN}))
async def test_a_node_without_a_websocket_says_what_to_give(nodes: Path, module: Path, version: int) -> None:
    script = "try { client.events(); } catch (error) { console.log(error.name, error.message); }"
    async with program(nodes, module, version, 'url: "https://w.example/mw/", key: "k-1"', script) as process:
        output, errors = await process.communicate()
        assert process.returncode == 0, errors.decode()
        assert output.decode().startswith("TypeError there is no WebSocket here") and "`ws`" in output.decode()


async def test_the_socket_that_is_opened(nodes: Path, module: Path) -> None:
    script = (
        "class Socket { constructor(...of) { console.log(JSON.stringify(of)); } close() {} }\n"
        'new Client({ url: "https://w.example/mw/", key: "k-1", WebSocket: Socket })'
        '.events({ after: "s:1" }).close();'
    )
    async with program(nodes, module, 18, 'url: "http://w.example"', script) as process:
        output, errors = await process.communicate()
        assert process.returncode == 0, errors.decode()
        assert json.loads(output) == ["wss://w.example/mw/v1/events?call=*&after=s%3A1", ["bearer", "k-1"]]
