"""An engine server over its lives: one that ends by a fault of ours, and a connection that cannot be made."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from asr import messages
from asr.client.engine_health import ProcessRestarts
from asr.client.engine_server import EngineServer
from asr.client.link import EngineLink
from asr.client.recognizer import Recognizer
from asr.utterance import EngineStatus
from config.sections.cluster import Cluster
from config.settings import Asr, Settings
from lab.patience import wait_for


def until(reached: Callable[[EngineStatus, str], bool]) -> tuple[Callable[[EngineStatus, str], None], asyncio.Event]:
    """-> a recognizer's `on_state`, and what it sets at the state that is waited for."""
    over = asyncio.Event()
    return lambda state, reason: over.set() if reached(state, reason) else None, over


async def test_a_certificate_that_is_half_written_is_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Renewed at the wrong moment, it is read again with the next connection."""
    monkeypatch.setattr("asr.client.engine_health.AWAY_S", 0.0)
    half = tmp_path / "half.pem"
    half.write_text("-----BEGIN CERT")
    cluster = Cluster(tls_cert=str(half), tls_key=str(half), tls_ca=str(half))
    on_state, over = until(lambda state, reason: state is EngineStatus.FAILED and "half.pem" in reason)
    recognizer = Recognizer(Settings(asr=Asr(servers=("tcp://127.0.0.1:9",)), cluster=cluster), on_state=on_state)
    await recognizer.start()
    try:
        await wait_for(over.wait(), 20)
    finally:
        await recognizer.stop()


class Failing(EngineServer):
    """A server whose lives end by a fault."""

    lives = 0

    def _new_link(self) -> EngineLink:
        return EngineLink(messages.Ping(), hang_s=1.0, start_s=1.0)

    async def _live(self, link: EngineLink) -> str:
        self.lives += 1
        raise RuntimeError("what nobody has thought of")


class AtOnce(ProcessRestarts):
    def on_death(self, link: EngineLink, now_s: float, *, blamed: bool) -> None:
        super().on_death(link, now_s, blamed=blamed)
        self.backoff_s = 0.0


async def test_a_server_whose_life_ends_by_a_fault_is_begun_again() -> None:
    on_state, over = until(lambda state, reason: state is EngineStatus.FAILED)
    recognizer = Recognizer(Settings(asr=Asr(engine="moonshine")), on_state=on_state)
    server = Failing("s", recognizer, AtOnce())
    recognizer._pool.servers = [server]  # type: ignore[union-attr]
    server.want()
    server.start("idle")
    await wait_for(over.wait(), 20)
    assert server.lives >= 3 and "what nobody has thought of" in server.last_end
    assert server.running is not None and not server.running.done()
    server.running.cancel()
