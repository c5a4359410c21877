"""OpenAI's own Python client against a real worker, unchanged: what it asks for, it gets; what is wrong, it raises."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, get_args

import httpx
import openai
import pytest
from openai import OpenAI
from openai.types import AudioModel

from asr.client.recognizer import Recognizer
from config import Settings
from config.settings import Asr
from lab.engine.limits import limit, limited
from lab.engine.listener import LISTENER, Limit
from lab.http import documented
from lab.media import hostile as hostile_media
from lab.media import material
from lab.patience import seconds, until
from lab.worker.peers import ROOT, TINY, Worker, worker
from mediaworker.files.service import FileService
from mediaworker.files.transcription import FileTask
from mediaworker.http.openai.form import Can, parse
from mediaworker.http.openai.routes import TranscriptionAnswer
from mediaworker.http.problem import Problem
from mediaworker.transcripts.file import ONE_CHANNEL

__all__ = ["limit", "limited"]

KEYS = (
    '[{name="batch", key="batch-key-1", scopes=["batch"]}, {name="other", key="other-key-2", scopes=["batch"]}, '
    '{name="screen", key="events-key-3", scopes=["events", "admin"]}]'
)
BATCH = {"Authorization": "Bearer batch-key-1"}
SECONDS = 20.0


@pytest.fixture
def held(limit: Limit) -> Limit:
    """Nothing more is recognised."""
    limit.set(0)
    return limit


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, limited: Limit) -> Iterator[Worker]:
    environ = LISTENER | {
        "SIP__ENABLED": "false", "ASR__WORD_TIMESTAMPS": "true", "AUTH__API_KEYS": KEYS, "FILES__MAX_UPLOAD_MB": "4",
        "FILES__MAX_REQUESTS_PER_KEY": "2", "EVENTS__HEARTBEAT_S": "1", "FILES__QUEUE_S": f"{seconds(4)}",
    }  # fmt: skip
    with worker(tmp_path_factory.mktemp("openai"), limited.environ, **environ) as made:
        yield made


@pytest.fixture
def client(running: Worker) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{running.url}/v1", api_key="batch-key-1", max_retries=0) as made:
        yield made


@pytest.fixture(scope="module")
def nodes() -> Path:
    done = subprocess.run([ROOT / "tools" / "install_node.sh", sys.executable], capture_output=True, text=True)
    assert done.returncode == 0, f"tools/install_node.sh: {done.stderr}"
    return Path(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def speech(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[material.Spoken]]:
    path = tmp_path_factory.mktemp("speech") / "digits.wav"
    return path, material.splice(path, SECONDS, seed=11)


@pytest.fixture(scope="module")
def stereo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, tuple[list[Any], list[Any]]]:
    path = tmp_path_factory.mktemp("stereo") / "two.wav"
    return path, material.two_speakers(path, SECONDS, seed=3)


Speech = tuple[Path, list[material.Spoken]]


@pytest.fixture(scope="module")
def words(running: Worker, speech: Speech) -> list[str]:
    """What the engine says of each stretch: all formats have the same."""
    path, table = speech
    with OpenAI(base_url=f"{running.url}/v1", api_key="other-key-2", max_retries=0) as other:
        found = other.audio.transcriptions.create(model="whisper-1", file=path, response_format="verbose_json")
    assert found.words is None and found.segments is not None
    assert len(found.segments) == len(table)
    return [segment.text for segment in found.segments]


# -- what it asks for --------------------------------------------------------------------------------------------------


def test_plain(client: OpenAI, speech: Speech, words: list[str]) -> None:
    path, _ = speech
    found = client.audio.transcriptions.create(model="whisper-1", file=path)
    assert found.text == " ".join(words)
    assert found.usage is not None and found.usage.type == "duration" and found.usage.seconds == SECONDS
    assert client.audio.transcriptions.create(model="gpt-4o-transcribe", file=path, response_format="text") == (
        " ".join(words) + "\n"
    )


def test_verbose_json_with_words_and_segments(client: OpenAI, speech: Speech, words: list[str]) -> None:
    path, table = speech
    found = client.audio.transcriptions.create(
        model="whisper-1", file=path, response_format="verbose_json", timestamp_granularities=["word", "segment"],
        language="en",
    )  # fmt: skip
    assert found.text == " ".join(words) and found.language == "english" and found.duration == SECONDS
    assert found.segments is not None and found.words is not None
    assert [segment.text for segment in found.segments] == words
    for number, (segment, each) in enumerate(zip(found.segments, table, strict=True)):
        assert segment.id == number and segment.tokens == [] and segment.compression_ratio > 0
        assert segment.start == pytest.approx(each.start_s, abs=0.2)
        assert segment.end == pytest.approx(each.end_s, abs=0.2)
    assert [word.word for word in found.words] == " ".join(words).split()
    assert [word.start for word in found.words] == sorted(word.start for word in found.words)
    alone = client.audio.transcriptions.create(
        model="whisper-1", file=path, response_format="verbose_json", timestamp_granularities=["word"]
    )
    assert alone.segments is None and alone.words == found.words


@pytest.mark.parametrize("format", ["srt", "vtt"])
def test_subtitles_as_ffmpeg_reads_them(client: OpenAI, speech: Speech, tmp_path: Path, format: Any) -> None:
    path, table = speech
    text = client.audio.transcriptions.create(model="whisper-1", file=path, response_format=format)
    (tmp_path / f"digits.{format}").write_text(str(text))
    command = ["ffprobe", "-v", "error", "-show_packets", "-of", "json", str(tmp_path / f"digits.{format}")]
    packets = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)["packets"]
    assert len(packets) == len(table)
    for packet, each in zip(packets, table, strict=True):
        begin, lasts = float(packet["pts_time"]), float(packet["duration_time"])
        assert begin == pytest.approx(each.start_s, abs=0.2)
        assert begin + lasts >= each.end_s - 0.2 and lasts <= 7.0


def test_streaming(client: OpenAI, speech: Speech, words: list[str]) -> None:
    path, table = speech
    events = list(client.audio.transcriptions.create(model="gpt-4o-transcribe", file=path, stream=True))
    assert [event.type for event in events] == ["transcript.text.delta"] * len(table) + ["transcript.text.done"]
    assert "".join(event.delta for event in events[:-1]) == events[-1].text == " ".join(words)


def test_speakers_by_channel(client: OpenAI, stereo: tuple[Path, tuple[list[Any], list[Any]]]) -> None:
    path, tables = stereo
    names = ["agent", "customer"]
    found: Any = client.audio.transcriptions.create(
        model="gpt-4o-transcribe-diarize", file=path, response_format="diarized_json", chunking_strategy="auto",
        known_speaker_names=names,
    )  # fmt: skip
    for name, table in zip(names, tables, strict=True):
        mine = [segment for segment in found.segments if segment.speaker == name]
        assert all(segment.text for segment in mine)
        assert [segment.start for segment in mine] == pytest.approx([each.start_s for each in table], abs=0.2)
    assert found.duration == SECONDS and [each.start for each in found.segments] == sorted(
        each.start for each in found.segments
    )
    events = list(
        client.audio.transcriptions.create(
            model="gpt-4o-transcribe-diarize", file=path, response_format="diarized_json", stream=True
        )
    )
    segments: Any = [event for event in events if event.type == "transcript.text.segment"]
    assert {segment.speaker for segment in segments} == {"A", "B"} and len(segments) == sum(map(len, tables))
    deltas: Any = [event for event in events if event.type == "transcript.text.delta"]
    assert [delta.segment_id for delta in deltas] == [segment.id for segment in segments]


@pytest.mark.parametrize("name", [None, "Ann"])
def test_of_one_channel_there_is_one_speaker_and_a_warning(
    client: OpenAI, speech: Speech, words: list[str], name: str | None
) -> None:
    """Also where two channels were mixed."""
    path, _ = speech
    asked: dict[str, Any] = {"model": "gpt-4o-transcribe-diarize", "file": path, "response_format": "diarized_json"}
    if name is not None:
        asked["extra_body"] = {"known_speaker_names[]": name, "channels": "mix"}
    found: Any = client.audio.transcriptions.create(**asked)
    assert [segment.text for segment in found.segments] == words
    assert {segment.speaker for segment in found.segments} == {name or "A"}
    assert found.warnings == [ONE_CHANNEL]
    *events, done = client.audio.transcriptions.create(**asked, stream=True)
    segments: Any = [event for event in events if event.type == "transcript.text.segment"]
    assert [(segment.speaker, segment.text) for segment in segments] == [(name or "A", each) for each in words]
    assert done.warnings == [ONE_CHANNEL]


@pytest.mark.parametrize("language", ["English", "eng", "auto"])
def test_languages_as_clients_write_them(client: OpenAI, speech: Speech, words: list[str], language: str) -> None:
    found = client.audio.transcriptions.create(model="whisper-1", file=speech[0], language=language)
    assert found.text == " ".join(words)


def test_a_whisper_model_ignores_stream_for_subtitles(client: OpenAI, speech: Speech) -> None:
    asked: dict[str, Any] = {"model": "whisper-1", "file": speech[0], "response_format": "srt"}
    with client.audio.transcriptions.with_streaming_response.create(**asked, stream=True) as answer:
        assert answer.read().decode() == str(client.audio.transcriptions.create(**asked))


def test_thirty_requests_at_once_are_answered(running: Worker, speech: Speech, words: list[str]) -> None:
    """Of one key, and more than wait for each other in order: two are served at once here."""
    path, _ = speech
    with (
        OpenAI(base_url=f"{running.url}/v1", api_key="batch-key-1", max_retries=20) as asking,  # it may be slow
        ThreadPoolExecutor(30) as threads,
    ):
        asked = [threads.submit(asking.audio.transcriptions.create, model="whisper-1", file=path) for _ in range(30)]
        assert {each.result().text for each in asked} == {" ".join(words)}


def test_a_text_of_several_speakers_names_them(client: OpenAI, stereo: tuple[Path, Any]) -> None:
    path, _ = stereo
    split: Any = {"model": "whisper-1", "file": path, "extra_body": {"channels": "split"}}
    ask: Any = client.audio.transcriptions.create
    segments = ask(response_format="diarized_json", **split | {"model": "gpt-4o-transcribe-diarize"}).segments
    lines = [f"{segment.speaker}: {segment.text}\n" for segment in segments]
    assert {line[0] for line in lines} == {"A", "B"}
    assert ask(response_format="text", **split) == "".join(lines)
    events = list(ask(response_format="text", stream=True, **split))
    assert "".join(event.delta for event in events[:-1]) == events[-1].text
    assert sorted(events[-1].text.splitlines(keepends=True)) == sorted(lines)


def test_what_is_cut_may_be_steered(client: OpenAI, speech: Speech) -> None:
    """Longer silences than there are in it: one stretch, in which the words are those of all."""
    path, table = speech
    strategy: Any = {"type": "server_vad", "silence_duration_ms": 7000, "prefix_padding_ms": 100, "threshold": 0.5}
    found: Any = client.audio.transcriptions.create(
        model="whisper-1", file=path, response_format="verbose_json", chunking_strategy=strategy
    )
    assert len(found.segments) == 1 and len(table) > 2
    assert found.segments[0].start == pytest.approx(table[0].start_s, abs=0.2)
    assert found.segments[0].end == pytest.approx(table[-1].end_s, abs=0.2)


def test_models(client: OpenAI) -> None:
    names = [model.id for model in client.models.list()]
    assert names[0] == "listener"
    assert set(get_args(AudioModel)) <= set(names)
    assert client.models.retrieve("whisper-1").owned_by == "mediaworker"
    assert client.models.retrieve(names[0]).id == names[0]
    assert client.models.retrieve("gpt-5o-mini-transcribe-2027-01-31").id == "gpt-5o-mini-transcribe-2027-01-31"
    for wrong in ("gpt-5", "gpt-4o-transcribe/../x", "my-transcribe"):
        with pytest.raises(openai.NotFoundError):
            client.models.retrieve(wrong)


async def test_a_model_has_the_name_of_its_folder() -> None:
    settings = Settings(asr=Asr(engine="qwen", model=str(TINY)))
    recognizer = Recognizer(settings, on_state=lambda *_: None)
    assert FileService(settings, recognizer, in_work=lambda _: None).model == "qwen3-asr-tiny"


# -- what is wrong -----------------------------------------------------------------------------------------------------


def error(status: type[openai.APIStatusError], ask: Any) -> dict[str, Any]:
    """What the client raises: it must be that, with OpenAI's object in it."""
    with pytest.raises(status) as raised:
        ask()
    assert type(raised.value) is status
    body: Any = raised.value.body
    assert set(body) == {"message", "type", "param", "code"} and body["message"]
    return body


def test_a_wrong_key(running: Worker, client: OpenAI, speech: Speech) -> None:
    with OpenAI(base_url=f"{running.url}/v1", api_key="wrong", max_retries=0) as stranger:
        told = error(openai.AuthenticationError, lambda: stranger.models.list())
        assert told["code"] == "invalid_api_key"
        error(
            openai.AuthenticationError, lambda: stranger.audio.transcriptions.create(model="whisper-1", file=speech[0])
        )
    with OpenAI(base_url=f"{running.url}/v1", api_key="events-key-3", max_retries=0) as screen:
        told = error(openai.PermissionDeniedError, lambda: screen.models.list())
        assert "batch" in told["message"]


def test_too_large(client: OpenAI) -> None:
    big = ("big.wav", b"RIFF" + bytes(5 * 1024 * 1024))
    told = error(openai.APIStatusError, lambda: client.audio.transcriptions.create(model="whisper-1", file=big))
    assert "4 MB" in told["message"] and told["param"] == "file"


REFUSED = """
const [url, size, key] = process.argv.slice(2), answers = [];
for (let number = 0; number < 6; number++) {
  const form = new FormData();
  form.append("model", "whisper-1");
  form.append("file", new Blob([new Uint8Array(Number(size))]), "big.wav");
  const headers = { authorization: `Bearer ${key}` };
  const answer = await fetch(url, { method: "POST", body: form, headers }).catch((error) => error.cause);
  answers.push(answer.status ?? answer.code);
}
console.log(JSON.stringify(answers));
"""


@pytest.mark.parametrize("size", [300_000, 8_000_000, 80_000_000])
def test_a_refusal_before_the_end_of_an_upload_is_seen(running: Worker, nodes: Path, size: int) -> None:
    """By a client that reads while it sends, and by one that reads when it has sent everything."""
    url = f"{running.url}/v1/audio/transcriptions"
    expected = 413 if size > 4 << 20 else 400
    for key, status in (("batch-key-1", expected), ("wrong", 401)):
        command = [nodes / "24" / "node", "--input-type=module", "-e", REFUSED, "-", url, str(size), key]
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds(120))
        assert json.loads(done.stdout) == [status] * 6, done.stderr
        head, foot = ("--b\r\nContent-Disposition: form-data; name=file; filename=a.wav\r\n\r\n", "\r\n--b--\r\n")
        headers = {"Authorization": f"Bearer {key}", "Content-Type": "multipart/form-data; boundary=b"}
        with httpx.Client(timeout=seconds(60)) as plain:
            answer = plain.post(url, content=head.encode() + bytes(size) + foot.encode(), headers=headers)
        assert answer.status_code == status


def test_broken_files(client: OpenAI, tmp_path: Path) -> None:
    broken = {each.name: each for each in hostile_media.nothing()}
    for name in ("empty.wav", "random-0.mp3", "page.html", "archive.zip"):
        broken[name].make(tmp_path / name)
        told = error(
            openai.BadRequestError,
            lambda path=tmp_path / name: client.audio.transcriptions.create(model="whisper-1", file=path),
        )
        assert told["param"] == "file", (name, told)
    silent = tmp_path / "silent.mp4"
    material.video_only(silent, 2.0)
    told = error(openai.BadRequestError, lambda: client.audio.transcriptions.create(model="whisper-1", file=silent))
    assert told["code"] == "no_audio" and "only video" in told["message"]


@pytest.mark.parametrize(
    ("wrong", "param"),
    [
        ({"model": "gpt-5"}, "model"),
        ({"response_format": "docx"}, "response_format"),
        ({"language": "klingon"}, "language"),
        ({"timestamp_granularities": ["word"]}, "timestamp_granularities"),
        ({"response_format": "verbose_json", "timestamp_granularities": ["line"]}, "timestamp_granularities"),
        ({"temperature": 7.0}, "temperature"),
        ({"include": ["logprobs"]}, "include"),
        ({"chunking_strategy": {"type": "server_vad", "threshold": 3.0}}, "chunking_strategy"),
        ({"chunking_strategy": {"type": "client_vad"}}, "chunking_strategy"),
        ({"prompt": "x" * 9000}, "prompt"),
        ({"stream": True, "response_format": "srt", "model": "gpt-4o-transcribe"}, "stream"),
        ({"known_speaker_references": ["data:audio/wav;base64,AAAA"]}, "known_speaker_references"),
    ],
)
def test_wrong_fields(client: OpenAI, speech: Speech, wrong: dict[str, Any], param: str) -> None:
    kind = openai.NotFoundError if param == "model" else openai.BadRequestError
    fields: dict[str, Any] = {"model": "whisper-1", "file": speech[0]} | wrong
    assert error(kind, lambda: client.audio.transcriptions.create(**fields))["param"] == param


def test_translations_are_refused_with_a_reason(client: OpenAI, speech: Speech) -> None:
    told = error(
        openai.BadRequestError, lambda: client.post("/audio/translations", cast_to=object, files={"file": b"x"})
    )
    assert told["code"] == "unsupported_operation" and "transcriptions" in told["message"]


NO_FILE = b'--x\r\ncontent-disposition: form-data; name="model"\r\n\r\nw\r\n--x--\r\n'


def test_not_a_form(running: Worker) -> None:
    url = f"{running.url}/v1/audio/transcriptions"
    for content, kind, status in (
        (b"RIFF", "audio/wav", 415),
        (b"{}", "application/json", 415),
        (b"nothing", "multipart/form-data; boundary=x", 400),
        (NO_FILE, "multipart/form-data; boundary=x", 400),
    ):
        answer = httpx.post(url, content=content, headers=BATCH | {"content-type": kind})
        assert answer.status_code == status and answer.json()["error"]["message"], answer.text
        documented.check(answer)
    answer = httpx.get(url, headers=BATCH)
    assert answer.status_code == 405 and set(answer.json()) == {"error"}
    answer = httpx.get(f"{running.url}/v1/audio/nothing", headers=BATCH)
    assert answer.status_code == 404 and set(answer.json()) == {"error"}


# -- streams, and clients that go --------------------------------------------------------------------------------------


def test_the_stream_route_speaks_server_sent_events(
    running: Worker, speech: Speech, words: list[str], held: Limit
) -> None:
    path, table = speech
    url = f"{running.url}/v1/audio/transcriptions/stream"
    file = {"file": path.read_bytes()}
    with httpx.stream("POST", url, files=file, headers=BATCH, timeout=seconds(60)) as answer:
        assert answer.status_code == 200 and answer.headers["content-type"].startswith("text/event-stream")
        lines = answer.iter_lines()
        assert next(lines).startswith(":"), "who listens is told that there is nothing yet"
        held.lift()
        frames = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    events = [json.loads(frame) for frame in frames]
    assert [event["type"] for event in events] == ["transcript.text.delta"] * len(table) + ["transcript.text.done"]
    assert events[-1]["text"] == " ".join(words) and events[-1]["languages"] == [{"code": "en"}]
    assert running_metric(running, "mediaworker_file_first_text_seconds_count") > 0
    refused = httpx.post(url, files={"file": ("x.wav", b"nothing")}, headers=BATCH, timeout=seconds(60))
    assert refused.status_code == 400 and refused.json()["error"]["code"] == "unreadable"


async def test_a_file_that_cannot_be_read_is_a_status_however_long_the_look_takes(tmp_path: Path) -> None:
    settings = Settings()
    files = FileService(settings, Recognizer(settings, on_state=lambda *_: None), in_work=lambda _: None)
    form = parse({"stream": ["true"]}, Can((), ("en",), False, settings.endpointing.files))
    (tmp_path / "x.wav").write_bytes(b"nothing")
    with (
        (tmp_path / "x.wav").open("rb") as file,
        files.transcription(FileTask(file.fileno(), "x.wav", form.options, "1", early=True)) as work,
        pytest.raises(Problem) as caught,
    ):
        async for event in TranscriptionAnswer(work, form, files).events(0.001):
            pytest.fail(f"{event!r} is told before the file has been opened")
    assert caught.value.status == 400 and json.loads(caught.value.openai)["error"]["code"] == "unreadable"


def running_metric(running: Worker, name: str) -> float:
    headers = {"Authorization": "Bearer events-key-3"}
    answer = httpx.get(f"{running.url}/metrics", headers=headers, timeout=seconds(30))
    found = [line for line in answer.text.splitlines() if line.split("{")[0].split(" ")[0] == name]
    return sum(float(line.rsplit(" ", 1)[1]) for line in found)


@pytest.mark.parametrize("route", ["transcriptions", "transcriptions/stream"])
async def test_a_client_that_goes_ends_the_work(running: Worker, speech: Speech, route: str, held: Limit) -> None:
    async with httpx.AsyncClient(timeout=seconds(60)) as client:
        file = {"file": ("a.wav", speech[0].read_bytes())}
        asking = asyncio.create_task(client.post(f"{running.url}/v1/audio/{route}", files=file, headers=BATCH))
        await asyncio.to_thread(until, lambda: running_metric(running, "mediaworker_asr_open_utterances") > 0)
        asking.cancel()
        await asyncio.wait([asking])
        assert asking.cancelled()
    for name in ("mediaworker_files_open", "mediaworker_asr_open_utterances"):
        await asyncio.to_thread(until, lambda name=name: running_metric(running, name) == 0)


def test_limits_per_key(running: Worker, client: OpenAI, speech: Speech, held: Limit) -> None:
    stop, one_ends = threading.Event(), threading.Event()

    def occupy(stop: threading.Event) -> None:
        url = f"{running.url}/v1/audio/transcriptions/stream"
        file = {"file": ("a.wav", speech[0].read_bytes())}
        with httpx.stream("POST", url, files=file, headers=BATCH, timeout=seconds(60)) as answer:
            for _ in answer.iter_bytes():  # a heartbeat every second
                if stop.is_set():
                    return

    def end_one() -> None:
        until(lambda: running_metric(running, "mediaworker_file_requests_queued") == 1)
        one_ends.set()

    threads = [threading.Thread(target=occupy, args=[each]) for each in (stop, one_ends)]
    for thread in threads:
        thread.start()
    try:
        until(lambda: running_metric(running, "mediaworker_file_requests") == 2)
        small = ("small.wav", b"RIFF")
        with pytest.raises(openai.RateLimitError) as raised:
            client.audio.transcriptions.create(model="whisper-1", file=small)
        assert int(raised.value.response.headers["retry-after"]) > 0
        assert running_metric(running, "mediaworker_file_requests_rejected_total") >= 1
        with OpenAI(base_url=f"{running.url}/v1", api_key="other-key-2", max_retries=0) as other:
            error(openai.BadRequestError, lambda: other.audio.transcriptions.create(model="whisper-1", file=small))
        threads.append(threading.Thread(target=end_one))
        threads[-1].start()
        # The place comes free while this one waits: it is served, and then the file is what is wrong.
        error(openai.BadRequestError, lambda: client.audio.transcriptions.create(model="whisper-1", file=small))
    finally:
        stop.set()
        one_ends.set()
        for thread in threads:
            thread.join()
    until(lambda: running_metric(running, "mediaworker_file_requests") == 0)


async def test_uploads_that_break_off_leave_nothing(running: Worker) -> None:
    def requests(count: int) -> None:
        until(lambda: running_metric(running, "mediaworker_file_requests") == count)

    before = sorted(each.name for each in running.data_dir.iterdir())
    for sent in (0, 10_000, 2_000_000):
        reader, writer = await asyncio.open_connection("127.0.0.1", running.http_port)
        head = (
            b"POST /v1/audio/transcriptions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer batch-key-1\r\n"
            b"Content-Type: multipart/form-data; boundary=x\r\nContent-Length: 3000000\r\n\r\n"
            b'--x\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\n'
        )
        writer.write(head + bytes(sent))
        await writer.drain()
        await asyncio.to_thread(requests, 1)
        writer.close()
        await writer.wait_closed()
        await asyncio.to_thread(requests, 0)
    assert sorted(each.name for each in running.data_dir.iterdir()) == before
