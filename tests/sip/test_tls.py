"""SIP over TLS: calls of SIPp through stunnel, registration, certificates good and bad, and their renewal."""

from __future__ import annotations

import asyncio
import contextlib
import re
import signal
import socket
import ssl
import subprocess
from pathlib import Path

import pytest

from config import ConfigError
from config.load import parse
from lab.engine.listener import LISTENER, LISTENER_PATH
from lab.network.authority import Authority, stunnel
from lab.network.ports import free_port
from lab.patience import seconds, timeout
from lab.sip.endpoint import CODES, PCMU, Recorder, codes, loaded, played, sipp, sockets, until, worker
from lab.sip.registrar_peer import RegistrarPeer
from lab.sip.sipp_caller import Sipp
from lab.sip.tls import ask, options, secured
from lab.worker import peers
from mediaworker.access.tls import sip_certificate

__all__ = ["codes", "sipp"]


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


# -- calls -------------------------------------------------------------------------------------------------------------


async def test_a_call_and_its_audio(sipp: Sipp, codes: Path, authority: Authority, tmp_path: Path) -> None:
    handler = Recorder()
    keys = secured(authority.issue("worker", "DNS:localhost"), authority)
    async with worker(handler, **keys) as endpoint:
        assert endpoint.tls_port == keys["tls_port"]
        values = {**PCMU, "audio": f"{codes},1,0,PCMU/8000", "talk_ms": 1000, "sdp": ""}
        entry = free_port()
        with stunnel(tmp_path, entry, endpoint.tls_port, client=True, ca=authority.cert, name="localhost"):
            await sipp.run("call", f"127.0.0.1:{entry}", transport="t1", **values)
        await until(lambda: ("end", "hangup") in handler.log)
        (packets,) = handler.audio.values()
        assert played(packets) == CODES


async def test_the_worker_hangs_up_over_the_connection_by_which_the_call_came(
    sipp: Sipp, authority: Authority, tmp_path: Path
) -> None:
    """The caller's Contact names a port at which nobody speaks TLS, as that of a phone behind NAT would."""
    handler = Recorder()
    keys = secured(authority.issue("worker", "DNS:localhost"), authority)
    async with worker(handler, **keys) as endpoint:
        entry = free_port()
        with stunnel(tmp_path, entry, endpoint.tls_port, client=True):
            values = {**PCMU, "audio": "", "talk_ms": 500, "sdp": ""}
            caller = sipp.start("until_bye", f"127.0.0.1:{entry}", transport="t1", **values)
            await until(lambda: len(handler.calls) == 1)
            await asyncio.sleep(0)
            handler.calls[0].hangup()
            await caller
        assert ("end", "local") in handler.log


@pytest.mark.timeout(120)
def test_the_test_phone_calls_a_worker(tmp_path: Path, authority: Authority) -> None:
    pair, other = authority.issue("worker", "IP:127.0.0.1"), Authority(tmp_path, "other")
    port = free_port()
    sound = tmp_path / "sound.ulaw"
    sound.write_bytes(b"\xff" * 4000)
    keys = {"SIP__TLS_CERT": str(pair.cert), "SIP__TLS_KEY": str(pair.key), "SIP__TLS_PORT": str(port)}
    with peers.worker(tmp_path, LISTENER_PATH, **keys, **LISTENER) as running:
        call = ["call", f"sip:100@127.0.0.1:{port}", "--play", str(sound), "--transport", "tls", "--tail", "0"]
        good = peers.command(*call, "--ca", str(authority.cert))
        assert good.returncode == 0, good.stderr
        bad = peers.command(*call, "--ca", str(other.cert))
        assert bad.returncode == 1 and "certificate" in bad.stderr.lower(), (bad.stdout, bad.stderr)
        assert peers.command(*call, "--insecure").returncode == 0
        assert running.metric("mediaworker_sip_answered_total") == 2


async def test_connections_wait_while_the_worker_is_busy(authority: Authority) -> None:
    """Also at a port that has been opened again: PJSIP by itself lets five of them wait."""
    async with worker(Recorder(), **secured(authority.issue("worker", "DNS:localhost"), authority)) as endpoint:
        endpoint.renew_certificate()
        for port in (endpoint.port, endpoint.tls_port):
            with contextlib.ExitStack() as waiting:
                for _ in range(50):  # the loop does not run meanwhile
                    waiting.enter_context(socket.create_connection(("127.0.0.1", port), timeout=seconds(0.5)))
        await until(lambda: len(endpoint.admission.connections) == 0)


# -- certificates ------------------------------------------------------------------------------------------------------


async def test_who_may_connect(authority: Authority, tmp_path: Path) -> None:
    trusting = ssl.create_default_context(cafile=str(authority.cert))
    with_one, with_another = (ssl.create_default_context(cafile=str(authority.cert)) for _ in range(2))
    one, another = authority.issue("client"), Authority(tmp_path, "other").issue("client")
    with_one.load_cert_chain(one.cert, one.key)
    with_another.load_cert_chain(another.cert, another.key)
    pair = authority.issue("worker", "DNS:localhost")
    async with worker(Recorder(), **secured(pair, authority)) as endpoint:
        assert (await ask(endpoint.tls_port, trusting))[0] == "SIP/2.0 200 OK"
        assert (await ask(endpoint.tls_port, with_another))[0] == "SIP/2.0 200 OK"
        await until(lambda: len(endpoint.admission.connections) == 0)
    async with worker(Recorder(), **secured(pair, authority, tls_clients="verified")) as endpoint:
        assert (await ask(endpoint.tls_port, with_one))[0] == "SIP/2.0 200 OK"
        for context in (trusting, with_another):
            with contextlib.suppress(OSError):
                assert (await ask(endpoint.tls_port, context))[0] == ""
        assert (await ask(endpoint.tls_port, with_one))[0] == "SIP/2.0 200 OK"
        await until(lambda: len(endpoint.admission.connections) == 0)


@pytest.mark.parametrize("version", ["-tls1_2", "-tls1_3"])
async def test_a_certificate_is_asked_for_when_one_is_wanted(authority: Authority, version: str) -> None:
    """As OpenSSL's own client sees the handshake."""
    pair = authority.issue("worker", "DNS:localhost")
    for clients in ("any", "verified"):
        async with worker(Recorder(), **secured(pair, authority, tls_clients=clients)) as endpoint:
            command = ["openssl", "s_client", "-connect", f"127.0.0.1:{endpoint.tls_port}", version, "-msg"]
            done = await asyncio.to_thread(
                subprocess.run, command, stdin=subprocess.DEVNULL, capture_output=True, timeout=seconds(10), check=False
            )
            asked = b"CertificateRequest" in done.stdout
            assert b"ServerHello" in done.stdout and asked == (clients == "verified"), done.stdout[-3000:]
            await until(lambda: len(endpoint.admission.connections) == 0)


async def test_what_is_not_tls_harms_nobody(authority: Authority) -> None:
    trusting = ssl.create_default_context(cafile=str(authority.cert))
    keys = secured(authority.issue("worker", "DNS:localhost"), authority)
    async with worker(Recorder(), **keys) as endpoint:
        before = sockets()
        for junk in (options("TCP"), b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\xff\xff" + bytes(500), bytes(2000)):
            reader, writer = await asyncio.open_connection("127.0.0.1", endpoint.tls_port)
            writer.write(junk)
            async with timeout(10):
                with contextlib.suppress(OSError):
                    await reader.read()  # an alert, if anything, and the end
            writer.close()
        silent = [await asyncio.open_connection("127.0.0.1", endpoint.tls_port) for _ in range(3)]
        assert (await ask(endpoint.tls_port, trusting))[0] == "SIP/2.0 200 OK"
        async with timeout(15):
            for reader, writer in silent:  # a handshake that does not come is not waited for
                assert await reader.read() == b""
                writer.close()
        await until(lambda: sockets() <= before + 1)


async def test_a_renewed_certificate_is_for_the_connections_from_then_on(authority: Authority, tmp_path: Path) -> None:
    trusting = ssl.create_default_context(cafile=str(authority.cert))
    pair = authority.issue("first", "DNS:localhost", file="live")
    old = ssl.PEM_cert_to_DER_cert(pair.cert.read_text())
    async with worker(Recorder(), **secured(pair, authority)) as endpoint:
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", endpoint.tls_port, ssl=trusting, server_hostname="localhost"
        )
        assert await ask(endpoint.tls_port, trusting) == ("SIP/2.0 200 OK", old)
        for name in ("second", "third"):
            authority.issue(name, "DNS:localhost", file="live")
            new = ssl.PEM_cert_to_DER_cert(pair.cert.read_text())
            assert new != old
            endpoint.renew_certificate()
            assert await ask(endpoint.tls_port, trusting) == ("SIP/2.0 200 OK", new)
        writer.write(options())
        async with timeout(10):
            assert await reader.readline() == b"SIP/2.0 200 OK\r\n"
        writer.transport.abort()
        await until(lambda: len(endpoint.admission.connections) == 0)


@pytest.mark.timeout(120)
def test_a_renewal_by_sighup_and_what_is_said_of_it(tmp_path: Path, authority: Authority) -> None:
    trusting = ssl.create_default_context(cafile=str(authority.cert))
    pair = authority.issue("first", "DNS:localhost", file="live")
    port = free_port()
    keys = {"SIP__TLS_CERT": str(pair.cert), "SIP__TLS_KEY": str(pair.key), "SIP__TLS_PORT": str(port)}
    with peers.worker(tmp_path, LISTENER_PATH, **keys, **LISTENER) as running:
        peers.until(lambda: "SIP is listening" in running.log.read_text())
        old = asyncio.run(ask(port, trusting))[1]
        gauge = 'mediaworker_tls_certificate_expiry_timestamp_seconds{port="sip"}'
        figures = running.get("/metrics")
        assert re.search(rf"^{re.escape(gauge)} 1\.[0-9]+e\+09$", str(figures), re.MULTILINE), figures
        authority.issue("second", "DNS:localhost", file="live")
        running.process.send_signal(signal.SIGHUP)
        peers.until(lambda: "configuration reloaded" in running.log.read_text())
        line, new = asyncio.run(ask(port, trusting))
        assert line == "SIP/2.0 200 OK" and new == ssl.PEM_cert_to_DER_cert(pair.cert.read_text()) != old
        pair.key.write_bytes(Authority(tmp_path, "other").issue("x").key.read_bytes())
        running.process.send_signal(signal.SIGHUP)
        peers.until(lambda: "not reloaded" in running.log.read_text())
        assert "sip.tls_key" in running.log.read_text()
        assert asyncio.run(ask(port, trusting)) == ("SIP/2.0 200 OK", new)


def test_files_that_will_not_do_are_named(tmp_path: Path, authority: Authority) -> None:
    pair = authority.issue("worker")
    empty = tmp_path / "empty.pem"
    empty.write_text("")
    good = {"tls_cert": str(pair.cert), "tls_key": str(pair.key)}
    assert sip_certificate(parse({"sip": good}).sip) is not None
    assert sip_certificate(parse({}).sip) is None
    for keys, named in (
        ({**good, "tls_cert": str(empty)}, "sip.tls_cert"),
        ({**good, "tls_key": str(empty)}, "sip.tls_key"),
        ({**good, "tls_ca": str(empty)}, "sip.tls_ca"),
        ({**good, "tls_ca": str(tmp_path / "none")}, "sip.tls_ca"),
    ):
        with pytest.raises(ConfigError) as caught:
            sip_certificate(parse({"sip": keys}).sip)
        assert caught.value.key == named
    for keys, named in (({"tls_key": "a.key"}, "sip.tls_cert"), ({**good, "tls_clients": "verified"}, "sip.tls_ca")):
        with pytest.raises(ConfigError) as caught:
            loaded(tmp_path, "".join(f'{key} = "{value}"\n' for key, value in keys.items()))
        assert caught.value.key == named


# -- registration ------------------------------------------------------------------------------------------------------


async def test_registration(sipp: Sipp, authority: Authority, tmp_path: Path) -> None:
    entry, registrar = free_port(), free_port()
    account = {"registrar": f"sips:localhost:{entry}", "user": "alice", "password": "secret", "name": "trunk"}
    pair = authority.issue("pbx", "DNS:localhost")
    # The connection ends with the registration, before SIPp has looked at the end of its scenario.
    server = sipp.start("registrar", port=registrar, transport="t1", options=("-reconnect_close", "false"))
    with stunnel(tmp_path, entry, registrar, pair):
        async with worker(Recorder(), left_open=2, accounts=[account], tls_ca=str(authority.cert)) as endpoint:
            await until(lambda: endpoint.registrations[0].state == "registered", timeout_s=8)
            assert endpoint.tls_port == 0, "nobody can call a worker without a certificate"
            await until(lambda: endpoint.counters.registrations_ok == 2, timeout_s=8)
        await server
    assert endpoint.registrations[0].state == "unregistered"


@pytest.mark.parametrize(
    ("name", "trusted", "verify", "state"),
    [
        ("DNS:localhost", True, True, "registered"),
        ("DNS:pbx.test", True, True, "failed"),
        ("IP:127.0.0.1", True, True, "failed"),
        ("DNS:localhost", False, True, "failed"),
        ("DNS:pbx.test", False, False, "registered"),
    ],
)
async def test_a_registrar_is_held_to_its_certificate(
    authority: Authority, tmp_path: Path, name: str, trusted: bool, verify: bool, state: str
) -> None:
    """Nothing is said to one whose certificate will not do, and the name that it is asked for is the registrar's."""
    pair = (authority if trusted else Authority(tmp_path, "other")).issue("pbx", name)
    async with RegistrarPeer(pair) as registrar:
        account = {"registrar": f"sip:localhost:{registrar.port};transport=tls", "user": "alice", "password": "secret"}
        keys = {"tls_ca": str(authority.cert), "tls_verify": verify}
        async with worker(Recorder(), left_open=2, accounts=[account], **keys) as endpoint:
            await until(lambda: endpoint.registrations[0].state == state, timeout_s=10)
            assert registrar.names[:1] == ["localhost"]
            if state == "failed":
                assert registrar.requests == []
                assert "certificate" in endpoint.registrations[0].reason.lower(), endpoint.registrations[0]


async def test_a_call_comes_over_the_connection_of_the_registration(authority: Authority) -> None:
    async with RegistrarPeer(authority.issue("pbx", "DNS:localhost")) as registrar:
        account = {"registrar": f"sip:localhost:{registrar.port};transport=tls", "user": "alice", "password": "secret"}
        handler = Recorder()
        async with worker(handler, left_open=2, accounts=[account], tls_ca=str(authority.cert)) as endpoint:
            await until(lambda: endpoint.registrations[0].state == "registered", timeout_s=10)
            await registrar.invite()
            assert handler.log[0][0] == "call" and len(registrar.names) == 1
            handler.calls[0].hangup()
            async with timeout(10):
                while not any(request.startswith("BYE") for request in registrar.requests):
                    await registrar.heard.wait()
                    registrar.heard.clear()
            assert len(registrar.names) == 1, "no other connection was made"
