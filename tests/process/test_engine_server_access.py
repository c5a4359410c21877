"""Who an engine server lets in, by token, by certificate and by version, and what it does to those that misbehave."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from asr import messages
from asr.client.recognizer import EngineStatus
from config import ConfigError, framing
from config.load import parse
from config.sections.section import Secret
from config.settings import Cluster
from lab.engine.listener import LISTENER, LISTENER_PATH, words
from lab.engine.recognizer import PROMPT, client, codes
from lab.network.authority import Authority, Pair
from lab.patience import seconds, timeout, until
from lab.worker.engine_server_clients import finals, ready, say
from lab.worker.engine_servers import TOKEN, Server, engine_server, shared
from lab.worker.peers import command
from mediaworker.engine_service import EngineService

WORDS = " ".join(words(codes(PROMPT)))
HELLO = messages.Hello(messages.PROTOCOL, "a peer", TOKEN)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with engine_server(tmp_path_factory.mktemp("server"), LISTENER_PATH, **LISTENER) as running:
        yield running


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> tuple[Authority, Authority]:
    """The cluster's authority, and somebody else's."""
    folder = tmp_path_factory.mktemp("pki")
    return Authority(folder, "cluster"), Authority(folder, "stranger")


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory, pki: tuple[Authority, Authority]) -> Iterator[Server]:
    """A server that wants certificates."""
    own = pki[0].issue("engine", "DNS:localhost", "IP:127.0.0.1", use="serverAuth")
    files = {"CERT": own.cert, "KEY": own.key, "CA": pki[0].cert}
    environ = LISTENER | {f"CLUSTER__TLS_{key}": str(path) for key, path in files.items()}
    with engine_server(tmp_path_factory.mktemp("locked"), LISTENER_PATH, **environ, CLUSTER__TOKEN="") as running:
        yield running


def cluster(pair: Pair, ca: Authority) -> Cluster:
    return Cluster(tls_cert=str(pair.cert), tls_key=str(pair.key), tls_ca=str(ca.cert))


def refused(server: Server) -> float:
    return server.metric("mediaworker_engine_server_refused_total")


async def answered(server: Server, *frames: bytes, context: ssl.SSLContext | None = None) -> list[messages.FromEngine]:
    """All that the server says to these, until it closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port, ssl=context)
    found: list[messages.FromEngine] = []
    with contextlib.suppress(OSError):
        cut = framing.Frames()
        async with timeout(20):
            for frame in frames[:-1]:
                writer.write(frame)
                found += map(messages.decode_from_engine, cut.feed(await reader.read(65536)))
            writer.write(frames[-1])
            while data := await reader.read(65536):
                found += map(messages.decode_from_engine, cut.feed(data))
    writer.transport.abort()
    return found


# -- a token -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sent",
    [
        framing.encode(messages.Hello(messages.PROTOCOL, "a peer", "another")),
        framing.encode(messages.Hello(messages.PROTOCOL, "a peer")),
        framing.encode(messages.Ping()),
        b"GET / HTTP/1.1\r\nHost: engines\r\n\r\n",
        b"\x00\x00\x00\x05hello",
        random.Random(21).randbytes(5000),
        b"\x00",
        b"",
    ],
    ids=["another token", "no token", "no greeting", "HTTP", "no message", "noise", "a part", "nothing"],
)
async def test_who_does_not_know_the_token_is_told_nothing(server: Server, sent: bytes) -> None:
    before = refused(server)
    assert await answered(server, sent) == []
    until(lambda: refused(server) == before + 1)


async def test_a_silent_stranger_does_not_keep_workers_out(server: Server) -> None:
    """A hundred connections of one address that say nothing; a worker of another one is let in at once."""
    before = refused(server)
    with contextlib.ExitStack() as stack:
        for _ in range(100):
            strange = stack.enter_context(
                socket.create_connection(("127.0.0.1", server.port), seconds(20), ("127.0.0.9", 0))
            )
            strange.settimeout(seconds(20))
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(framing.encode(HELLO))
        cut, told = framing.Frames(), list[messages.FromEngine]()
        async with timeout(20):
            while not any(isinstance(each, messages.Welcome) for each in told):
                assert (data := await reader.read(65536)), "turned away"
                told += map(messages.decode_from_engine, cut.feed(data))
        writer.transport.abort()
        until(lambda: refused(server) - before >= 100 - 16 and "of this address" in server.log.read_text())


async def test_another_version_is_a_sentence_on_both_sides(server: Server) -> None:
    (only,) = await answered(server, framing.encode(messages.Hello(messages.PROTOCOL + 1, "from the future", "")))
    assert isinstance(only, messages.Refused)
    why = "it speaks version 2 of the protocol between workers and engine servers, and this server version 1"
    assert only.reason == why and why in server.log.read_text()


async def test_a_worker_is_told_that_the_server_speaks_another_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server of a version to come, which says so in its greeting."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1000)
        writer.write(framing.encode(messages.Welcome(messages.PROTOCOL + 1, "new", "moonshine", "", ("en",))))
        await reader.read()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1") as listening:
        port = listening.sockets[0].getsockname()[1]
        async with client(shared(f"tcp://127.0.0.1:{port}")) as c:
            c.recognizer.keep_alive(True)
            await c.until(lambda: c.recognizer.state is EngineStatus.FAILED)
            assert c.reasons[-1] == (
                "it speaks version 2 of the protocol between workers and engine servers, and this worker version 1"
            )


async def test_a_wrong_token_is_a_reason_that_a_person_can_act_on(server: Server) -> None:
    settings = shared(server, cluster=Cluster(token=Secret("another")))
    async with client(settings) as c:
        c.recognizer.keep_alive(True)
        await c.until(lambda: c.recognizer.servers and c.recognizer.servers[0].last_end)
        assert c.recognizer.servers[0].last_end == (
            "the server has closed the connection without a word: it trusts neither certificate nor token"
        )
        assert c.recognizer.counters.crashes == 0, "there was no engine that could be lost"


# -- certificates ------------------------------------------------------------------------------------------------------


async def test_both_sides_show_a_certificate(locked: Server, pki: tuple[Authority, Authority]) -> None:
    own, _ = pki
    worker = cluster(own.issue("worker", use="clientAuth"), own)
    for name in ("localhost", "127.0.0.1"):
        async with client(shared(f"tcp://{name}:{locked.port}", cluster=worker)) as c:
            c.recognizer.keep_alive(True)
            await c.until(lambda c=c: ready(c) == 1)
            assert await finals(c, [say(c, "leg", 1)]) == [WORDS]


async def test_a_certificate_is_a_workers_or_an_engine_servers(
    locked: Server, pki: tuple[Authority, Authority], tmp_path: Path
) -> None:
    """By its extended key usage; what has none can be both for now, and both sides warn of it."""
    own, _ = pki
    names = ("DNS:localhost", "IP:127.0.0.1")
    kinds = {use: own.issue(f"is-{use or 'anything'}", *names, use=use) for use in ("serverAuth", "clientAuth", "")}
    context = ssl.create_default_context(cafile=str(own.cert))
    context.load_cert_chain(kinds["serverAuth"].cert, kinds["serverAuth"].key)
    assert await answered(locked, framing.encode(HELLO), context=context) == [], "an engine server is no worker"
    until(lambda: "TLS: unsuitable certificate purpose" in locked.log.read_text())
    for use, why in (("clientAuth", "unsuitable certificate purpose"), ("", "")):
        files = {"CERT": kinds[use].cert, "KEY": kinds[use].key, "CA": own.cert}
        environ = LISTENER | {f"CLUSTER__TLS_{key}": str(path) for key, path in files.items()}
        (tmp_path / use).mkdir(exist_ok=True)
        with engine_server(tmp_path / use, LISTENER_PATH, **environ, CLUSTER__TOKEN="") as running:
            assert ("has no extended key usage" in running.log.read_text()) is not bool(use)
            async with client(shared(running, cluster=cluster(kinds[""], own))) as c:
                c.recognizer.keep_alive(True)
                await c.until(lambda c=c: ready(c) or (c.recognizer.servers and c.recognizer.servers[0].last_end))
                assert why in str(c.recognizer.servers[0].last_end) and bool(ready(c)) is not bool(use)


async def test_nobody_without_a_certificate_is_answered(locked: Server, pki: tuple[Authority, Authority]) -> None:
    own, stranger = pki
    before, hello = refused(locked), framing.encode(HELLO)
    trusting = ssl.create_default_context(cafile=str(own.cert))
    foreign = ssl.create_default_context(cafile=str(own.cert))
    pair = stranger.issue("worker")
    foreign.load_cert_chain(pair.cert, pair.key)
    old = ssl.create_default_context(cafile=str(own.cert))
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    pair = own.issue("old")
    old.load_cert_chain(pair.cert, pair.key)
    for context in (None, trusting, foreign):
        assert await answered(locked, hello, context=context) == []
    with pytest.raises(OSError):
        await answered(locked, hello, context=old)
    until(lambda: refused(locked) == before + 4 and "TLS: " in locked.log.read_text())


async def test_a_server_of_another_authority_or_name_is_not_trusted(
    locked: Server, pki: tuple[Authority, Authority], tmp_path: Path
) -> None:
    own, stranger = pki
    pair = own.issue("worker")
    untrusting = shared(locked, cluster=cluster(pair, stranger))
    other = own.issue("elsewhere", "DNS:elsewhere.test")
    files = {"CERT": other.cert, "KEY": other.key, "CA": own.cert}
    environ = LISTENER | {f"CLUSTER__TLS_{key}": str(path) for key, path in files.items()}
    with engine_server(tmp_path, LISTENER_PATH, **environ, CLUSTER__TOKEN="") as misnamed:
        for settings, why in [
            (untrusting, "self-signed certificate in certificate chain|unable to get local issuer certificate"),
            (shared(misnamed, cluster=cluster(pair, own)), "IP address mismatch"),
        ]:
            async with client(settings) as c:
                c.recognizer.keep_alive(True)
                await c.until(lambda c=c: c.recognizer.servers and c.recognizer.servers[0].last_end)
                end = c.recognizer.servers[0].last_end
                assert "the server's certificate is not trusted: " in end
                assert any(part in end for part in why.split("|")), end


def test_what_is_not_safe_does_not_start(tmp_path: Path) -> None:
    for environ, why in [
        ({"CLUSTER__TOKEN": "x"}, "cluster.tls_cert: is required with asr.listen = 'tcp://0.0.0.0:9095'"),
        ({}, "cluster.token"),
        ({"CLUSTER__TOKEN": "x", "ASR__SERVERS": '["tcp://127.0.0.1:1"]'}, "an engine server has its engine itself"),
    ]:
        address = "tcp://0.0.0.0:9095" if "0.0.0.0" in why else "tcp://127.0.0.1:9095"
        done = command("engine", "--listen", address, DATA_DIR=str(tmp_path), **environ)
        assert done.returncode == 2 and why in done.stderr, done.stderr
    for address in ("127.0.0.1:9095", "tcp://127.0.0.1", "http://127.0.0.1:9095", "tcp://127.0.0.1:99999"):
        with pytest.raises(ConfigError, match="tcp://HOST:PORT"):
            parse({"asr": {"listen": address}, "cluster": {"token": "x"}})
    with pytest.raises(ConfigError, match="an engine server has its engine itself"):
        EngineService(shared("tcp://127.0.0.1:1"))


# -- misbehaviour ------------------------------------------------------------------------------------------------------


async def test_a_worker_that_makes_no_sense_is_cut_off_and_the_others_notice_nothing(server: Server) -> None:
    async with client(shared(server)) as c:
        c.recognizer.keep_alive(True)
        await c.until(lambda: ready(c) == 1)
        for message, why in [
            (messages.Hello(messages.PROTOCOL), "a greeting in the middle of a connection"),
            (b"\x00\x00\x00\x01\xc0", ""),
            (b"\xff\xff\xff\xff", "frame of 4294967295 bytes"),
        ]:
            frame = message if isinstance(message, bytes) else framing.encode(message)
            before = server.metric("mediaworker_engine_server_violations_total")
            *_, last = await answered(server, framing.encode(HELLO), frame)
            assert isinstance(last, messages.Refused) and why in last.reason
            until(lambda before=before: server.metric("mediaworker_engine_server_violations_total") == before + 1)
        assert await finals(c, [say(c, "leg", 1)]) == [WORDS] and c.recognizer.counters.crashes == 0


async def test_connections_that_say_nothing_do_not_keep_others_out(server: Server) -> None:
    idle = []
    for _ in range(100):
        each = socket.create_connection(("127.0.0.1", server.port))
        idle.append(each)
    try:
        async with client(shared(server)) as c:
            c.recognizer.keep_alive(True)
            await c.until(lambda: ready(c) == 1)
    finally:
        for each in idle:
            each.close()
