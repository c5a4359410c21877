"""An engine server over its lives: one that ends by a fault of ours, and a connection that cannot be made."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

from asr import messages
from asr.client.engine_health import ProcessRestarts
from asr.client.engine_server import EngineServer, EngineUser
from asr.client.link import ClientLink, Watchdog
from asr.client.link_shell import EngineConnection, LinkShell, ServerAddress
from asr.client.outstanding import EngineQueue, OutstandingWork
from asr.client.spill import Spill
from config.certificates import client_context
from config.sections.cluster import Cluster
from lab.patience import wait_for


async def test_a_certificate_that_is_half_written_is_a_reason(tmp_path: Path) -> None:
    """Renewed at the wrong moment, it is read again with the next connection."""
    half = tmp_path / "half.pem"
    half.write_text("-----BEGIN CERT")
    cluster = Cluster(tls_cert=str(half), tls_key=str(half), tls_ca=str(half))
    connection = EngineConnection(
        ServerAddress("127.0.0.1", 9, "localhost", True), Nobody(), worker="w", token="",
        context=lambda: client_context(cluster), accepts=lambda welcome: "", timeout_s=5.0,
    )  # fmt: skip
    assert "half.pem" in await connection.run()


class Nobody:
    needed = True

    def next_message(self) -> None:
        return None

    def on_message(self, message: messages.FromEngine) -> None:
        raise AssertionError("nobody is connected")


class Failing(LinkShell):
    """A life that ends by a fault, once."""

    lives = 0

    async def run(self) -> str:
        Failing.lives += 1
        raise RuntimeError("what nobody has thought of")


class AtOnce(ProcessRestarts):
    backoff_s = 0.0


async def test_a_server_whose_life_ends_by_a_fault_is_begun_again() -> None:
    class Watching:
        needed, relays = True, False

        def add_user(self, server: EngineServer, *, shared: bool) -> EngineQueue:
            return work.add_queue(server.name, shared=shared)

        def remove_user(self, user: EngineUser) -> None: ...

        def on_state(self, reason: str, last_end: str) -> None:
            if Failing.lives == 3:
                over.set()

        def on_ready(self, server: EngineServer, ready: messages.EngineReady) -> None: ...
        def deliver(self) -> None: ...
        def deliver_soon(self) -> None: ...

    over, spill = asyncio.Event(), Spill(tempfile.gettempdir(), max_bytes=0)
    work = OutstandingWork(max_bytes=1000, spill=spill)

    def begin(server: EngineServer) -> LinkShell:
        return Failing(ClientLink(server, messages.Ping(), Watchdog(hang_s=1.0, start_s=1.0)), server)

    server = EngineServer("s", "engine server", begin, Watching(), AtOnce())
    server.want()
    running = asyncio.create_task(server.run("idle"))
    await wait_for(over.wait(), 20)
    assert "what nobody has thought of" in server.last_end and not running.done()
    running.cancel()
