"""The engine `openai` with real servers: another mediaworker, and a proxy that is busy."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from asr.client.recognizer import EngineStatus, Utterance
from asr.engines.openai.wire import wav
from audio.codecs.g711 import ulaw_encode
from config.sections.section import Secret
from config.settings import Settings
from lab.engine.listener import LISTENER, LISTENER_PATH, WORDS
from lab.engine.recognizer import client, remote_engine
from lab.http.transcription_servers import busy
from lab.media.speech import SPEECH, speech
from lab.network.ports import free_port
from lab.worker.peers import Worker, command, worker
from lab.worker.ws_calls import CODES, config, stored, texts, told, url

KEY = "a-key-of-sixteen-or-more"
PROMPTS = ("agent-loggedoff", "vm-goodbye")


@pytest.fixture(scope="module")
def spoken() -> dict[str, bytes]:
    return {prompt: bytes(ulaw_encode(speech(prompt))) for prompt in PROMPTS}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    """A mediaworker that transcribes for whoever has the key."""
    keys = f'[{{name = "remote", key = "{KEY}", scopes = ["batch"]}}]'
    environ = LISTENER | {"ASR__PRELOAD": "true", "SIP__ENABLED": "false", "AUTH__API_KEYS": keys}
    with worker(tmp_path_factory.mktemp("server"), LISTENER_PATH, **environ) as running:
        yield running


def remote(base: str, *, key: str = KEY, **asr: object) -> Settings:
    return remote_engine(base, "listener", url_key=Secret(key), **asr)


def asked(base: str, audio: bytes) -> str:
    """What the server makes of it when OpenAI's own client asks."""
    api = openai.OpenAI(base_url=base, api_key=KEY)
    return api.audio.transcriptions.create(model="listener", file=("a.wav", wav("PCMU", audio))).text


async def test_words_are_those_that_openais_client_gets(server: Worker, spoken: dict[str, bytes]) -> None:
    base = f"{server.url}/v1"
    expected = {prompt: await asyncio.to_thread(asked, base, audio) for prompt, audio in spoken.items()}
    async with client(remote(base, url_partials=True, partial_ms=1000)) as c:
        await c.ready()
        assert "listener at http" in c.reasons[-1]
        for prompt, audio in spoken.items():
            c.recognizer.open(Utterance(prompt, "PCMU", stream="leg"), c.heard.append)
            c.recognizer.append(prompt, audio[: len(audio) // 2])
            c.recognizer.partial(prompt, 1)
        await c.until(lambda: all(any(h.utterance_id == prompt for h in c.heard) for prompt in spoken))
        for prompt, audio in spoken.items():
            c.recognizer.append(prompt, audio[len(audio) // 2 :])
            c.recognizer.final(prompt, 2, commit=True)
        await c.until(lambda: all(c.finals(prompt) for prompt in spoken))
        assert {prompt: c.finals(prompt)[0].text for prompt in spoken} == expected
        assert {h.language for h in c.heard} == {"en"} and not any(h.error for h in c.heard)
        assert any(not h.final and h.text for h in c.heard) and c.recognizer.open_utterances == 0


async def test_a_busy_server_is_waited_for(server: Worker, spoken: dict[str, bytes], tmp_path: Path) -> None:
    """Two requests a second go through, the others get 429."""
    audio = spoken["vm-goodbye"]
    with busy(tmp_path, server.http_port, 2) as base:
        async with client(remote(base)) as c:
            await c.ready()
            names = [f"utterance-{number}" for number in range(6)]
            for name in names:
                c.say(name, audio)
                c.recognizer.final(name, 1, commit=True)
            await c.until(lambda: all(c.finals(name) for name in names))
            assert {(h.text, h.error) for h in c.heard} == {(asked(f"{server.url}/v1", audio), None)}


async def test_finals_wait_while_the_server_is_restarted(tmp_path: Path, spoken: dict[str, bytes]) -> None:
    port = free_port()
    environ = LISTENER | {"SIP__ENABLED": "false", "HTTP__PORT": str(port)}
    with worker(tmp_path, LISTENER_PATH, **environ) as running:
        async with client(remote(f"{running.url}/v1", key="")) as c:
            await c.ready()
            running.process.send_signal(signal.SIGKILL)
            running.process.wait()
            for prompt, audio in spoken.items():
                c.say(prompt, audio)
                c.recognizer.final(prompt, 1, commit=True)
            await asyncio.sleep(1)  # in which they are asked for in vain
            assert c.heard == []
            running.start_again()
            await c.until(lambda: all(c.finals(prompt) for prompt in spoken))
            assert not any(h.error for h in c.heard) and all(h.text for h in c.heard)
            assert c.recognizer.counters.crashes == 0


async def test_a_server_that_is_not_there_or_knows_no_such_key_is_a_sentence(server: Worker) -> None:
    for base, key, why in [
        (f"http://127.0.0.1:{free_port()}/v1", "", "the server cannot be reached (ConnectError"),
        (f"{server.url}/v1", "another", "the server refuses asr.url_key (401)"),
    ]:
        async with client(remote(base, key=key)) as c:
            await c.until(lambda c=c: c.recognizer.state is EngineStatus.FAILED)
            assert c.reasons[-1].startswith(f"asr.url = '{base}': {why}"), c.reasons
            assert KEY not in str(c.reasons)


async def test_a_refusal_is_told_as_the_reason_of_the_final(server: Worker, spoken: dict[str, bytes]) -> None:
    async with client(remote(f"{server.url}/v1")) as c:
        await c.ready()
        c.recognizer.open(Utterance("a", "PCMU", language="cy"), c.heard.append)
        c.recognizer.append("a", spoken["vm-goodbye"])
        c.recognizer.final("a", 1, commit=True)
        await c.until(lambda: c.finals("a"))
        assert "the server answered 400: " in str(c.finals("a")[0].error) and "cy" in str(c.finals("a")[0].error)


async def test_a_worker_with_a_remote_engine_takes_calls_and_files(server: Worker, tmp_path: Path) -> None:
    environ = {
        "ASR__ENGINE": "openai", "ASR__MODEL": "listener", "ASR__URL": f"{server.url}/v1", "ASR__URL_KEY": KEY,
        "SIP__ENABLED": "false",
    }  # fmt: skip
    with worker(tmp_path, **environ) as running:
        heard = await told(url(running, "asr"), config(), CODES, speed=4)
        finals = texts(heard)
        assert finals and all(finals)
        assert not any(message["type"] == "partial" for message in heard), "nobody has asked for partials"
        assert [each["text"] for each in stored(running, heard[0])] == finals
        shown = running.get("/readyz")["engine"]
        assert (shown["name"], shown["device"]) == ("openai", "remote")
        assert KEY not in running.log.read_text() and KEY not in json.dumps(running.get("/v1/models"))
    done = command("transcribe", str(SPEECH / "vm-goodbye.wav"), **environ)
    assert done.returncode == 0 and set(done.stdout.split()) & set(WORDS), done.stderr


def test_the_settings_say_what_is_missing(tmp_path: Path) -> None:
    done = command("serve", DATA_DIR=str(tmp_path), ASR__ENGINE="openai")
    assert done.returncode == 2 and "asr.url is empty: it names the server" in done.stderr
