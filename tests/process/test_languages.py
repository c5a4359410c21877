"""An engine that knows English: what says so, and what becomes of calls and files forced to another language."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.async_api import Browser, expect
from websockets.asyncio.client import connect

from asr.client.recognizer import EngineStatus, Utterance
from audio.codecs.g711 import ulaw_decode
from config.settings import Asr, Settings
from lab.asterisk.peers import AudioSocketPeer, ChannelPeer, frame
from lab.engine.recognizer import client, codes
from lab.events.story import check_story
from lab.http.browser import browser, screen
from lab.network.ports import ports
from lab.patience import seconds
from lab.sip.rtp_sender import RtpSender
from lab.sip.sipp_caller import Sipp
from lab.sip.sipp_scenario import Pause, Send, mixed, offer
from lab.sip.siprec import REQUIRE, line, metadata, talking
from lab.worker.calls import start
from lab.worker.peers import Worker, command
from lab.worker.reload import configured

__all__ = ["browser"]

pytestmark = pytest.mark.asyncio(loop_scope="module")

SPOKEN = b"\xff" * 4000 + codes("vm-goodbye") + b"\xff" * 8000

ROUTES = """
[[routes]]
source = "audiosocket"
language = "de"
[[routes]]
source = "siprec"
language = "de-AT"
[[routes]]
called = "german"
language = "de"
[[routes]]
called = "british"
language = "en-GB"
"""

WHY = "the engine moonshine does not know the language '{}'; it knows en"


@pytest.fixture(scope="module")
def reloadable(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Worker, Callable[[str], str]]]:
    folder = tmp_path_factory.mktemp("worker")
    options = {"ASR__ENGINE": "moonshine", "AUDIOSOCKET__ENABLED": "true", "AUDIOSOCKET__PORT": str(ports(1)[0])}
    with configured(folder, ROUTES, **options) as started:
        yield started


@pytest.fixture(scope="module")
def running(reloadable: tuple[Worker, Callable[[str], str]]) -> Worker:
    return reloadable[0]


@pytest.fixture(scope="module")
def spoken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("speech") / "spoken.ulaw"
    path.write_bytes(SPOKEN)
    return path


async def audiosocket(running: Worker, spoken: bytes) -> None:
    samples = ulaw_decode(spoken).astype("<i2").tobytes()
    async with AudioSocketPeer.connect(int(running.environ["MEDIAWORKER_AUDIOSOCKET__PORT"])) as peer:
        await peer.say(samples, 8000)
        peer.send(frame(0x00))
        await peer.ended()


async def asterisk(running: Worker, spoken: bytes) -> None:
    async with ChannelPeer.connect(running.media_port, "ulaw") as peer:
        await peer.start(MEDIAWORKER_LANGUAGE="de")
        await peer.say(spoken)


async def siprec(running: Worker, spoken: bytes, folder: Path) -> None:
    sender = RtpSender()
    invite = Send("INVITE", mixed(offer(line(sender.port, "1")), metadata()), REQUIRE, keep={"ports": "m=audio.*"})
    steps = (invite, Pause(3500), Send("BYE"))
    async with talking(Sipp(folder), running, [sender], *steps) as (port,):
        await sender.talk(spoken, port)


async def by_command(*arguments: str) -> None:
    process = start(*arguments)
    assert await asyncio.to_thread(process.wait, seconds(60)) == 0


async def test_calls_in_another_language_get_finals_that_say_so(running: Worker, spoken: Path, tmp_path: Path) -> None:
    """By every way in, all at once. Nothing is wrong with the engine: English goes on, and calls are taken."""
    sip, twilio, play = f"sip:{{}}@127.0.0.1:{running.sip_port}", running.twilio, ("--play", str(spoken))
    await asyncio.gather(
        by_command("call", sip.format("german"), *play),
        by_command("call", sip.format("british"), *play),
        by_command("stream", twilio, *play, "--param", "language=de"),
        by_command("stream", twilio, *play, "--param", "language=en_US"),
        audiosocket(running, SPOKEN),
        asterisk(running, SPOKEN),
        siprec(running, SPOKEN, tmp_path),
    )
    calls = await asyncio.to_thread(running.wait_ended, 7)
    refused: dict[str, list[dict[str, Any]]] = {}
    english = []
    for call in calls:
        finals = check_story(running.events(call["call_id"]))
        assert finals, call
        if "error" in finals[0]:
            refused[call["source"]] = finals
        else:
            english += finals
    assert refused.keys() == {"sip", "twilio", "audiosocket", "asterisk-ws", "siprec"}
    for source, finals in refused.items():
        code = "de-AT" if source == "siprec" else "de"
        for final in finals:
            assert (final["text"], final["reason"], final["error"]) == ("", "failed", WHY.format(code))
    assert len(english) >= 2 and all(final["text"] and final["language"] == "en" for final in english)
    assert running.get("/readyz")["status"] == "ready"
    await by_command("call", sip.format("british"), *play)
    last = (await asyncio.to_thread(running.wait_ended, 8))[-1]
    assert all(final["text"] for final in check_story(running.events(last["call_id"])))
    assert running.metric("mediaworker_asr_crashes_total") == 0


async def test_what_is_refused_does_not_count_against_the_engine() -> None:
    """Nor does it start it."""
    async with client(Settings(asr=Asr(engine="moonshine"))) as c:
        for name in "abcd":
            c.recognizer.open(Utterance(name, "PCMU", language="de"), c.heard.append)
            c.recognizer.append(name, SPOKEN)
            c.recognizer.partial(name, 1)
            c.recognizer.final(name, 2, commit=False)
            await c.until(lambda name=name: c.finals(name))
            c.recognizer.final(name, 3, commit=True)
            await c.until(lambda name=name: len(c.finals(name)) == 2)
            said = {(final.text, final.error, final.refused) for final in c.finals(name)}
            assert said == {("", WHY.format("de"), True)}
        assert c.recognizer.trouble is None and c.recognizer.state is EngineStatus.IDLE and c.states == []
        assert c.recognizer.open_utterances == c.recognizer.backlog_bytes == 0


async def test_it_says_what_it_knows(running: Worker, browser: Browser) -> None:
    """Over HTTP, in the log, in the first event, and on the page."""
    assert {tuple(model["languages"]) for model in running.get("/v1/models")["data"]} == {("en",)}
    assert running.get("/v1/models/whisper-1")["languages"] == ["en"]
    lines = [json.loads(each) for each in running.log.read_text().splitlines() if each.startswith("{")]
    (chosen,) = [each for each in lines if each["event"] == "engine"]
    assert chosen["languages"] == "en" and "English only" in chosen["reason"]
    async with connect(f"ws://127.0.0.1:{running.http_port}/v1/events") as socket:
        hello = json.loads(await socket.recv())
    assert (hello["engine"]["name"], hello["engine"]["languages"]) == ("moonshine", ["en"])
    async with screen(browser, running.url) as shown:
        await shown.open("/#/try")
        await expect(shown.page.locator("#engine")).to_contain_text("Engine moonshine (English only): ")
        await expect(shown.page.locator("#engine")).to_have_attribute("title", "English")
        await shown.shows("#language option", ["English"])


async def test_routes_that_name_another_are_warnings(running: Worker) -> None:
    expected = [
        f"the calls of routes[{number}] will get no text: {WHY.format(code)}"
        for number, code in enumerate(("de", "de-AT", "de"))
    ]
    assert running.get("/readyz")["warnings"] == expected
    assert [line for line in expected if json.dumps(line)[1:-1] not in running.log.read_text()] == []


async def test_requests_for_another_are_refused(running: Worker) -> None:
    url, files = running.url, {"file": ("a.ulaw", SPOKEN)}
    async with httpx.AsyncClient(timeout=seconds(30)) as client:
        for fields in ({"language": "de"}, {"languages[]": ["de", "fr"]}):
            answer = await client.post(f"{url}/v1/audio/transcriptions", data=fields, files=files)
            assert answer.status_code == 400 and "it knows en" in answer.json()["error"]["message"]
        answer = await client.post(f"{url}/v1/jobs", data={"language": "de_DE"}, files=files)
        assert answer.status_code == 400 and answer.json()["detail"].endswith(": en")
        answer = await client.patch(f"{url}/v1/calls/any", json={"language": "de"})
        assert answer.status_code == 400 and answer.json()["detail"] == f"language: {WHY.format('de')}"
        assert (await client.patch(f"{url}/v1/calls/any", json={"language": "en-GB"})).status_code == 404
    for route, kind in (("asr", "type"), ("transcribe", "action")):
        async with connect(f"ws://127.0.0.1:{running.media_port}/ws/{route}") as socket:
            await socket.send(json.dumps({kind: "config", "language": "de"}))
            while (message := json.loads(await socket.recv()))["type"] == "ready":
                pass
            assert (message["type"], message["code"]) == ("error", "bad_value")
            assert message["message"] == "the engine does not know the language 'de'; it knows en"


async def test_a_reload_to_another_changes_nothing(reloadable: tuple[Worker, Callable[[str], str]]) -> None:
    running, reload = reloadable
    said = reload('[asr]\nlanguage = "de"\n')
    assert "configuration not reloaded" in said and json.dumps(f"asr.language = 'de': {WHY.format('de')}")[1:-1] in said
    said = reload('[asr]\nlanguage = "en"\n[[routes]]\nlanguage = "fr"\n')
    assert f"the calls of routes[0] will get no text: {WHY.format('fr')}" in said
    assert len(running.get("/readyz")["warnings"]) == 1


@pytest.mark.parametrize("arguments", [("config",), ("serve",), ("transcribe", "nowhere.wav")])
async def test_a_forced_language_that_is_not_known_is_a_wrong_setting(arguments: tuple[str, ...]) -> None:
    done = await asyncio.to_thread(command, *arguments, ASR__ENGINE="moonshine", ASR__LANGUAGE="de")
    assert done.returncode == 2 and done.stdout == ""
    (sentence,) = done.stderr.splitlines()
    assert sentence.startswith(f"mediaworker: asr.language = 'de': {WHY.format('de')}")


async def test_transcribe_says_so_before_it_opens_a_file() -> None:
    done = await asyncio.to_thread(command, "transcribe", "nowhere.wav", "--language", "de", ASR__ENGINE="moonshine")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"mediaworker: --language: {WHY.format('de')}\n"
