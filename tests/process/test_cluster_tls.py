"""The link to NATS: TLS that was asked for is TLS, whoever answers, and a renewed certificate is used."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from config import ConfigError, Settings
from config.load import parse
from config.settings import Cluster
from lab.network.authority import Authority, Pair, stunnel
from lab.network.cutting_proxy import CuttingProxy
from lab.network.nats_servers import nats
from lab.network.ports import free_port
from lab.patience import eventually
from mediaworker.cluster.connection import PLAIN, NatsConnection

# The client of NATS leaves the sockets of attempts that have failed to the collector.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
PASSWORD = "a-password-of-nats"
AUTHORIZED = ("--user", "worker", "--pass", PASSWORD)


def settings(folder: Path, port: int, authority: Authority, **more: object) -> Cluster:
    pair = Pair(folder / "own.pem", folder / "own.key")
    issued = authority.issue("worker", "DNS:localhost", use="clientAuth")
    shutil.copy(issued.cert, pair.cert)
    shutil.copy(issued.key, pair.key)
    shutil.copy(authority.cert, folder / "ca.pem")
    found = {
        "nats": [f"tls://localhost:{port}"], "replicas": 1, "tls_cert": str(pair.cert), "tls_key": str(pair.key),
        "tls_ca": str(folder / "ca.pem"), **more,
    }  # fmt: skip
    return parse({"cluster": found}).cluster


@contextlib.asynccontextmanager
async def connecting(cluster: Cluster) -> AsyncIterator[NatsConnection]:
    async def on_ready() -> None:
        await connection.stream_id()

    connection = NatsConnection(cluster, worker="test", on_ready=on_ready)
    connection.start()
    try:
        yield connection
    finally:
        await connection.stop()


@pytest.mark.parametrize("options", [AUTHORIZED, ()], ids=["asks for a password", "asks for nothing"])
async def test_a_server_that_does_not_encrypt_is_told_nothing(tmp_path: Path, options: tuple[str, ...]) -> None:
    with nats(tmp_path / "nats", options=options) as (plain,):
        async with CuttingProxy(plain.port, listens=True) as proxy:
            cluster = settings(tmp_path, proxy.port, Authority(tmp_path), nats_user="worker", nats_password=PASSWORD)
            async with connecting(cluster) as connection:
                await eventually(lambda: PLAIN in connection.trouble)
            assert not told(proxy)


def told(proxy: CuttingProxy) -> bool:
    """Whether the password has come by, or a message."""
    assert proxy.said
    return any(PASSWORD.encode() in each or b"PUB" in each for each in proxy.said)


async def test_a_server_that_takes_over_and_does_not_encrypt_is_refused(tmp_path: Path) -> None:
    """The first one ends, and another is there: the password does not come to it."""
    authority = Authority(tmp_path)
    server = authority.issue("nats", "DNS:localhost", use="serverAuth")
    tls = ("--tls", "--tlscert", str(server.cert), "--tlskey", str(server.key))
    with nats(tmp_path / "nats", options=(*AUTHORIZED, *tls)) as (good,):
        async with CuttingProxy(good.port, listens=True) as proxy:
            cluster = settings(tmp_path, proxy.port, authority, nats_user="worker", nats_password=PASSWORD)
            async with connecting(cluster) as connection:
                await eventually(lambda: not connection.trouble)
                good.kill()
                good.command = [each for each in good.command if each not in tls]
                good.start_again()
                before = len(proxy.said or ())
                await eventually(lambda: len(proxy.said or ()) >= before + 3)
                assert connection.trouble
                good.kill()
                good.command += tls
                good.start_again()
                await eventually(lambda: not connection.trouble)
            assert not told(proxy)


async def test_a_renewed_certificate_is_used_by_the_next_connection(tmp_path: Path) -> None:
    """Each side shows another authority's now: what was loaded at the start would be refused."""
    old, new = Authority(tmp_path, "old"), Authority(tmp_path, "new")
    options = {
        authority: (
            "--tlsverify",
            "--tlscert",
            str(pair.cert),
            "--tlskey",
            str(pair.key),
            "--tlscacert",
            str(authority.cert),
        )
        for authority in (old, new)
        for pair in [authority.issue("nats", "DNS:localhost")]
    }
    with nats(tmp_path / "nats", options=options[old]) as (server,):
        cluster = settings(tmp_path, server.port, old)
        async with connecting(cluster) as connection:
            await eventually(lambda: not connection.trouble)
            server.kill()
            server.command = [*server.command[: -len(options[old])], *options[new]]
            server.start_again()
            renewed = settings(tmp_path, server.port, new)
            (tmp_path / "own.key").write_text("half of it")
            for refuses in (connection.check, connection.use):
                with pytest.raises(ConfigError):
                    refuses(Settings(cluster=renewed))
            renewed = settings(tmp_path, server.port, new)
            connection.check(Settings(cluster=renewed))
            connection.use(Settings(cluster=renewed))
            await eventually(lambda: not connection.trouble)


async def test_tls_before_the_greeting(tmp_path: Path) -> None:
    authority, port = Authority(tmp_path), free_port()
    pair = authority.issue("nats", "DNS:localhost", use="serverAuth")
    with nats(tmp_path / "nats", options=AUTHORIZED) as (plain,), stunnel(tmp_path, port, plain.port, pair):
        more = {"nats_user": "worker", "nats_password": PASSWORD}
        async with connecting(settings(tmp_path, port, authority, nats_tls_first=True, **more)) as connection:
            await eventually(lambda: not connection.trouble)
        async with CuttingProxy(plain.port, listens=True) as proxy:
            cluster = settings(tmp_path, proxy.port, authority, nats_tls_first=True, **more)
            async with connecting(cluster) as connection:
                await eventually(lambda: "cannot be reached" in connection.trouble)
            assert {bytes(each[:1]) for each in proxy.said or ()} == {b"\x16"}, "the beginning of a handshake"
