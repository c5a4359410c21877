"""`/v1/calls`, health and metrics, over a real server; transcripts in their four formats."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from starlette.routing import Route, WebSocketRoute

from asr.client.recognizer import Recognizer
from config.metrics.registry import MetricsRegistry
from lab.events.samples import final, kinds, running_hub, speech, take
from lab.http.api_server import ADMIN_KEY, BOTH_KEY, EVENTS_KEY, Running, bearer, running_api
from mediaworker.calls.directory import CallDirectory
from mediaworker.events.frame import encode
from mediaworker.events.schema import CallErased, EngineState, TranscriptWords, Word
from mediaworker.files.service import FileService
from mediaworker.http.openai import routes as openai
from mediaworker.http.resources import jobs, page
from mediaworker.http.resources.app import ApiContext, create_app
from mediaworker.ingress.websocket.dialects import BUILT_IN
from mediaworker.jobs.service import JobService

DOCS = Path(__file__).parents[2] / "docs"


async def ended_call(api: Running, call_id: str) -> None:
    api.open_call(call_id)
    api.hub.publish(call_id, 100, speech("u1"))
    api.hub.publish(call_id, 900, final("u1", "hello <there>", start_ms=100, end_ms=900))
    api.hub.publish(call_id, 950, final("u2", "", start_ms=920, end_ms=930))
    api.hub.publish(call_id, 990, final("u0", "good day", leg="outbound", role="agent", start_ms=50, end_ms=3_661_001))
    api.calls.pop(call_id).hangup()
    await api.hub.flush()


async def problem(answer, status: int) -> str:  # type: ignore[no-untyped-def]
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"
    body = answer.json()
    assert body["status"] == status
    assert body["title"]
    return str(body["detail"])


async def test_calls_are_listed_in_pages(tmp_path: Path) -> None:
    async with running_api(tmp_path) as api:
        assert (await api.client.get("/v1/calls")).json() == {"items": [], "next": None}
        for number in range(7):
            api.open_call(f"c{number}")
        await api.hub.flush()
        seen, after = [], ""
        while True:
            found = (await api.client.get(f"/v1/calls?limit=3{after}")).json()
            seen.append([item["call_id"] for item in found["items"]])
            if found["next"] is None:
                break
            after = f"&after={found['next']}"
        assert seen == [["c6", "c5", "c4"], ["c3", "c2", "c1"], ["c0"]]
        assert (await api.client.get("/v1/calls?limit=7")).json()["next"] is None
        for limit in ("0", "501", "x", "", "-1", "1e2", "٣"):
            assert "limit" in await problem(await api.client.get("/v1/calls", params={"limit": limit}), 400)


async def test_a_call(tmp_path: Path) -> None:
    async with running_api(tmp_path) as api:
        api.open_call("c1", custom={"agent": "ann"})
        await api.hub.flush()
        call = (await api.client.get("/v1/calls/c1")).json()
        assert (call["call_id"], call["state"], call["from"], call["to"]) == ("c1", "live", "+1", "+2")
        assert (call["custom"], call["legs"][0]["leg"], call["ended_at"]) == ({"agent": "ann"}, "inbound", None)
        await problem(await api.client.get("/v1/calls/c2"), 404)
        await problem(await api.client.get("/v1/calls/%2e%2e"), 404)
        await problem(await api.client.get("/v1/nothing"), 404)
        await problem(await api.client.get("/v1/calls/"), 404)
        await problem(await api.client.put("/v1/calls/c1"), 405)


async def test_transcripts(tmp_path: Path) -> None:
    async with running_api(tmp_path) as api:
        await ended_call(api, "c1")
        answer = await api.client.get("/v1/calls/c1/transcript")
        assert answer.headers["content-type"] == "application/json"
        found = answer.json()
        assert (found["call_id"], found["state"]) == ("c1", "ended")
        assert [(s["utterance_id"], s["start_ms"], s["speaker"], s["text"]) for s in found["segments"]] == [
            ("u0", 50, "agent", "good day"),
            ("u1", 100, "Bea", "hello <there>"),
            ("u2", 920, "Bea", ""),
        ]
        url = "/v1/calls/c1/transcript?format="
        texts = {format: await api.client.get(url + format) for format in ("txt", "srt", "vtt")}
        assert texts["txt"].text == "[00:00:00.050] agent: good day\n[00:00:00.100] Bea: hello <there>\n"
        assert texts["srt"].text == (
            "1\n00:00:00,050 --> 00:00:07,050\nagent: good day\n\n"
            "2\n00:00:00,100 --> 00:00:01,100\nBea: hello <there>\n"
        )
        assert texts["vtt"].text == (
            "WEBVTT\n\n00:00:00.050 --> 00:00:07.050\n<v agent>good day\n\n"
            "00:00:00.100 --> 00:00:01.100\n<v Bea>hello &lt;there&gt;\n"
        )
        assert texts["vtt"].headers["content-type"] == "text/vtt; charset=utf-8"
        assert texts["txt"].headers["content-type"] == "text/plain; charset=utf-8"
        assert "json, txt" in await problem(await api.client.get("/v1/calls/c1/transcript?format=doc"), 400)
        await problem(await api.client.get("/v1/calls/c2/transcript"), 404)


async def test_a_transcript_has_the_words_that_got_times(tmp_path: Path) -> None:
    said = "one two three, " * 12
    words = [Word(word.strip(","), 400 * at, 400 * at + 300, 0.9) for at, word in enumerate(said.split())]
    async with running_api(tmp_path) as api:
        api.open_call("c1")
        api.hub.publish("c1", 100, final("u1", said.strip(), start_ms=0, end_ms=15_000))
        api.hub.publish("c1", 200, final("u2", "never timed", start_ms=15_500, end_ms=16_500))
        api.hub.publish("c1", 300, TranscriptWords("u1", words))
        api.calls.pop("c1").hangup()
        await api.hub.flush()
        url = "/v1/calls/c1/transcript?format="
        timed, bare = (await api.client.get(url + "json")).json()["segments"]
        assert timed["words"][1] == {"word": "two", "start_ms": 400, "end_ms": 700, "confidence": 0.9}
        assert len(timed["words"]) == 36 and "words" not in bare
        srt, vtt = [(await api.client.get(url + format)).text for format in ("srt", "vtt")]
        assert srt.startswith(
            "1\n00:00:00,000 --> 00:00:04,700\nBea: one two three, one two three,\none two three, one two three,\n\n2\n"
        )
        starts = re.findall(r"(\S+) -->", vtt)
        assert starts == sorted(starts) and len(starts) == len(re.findall("<v Bea>", vtt)) > 3
        assert "<v Bea>never timed\n" in vtt
        assert (await api.client.get(url + "txt")).text.count("\n") == 2


async def test_a_live_call_is_renamed(tmp_path: Path) -> None:
    async with running_api(tmp_path) as api:
        live = api.open_call("c1")
        await api.hub.flush()
        answer = await api.client.patch("/v1/calls/c1", json={"names": {"outbound": "Ann"}, "language": "de"})
        assert answer.status_code == 200
        assert [leg["name"] for leg in answer.json()["legs"]] == ["Bea", "Ann"]
        assert live.languages == ["de"]
        assert (await api.client.patch("/v1/calls/c1", json={})).status_code == 200
        assert "customer9" in await problem(
            await api.client.patch("/v1/calls/c1", json={"names": {"customer9": "x"}}), 400
        )


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b'{"name":"x"}', b'{"language":"english"}', b'{"names":{"inbound":1}}', b"\xff",
             b'{"names":{"inbound":"' + b"x" * 201 + b'"}}'],
)  # fmt: skip
async def test_bad_patches_are_refused(tmp_path: Path, body: bytes) -> None:
    async with running_api(tmp_path) as api:
        api.open_call("c1")
        await api.hub.flush()
        await problem(await api.client.patch("/v1/calls/c1", content=body), 400)


async def test_a_huge_body_is_refused(tmp_path: Path) -> None:
    async with running_api(tmp_path) as api:
        api.open_call("c1")
        await api.hub.flush()
        await problem(await api.client.patch("/v1/calls/c1", content=b" " * 70_000), 413)


async def test_an_ended_call_keeps_its_names_on_the_disk(tmp_path: Path) -> None:
    async with running_api(tmp_path) as api:
        await ended_call(api, "c1")
        answer = await api.client.patch("/v1/calls/c1", json={"names": {"inbound": "Cleo"}})
        assert answer.json()["legs"][0]["name"] == "Cleo"
        assert "Cleo: hello" in (await api.client.get("/v1/calls/c1/transcript?format=txt")).text
        await problem(await api.client.patch("/v1/calls/c1", json={"language": "de"}), 409)
        await problem(await api.client.patch("/v1/calls/c9", json={"names": {}}), 404)


async def test_an_erasure_is_told_without_what_was_erased(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with running_api(tmp_path, keys=True) as api:
        for call_id in ("c1", "c2"):
            await ended_call(api, call_id)
        everybody = api.hub.subscribe(types=frozenset({"call.erased", "engine.state"}))
        one = api.hub.subscribe(call="c1", types=frozenset({"call.erased"}))
        api.hub.publish(None, 0, EngineState("ready"))
        for key, status in ((EVENTS_KEY, 403), (BOTH_KEY, 204), (BOTH_KEY, 404)):
            answer = await api.client.delete("/v1/calls/c1", headers=bearer(key))
            assert answer.status_code == status
        assert (await api.client.delete("/v1/calls/c2", headers=bearer(ADMIN_KEY))).status_code == 204
        await api.hub.flush()
        _, engine, first, second = await take(everybody, 4)
        assert [(each.call_id, each.body) for each in (first, second)] == [
            ("c1", CallErased("both")), ("c2", CallErased("ops")),
        ]  # fmt: skip
        assert [first.seq, second.seq] == [engine.seq + 1, engine.seq + 2] and first.at_ms == 0
        assert len(encode(first)) < 250, "who and when, and nothing else"
        shown = (await api.client.get("/metrics", headers=bearer(ADMIN_KEY))).text
        assert 'mediaworker_events_published_total{type="call.erased"} 2' in shown
        await problem(await api.client.get("/v1/calls/c1", headers=bearer(BOTH_KEY)), 404)
        assert kinds(await take(one, 1)) == ["hello"] and one.waiting == 0, "it is no event of the call"
        lines = [line for line in capsys.readouterr().out.splitlines() if "call erased" in line]
        assert len(lines) == 2 and "by=both" in lines[0] and "call_id=c1" in lines[0]
    async with running_hub(tmp_path) as hub:  # it stays, and the worker's own events go on counting
        again = await take(hub.subscribe(after=engine.cursor), 3)
        assert [each.body for each in again[1:]] == [CallErased("both"), CallErased("ops")]
        hub.publish(None, 0, EngineState("idle"))
        await hub.flush()
        assert (await take(hub.subscribe(after=second.cursor), 2))[1].seq == second.seq + 1


async def test_hang_up_and_erase(tmp_path: Path) -> None:
    async with running_api(tmp_path) as api:
        api.open_call("c1")
        await api.hub.flush()
        await problem(await api.client.delete("/v1/calls/c1"), 409)
        await problem(await api.client.post("/v1/calls/c1/hangup?after=supper"), 400)
        assert (await api.client.post("/v1/calls/c1/hangup?after=playback")).status_code == 202
        assert api.calls["c1"].hangups_after_playback == 1
        assert (await api.client.get("/v1/calls/c1")).json()["state"] == "live"
        assert (await api.client.post("/v1/calls/c1/hangup")).status_code == 202
        await api.hub.flush()
        del api.calls["c1"]
        assert (await api.client.get("/v1/calls/c1")).json()["reason"] == "api"
        await problem(await api.client.post("/v1/calls/c1/hangup"), 409)
        await problem(await api.client.post("/v1/calls/c2/hangup"), 404)
        answer = await api.client.delete("/v1/calls/c1")
        assert (answer.status_code, answer.content) == (204, b"")
        await problem(await api.client.get("/v1/calls/c1"), 404)
        await problem(await api.client.delete("/v1/calls/c1"), 404)


async def test_health_and_readiness(tmp_path: Path) -> None:
    async with running_api(tmp_path) as api:
        assert (await api.client.get("/healthz")).json() == {"status": "ok"}
        ready = await api.client.get("/readyz")
        assert ready.status_code == 200
        assert ready.json()["sip"][0]["state"] == "registered"
        api.reasons.append("SIP account pbx is not registered")
        answer = await api.client.get("/readyz")
        assert "not registered" in await problem(answer, 503)
        assert answer.json()["reasons"] == ["SIP account pbx is not registered"]
        api.reasons.clear()
        await api.hub.store.write(lambda database: database.execute("PRAGMA query_only = ON"))
        api.open_call("c1")
        await api.hub.flush()
        assert "not being stored" in await problem(await api.client.get("/readyz"), 503)
        assert (await api.client.get("/v1/calls/c1")).status_code == 200, "a live call is known without the disk"
        await api.hub.store.write(lambda database: database.execute("PRAGMA query_only = OFF"))


async def test_metrics(tmp_path: Path) -> None:
    async with running_api(tmp_path) as api:
        await ended_call(api, "c1")
        answer = await api.client.get("/metrics")
        assert answer.headers["content-type"].startswith("text/plain")
        lines = answer.text.splitlines()
        assert 'mediaworker_events_published_total{type="call.started"} 1.0' in lines
        assert "mediaworker_event_subscribers 0.0" in lines
        assert "mediaworker_event_store_ok 1.0" in lines
        assert 'mediaworker_event_delay_seconds_bucket{le="+Inf"} 6.0' in lines
        assert "# TYPE mediaworker_event_commit_seconds histogram" in lines


async def test_the_page_is_closed_to_everything_from_elsewhere(tmp_path: Path) -> None:
    async with running_api(tmp_path, keys=True) as api:
        index = await api.client.get("/")
        assert index.headers["content-type"] == "text/html; charset=utf-8"
        policy = index.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy and "*" not in policy
        assert not re.search(r"https?://", index.text)
        scripts = [name for name in page.names() if name.endswith(".js")]
        assert {"app.js", "client.js", "worklet.js"} <= set(scripts)
        for name in scripts:
            script = (await api.client.get(f"/{name}")).text
            assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", script), name


async def test_the_files_of_the_page(tmp_path: Path) -> None:
    """All that they name is there, with its type, and is sent again only when it has changed."""
    async with running_api(tmp_path) as api:
        named = set()
        for name in page.names():
            answer = await api.client.get(page.path_of(name))
            assert answer.headers["cache-control"] == "no-cache"
            if name.endswith((".html", ".js")):
                named |= set(re.findall(r'(?:src|href)="([\w.-]+)"|from "\./([\w.-]+)"', answer.text))
            etag = answer.headers["etag"]
            for known in (etag, f"W/{etag}", f'"x", {etag}', "*"):
                again = await api.client.get(page.path_of(name), headers={"If-None-Match": known})
                assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", etag)
            other = await api.client.get(page.path_of(name), headers={"If-None-Match": '"x"'})
            assert (other.status_code, other.content) == (200, answer.content)
        assert {a or b for a, b in named} <= set(page.names())
        assert (await api.client.get("/__init__.py")).status_code == 404


async def test_the_server_does_not_name_itself(tmp_path: Path) -> None:
    async with running_api(tmp_path) as api:
        assert "server" not in (await api.client.get("/healthz")).headers


async def test_an_error_of_ours_is_a_problem_too(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with running_api(tmp_path) as api:

        class Broken(dict):  # type: ignore[type-arg]
            def get(self, *_: object) -> None:
                raise ZeroDivisionError("a secret")

        api.open_call("c1")
        await api.hub.flush()
        api.calls.get = Broken().get  # type: ignore[method-assign, assignment]
        assert "secret" not in await problem(await api.client.post("/v1/calls/c1/hangup"), 500)
        assert "ZeroDivisionError" in caplog.text


async def test_a_port_that_is_taken_is_an_oserror(tmp_path: Path) -> None:
    async with running_api(tmp_path / "a") as api:
        with pytest.raises(OSError, match="in use"):
            async with running_api(tmp_path / "b", http={"host": "127.0.0.1", "port": api.server.port}):
                raise AssertionError("started")


def documented(name: str) -> set[tuple[str, str]]:
    """(method, path) of a document: paths are indented by 2, methods by 4."""
    found, path = set(), ""
    for line in (DOCS / name).read_text(encoding="utf-8").splitlines():
        if match := re.fullmatch(r"  (/\S*):", line):
            path = match[1]
        elif match := re.fullmatch(r"    (get|put|post|patch|delete):", line):
            found.add((match[1].upper(), path))
    return found


async def test_openapi_has_the_routes_of_the_code(tmp_path: Path) -> None:
    async with running_api(tmp_path) as api:
        directory = CallDirectory(api.hub, api.calls)
        context = ApiContext(
            api.server._settings, api.hub, MetricsRegistry(), directory, report=lambda: ([], {"warnings": []})
        )
        routes = create_app(context).routes
    files_of_page = {page.path_of(name) for name in page.names()} - {"/", "/docs", "/openapi.json"}
    plain = [route for route in routes if isinstance(route, Route) and route.path not in files_of_page]
    # The ingresses' routes, and those of files, are given to create_app from outside.
    settings = api.server._settings
    files = FileService(settings, Recognizer(settings, on_state=lambda *_: None), in_work=lambda _: None)
    given = [*openai.routes(context, files), *jobs.routes(context, JobService(settings, files), files)]
    plain = [*plain, *given]
    code = {(m, route.path.replace(":path", "")) for route in plain for m in (route.methods or set()) - {"HEAD"}}
    assert code == {entry for entry in documented("openapi.yaml") if not entry[1].startswith("/twilio/")}
    sockets = {route.path for route in routes if isinstance(route, WebSocketRoute)} | {
        dialect.path for dialect in BUILT_IN
    }
    assert sockets == set(re.findall(r"^    address: (/\S*)$", (DOCS / "asyncapi.yaml").read_text(), re.M))
