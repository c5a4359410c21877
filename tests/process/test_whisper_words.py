"""Times of words by Whisper on every way that text takes: calls and files, engines here, on a server and at an address,
and where Whisper is missing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from lab.events.story import check_story
from lab.media.speech import SPEECH
from lab.patience import seconds, until
from lab.worker.engine_servers import TOKEN, engine_server
from lab.worker.jobs import ended, made, upload
from lab.worker.peers import Worker, command, worker

PROMPT = SPEECH / "please-try-call-later.wav"
WORDS = "please try your call again later".split()
BEGIN_MS = (90, 440, 670, 840, 1120, 1470)
"""By PocketSphinx's forced alignment."""
MISS_MS = 250
TIMED = {"ASR__WORD_TIMESTAMPS": "true", "ASR__WORDS_WAIT_S": "60", "SIP__ENABLED": "false", "ASR__PRELOAD": "true"}
NOWHERE = {"MEDIAWORKER_CACHE": "/nowhere"}
"""For a process that shall not find Whisper's files."""
MOST_MB = 500


def stream(running: Worker) -> list[dict[str, Any]]:
    """The events of a call that plays the prompt."""
    before = len(running.calls())
    done = command("stream", running.twilio, "--play", str(PROMPT), "--param", "language=en")
    assert done.returncode == 0, done.stderr
    return running.events(running.wait_ended(before + 1, 90)[-1]["call_id"])


def check_words(words: list[dict[str, Any]], start: str = "start_ms", per_ms: float = 1.0) -> None:
    assert [each["word"].lower() for each in words] == WORDS
    for each, begin_ms in zip(words, BEGIN_MS, strict=True):
        assert abs(each[start] / per_ms - begin_ms) <= MISS_MS


def check_call(events: list[dict[str, Any]]) -> None:
    finals = check_story(events)
    timed = [event for event in events if event["type"] == "transcript.words"]
    assert [each["utterance_id"] for each in timed] == [each["utterance_id"] for each in finals]
    words = [word for each in timed for word in each["words"]]
    check_words(words)
    assert all(0 < each["confidence"] <= 1 for each in words)


def ready(running: Worker) -> None:
    until(lambda: running.metric("mediaworker_ready"), 90)


@pytest.mark.parametrize("engine", ["moonshine", "whisper"])
def test_a_call_has_the_times_of_its_words(tmp_path: Path, engine: str) -> None:
    with worker(tmp_path, **TIMED, ASR__ENGINE=engine) as running:
        ready(running)
        check_call(stream(running))
        assert running.metric("mediaworker_asr_failed_alignments_total") == 0
        assert running.log.read_text().count("times of words") == 1


def test_files_have_them_without_a_setting_and_calls_do_not(tmp_path: Path) -> None:
    options = TIMED | {"ASR__WORD_TIMESTAMPS": "false", "ASR__ENGINE": "mixed"}
    with worker(tmp_path, **options) as running:
        ready(running)

        def transcribe(format: str, **fields: str) -> httpx.Response:
            answer = httpx.post(
                f"{running.url}/v1/audio/transcriptions",
                data={"model": "whisper-1", "response_format": format, "language": "en", **fields},
                files={"file": ("a.wav", PROMPT.read_bytes())},
                timeout=seconds(60),
            )
            assert answer.status_code == 200, answer.text
            return answer

        found = transcribe("verbose_json", **{"timestamp_granularities[]": "word"}).json()
        check_words(found["words"], "start", 0.001)
        for format in ("srt", "vtt"):
            assert "Please try your call again later." in " ".join(transcribe(format).text.split())
        with httpx.Client(base_url=running.url, timeout=seconds(60)) as client:
            job_id = made(upload(client, PROMPT, language="en"))
            assert ended(client, job_id)["status"] == "completed"
            assert client.get(f"/v1/jobs/{job_id}/result").json()["words"] == found["words"]
        events = stream(running)
        assert check_story(events) and not [each for each in events if each["type"] == "transcript.words"]
        assert _resident_mb(running) <= MOST_MB, "engine and aligner share a model"


def test_a_server_times_the_words_of_a_worker_without_whisper(tmp_path: Path) -> None:
    with engine_server(tmp_path / "server", ASR__ENGINE="mixed", ASR__PRELOAD="true") as server:
        options = TIMED | {"ASR__SERVERS": json.dumps([server.address]), "CLUSTER__TOKEN": TOKEN}
        with worker(tmp_path, NOWHERE, **options, ASR__ENGINE="auto") as running:
            ready(running)
            check_call(stream(running))


def test_words_of_a_text_from_an_address(tmp_path: Path) -> None:
    (tmp_path / "remote").mkdir()
    with worker(tmp_path / "remote", ASR__ENGINE="moonshine", ASR__PRELOAD="true", SIP__ENABLED="false") as remote:
        ready(remote)
        address = {"ASR__ENGINE": "openai", "ASR__URL": f"{remote.url}/v1"}
        with worker(tmp_path, **TIMED, **address, ASR__MODEL="whisper-1") as running:
            ready(running)
            check_call(stream(running))


def test_without_whispers_files_a_line_says_how_to_get_them(tmp_path: Path) -> None:
    with worker(tmp_path, NOWHERE, **TIMED, ASR__ENGINE="moonshine") as running:
        ready(running)
        events = stream(running)
        assert check_story(events) and not [each for each in events if each["type"] == "transcript.words"]
        (line,) = [line for line in running.log.read_text().splitlines() if "no times of words" in line]
        assert "mediaworker models pull whisper-base" in line


def _inference(running: Worker) -> Path:
    for child in Path(f"/proc/{running.process.pid}/task").glob("*/children"):
        for pid in child.read_text().split():
            if "asr.inference.process" in Path(f"/proc/{pid}/cmdline").read_text():
                return Path(f"/proc/{pid}")
    raise AssertionError("no inference process")


def _resident_mb(running: Worker) -> float:
    status = (_inference(running) / "status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1024
