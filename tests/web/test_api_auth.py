"""Access: the decision itself, and that every route asks for it, WebSocket upgrades before they are accepted."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest
from starlette.routing import Route, WebSocketRoute
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from lab.http.api_server import ADMIN_KEY, BOTH_KEY, EVENTS_KEY, METRICS_KEY, bearer, running_api
from mediaworker.http.resources import page
from mediaworker.http.resources.app import create_app

OPEN = {"/healthz", "/readyz", *(page.path_of(name) for name in page.names())}

ADMIN = {("GET", "/metrics"), ("PATCH", "/v1/calls/{call_id}"), ("DELETE", "/v1/calls/{call_id}"),
         ("POST", "/v1/calls/{call_id}/hangup"), ("POST", "/v1/calls/{call_id}/audio"),
         ("DELETE", "/v1/calls/{call_id}/audio")}  # fmt: skip


async def test_a_key_may_ask_what_it_may_do(tmp_path: Path) -> None:
    async with running_api(tmp_path, keys=True) as api:
        for key, name, scopes in ((EVENTS_KEY, "screen", ["events"]), (BOTH_KEY, "both", ["events", "admin"])):
            answer = await api.client.get("/v1/key", headers=bearer(key))
            assert answer.json() == {"name": name, "scopes": scopes}
    async with running_api(tmp_path / "open") as api:
        answer = await api.client.get("/v1/key")
        assert answer.json() == {"name": "loopback", "scopes": ["events", "admin", "batch", "stream", "metrics"]}


async def test_prometheus_needs_no_key_that_may_more(tmp_path: Path) -> None:
    async with running_api(tmp_path, keys=True) as api:
        statuses = {}
        for key in (METRICS_KEY, ADMIN_KEY, BOTH_KEY, EVENTS_KEY):
            answer = await api.client.get("/metrics", headers=bearer(key))
            statuses[key] = answer.status_code
        assert statuses == {METRICS_KEY: 200, ADMIN_KEY: 200, BOTH_KEY: 200, EVENTS_KEY: 403}
        assert 'scope="metrics"' in answer.headers["www-authenticate"]
        api.open_call("c1")
        await api.hub.flush()
        for method, path in (("GET", "/v1/calls"), ("POST", "/v1/calls/c1/hangup"), ("DELETE", "/v1/calls/c1")):
            assert (await api.client.request(method, path, headers=bearer(METRICS_KEY))).status_code == 403


async def test_readiness_names_accounts_to_holders_of_keys_alone(tmp_path: Path) -> None:
    async with running_api(tmp_path, keys=True) as api:
        api.reasons.append("sip account pbx: failed 403 pbx.example knows no pbx; call the pbxmaster")
        for headers in ({}, {"Authorization": "Basic cGJ4OnBieA=="}, bearer("a-guess-1")):
            shown = (await api.client.get("/readyz", headers=headers)).json()
            assert shown["reasons"] == ["sip account ***: failed 403 ***.example knows no ***; call the pbxmaster"]
            assert shown["sip"] == [{"account": "***", "state": "registered", "code": 200}]
            assert "account ***" in shown["detail"]
        for key in (EVENTS_KEY, METRICS_KEY):
            shown = (await api.client.get("/readyz", headers=bearer(key))).json()
            assert shown["sip"][0]["account"] == "pbx" and shown["reasons"] == api.reasons
    async with running_api(tmp_path / "open") as api:  # the worker's own user
        assert (await api.client.get("/readyz")).json()["sip"][0]["account"] == "pbx"
        shown = (await api.client.get("/readyz", headers={"X-Forwarded-For": "192.0.2.1"})).json()
        assert shown["sip"][0]["account"] == "***"


async def test_every_route_asks_for_its_scope(tmp_path: Path) -> None:
    async with running_api(tmp_path, keys=True) as api:
        routes = [route for route in create_app(context=api_context(api)).routes if isinstance(route, Route)]
        assert {route.path for route in routes} >= OPEN
        for route in routes:
            for method in sorted((route.methods or set()) - {"HEAD"}):
                path = route.path.replace("{call_id}", "c1")
                sse = {"Accept": "text/event-stream"} if path == "/v1/events" else {}
                path += "?call=nobody" if sse else ""  # else it would go on

                async def status(
                    key: str | None, method: str = method, path: str = path, sse: dict[str, str] = sse
                ) -> int:
                    answer = await api.client.request(method, path, headers=sse | (bearer(key) if key else {}))
                    if answer.status_code >= 400:
                        assert answer.headers["content-type"] == "application/problem+json"
                        assert answer.json()["status"] == answer.status_code
                    if answer.status_code in (401, 403):
                        assert answer.headers["www-authenticate"].startswith("Bearer")
                    return answer.status_code

                if route.path in OPEN:
                    assert await status(None) == 200
                    continue
                right, wrong = EVENTS_KEY, ADMIN_KEY
                if (method, route.path) in ADMIN:
                    right, wrong = wrong, right
                found = [await status(key) for key in (None, "no-such-key", wrong, right, BOTH_KEY)]
                if route.path == "/v1/key":  # what may I do? Anybody with a key may ask.
                    assert found == [401, 401, 200, 200, 200]
                    continue
                assert found[:3] == [401, 401, 403], (method, route.path)
                assert not {401, 403} & set(found[3:]), (method, route.path)


def api_context(api):  # type: ignore[no-untyped-def]
    from config.metrics.registry import MetricsRegistry
    from mediaworker.calls.directory import CallDirectory
    from mediaworker.http.resources.app import ApiContext

    directory = CallDirectory(api.hub, api.calls)
    return ApiContext(
        api.server._settings, api.hub, MetricsRegistry(), directory, report=lambda: ([], {"warnings": []})
    )


async def test_what_peers_do_wrong_does_not_fill_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with running_api(tmp_path, keys=True) as api:
        for _ in range(3):
            assert (await refusal(api.ws))[0] == 401
            reader, writer = await asyncio.open_connection("127.0.0.1", api.server.port)
            writer.write(b"nonsense\r\n\r\n")
            assert b"400" in await reader.readline()
            writer.close()
    assert len(caplog.records) <= 1, caplog.text


async def refusal(url: str, **options) -> tuple[int, str]:  # type: ignore[no-untyped-def]
    with pytest.raises(InvalidStatus) as refused:
        async with connect(url, **options):
            raise AssertionError("accepted")
    response = refused.value.response
    assert response.headers["content-type"] == "application/problem+json"
    return response.status_code, response.headers.get("www-authenticate", "")


async def test_upgrades_are_refused_before_they_are_accepted(tmp_path: Path) -> None:
    async with running_api(tmp_path, keys=True) as api:
        assert await refusal(api.ws) == (401, "Bearer")
        assert (await refusal(api.ws, subprotocols=["bearer", "no-such-key"]))[0] == 401
        assert (await refusal(api.ws, subprotocols=["bearer", ADMIN_KEY]))[0] == 403
        assert (await refusal(api.ws, additional_headers=bearer(ADMIN_KEY)))[0] == 403
        for path in ("/v1/nothing", "/v1/calls", "/"):
            assert (await refusal(api.ws.replace("/v1/events", path)))[0] == 404
        assert api.hub.subscribers == 0
        async with connect(api.ws, subprotocols=["bearer", EVENTS_KEY], origin="https://crm.example") as socket:
            assert socket.subprotocol == "bearer"
            assert '"type":"hello"' in await socket.recv()
        async with connect(api.ws, additional_headers=bearer(BOTH_KEY)) as socket:
            assert socket.subprotocol is None
            assert "server" not in socket.response.headers
            assert "sec-websocket-extensions" not in socket.response.headers, "no compression"


async def test_without_keys_a_page_elsewhere_or_a_proxy_is_refused(tmp_path: Path) -> None:
    async with running_api(tmp_path) as api:
        assert (await refusal(api.ws, origin="https://evil.example"))[0] == 401
        assert (await refusal(api.ws, additional_headers={"X-Forwarded-For": "127.0.0.1"}))[0] == 401
        async with connect(api.ws, origin=api.url):
            pass
        assert (await api.client.get("/v1/calls")).status_code == 200
        assert (await api.client.get("/v1/calls", headers={"Host": "evil.example"})).status_code == 401
        assert (await api.client.get("/v1/calls", headers={"X-Forwarded-For": "10.1.1.1"})).status_code == 401
        assert (await api.client.get("/readyz", headers={"Host": "worker.example"})).status_code == 200


async def test_websocket_routes_are_all_known_here(tmp_path: Path) -> None:
    async with running_api(tmp_path) as api:
        sockets = [r.path for r in create_app(api_context(api)).routes if isinstance(r, WebSocketRoute)]
    assert sockets == ["/v1/events"], "a new WebSocket route needs its access tested above"


def test_the_api_imports_nothing_heavy() -> None:
    code = "import mediaworker.http.resources.app, sys; print(*sys.modules)"
    loaded = set(subprocess.check_output([sys.executable, "-c", code], text=True).split())
    assert "uvicorn" in loaded
    assert not loaded & {"torch", "moonshine_voice", "onnxruntime", "av", "scipy"}


async def test_the_server_leaves_signals_alone(tmp_path: Path) -> None:
    import signal

    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    async with running_api(tmp_path):
        await asyncio.sleep(0)
        assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before
