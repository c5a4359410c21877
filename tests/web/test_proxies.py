"""A reverse proxy in its default configuration before a worker without API keys: nothing is opened to its clients."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path

import httpx
import pytest
from playwright.async_api import Browser, expect
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from lab.engine.listener import LISTENER, LISTENER_PATH
from lab.http.browser import PHONE, screen
from lab.network.nginx import CONFIGURATION, listens
from lab.network.ports import ports
from lab.patience import seconds, until
from lab.worker.peers import Worker, command, worker
from mediaworker.access import socket_owner
from mediaworker.access.socket_owner import is_own, listed, owner

# What Debian's own configuration files set, as far as it matters here: the servers give up root.
NGINX = "user www-data;" + CONFIGURATION.replace(
    "{servers}",
    """
    server {{ listen 127.0.0.1:{bare}; location / {{ proxy_pass http://127.0.0.1:{http}; }} }}
    server {{
        listen 127.0.0.1:{upgrading};
        location / {{
            proxy_pass http://127.0.0.1:{http};
            proxy_http_version 1.1;
            proxy_set_header Upgrade $http_upgrade;
            proxy_set_header Connection "upgrade";
        }}
    }}
""",
)
HAPROXY = """
global
    user haproxy
    group haproxy
defaults
    mode http
    timeout connect 5000
    timeout client 50000
    timeout server 50000
frontend http
    bind 127.0.0.1:{plain}
    default_backend http
frontend disguised
    bind 127.0.0.1:{disguised}
    http-request set-header Host localhost:{http}
    default_backend http
frontend raw
    mode tcp
    bind 127.0.0.1:{raw}
    default_backend raw
frontend media
    bind 127.0.0.1:{media_front}
    default_backend media
backend http
    server worker 127.0.0.1:{http}
backend raw
    mode tcp
    server worker 127.0.0.1:{http}
backend media
    server worker 127.0.0.1:{media}
"""
ROUTES = [
    ("GET", "/metrics"), ("GET", "/v1/calls"), ("GET", "/v1/calls/x"), ("PATCH", "/v1/calls/x"),
    ("DELETE", "/v1/calls/x"), ("POST", "/v1/calls/x/hangup"), ("GET", "/v1/jobs"), ("POST", "/v1/jobs"),
    ("GET", "/v1/models"), ("POST", "/v1/audio/transcriptions"), ("POST", "/twilio/voice"), ("POST", "/twilio/status"),
]  # fmt: skip
SOCKETS = ["/v1/events", "/ws/asr", "/ws/transcribe", "/asterisk/media", "/twilio/stream"]


class Scene:
    def __init__(self, running: Worker, fronts: dict[str, int]) -> None:
        self.worker, self.fronts = running, fronts
        self.host = f"127.0.0.1:{running.http_port}"


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    folder = tmp_path_factory.mktemp("proxies")
    folder.chmod(0o755)
    names = ("bare", "upgrading", "plain", "disguised", "raw", "media_front")
    with worker(folder, LISTENER_PATH, **LISTENER, SIP__ENABLED="false") as running, contextlib.ExitStack() as stack:
        fronts = dict(zip(names, ports(len(names)), strict=True))
        known = fronts | {"http": running.http_port, "media": running.media_port, "folder": folder}
        for name, text, arguments in (
            ("nginx", NGINX, ["nginx", "-p", str(folder), "-c", str(folder / "nginx.conf")]),
            ("haproxy", HAPROXY, ["haproxy", "-f", str(folder / "haproxy.conf")]),
        ):
            (folder / f"{name}.conf").write_text(text.format(**known))
            environ = os.environ | {"PATH": os.environ["PATH"] + ":/usr/sbin"}
            process = subprocess.Popen(arguments, env=environ, stderr=subprocess.DEVNULL)
            stack.callback(process.wait, seconds(10))
            stack.callback(process.terminate)
        for port in fronts.values():
            until(lambda port=port: listens(port), 20)
        yield Scene(running, fronts)


def opened(url: str, host: str) -> list[str]:
    """The routes that a client of this proxy gets into when it writes `host` into its requests."""
    found = []
    with httpx.Client(base_url=url, headers={"Host": host}, timeout=seconds(10)) as client:
        assert client.get("/healthz").status_code == 200
        for method, path in ROUTES:
            if client.request(method, path).status_code not in (401, 403):
                found.append(f"{method} {path}")
    return found + [path for path in SOCKETS if upgrades(url.replace("http:", "ws:") + path, host)]


def upgrades(url: str, host: str) -> bool:
    """Whether an upgrade succeeds, with a Host of our choice."""
    address = re.sub(r"^ws://([^/]+)/.*", r"\1", url)
    where = socket.create_connection((address.partition(":")[0], int(address.partition(":")[2])))
    try:
        with connect(f"ws://{host}{url.partition(address)[2]}", sock=where, open_timeout=seconds(10)):
            return True
    except InvalidStatus as refused:
        # 426: a proxy that is not told to pass upgrades on takes the header out.
        assert refused.response.status_code in (401, 403, 426), refused.response
        return False


@pytest.mark.skipif(os.geteuid() != 0, reason="a proxy that nobody started as root has no user of its own")
def test_a_default_proxy_opens_nothing(scene: Scene) -> None:
    for front in ("bare", "upgrading", "plain", "disguised", "raw"):
        for host in (scene.host, f"localhost:{scene.worker.http_port}", "worker.example"):
            assert not opened(f"http://127.0.0.1:{scene.fronts[front]}", host), (front, host)
    front = f"ws://127.0.0.1:{scene.fronts['media_front']}"
    for path in SOCKETS[1:]:
        assert not upgrades(front + path, f"127.0.0.1:{scene.worker.media_port}"), path
    # Directly all of it is open, so it is the proxy that made the difference.
    assert len(opened(scene.worker.url, scene.host)) == len(ROUTES) + len(SOCKETS)


def test_http_1_0_opens_nothing(scene: Scene) -> None:
    """Whoever runs the proxy: a bare `proxy_pass` speaks HTTP/1.0."""
    for version, status in ((b"1.0", b"401"), (b"1.1", b"200")):
        with socket.create_connection(("127.0.0.1", scene.worker.http_port)) as peer:
            host = scene.host.encode()
            peer.sendall(b"GET /v1/calls HTTP/%s\r\nHost: %s\r\nConnection: close\r\n\r\n" % (version, host))
            assert peer.recv(100).split(b" ")[1] == status
    for version, status in ((b"1.0", b"426"), (b"1.1", b"101")):
        with socket.create_connection(("127.0.0.1", scene.worker.http_port)) as peer:
            head = [b"GET /v1/events HTTP/" + version, b"Host: " + scene.host.encode(), b"Connection: upgrade"]
            head += [b"Upgrade: websocket", b"Sec-WebSocket-Version: 13", b"Sec-WebSocket-Key: " + b"A" * 22 + b"=="]
            peer.sendall(b"\r\n".join([*head, b"", b""]))
            assert peer.recv(100).split(b" ")[1] == status


def test_the_printed_link_opens_the_page_once_by_whatever_way(scene: Scene) -> None:
    front = f"http://127.0.0.1:{scene.fronts['bare']}"

    def links() -> list[str]:
        return re.findall(r"/\?once=([\w-]+)", scene.worker.log.read_text())

    (token,) = until(links, 10)
    with httpx.Client(base_url=front, headers={"Host": "worker.example"}, timeout=seconds(10)) as client:
        assert client.head("/", params={"once": token}).status_code == 200
        assert client.get("/", params={"once": "wrong"}).headers["location"] == "/#used"
        answer = client.get("/", params={"once": token})
        assert answer.status_code == 303 and answer.headers["cache-control"] == "no-store"
        key = re.fullmatch(r"/#key=([\w-]{32})", answer.headers["location"])
        assert key is not None
        assert client.get("/", params={"once": token}).headers["location"] == "/#used"
        bearer = {"Authorization": f"Bearer {key[1]}"}
        for path in ("/v1/calls", "/metrics", "/v1/jobs"):
            assert client.get(path).status_code == 401
            assert client.get(path, headers=bearer).status_code == 200
        assert client.get("/v1/calls", headers={"Authorization": f"Bearer {token}"}).status_code == 401
    if os.geteuid() == 0:
        upgrading = f"ws://127.0.0.1:{scene.fronts['upgrading']}/ws/transcribe"
        with connect(upgrading, subprotocols=["bearer", key[1]]) as stream:  # type: ignore[list-item]
            assert "ready" in str(stream.recv())
    assert len(until(lambda: links()[1:], 10)) == 1, "the next link is printed when one has been used"
    assert key[1] not in scene.worker.log.read_text()


@pytest.mark.asyncio(loop_scope="session")
async def test_the_page_takes_the_key_out_of_its_address(scene: Scene, browser: Browser) -> None:
    origin = f"http://worker.example:{scene.worker.http_port}"
    token = re.findall(r"/\?once=([\w-]+)", scene.worker.log.read_text())[-1]
    refused = ("401",)
    another = screen(browser, origin, size=PHONE, expected=refused)
    async with screen(browser, origin, expected=refused) as shown, another as other:
        page = shown.page
        await shown.open()
        await expect(page.locator("#login-reason")).to_contain_text("open the link that it prints")
        await shown.open(f"/?once={token}")
        await expect(page.locator("#connection")).to_have_text("Connected")
        assert page.url == f"{origin}/"
        await page.reload()
        await expect(page.locator("#connection")).to_have_text("Connected")
        await other.open(f"/?once={token}")
        await expect(other.page.locator("#login-reason")).to_contain_text("This link has been used")


def test_the_worker_listens_on_loopback_only(scene: Scene, tmp_path: Path) -> None:
    listening = Path("/proc/net/tcp").read_text()
    for port in (scene.worker.http_port, scene.worker.media_port):
        assert f" 0100007F:{port:04X} 00000000:0000 0A" in listening  # 127.0.0.1
        assert f" 00000000:{port:04X} 00000000:0000 0A" not in listening
    for name, fixes in (
        ("HTTP__HOST", ["auth.api_keys", "leave this key empty"]),
        ("MEDIA__HOST", ["auth.api_keys", "twilio.auth_token", "leave this key empty"]),
    ):
        for host in ("0.0.0.0", "::", "192.0.2.1"):
            done = command("serve", DATA_DIR=str(tmp_path), **{name: host})
            assert done.returncode == 2 and len(done.stderr.splitlines()) == 1, done.stderr
            assert name.lower().replace("__", ".") in done.stderr and all(fix in done.stderr for fix in fixes)


def test_the_last_key_stays_while_a_port_is_open_to_others(tmp_path: Path) -> None:
    file, key = tmp_path / "mediaworker.toml", "a-long-random-key"
    keys = f'[{{name = "me", key = "{key}", scopes = ["events"]}}]'
    file.write_text(f"auth.api_keys = {keys}\n")
    with worker(tmp_path, LISTENER_PATH, **LISTENER, SIP__ENABLED="false") as running:

        def reload(text: str, said: str) -> None:
            file.write_text(text)
            before = running.log.read_text()
            running.process.send_signal(signal.SIGHUP)
            until(lambda: said in running.log.read_text()[len(before) :], 10, said)

        assert f" 00000000:{running.http_port:04X} " in Path("/proc/net/tcp").read_text()
        assert "once=" not in running.log.read_text(), "there is a key to open the page with"
        reload("", "auth.api_keys: needed until the next start")
        with httpx.Client(base_url=running.url, timeout=seconds(10)) as client:
            assert client.get("/v1/calls").status_code == 401
            assert client.get("/v1/calls", headers={"Authorization": f"Bearer {key}"}).status_code == 200
        reload(f"auth.api_keys = {keys}\nmax_calls = 5\n", "configuration reloaded")


def test_the_owner_of_a_socket_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    for family, host in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
        with socket.create_server((host, 0), family=family) as listener:
            client = socket.create_connection(listener.getsockname()[:2])
            taken, _ = listener.accept()
            peer, here = taken.getpeername()[:2], taken.getsockname()[:2]
            assert owner(peer, here) == os.geteuid() and is_own(peer, here)
            sides = ip_address(peer[0]), peer[1], ip_address(here[0]), here[1]
            assert listed(*sides) == os.geteuid()
            with monkeypatch.context() as patched:  # a kernel without sock_diag
                patched.setattr(socket_owner, "SOCK_DIAG_BY_FAMILY", 4711)
                assert is_own(peer, here)
                patched.setattr(socket_owner, "NETLINK_SOCK_DIAG", 31)
                assert is_own(peer, here)
            if host == "127.0.0.1":  # as a listener for both families says it
                assert is_own((f"::ffff:{peer[0]}", peer[1]), (f"::ffff:{here[0]}", here[1]))
            client.shutdown(socket.SHUT_WR)
            assert is_own(peer, here), "half closed, and still somebody's"
            client.close()
            until(lambda peer=peer, here=here: not is_own(peer, here), 5)
            assert listed(*sides) is None
            # Another socket at the other end's address: the listener's answer is not taken for the connection's.
            assert owner(here, ("127.0.0.9" if family == socket.AF_INET else "::9", 9)) is None
            taken.close()
    for peer, here in ((None, None), (("", 0), ("", 0)), (("127.0.0.1", 1), ("::1", 2)), (("192.0.2.1", 5), ("::", 2))):
        assert not is_own(peer, here)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs a second user")
def test_another_users_program_is_not_the_workers(scene: Scene) -> None:
    code = (
        "import os, urllib.request; os.setuid(65534)\n"
        f"print(urllib.request.urlopen('{scene.worker.url}/v1/calls').status)"
    )
    done = subprocess.run(["/usr/bin/python3", "-c", code], capture_output=True, text=True, timeout=seconds(30))
    assert "401" in done.stderr and not done.stdout
    own = ["/usr/bin/python3", "-c", code.replace("65534", "0")]
    done = subprocess.run(own, capture_output=True, text=True, timeout=seconds(30))
    assert done.stdout == "200\n"
