"""Who an engine server lets in, by token, by certificate and by version, and what it does to those that misbehave."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from asr import messages
from asr.client.recognizer import EngineStatus
from asr.greeting import NONCE_BYTES, Greeting
from config import ConfigError
from config.load import parse
from config.process import framing
from config.sections.section import Secret
from config.settings import Cluster
from lab.engine.listener import LISTENER, LISTENER_PATH, words
from lab.engine.recognizer import PROMPT, client, codes
from lab.network.authority import Authority, Pair
from lab.network.ports import ports
from lab.patience import seconds, timeout, until
from lab.worker.engine_server_clients import finals, ready, say
from lab.worker.engine_servers import TOKEN, Server, engine_server, shared
from lab.worker.peers import command
from mediaworker.service.engine import EngineService

WORDS = " ".join(words(codes(PROMPT)))
HELLO = messages.WorkerHello(messages.PROTOCOL, "a peer")
"""Behind TLS."""
NONCE = bytes(range(NONCE_BYTES))
KNOCK = framing.encode(messages.WorkerHello(messages.TOKEN_PROTOCOL, "a peer", NONCE))


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
        framing.encode(messages.Ping()),
        framing.encode(messages.Proof(bytes(32))),
        framing.encode(messages.Challenge(NONCE)),
        (5000).to_bytes(4, "big"),
        b"GET / HTTP/1.1\r\nHost: engines\r\n\r\n",
        b"\x00\x00\x00\x05hello",
        random.Random(21).randbytes(5000),
        b"\x00",
        b"",
    ],
    ids=["no greeting", "a proof", "a challenge", "too much", "HTTP", "no message", "noise", "a part", "nothing"],
)
async def test_who_does_not_know_the_token_is_told_nothing(server: Server, sent: bytes) -> None:
    before = refused(server)
    assert await answered(server, sent) == []
    until(lambda: refused(server) == before + 1)


@pytest.mark.parametrize(
    ("hello", "answer"),
    [
        (KNOCK, framing.encode(messages.Proof(bytes(32)))),
        (KNOCK, framing.encode(messages.Proof(b""))),
        (KNOCK, framing.encode(messages.Ping())),
        (KNOCK, framing.encode(messages.WorkerHello(messages.TOKEN_PROTOCOL, "a peer", NONCE))),
        (
            framing.encode(messages.WorkerHello(messages.TOKEN_PROTOCOL, "a peer")),
            framing.encode(messages.Proof(bytes(32))),
        ),
    ],
    ids=["another token", "no proof", "a ping", "again", "no nonce"],
)
async def test_who_proves_nothing_is_told_a_nonce_and_nothing_else(server: Server, hello: bytes, answer: bytes) -> None:
    before = refused(server)
    (only,) = await answered(server, hello, answer)
    assert isinstance(only, messages.Challenge) and len(only.nonce) == NONCE_BYTES
    until(lambda: refused(server) == before + 1)


async def greeted(
    server: Server, token: str = TOKEN, worker: tuple[str, int] | None = None
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection of a worker that knows the token. Raises EOFError, OSError: it was not let in."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    try:
        async with timeout(20):
            writer.write(KNOCK)
            challenge = await next_message(reader)
            assert isinstance(challenge, messages.Challenge)
            ends = worker or writer.get_extra_info("sockname"), writer.get_extra_info("peername")
            known = Greeting(token, NONCE, challenge.nonce, *ends)
            writer.write(framing.encode(messages.Proof(known.proof("worker"))))
            welcome = await next_message(reader)
            assert isinstance(welcome, messages.Welcome) and known.proves("server", welcome.proof)
            assert not known.proves("worker", welcome.proof), "no proof can be sent back"
            return reader, writer
    except BaseException:
        writer.transport.abort()
        raise


async def let_in(server: Server, *arguments: Any) -> bool:
    try:
        _, writer = await greeted(server, *arguments)
    except (EOFError, OSError):
        return False
    writer.transport.abort()
    return True


async def next_message(reader: asyncio.StreamReader) -> messages.FromEngine:
    size = int.from_bytes(await reader.readexactly(4), "big")
    return messages.decode_from_engine(await reader.readexactly(size))


async def test_a_proof_holds_for_its_token_and_its_connection_alone(server: Server) -> None:
    assert await let_in(server)
    assert not await let_in(server, TOKEN + "x")
    assert not await let_in(server, TOKEN, ("127.0.0.1", 9))


@pytest.mark.parametrize("kind", ["silent", "old", "guesses", "relays", "talks"])
async def test_whoever_listens_in_the_servers_stead_gets_neither_token_nor_audio(server: Server, kind: str) -> None:
    """It has bound the port first. It has a real server to ask, and nothing of what it is told helps it there."""
    heard, told = bytearray(), list[bytes]()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        match kind:
            case "old":  # as a server of version 1 greets
                writer.write(framing.encode(messages.Welcome(1, "mine", "listener", "", ("en",))))
            case "guesses":
                writer.write(framing.encode(messages.Challenge(NONCE)))
                writer.write(framing.encode(messages.Welcome(2, "mine", "listener", "", ("en",), bytes(32))))
            case "talks":
                writer.write((1 << 20).to_bytes(4, "big") + bytes(1 << 20))
        theirs = await asyncio.open_connection("127.0.0.1", server.port) if kind == "relays" else None
        with contextlib.suppress(OSError):
            if theirs is not None:
                back = asyncio.create_task(_copy(theirs[0], writer, told))
            while data := await reader.read(65536):
                heard.extend(data)
                if theirs is not None:
                    theirs[1].write(data)
            if theirs is not None:
                back.cancel()
                theirs[1].close()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1") as listening:
        port = listening.sockets[0].getsockname()[1]
        async with client(shared(f"tcp://127.0.0.1:{port}", timeout_s=seconds(1.0))) as c:
            c.recognizer.keep_alive(True)
            say(c, "leg", 1)
            await c.until(lambda: c.recognizer.servers and c.recognizer.servers[0].last_end)
            assert ready(c) == 0
    assert TOKEN.encode() not in heard and 0 < len(heard) < 1000, "a name, a nonce, a proof"
    assert b"append" not in heard and b"open" not in heard


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, told: list[bytes]) -> None:
    while data := await reader.read(65536):
        told.append(data)
        writer.write(data)


async def test_a_silent_stranger_does_not_keep_workers_out(server: Server) -> None:
    """Hundreds of connections that say nothing, of one address, of many, and of the worker's own; a worker is let in at
    once, and they are cut off."""
    for hosts in (["127.0.0.9"], [f"127.0.0.{last}" for last in range(10, 30)], ["127.0.0.1"]):
        before = refused(server)
        with contextlib.ExitStack() as stack:
            for number in range(200):
                source = (hosts[number % len(hosts)], 0)
                stack.enter_context(socket.create_connection(("127.0.0.1", server.port), seconds(20), source))
            assert await let_in(server), hosts
            most = 64 if len(hosts) > 1 else 16
            until(lambda before=before, most=most: refused(server) - before >= 200 - most)
    assert "of this address" in server.log.read_text()


async def test_another_version_is_a_sentence_on_both_sides(server: Server) -> None:
    for version in (messages.PROTOCOL, messages.TOKEN_PROTOCOL + 1):  # version 1 came with the token in clear
        hello = {"type": "hello", "version": version, "worker": "of another time", "token": TOKEN}
        body = msgspec.msgpack.encode(hello)
        (only,) = await answered(server, len(body).to_bytes(4, "big") + body)
        assert isinstance(only, messages.Refused)
        why = (
            f"it speaks version {version} of the protocol between workers and engine servers, and this server version 3"
        )
        assert only.reason == why and why in server.log.read_text()


OTHER_WELCOME = messages.Welcome(messages.TOKEN_PROTOCOL + 1, "new", "moonshine", "", ("en",))
OTHER_REFUSAL = messages.Refused("it speaks version 2, and this server version 1")


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (
            OTHER_WELCOME,
            "it speaks version 4 of the protocol between workers and engine servers, and this worker version 3",
        ),
        (OTHER_REFUSAL, f"it refuses this worker: {OTHER_REFUSAL.reason}"),
    ],
    ids=["newer", "older"],
)
async def test_a_worker_is_told_that_the_server_speaks_another_version(
    answer: messages.FromEngine, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is away as long as one that is not reached: it may be about to be upgraded."""
    monkeypatch.setattr("asr.client.engine_health.AWAY_S", 1.0)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1000)
        writer.write(framing.encode(answer))
        await reader.read()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1") as listening:
        port = listening.sockets[0].getsockname()[1]
        async with client(shared(f"tcp://127.0.0.1:{port}")) as c:
            c.recognizer.keep_alive(True)
            await c.until(lambda: c.recognizer.servers and c.recognizer.servers[0].last_end)
            assert c.recognizer.servers[0].last_end == reason
            await c.until(lambda: c.recognizer.state is EngineStatus.FAILED)
            assert reason in c.reasons[-1]


@pytest.mark.parametrize("answer", [OTHER_WELCOME, OTHER_REFUSAL], ids=["newer", "older"])
async def test_an_upgrade_of_the_only_server_loses_no_final(answer: messages.FromEngine, tmp_path: Path) -> None:
    """The worker keeps the audio, and comes again until the server speaks its version."""
    (port,) = ports(1)
    refusals = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal refusals
        refusals += 1
        await reader.read(1000)
        writer.write(framing.encode(answer))
        await reader.read()
        writer.close()

    async with client(shared(f"tcp://127.0.0.1:{port}")) as c:
        async with await asyncio.start_server(serve, "127.0.0.1", port):
            c.recognizer.keep_alive(True)
            names = [say(c, "leg", number) for number in range(3)]
            await c.until(lambda: refusals >= 3)
        with engine_server(tmp_path, LISTENER_PATH, port=port, **LISTENER):
            assert await finals(c, names) == [WORDS] * 3
        assert c.recognizer.counters.crashes == 0


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
            (messages.WorkerHello(messages.PROTOCOL), "a greeting in the middle of a connection"),
            (b"\x00\x00\x00\x01\xc0", ""),
            (b"\xff\xff\xff\xff", "frame of 4294967295 bytes"),
        ]:
            frame = message if isinstance(message, bytes) else framing.encode(message)
            before = server.metric("mediaworker_engine_server_violations_total")
            reader, writer = await greeted(server)
            writer.write(frame)
            cut, told = framing.Frames(), list[messages.FromEngine]()
            with contextlib.suppress(OSError):
                while data := await reader.read(65536):
                    told += map(messages.decode_from_engine, cut.feed(data))
            writer.transport.abort()
            last = told[-1]
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
