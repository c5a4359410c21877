"""The examples, run as a user would against a worker."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import wave
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from audio.g711 import ulaw_decode
from tests.peers import ROOT, Worker, until, worker
from tests.peers import command as mediaworker
from tests.test_ws_calls import CODES, QWEN, SAID, speech

DIGITS = ROOT / "tests" / "data" / "digits"


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    with worker(tmp_path_factory.mktemp("worker"), **QWEN) as started:
        yield started


def command(running: Worker, name: str, *arguments: str) -> list[str]:
    url = f"ws://127.0.0.1:{running.media_port}/ws/asr"
    return [sys.executable, str(ROOT / "examples" / name), *arguments, "--url", url, "--language", "en"]


def test_a_file_is_transcribed(running: Worker, tmp_path: Path) -> None:
    stereo = np.repeat(ulaw_decode(CODES), 2)
    with wave.open(str(tmp_path / "talk.wav"), "wb") as file:
        file.setnchannels(2)
        file.setsampwidth(2)
        file.setframerate(8000)
        file.writeframes(stereo.tobytes())
    done = subprocess.run(
        command(running, "transcribe_file.py", str(tmp_path / "talk.wav")), capture_output=True, text=True, timeout=90
    )
    assert done.returncode == 0, done.stderr
    assert [line.split("  ")[-1].strip() for line in done.stdout.splitlines()] == SAID


def test_the_microphone_shows_words_and_ends_with_ctrl_c(running: Worker, tmp_path: Path) -> None:
    """With a recorder of that name that plays a file, at twice the speed, and then says nothing more."""
    recorder = tmp_path / "arecord"
    (tmp_path / "room.raw").write_bytes(speech("pcm_s16le", 16000))
    recorder.write_text(
        f"#!{sys.executable}\nimport sys, time\nwith open('{tmp_path}/room.raw', 'rb') as file:\n"
        "    while data := file.read(3200):\n        sys.stdout.buffer.write(data)\n        sys.stdout.flush()\n"
        "        time.sleep(0.05)\ntime.sleep(600)\n"
    )
    recorder.chmod(0o755)
    environ = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    with subprocess.Popen(command(running, "microphone.py"), env=environ, stdout=subprocess.PIPE) as shown:
        assert shown.stdout is not None
        lines = [shown.stdout.readline() for _ in SAID]
        shown.send_signal(signal.SIGINT)
        rest, _ = shown.communicate(timeout=60)
    assert shown.returncode == 0 and rest.strip() in (b"", b"\x1b[K")
    assert [line.decode().rpartition("\x1b[K")[2].strip() for line in lines] == SAID
    assert all(line.count(b"\x1b[K") > 1 for line in lines), "words appear while they are said"


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


def over(started: subprocess.Popen[str]) -> str:
    started.send_signal(signal.SIGINT)
    shown, _ = started.communicate(timeout=20)
    return shown


def test_an_agent_reads_both_sides(running: Worker) -> None:
    with example(running, "agent_assist.py") as screen:
        calls = len(running.calls())
        tracks = ("--play", str(DIGITS / "customer.ulaw"), "--play-outbound", str(DIGITS / "agent.ulaw"))
        assert mediaworker("stream", running.twilio, *tracks).returncode == 0
        running.wait_ended(calls + 1)
        shown = over(screen)
    lines = [" ".join(line.split()[1:]) for line in shown.splitlines()]
    assert "customer: four seven one two" in lines and "agent: one eight four nine" in lines
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
        running.wait_ended(calls + 1)
        shown = over(bot)
    turns = [line.partition("  ")[2] for line in shown.splitlines()]
    assert [turn.rpartition(" (")[0] for turn in turns] == [
        f"{text!r} -> 'You said: {text}'" for text in ("four seven one two", "nine oh five three eight")
    ]
    seconds = sum(float(turn.rpartition(" (")[2].removesuffix(" s)")) for turn in turns)
    heard = ulaw_decode(reply.read_bytes())
    assert len(heard) / 8000 == pytest.approx(seconds, abs=0.15)
    assert np.abs(heard).max() > 3000, "a voice"
