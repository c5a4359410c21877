"""The examples, run as a user would against a worker."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import sys
import wave
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import soxr

from audio.codecs.g711 import ulaw_decode
from lab.engine.listener import LISTENER, LISTENER_PATH, WORDS
from lab.media import material
from lab.network.ports import ports
from lab.patience import seconds, until
from lab.worker.peers import ROOT, Worker, worker
from lab.worker.peers import command as mediaworker
from lab.worker.qwen import DIGITS
from lab.worker.ws_calls import CODES, config, speech, texts, told, url


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    with worker(tmp_path_factory.mktemp("worker"), LISTENER_PATH, SIP__ENABLED="false", **LISTENER) as started:
        yield started


@pytest.fixture(scope="module")
def said(running: Worker) -> list[str]:
    """What the engine says of the recording, sent whole at 16 kHz: other words for other samples."""
    sent = speech("pcm_s16le", 16000)
    first = config("pcm_s16le", 16000, language="en")
    found = texts(asyncio.run(told(url(running, "asr"), first, sent, speed=0, bytes_per_s=32000)))
    assert len(found) == 2 and all(found)
    return found


def command(running: Worker, name: str, *arguments: str) -> list[str]:
    where = ("--url", url(running, "asr"), "--language", "en")
    return [sys.executable, str(ROOT / "examples" / name), *arguments, *where]


def test_a_file_is_transcribed(running: Worker, tmp_path: Path, said: list[str]) -> None:
    stereo = np.repeat(np.frombuffer(speech("pcm_s16le", 16000), "<i2"), 2)
    with wave.open(str(tmp_path / "talk.wav"), "wb") as file:
        file.setnchannels(2)
        file.setsampwidth(2)
        file.setframerate(16000)
        file.writeframes(stereo.tobytes())
    done = subprocess.run(
        command(running, "transcribe_file.py", str(tmp_path / "talk.wav")),
        capture_output=True,
        text=True,
        timeout=seconds(90),
    )
    assert done.returncode == 0, done.stderr
    assert [line.split("  ")[-1].strip() for line in done.stdout.splitlines()] == said


NO_PORTAUDIO = "raise OSError('PortAudio library not found')"
NO_DEVICE = """
class PortAudioError(Exception): pass
def RawInputStream(*_, **__): raise PortAudioError('Error querying device -1')
"""
PLAYED = """
import threading, time
class PortAudioError(Exception): pass
class RawInputStream:
    def __init__(self, *_, callback, **__): self.callback = callback
    def start(self): threading.Thread(target=self.run, daemon=True).start()
    def run(self):
        with open({room!r}, 'rb') as file:
            while data := file.read(3200):
                self.callback(data, None, None, None)
                time.sleep(0.05)
    def __enter__(self): return self
    def __exit__(self, *_): pass
"""
"""Whatever sounddevice, PortAudio and microphones the machine has: the examples see this one."""


def microphone(folder: Path, sounddevice: str, **recorders: str) -> dict[str, str]:
    """An environment with that sounddevice, and with these programs alone on its path."""
    (folder / "modules").mkdir()
    (folder / "modules" / "sounddevice.py").write_text(sounddevice)
    programs = folder / "programs"
    programs.mkdir()
    for name, text in recorders.items():
        (programs / name).write_text(f"#!{sys.executable}\n{text}")
        (programs / name).chmod(0o755)
    return os.environ | {"PATH": str(programs), "PYTHONPATH": str(folder / "modules")}


@pytest.mark.parametrize("heard_by", ["sounddevice", "arecord", "parec"])
def test_the_microphone_shows_words_and_ends_with_ctrl_c(
    running: Worker, tmp_path: Path, heard_by: str, said: list[str]
) -> None:
    """By a recorder that plays a file, at twice the speed, and then says nothing more; those before it fail."""
    room = tmp_path / "room.raw"
    room.write_bytes(speech("pcm_s16le", 16000))
    plays = (
        f"import sys, time\nwith open({str(room)!r}, 'rb') as file:\n"
        "    while data := file.read(3200):\n        sys.stdout.buffer.write(data)\n        sys.stdout.flush()\n"
        "        time.sleep(0.05)\ntime.sleep(600)\n"
    )
    match heard_by:
        case "sounddevice":
            environ = microphone(tmp_path, PLAYED.format(room=str(room)))
        case "arecord":
            environ = microphone(tmp_path, NO_DEVICE, arecord=plays)
        case _:
            environ = microphone(tmp_path, NO_PORTAUDIO, arecord="raise SystemExit('no soundcards')", parec=plays)
    with subprocess.Popen(command(running, "microphone.py"), env=environ, stdout=subprocess.PIPE) as shown:
        assert shown.stdout is not None
        lines = [shown.stdout.readline() for _ in said]
        shown.send_signal(signal.SIGINT)
        rest, _ = shown.communicate(timeout=seconds(60))
    assert shown.returncode == 0 and rest.strip() in (b"", b"\x1b[K")
    assert [line.decode().rpartition("\x1b[K")[2].strip() for line in lines] == said
    assert all(line.count(b"\x1b[K") > 1 for line in lines), "words appear while they are said"


def test_without_a_microphone_there_is_a_sentence(running: Worker, tmp_path: Path) -> None:
    environ = microphone(tmp_path, NO_DEVICE, arecord="raise SystemExit('audio open error: No such file')")
    done = subprocess.run(
        command(running, "microphone.py"), env=environ, capture_output=True, text=True, timeout=seconds(60)
    )
    assert done.returncode == 1 and done.stderr == (
        "Nothing records here: sounddevice: Error querying device -1; arecord: audio open error: No such file; "
        "parec: No such file or directory.\n"
    )


def test_a_file_that_cannot_be_read_is_a_sentence(running: Worker, tmp_path: Path) -> None:
    (tmp_path / "noise.mp4").write_bytes(b"no container" * 100)
    for name, says in (("nowhere.mp4", "No such file"), ("noise.mp4", "noise.mp4: Invalid data")):
        done = subprocess.run(
            command(running, "transcribe_file.py", str(tmp_path / name)),
            capture_output=True,
            text=True,
            timeout=seconds(60),
        )
        assert done.returncode == 1 and says in done.stderr and done.stderr.count("\n") == 1, done.stderr


def test_the_readme_shows_a_program_that_works_when_pasted(running: Worker, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "start" / "first-call.md").read_text(encoding="utf-8")
    (program,) = re.findall(r"```python\n(from openai .*?)```", page, re.S)
    assert "http://127.0.0.1:8080/v1" in program
    (tmp_path / "readme.py").write_text(program.replace("http://127.0.0.1:8080", running.url), encoding="utf-8")
    material.encode(tmp_path / "voicemail.mp3", soxr.resample(ulaw_decode(CODES), 8000, 16000), "libmp3lame", 44_100)
    done = subprocess.run(
        [sys.executable, "readme.py"], cwd=tmp_path, capture_output=True, text=True, timeout=seconds(90)
    )
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.split()) > 10 and {*done.stdout.split()} <= {*WORDS}


@pytest.mark.parametrize("name", ["agent_assist.py", "microphone.py", "transcribe_file.py", "voice_bot.py"])
def test_without_a_worker_there_is_a_sentence(name: str, tmp_path: Path) -> None:
    (port,) = ports(1)
    address = {
        "microphone.py": ("--url", f"ws://127.0.0.1:{port}/ws/asr"),
        "transcribe_file.py": ("talk.wav", "--url", f"ws://127.0.0.1:{port}/ws/asr"),
    }.get(name, (f"http://127.0.0.1:{port}",))
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / name), *address], capture_output=True, text=True, timeout=seconds(30)
    )
    assert done.returncode == 1 and done.stderr.count("\n") == 1, done.stderr
    assert done.stderr.startswith("There is no worker at ") and "`mediaworker serve` starts one." in done.stderr


@contextlib.contextmanager
def example(running: Worker, name: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-u", str(ROOT / "examples" / name), running.url, *arguments]
    until(lambda: not running.metric("mediaworker_event_subscribers"), 20, "the one before has gone")
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as started:
        try:
            until(lambda: running.metric("mediaworker_event_subscribers") > 0, 20, "it listens")
            yield started
        finally:
            started.kill()


def over(started: subprocess.Popen[str], last: str, times: int = 1) -> str:
    """All that it shows, ended by Ctrl-C once it has shown `last`."""
    assert started.stdout is not None
    shown = ""
    while shown.count(last) < times:
        line = started.stdout.readline()
        assert line, shown
        shown += line
    started.send_signal(signal.SIGINT)
    return shown + started.stdout.read()


def test_an_agent_reads_both_sides(running: Worker) -> None:
    with example(running, "agent_assist.py") as screen:
        calls = len(running.calls())
        tracks = ("--play", str(DIGITS / "customer.ulaw"), "--play-outbound", str(DIGITS / "agent.ulaw"))
        assert mediaworker("stream", running.twilio, *tracks).returncode == 0
        call = running.wait_ended(calls + 1)[-1]
        shown = over(screen, "-- ended")
    lines = [" ".join(line.split()[1:]) for line in shown.splitlines()]
    finals = [event for event in running.events(call["call_id"]) if event["type"] == "transcript.final"]
    assert [line for line in lines if line.startswith(("customer: ", "agent: "))] == [
        f"{final['role']}: {final['text']}" for final in finals
    ]
    assert {final["role"] for final in finals} == {"customer", "agent"}
    assert lines[0].startswith("-- twilio call") and lines[-1] == "-- ended: hangup"
    assert any(line.startswith("-- talk: inbound ") for line in lines)


def test_a_bot_answers_what_was_said(running: Worker, tmp_path: Path) -> None:
    played, reply, codes = tmp_path / "played.ulaw", tmp_path / "reply.ulaw", (DIGITS / "customer.ulaw").read_bytes()
    # Time to answer in: who goes on talking makes an answer that has not begun obsolete.
    played.write_bytes(codes[:25_000] + b"\xff" * 8 * 6000 + codes[25_000:])
    with example(running, "voice_bot.py") as bot:
        calls = len(running.calls())
        said = ("--play", str(played), "--connect", "--tail", "8", "--save-reply", str(reply))
        assert mediaworker("stream", running.twilio, *said).returncode == 0
        call = running.wait_ended(calls + 1)[-1]
        shown = over(bot, " -> ", 2)
    turns = [line.partition("  ")[2] for line in shown.splitlines()]
    assert [turn.rpartition(" (")[0] for turn in turns] == [
        f"{text!r} -> 'You said: {text}'"
        for text in (each["text"] for each in running.events(call["call_id"]) if each["type"] == "transcript.final")
    ]
    seconds = sum(float(turn.rpartition(" (")[2].removesuffix(" s)")) for turn in turns)
    heard = ulaw_decode(reply.read_bytes())
    assert len(heard) / 8000 == pytest.approx(seconds, abs=0.15)
    assert np.abs(heard).max() > 3000, "a voice"
