"""Engines of other packages: the example of the documentation, installed and called, and what can be wrong with one."""

from __future__ import annotations

import re
import shutil
import wave
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from asr.client.recognizer import EngineStatus, Utterance
from asr.engines.plugin import find, names
from asr.engines.selection import select
from config import ConfigError
from config.settings import Asr, Settings
from lab import patience
from lab.engine.faulty_engines import STEP_MS
from lab.engine.recognizer import PROMPT, client, codes
from lab.events.story import check_story
from lab.media.speech import speech
from lab.worker.packages import install
from lab.worker.peers import ROOT, Worker, command, worker
from lab.worker.ws_calls import config, stored, texts, told
from mediaworker.events.schema import Word

EXAMPLE = ROOT / "examples" / "length_engine"
FAULTY = [
    "incomplete", "no_tuple", "regional", "about_raises", "missing_raises", "lacking", "create_raises", "unusable",
    "dying", "raising", "without_partials", "short", "timed",
]  # fmt: skip
AHEAD_S = (0.4, 0.55)
"""An utterance has this much audio more than it has speech: the pre-roll, and the silence that a final waits for."""


# -- the example -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    """A worker in whose environment the example has been installed."""
    folder = tmp_path_factory.mktemp("example")
    site = install(EXAMPLE, folder)
    with worker(folder, {"PYTHONPATH": str(site)}, ASR__ENGINE="length", SIP__ENABLED="false") as started:
        yield started


async def test_the_example_says_how_long_everybody_has_talked(running: Worker) -> None:
    audio = b"\xff" * 4000 + codes("demo-thanks") + b"\xff" * 8000
    url = f"ws://127.0.0.1:{running.media_port}/ws/asr"
    heard = await told(url, config(), audio, speed=1)
    finals = [message for message in heard if message["type"] == "final"]
    partials = [message for message in heard if message["type"] == "partial"]
    assert finals and len(partials) > len(finals)
    for final in finals:
        own = [seconds(each) for each in partials if each["utterance_id"] == final["utterance_id"]]
        assert own == sorted(own) and own[-1] <= seconds(final), "they grow"
        more_s = seconds(final) - (final["end_ms"] - final["start_ms"]) / 1000
        assert AHEAD_S[0] <= more_s <= AHEAD_S[1] and final["language"] == "en"
    story = stored(running, heard[0])
    assert [each["text"] for each in story] == texts(heard)
    models = running.get("/v1/models")["data"]
    assert models[0]["id"] == "length" and all(model["languages"] == ["en"] for model in models)
    assert "asr.engine = 'length': the length of the audio" in running.log.read_text()


def seconds(message: dict[str, Any]) -> float:
    found = re.fullmatch(r"([0-9.]+) seconds", message["text"])
    assert found is not None, message
    return float(found[1])


def test_the_page_shows_the_example_as_it_is() -> None:
    page = (ROOT / "docs" / "how-to" / "engines.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```(\w*)\n(.*?)```", page, re.DOTALL)
    (module,) = [text for kind, text in blocks if kind == "python"]
    assert module == (EXAMPLE / "length_engine.py").read_text(encoding="utf-8")
    (offer,) = [text for kind, text in blocks if kind == "toml"]
    assert offer in (EXAMPLE / "pyproject.toml").read_text(encoding="utf-8")


# -- what can be wrong -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of packages with one that offers the engines of `lab.engine.faulty_engines`."""
    folder = tmp_path_factory.mktemp("site")
    offered = folder / "faulty_engines-1.0.dist-info"
    offered.mkdir()
    (offered / "METADATA").write_text("Metadata-Version: 2.1\nName: faulty-engines\nVersion: 1.0\n")
    lines = [f"{name} = faulty_engines:{name}" for name in FAULTY]
    lines += ["absent = no_such_package:plugin", "moved = faulty_engines:no_such_name", "broken = broken_engine:plugin"]
    (offered / "entry_points.txt").write_text("[mediaworker.engines]\n" + "\n".join(lines) + "\n")
    shutil.copy(ROOT / "lab" / "engine" / "faulty_engines.py", folder)
    (folder / "broken_engine.py").write_text("raise RuntimeError('no licence')\n")
    return folder


@pytest.fixture
def faulty(site: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """They are installed here and in the inference process."""
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setenv("PYTHONPATH", str(site))
    monkeypatch.setattr("asr.client.engine_health.BACKOFF_S", 0.05)
    return site


def settings(engine: str, **more: Any) -> Settings:
    return Settings(asr=Asr(engine=engine, **more))


@pytest.mark.parametrize(
    ("engine", "why"),
    [
        (
            "nobody",
            "no engine of this name; there are moonshine, whisper, mixed, qwen, openai, about_raises, absent, ",
        ),
        ("absent", "its plug-in no_such_package:plugin cannot be imported (ModuleNotFoundError: "),
        ("moved", "its plug-in faulty_engines:no_such_name cannot be imported (AttributeError: "),
        ("broken", "its plug-in broken_engine:plugin cannot be imported (RuntimeError: no licence)"),
        ("incomplete", "has no languages, words, about, missing, create: see docs/how-to/engines.md"),
        ("no_tuple", "has 'en' for languages: they are ISO 639 codes"),
        ("regional", "has ('en-US',) for languages: they are ISO 639 codes"),
        ("about_raises", "its plug-in has failed (KeyError: 'phrase')"),
        ("missing_raises", "its plug-in has failed (PermissionError: [Errno 13] Permission denied)"),
        ("lacking", "its licence is not installed: ask for one"),
    ],
)
def test_a_plug_in_that_cannot_be_used_is_a_wrong_setting(faulty: Path, engine: str, why: str) -> None:
    with pytest.raises(ConfigError) as caught:
        select(Asr(engine=engine))
    assert str(caught.value).startswith(f"asr.engine = {engine!r}: ") and why in str(caught.value)
    assert set(FAULTY) < set(names())


@pytest.mark.parametrize(("name", "engine"), [("config", "nobody"), ("serve", "broken")])
def test_a_command_says_so_in_one_line(faulty: Path, name: str, engine: str) -> None:
    done = command(name, ASR__ENGINE=engine, SIP__ENABLED="false")
    assert done.returncode == 2 and done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"mediaworker: asr.engine = {engine!r}: ")


def test_a_configuration_is_right_where_the_engine_only_lacks_something(faulty: Path) -> None:
    """It may be meant for another machine."""
    assert command("config", ASR__ENGINE="lacking").returncode == 0


@pytest.mark.parametrize(
    ("engine", "why"),
    [
        ("create_raises", "the engine create_raises cannot be created (ValueError: weights of another version)"),
        ("unusable", "there is no such accelerator: plug it in"),
    ],
)
async def test_an_engine_that_cannot_be_created_has_failed(faulty: Path, engine: str, why: str) -> None:
    async with client(settings(engine)) as c:
        c.say("a", codes(PROMPT))
        c.recognizer.final("a", 1, commit=True)
        await c.until(lambda: c.finals("a"))
        assert [final.error for final in c.finals("a")] == [why]
        assert c.states[:2] == [EngineStatus.WARMING_UP, EngineStatus.FAILED] and c.reasons[1] == why
        assert c.recognizer.trouble == "the recognition engine does not start"


@pytest.mark.parametrize(
    ("engine", "how"), [("dying", "exit status 7"), ("raising", "ZeroDivisionError: division by zero")]
)
async def test_an_engine_that_ends_over_an_utterance_ends_that_utterance(faulty: Path, engine: str, how: str) -> None:
    async with client(settings(engine)) as c:
        c.say("a", codes(PROMPT))
        c.recognizer.final("a", 1, commit=True)
        await c.until(lambda: c.finals("a"))
        assert [final.error for final in c.finals("a")] == [f"the inference process died ({how})"]
        assert c.recognizer.counters.crashes == 2 and c.recognizer.open_utterances == 0


# -- what an engine may not do, and may do more ------------------------------------------------------------------------


async def test_without_partials_it_is_asked_for_finals_alone(faulty: Path) -> None:
    async with client(settings("without_partials")) as c:
        await said(c, "warm", 800)
        c.say("a", codes(PROMPT)[:8000])
        for revision in (1, 2):
            c.recognizer.partial("a", revision)
        c.recognizer.final("a", 3, commit=False)
        await c.until(lambda: c.finals("a"))
        c.recognizer.partial("a", 4)
        c.recognizer.final("a", 5, commit=True)
        await c.until(lambda: len(c.finals("a")) == 2)
        heard = [(h.revision, h.text) for h in c.heard if h.utterance_id == "a"]
        assert heard == [(3, "8000 bytes"), (5, "8000 bytes")]
        assert c.recognizer.counters.crashes == 0 and c.recognizer.open_utterances == 0


async def test_an_utterance_that_is_too_long_says_what_to_change(faulty: Path) -> None:
    """Its beginning is recognised, and it costs the others and the worker's readiness nothing."""
    async with client(settings("short")) as c:
        assert (await said(c, "fits", 8000)).text == "8000 bytes"
        for name in "abc":
            final = await said(c, name, 8001)
            assert (
                final.text == ""
                and final.refused
                and final.error
                == (
                    "the engine counting takes 1 s of audio, and the utterance has 1.00 s: "
                    "lower endpointing.<profile>.max_utterance_s"
                )
            )
        assert c.recognizer.trouble is None
        c.say("grows", codes(PROMPT)[:6400])
        c.recognizer.final("grows", 1, commit=False)
        await c.until(lambda: c.finals("grows"))
        c.recognizer.append("grows", b"\xff" * 16000)
        c.recognizer.partial("grows", 2)
        c.recognizer.final("grows", 3, commit=True)
        await c.until(lambda: len(c.finals("grows")) == 2)
        assert [bool(h.error) for h in c.heard if h.utterance_id == "grows"] == [False, True]
        c.recognizer.open(Utterance("file", "L16", live=False), c.heard.append)
        c.recognizer.append("file", bytes(64000))
        c.recognizer.final("file", 1, commit=True)
        await c.until(lambda: c.finals("file"))
        assert "2.00 s: lower endpointing.files.max_utterance_s" in str(c.finals("file")[0].error)
        assert (await said(c, "fits again", 8000)).text == "8000 bytes" and c.recognizer.counters.crashes == 0


async def said(c: Any, name: str, size: int) -> Any:
    """The final of so many bytes."""
    c.say(name, (codes(PROMPT) * 2)[:size])
    c.recognizer.final(name, 1, commit=True)
    await c.until(lambda: c.finals(name))
    return c.finals(name)[0]


def test_words_that_the_engine_times_need_no_aligner(site: Path, tmp_path: Path) -> None:
    """Those of calls, in call time, and those of files."""
    assert find("moonshine").words is False
    played = tmp_path / "played.ulaw"
    played.write_bytes(codes(PROMPT) + b"\xff" * 8000)
    options = {
        "ASR__ENGINE": "timed",
        "ASR__WORD_TIMESTAMPS": "true",
        "ASR__ALIGNER": "nobody/nothing",
        "SIP__ENABLED": "false",
    }
    with worker(tmp_path, {"PYTHONPATH": str(site)}, **options) as running:
        assert "the engine timed tells them" in running.log.read_text()
        answer = transcribed(running)
        assert answer["text"].split(", ") == [word["word"] for word in answer["words"]] and len(answer["words"]) > 2
        assert command("stream", running.twilio, "--play", str(played)).returncode == 0
        events = running.events(running.wait_ended(1)[0]["call_id"])
        finals = check_story(events)
        told = {event["utterance_id"]: event["words"] for event in events if event["type"] == "transcript.words"}
        assert told.keys() == {final["utterance_id"] for final in finals}
        for final in finals:
            words = [Word(**word) for word in told[final["utterance_id"]]]
            assert ", ".join(word.word for word in words) == final["text"]
            starts = [word.start_ms for word in words]
            inner = starts[1:-1]  # the first and the last may lie in the silence around the speech
            assert all(later - before == STEP_MS for before, later in zip(inner, inner[1:], strict=False))
            assert starts == sorted(starts)
            assert all(final["start_ms"] <= word.start_ms <= word.end_ms <= final["end_ms"] for word in words)
        assert running.metric("mediaworker_asr_crashes_total") == 0


def transcribed(running: Worker) -> dict[str, Any]:
    path = running.data_dir.parent / "file.wav"
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(8000)
        file.writeframes(speech(PROMPT).tobytes())
    fields = {"response_format": "verbose_json", "timestamp_granularities[]": "word"}
    files, url = {"file": path.read_bytes()}, f"{running.url}/v1/audio/transcriptions"
    answer = httpx.post(url, data=fields, files=files, timeout=patience.seconds(60))
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found
