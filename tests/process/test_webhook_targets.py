"""Where the webhook of a job may lead: the address that is connected to is the one that was checked."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from config.settings import Secret
from lab.http.receiver import SECRET, receiving
from lab.network.authority import Authority
from mediaworker.webhooks import targets as webhook_targets
from mediaworker.webhooks.post import Poster, Refusal
from mediaworker.webhooks.targets import Targets


async def post(url: str, *allow: str) -> Refusal | None:
    poster = Poster(Targets(allow))
    try:
        return await poster.post(url, [Secret(SECRET)], "id", "{}", 1_700_000_000.0)
    finally:
        await poster.close()


SPELLINGS = [
    "127.0.0.1", "127.1", "2130706433", "0x7f000001", "0x7f.0.0.1", "0177.0.0.1", "017700000001", "0", "0.0.0.0",
    "localhost", "LOCALHOST", "127.0.0.1%00.example", "[::1]", "[::]", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]",
    "[0:0:0:0:0:ffff:127.0.0.1]", "[::127.0.0.1]", "[64:ff9b::127.0.0.1]", "[2002:7f00:1::]", "[::1%25lo]", "[::1%lo]",
    "①②⑦.⓪.⓪.①", "127。0。0。1",
]  # fmt: skip


async def test_no_spelling_of_loopback_is_connected_to() -> None:
    with receiving(200) as receiver, socket.create_server(("::", 0), family=socket.AF_INET6) as six:
        six.settimeout(0.1)
        for port in (receiver.server_port, six.getsockname()[1]):
            for host in SPELLINGS:
                refusal = await post(f"http://{host}:{port}/told")
                assert refusal is not None and not refusal.gone, host
        with pytest.raises(TimeoutError):
            six.accept()
        assert receiver.came == []
        for host in ("127.0.0.1", "2130706433", "localhost", "[::ffff:127.0.0.1]"):
            assert await post(f"http://{host}:{receiver.server_port}/told", "127.0.0.0/8") is None, host
        assert len(receiver.came) == 4
        # A redirect leads nowhere.
    with receiving(307) as receiver:
        assert (await post(receiver.url, "127.0.0.0/8")) == Refusal("HTTP 307")
        assert len(receiver.came) == 1


async def test_a_name_that_changes_is_connected_to_where_it_was_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """DNS rebinding: the first answer is public, the second loopback. There is no second question."""
    asked: list[str] = []

    def look_up(host: str, port: int) -> list[str]:
        asked.append(host)
        return [["127.0.0.2", "127.0.0.1"], ["127.0.0.1"]][len(asked) - 1]

    monkeypatch.setattr(webhook_targets, "_look_up", look_up)
    monkeypatch.setattr(socket, "getaddrinfo", None)  # whoever asks again fails
    with receiving(200) as receiver:
        # 127.0.0.2 stands for the public address, at which nobody listens; 127.0.0.1 is not allowed.
        refusal = await post(f"http://rebinding.example:{receiver.server_port}/told", "127.0.0.2")
        assert refusal is not None and "ConnectError" in refusal.reason
        assert receiver.came == [] and asked == ["rebinding.example"]
        assert "ForbiddenTarget" in str(await post(f"http://rebinding.example:{receiver.server_port}/told"))
        # All of them are tried that may be, and the receiver is asked for its name.
        asked.clear()
        assert await post(f"http://rebinding.example:{receiver.server_port}/told", "127.0.0.0/8") is None
        assert receiver.came[0][0]["host"] == f"rebinding.example:{receiver.server_port}"


async def test_the_certificate_is_held_to_the_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhook_targets, "_look_up", lambda host, port: ["127.0.0.1"])
    names: list[str | None] = []
    with tls_server(tmp_path, names) as port:
        refusal = await post(f"https://h\u00f6oks.example:{port}/", "127.0.0.1")
    assert names == ["xn--hoks-5qa.example"]
    assert refusal is not None and "CERTIFICATE_VERIFY_FAILED" in refusal.reason


async def test_a_private_authority_of_the_environment_is_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhook_targets, "_look_up", lambda host, port: ["127.0.0.1"])
    monkeypatch.setenv("SSL_CERT_FILE", str(Authority(tmp_path).cert))
    with tls_server(tmp_path, []) as port:
        assert await post(f"https://hooks.example:{port}/", "127.0.0.1") is None
    poster, name = Poster(), "localhost"
    with tls_server(tmp_path, [], name) as port:
        assert await poster.post(f"https://{name}:{port}/", [Secret(SECRET)], "id", "{}", 1_700_000_000.0) is None
    await poster.close()


async def test_the_operators_urls_are_reached_through_the_proxy_and_a_users_are_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with receiving(200) as proxy, receiving(200) as receiver:
        monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{proxy.server_port}")
        poster = Poster()
        assert await poster.post("http://crm.example/told", [Secret(SECRET)], "id", "{}", 1_700_000_000.0) is None
        await poster.close()
        assert [path for _, _, path in proxy.came] == ["http://crm.example/told"]
        assert await post(receiver.url, "127.0.0.0/8") is None
        assert len(receiver.came) == len(proxy.came) == 1


@contextlib.contextmanager
def tls_server(folder: Path, names: list[str | None], host: str = "hooks.example") -> Iterator[int]:
    """Takes one connection, with a certificate of its own authority, and notes the name that it is asked for."""
    pair = Authority(folder).issue(host)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.cert, pair.key)
    context.sni_callback = lambda sock, name, ctx: names.append(name)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(10)

        def serve() -> None:
            taken, _ = listener.accept()
            with taken, contextlib.suppress(OSError):
                with context.wrap_socket(taken, server_side=True) as line:
                    asked = b""
                    while not asked.endswith(b"\r\n\r\n{}") and (part := line.recv(65536)):
                        asked += part
                    line.sendall(b"HTTP/1.1 204 No Content\r\n\r\n")

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            thread.join()
