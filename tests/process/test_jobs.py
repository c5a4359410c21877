"""`/v1/jobs` at a real worker: what is taken, what is refused, who sees what, and what is left afterwards."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import numpy as np
import pytest

from lab.chaos.jobs import recording
from lab.engine.limits import limit, limited
from lab.engine.listener import LISTENER, LISTENER_PATH, Limit
from lab.http.documented import check_read
from lab.media.material import RATE_HZ, encode
from lab.patience import seconds, until
from lab.worker.jobs import ended, folder, jobs, made, name, upload
from lab.worker.peers import Worker, alive, launch, worker

__all__ = ["limit", "limited"]

KEYS = {"ann": "ann-key-1234", "bob": "bob-key-1234", "ops": "ops-key-1234", "screen": "screen-key-1"}
SCOPES = {"ann": ["batch"], "bob": ["batch"], "ops": ["batch", "admin"], "screen": ["events"]}
API_KEYS = ", ".join(f'{{name="{name}", key="{KEYS[name]}", scopes={json.dumps(SCOPES[name])}}}' for name in KEYS)
SIMPLE = LISTENER | {"SIP__ENABLED": "false"}
QUEUED, HELD = 4, 10
MB = 1024 * 1024
PART = b'--b\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\n'
JSON = {"Content-Type": "application/json"}


@pytest.fixture(scope="module")
def media(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that jobs may name files of: `short.wav` with speech, `stereo.wav`, `long.wav`, `silent.wav`."""
    folder = tmp_path_factory.mktemp("media")
    recording(folder / "short.wav", 2, 1)
    recording(folder / "long.wav", 40, 2, "pcm_mulaw", 8000)
    recording(folder / "right.wav", 2, 3)
    sounds = [np.fromfile(folder / f"{name}.wav", "<i2")[22:] for name in ("short", "right")]
    length = min(map(len, sounds))
    encode(folder / "stereo.wav", np.stack([sound[:length] for sound in sounds]), "pcm_s16le", layout="stereo")
    encode(folder / "silent.wav", np.zeros(RATE_HZ, np.int16), "pcm_s16le")
    return folder


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, media: Path, limited: Limit) -> Iterator[Worker]:
    environ = SIMPLE | {
        "AUTH__API_KEYS": f"[{API_KEYS}]",
        "JOBS__ROOTS": json.dumps([str(media)]),
        "JOBS__PARALLEL_PER_KEY": "1",
        "JOBS__MAX_QUEUED_PER_KEY": str(QUEUED),
        "JOBS__WEBHOOK_SECRET": "a-secret-for-the-tests-of-jobs",
        "FILES__MAX_UPLOAD_MB": "3",
        "FILES__PARALLEL_SEGMENTS": "2",
    }
    with worker(tmp_path_factory.mktemp("worker"), limited.environ, **environ) as started:
        yield started


@pytest.fixture
def held(limit: Limit) -> Limit:
    """`long.wav` is at work as long as the test is."""
    limit.set(HELD)
    return limit


@pytest.fixture
def ann(running: Worker) -> Iterator[httpx.Client]:
    with client(running, "ann") as found:
        yield found
        for job in jobs(found):  # nothing is left for the next test
            for _ in range(1 + (job["status"] in ("queued", "running"))):
                found.delete(f"/v1/jobs/{job['id']}")
        assert jobs(found) == []
        until(lambda: folder(running) == [])


def anybody(running: Worker) -> httpx.Client:
    """A client of a worker without keys."""
    return httpx.Client(base_url=running.url, timeout=seconds(30))


@contextlib.contextmanager
def client(running: Worker, name: str) -> Iterator[httpx.Client]:
    headers = {"Authorization": f"Bearer {KEYS[name]}"}
    hooks = {"response": [check_read]}
    with httpx.Client(base_url=running.url, headers=headers, timeout=seconds(30), event_hooks=hooks) as found:
        yield found


def status(by: httpx.Client, job_id: str, wanted: str) -> None:
    until(lambda: by.get(f"/v1/jobs/{job_id}").json()["status"] == wanted, 30, f"the job is {wanted}")


def problem(answer: httpx.Response, code: int) -> str:
    assert answer.status_code == code, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    return str(answer.json()["detail"])


# -- results -----------------------------------------------------------------------------------------------------------


def test_an_upload_ends_in_a_result_of_every_format(running: Worker, ann: httpx.Client, media: Path) -> None:
    job_id = made(upload(ann, media / "short.wav", language="en", prompt="digits", filename="call.wav"))
    job = ended(ann, job_id)
    assert (job["status"], job["file"]) == (
        "completed", {"name": "call.wav", "bytes": (media / "short.wav").stat().st_size},
    )  # fmt: skip
    assert job["options"] == {"language": "en", "prompt": "digits"} and "error" not in job
    assert job["created_at"] <= job["started_at"] <= job["ended_at"]
    progress = job["progress"]
    assert (progress["ratio"], progress["segments"], progress["done_s"]) == (1.0, 2, progress["duration_s"])
    url = f"/v1/jobs/{job_id}/result"
    found = ann.get(url).json()
    assert found == ann.get(url, params={"format": "verbose_json"}).json()
    assert found["text"] and found["duration"] == progress["duration_s"] and len(found["segments"]) == 2
    starts = {"txt": found["text"], "text": found["text"], "srt": "1\n00:00:0", "vtt": "WEBVTT\n"}
    kinds = {"txt": "text/plain; charset=utf-8", "srt": "application/x-subrip; charset=utf-8"}
    for format, start in starts.items():
        answer = ann.get(url, params={"format": format})
        assert answer.status_code == 200 and answer.text.startswith(start)
        assert answer.headers["content-type"] == kinds.get(format, answer.headers["content-type"])
    assert "one channel" in problem(ann.get(url, params={"format": "diarized_json"}), 400)
    assert "format must be one of" in problem(ann.get(url, params={"format": "docx"}), 400)
    until(lambda: folder(running) == [], what="the upload is erased as soon as its job has ended")


def test_channels_become_speakers(ann: httpx.Client, media: Path) -> None:
    job_id = made(name(ann, media / "stereo.wav", channels="split", speakers=["Ann", "Bo"]))
    job = ended(ann, job_id)
    assert job["file"]["path"] == str(media / "stereo.wav") and job["progress"]["segments"] == 4
    found = ann.get(f"/v1/jobs/{job_id}/result", params={"format": "diarized_json"}).json()
    assert {segment["speaker"] for segment in found["segments"]} <= {"Ann", "Bo"} and found["segments"]
    lines = ann.get(f"/v1/jobs/{job_id}/result", params={"format": "txt"}).text.splitlines()
    assert lines == [f"{each['speaker']}: {each['text']}" for each in found["segments"]]
    assert (media / "stereo.wav").exists(), "a file that was named stays"


def test_silence_is_a_result(ann: httpx.Client, media: Path) -> None:
    job_id = made(upload(ann, media / "silent.wav"))
    assert ended(ann, job_id)["status"] == "completed"
    assert ann.get(f"/v1/jobs/{job_id}/result").json()["text"] == ""


def test_what_is_no_audio_fails_and_says_so(running: Worker, ann: httpx.Client, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("one two three\n" * 100)
    job_id = made(upload(ann, tmp_path / "notes.txt"))
    job = ended(ann, job_id)
    assert (job["status"], job["error"]["code"]) == ("failed", "unreadable") and job["error"]["message"]
    detail = problem(ann.get(f"/v1/jobs/{job_id}/result"), 409)
    assert job["error"]["message"] in detail
    until(lambda: folder(running) == [])


# -- who sees what -----------------------------------------------------------------------------------------------------


def test_a_key_sees_its_own_jobs_and_an_admin_all(running: Worker, ann: httpx.Client, media: Path) -> None:
    job_id = made(upload(ann, media / "silent.wav"))
    ended(ann, job_id)
    urls = [("GET", ""), ("GET", "/result"), ("DELETE", "")]
    with client(running, "bob") as bob, client(running, "ops") as ops, client(running, "screen") as screen:
        for method, more in urls:
            assert problem(bob.request(method, f"/v1/jobs/{job_id}{more}"), 404) == "no such job"
        assert jobs(bob) == [] and [job["id"] for job in jobs(ops)] == [job_id]
        assert ops.get(f"/v1/jobs/{job_id}").json() == ann.get(f"/v1/jobs/{job_id}").json()
        for method, url in [("POST", ""), ("GET", ""), ("GET", f"/{job_id}"), ("DELETE", f"/{job_id}")]:
            problem(screen.request(method, f"/v1/jobs{url}"), 403)
            assert httpx.request(method, f"{running.url}/v1/jobs{url}").status_code == 401
        assert ops.delete(f"/v1/jobs/{job_id}").status_code == 204
    assert problem(ann.get(f"/v1/jobs/{job_id}"), 404) == problem(ann.get("/v1/jobs/no-such"), 404)


def test_a_list_has_pages_and_filters(ann: httpx.Client, media: Path, held: Limit) -> None:
    done = [made(upload(ann, media / "silent.wav")) for _ in range(3)]
    for job_id in done:
        ended(ann, job_id)
    busy = made(name(ann, media / "long.wav"))
    waits = made(name(ann, media / "short.wav"))
    status(ann, busy, "running")
    newest_first = [waits, busy, *reversed(done)]
    seen, after = [], {}
    while True:
        page = ann.get("/v1/jobs", params={"limit": 2, **after}).json()
        assert len(page["items"]) == 2 or page["next"] is None
        seen += [job["id"] for job in page["items"]]
        if page["next"] is None:
            break
        after = {"after": page["next"]}
    assert seen == newest_first
    for state, expected in {"queued": [waits], "running": [busy], "completed": done[::-1], "failed": []}.items():
        assert [job["id"] for job in jobs(ann, status=state)] == expected
    for query in ({"limit": "0"}, {"limit": "501"}, {"limit": "-1"}, {"limit": "x"}, {"status": "lost"}):
        problem(ann.get("/v1/jobs", params=query), 400)
    assert jobs(ann, after="0") == []


# -- the end before the end --------------------------------------------------------------------------------------------


def test_cancelled_it_stops_and_what_was_waiting_begins(
    running: Worker, ann: httpx.Client, media: Path, held: Limit
) -> None:
    busy, waits, after = (made(upload(ann, media / f)) for f in ("long.wav", "long.wav", "silent.wav"))
    status(ann, busy, "running")
    until(lambda: ann.get(f"/v1/jobs/{busy}").json()["progress"]["segments"] > 1, what="it has got somewhere")
    assert ann.get(f"/v1/jobs/{busy}").json()["progress"]["duration_s"] > 60
    assert "queued" in problem(ann.get(f"/v1/jobs/{waits}/result"), 409)
    assert ann.get(f"/v1/jobs/{busy}/result").json()["status_of_job"] == "running"
    assert len(folder(running)) == 3
    for job_id in (waits, busy):
        answer = ann.delete(f"/v1/jobs/{job_id}")
        assert (answer.status_code, answer.json()["status"]) == (200, "cancelled")
        assert "cancelled" in problem(ann.get(f"/v1/jobs/{job_id}/result"), 409)
    assert ended(ann, after)["status"] == "completed"
    until(lambda: folder(running) == [], what="uploads are erased")
    with client(running, "ops") as ops:
        for name in ("files_open", "asr_open_utterances"):
            until(lambda name=name: f"mediaworker_{name} 0" in ops.get("/metrics").text)
    for job_id in (waits, busy, after):
        assert ann.delete(f"/v1/jobs/{job_id}").status_code == 204
        assert ann.delete(f"/v1/jobs/{job_id}").status_code == 404


async def test_cancelled_by_several_at_once(running: Worker, ann: httpx.Client, media: Path, held: Limit) -> None:
    job_id = made(upload(ann, media / "long.wav"))
    status(ann, job_id, "running")
    headers = dict(ann.headers)
    async with httpx.AsyncClient(base_url=running.url, headers=headers, timeout=seconds(30)) as other:
        answers = await asyncio.gather(*(other.delete(f"/v1/jobs/{job_id}") for _ in range(8)))
    codes = Counter(answer.status_code for answer in answers)
    assert codes[200] >= 1 and set(codes) <= {200, 204, 404}, codes


def test_who_waits_is_served_before_jobs(running: Worker, ann: httpx.Client, media: Path, held: Limit) -> None:
    job_id = made(upload(ann, media / "long.wav"))
    file = {"file": ("short.wav", (media / "short.wav").read_bytes())}
    with client(running, "ops") as ops, ThreadPoolExecutor() as pool:
        until(lambda: "mediaworker_asr_open_utterances 2" in ops.get("/metrics").text)
        until(lambda: ann.get(f"/v1/jobs/{job_id}").json()["progress"]["segments"] == HELD)
        asked = pool.submit(ann.post, "/v1/audio/transcriptions", files=file, data={"model": "whisper-1"})
        until(lambda: "mediaworker_asr_open_utterances 4" in ops.get("/metrics").text, what="both have their stretches")
        until(lambda: held.set(1) or asked.done())
    assert asked.result().status_code == 200 and asked.result().json()["text"]
    assert ann.get(f"/v1/jobs/{job_id}").json()["status"] == "running"


# -- what is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"language": "tlh"}, "language: 'tlh' is none of the engine's: de, en"), ({"tempo": "fast"}, "tempo"),
        ({"channels": "both"}, "channels"), ({"webhook_url": "ftp://host/"}, "webhook_url must be an http"),
        ({"webhook_url": "http://a:b@host/"}, "webhook_url must not hold a user"),
        ({"webhook_url": "http://a b/"}, "webhook_url"), ({"webhook_url": "http://host:99999/"}, "webhook_url"),
        ({"prompt": "x" * 8001}, "prompt"), ({"filename": "x" * 256}, "filename"),
    ],
)  # fmt: skip
def test_bad_fields_are_named(
    running: Worker, ann: httpx.Client, media: Path, fields: dict[str, str], says: str
) -> None:
    assert says in problem(upload(ann, media / "silent.wav", **fields), 400)
    assert says in problem(name(ann, media / "silent.wav", **fields), 400)
    assert folder(running) == []


def test_bad_bodies_have_their_status(running: Worker, ann: httpx.Client, media: Path) -> None:
    assert "larger than 3 MB" in problem(ann.post("/v1/jobs", files={"file": ("a.wav", bytes(4 * MB))}), 413)
    endless, kind = (PART, *[bytes(MB)] * 4), {"Content-Type": "multipart/form-data; boundary=b"}
    assert "larger than 3 MB" in problem(ann.post("/v1/jobs", content=iter(endless), headers=kind), 413)
    assert "multipart" in problem(ann.post("/v1/jobs", content=b"RIFF", headers={"Content-Type": "audio/wav"}), 415)
    assert "no `file`" in problem(ann.post("/v1/jobs", files={"song": ("a.wav", b"RIFF")}), 400)
    assert "empty" in problem(ann.post("/v1/jobs", files={"file": ("a.wav", b"")}), 400)
    both = ann.post("/v1/jobs", files={"file": ("a.wav", b"RIFF")}, data={"path": "/etc/passwd"})
    assert "already" in problem(both, 400)
    for body in (b"", b"[]", b'{"path": 1}', b'{"path": ""}', b"{" * 10000, b'{"path": "\xff"}'):
        problem(ann.post("/v1/jobs", content=body, headers=JSON), 400)
    problem(ann.post("/v1/jobs", content=b" " * 70000, headers=JSON), 413)
    assert folder(running) == []


def test_of_the_machine_only_files_in_the_roots_can_be_named(
    ann: httpx.Client, media: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outside = tmp_path / "outside.wav"
    outside.write_bytes((media / "silent.wav").read_bytes())
    (media / "out.wav").symlink_to(outside)
    (media / "in.wav").symlink_to(media / "silent.wav")
    (media / "round.wav").symlink_to(media / "round.wav")
    os.mkfifo(media / "pipe.wav")
    (media / "folder.wav").mkdir(exist_ok=True)
    (media / "beside").symlink_to(tmp_path)
    (media / "empty.wav").write_bytes(b"")
    refused = [
        outside, media / "out.wav", media / "round.wav", media / "pipe.wav", media / "folder.wav", media / "none.wav",
        media, media / "beside" / "outside.wav", f"{media}/../{tmp_path.name}/outside.wav", f"{media}x/silent.wav",
        "silent.wav", "./silent.wav", f"{media}/silent.wav\0", "/dev/zero", "/proc/self/environ",
        f"{media}/{'x' * 300}", "file://" + str(media / "silent.wav"),
    ]  # fmt: skip
    for path in refused:
        assert problem(name(ann, path), 400) == "path: there is no such file under jobs.roots", path
    assert "empty" in problem(name(ann, media / "empty.wav"), 400)
    for path in (media / "in.wav", f"{media}/folder.wav/../silent.wav"):
        assert ended(ann, made(name(ann, path)))["status"] == "completed"


@pytest.mark.parametrize("change", ["longer", "other", "gone", "out of the roots"])
def test_a_file_that_changes_meanwhile_is_not_read(
    ann: httpx.Client, media: Path, tmp_path: Path, change: str, held: Limit
) -> None:
    path = media / "changing.wav"
    path.unlink(missing_ok=True)
    path.write_bytes((media / "silent.wav").read_bytes())
    busy = made(name(ann, media / "long.wav"))
    job_id = made(name(ann, path))
    status(ann, busy, "running")
    match change:
        case "longer":
            with path.open("ab") as file:
                file.write(b"more")
        case "other":
            path.write_bytes(path.read_bytes()[::-1])
        case "gone":
            path.unlink()
        case _:
            (tmp_path / "elsewhere.wav").write_bytes(path.read_bytes())
            path.unlink()
            path.symlink_to(tmp_path / "elsewhere.wav")
    assert ann.delete(f"/v1/jobs/{busy}").status_code == 200
    job = ended(ann, job_id)
    assert (job["status"], job["error"]["code"]) == ("failed", "source")
    assert ("changed" if change in ("longer", "other") else "no such file") in job["error"]["message"]


def test_a_key_with_enough_jobs_waits(running: Worker, ann: httpx.Client, media: Path, held: Limit) -> None:
    first, *_ = [made(name(ann, media / "long.wav")) for _ in range(QUEUED)]
    for answer in (name(ann, media / "silent.wav"), upload(ann, media / "silent.wav")):
        assert str(QUEUED) in problem(answer, 429)
        assert int(answer.headers["retry-after"]) > 0
    with client(running, "bob") as bob:  # has room, and its turn beside her
        job_id = made(upload(bob, media / "silent.wav"))
        assert ended(bob, job_id)["status"] == "completed"
        bob.delete(f"/v1/jobs/{job_id}")
    ann.delete(f"/v1/jobs/{first}")
    made(name(ann, media / "silent.wav"))


# -- what comes half ---------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def half_an_upload(running: Worker, media: Path, *, key: str = "") -> Iterator[socket.socket]:
    """More than a megabyte of it has come, and is on the disk."""
    access = f"Authorization: Bearer {key}\r\n" if key else ""
    with socket.create_connection(("127.0.0.1", running.http_port)) as peer:
        kind = f"Content-Type: multipart/form-data; boundary=b\r\nContent-Length: {5 * MB // 2}\r\n"
        lines = f"POST /v1/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\n{access}{kind}\r\n"
        peer.sendall(lines.encode() + PART + bytes(3 * MB // 2))
        until(lambda: any(name.endswith(".part") for name in folder(running)), what="it is being written")
        yield peer


def test_half_an_upload_leaves_nothing(running: Worker, ann: httpx.Client, media: Path) -> None:
    with half_an_upload(running, media, key=KEYS["ann"]):
        pass
    until(lambda: folder(running) == [], what="it is erased")
    assert jobs(ann) == []


def test_half_an_upload_at_a_kill_is_erased_at_the_next_start(tmp_path: Path, media: Path) -> None:
    limit = Limit(tmp_path / "finals")
    limit.set(0)
    running = launch(tmp_path, limit.environ, **SIMPLE)
    try:
        until(lambda: alive(running), 60)
        with anybody(running) as by:
            kept = made(upload(by, media / "long.wav"))
            with half_an_upload(running, media):
                running.process.kill()
                running.process.wait()
        assert len(folder(running)) == 2
        running.start_again()
        until(lambda: alive(running), 60)
        assert folder(running) == [kept]
        assert [job["id"] for job in running.get("/v1/jobs")["items"]] == [kept]
        assert httpx.delete(f"{running.url}/v1/jobs/{kept}").json()["status"] == "cancelled"
    finally:
        assert running.stop() == 0
    assert "incomplete_uploads=1" in running.log.read_text()


# -- no room -----------------------------------------------------------------------------------------------------------


def test_on_a_full_disk_uploads_are_refused_and_jobs_wait(small_disk: Path, media: Path, tmp_path: Path) -> None:
    environ = SIMPLE | {"DATA_DIR": str(small_disk), "FILES__MIN_FREE_MB": "0", "JOBS__ROOTS": json.dumps([str(media)])}
    limit = Limit(tmp_path / "finals")
    limit.set(3)
    with (
        worker(tmp_path, limit.environ, **environ) as running,
        anybody(running) as by,
    ):
        assert "disk" in problem(by.post("/v1/jobs", files={"file": ("a.wav", bytes(20 * MB))}), 507)
        assert os.listdir(small_disk / "jobs") == []
        job_id = made(name(by, media / "long.wav"))
        until(lambda: by.get(f"/v1/jobs/{job_id}").json()["progress"]["segments"] == 3, what="it has got somewhere")
        ballast = small_disk / "ballast"
        with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
        limit.lift()
        waits = until(lambda: (job := by.get(f"/v1/jobs/{job_id}").json()).get("error") and job, what="it waits")
        assert (waits["status"], waits["error"]["code"]) == ("queued", "waiting")
        assert "full" in waits["error"]["message"] and running.metric("mediaworker_job_store_ok") == 0
        refused = name(by, media / "silent.wav")
        assert "full" in problem(refused, 503) and refused.headers["retry-after"]
        ballast.unlink()
        assert ended(by, job_id)["status"] == "completed"
        assert running.metric("mediaworker_job_store_ok") == 1


def test_the_room_that_calls_need_is_not_taken(tmp_path: Path, media: Path) -> None:
    environ = SIMPLE | {"FILES__MIN_FREE_MB": "1000000000"}
    with (
        worker(tmp_path, LISTENER_PATH, **environ) as running,
        anybody(running) as by,
    ):
        assert "disk" in problem(upload(by, media / "silent.wav"), 507)
        assert folder(running) == [] and jobs(by) == []


# -- afterwards --------------------------------------------------------------------------------------------------------


def test_old_jobs_are_erased_to_the_last_byte(tmp_path: Path, media: Path) -> None:
    secret = "the prompt that nobody may read afterwards"
    with (
        worker(tmp_path, LISTENER_PATH, **SIMPLE) as running,
        anybody(running) as by,
    ):
        job_id = made(upload(by, media / "short.wav", prompt=secret))
        asked = upload(by, media / "silent.wav", webhook_url="http://127.0.0.1/")
        assert "jobs.webhook_secret is not set" in problem(asked, 400)
        assert ended(by, job_id)["status"] == "completed"
    store = running.data_dir / "jobs.sqlite3"
    assert secret.encode() in store.read_bytes() and job_id.encode() in store.read_bytes()
    with (
        worker(tmp_path, LISTENER_PATH, **SIMPLE, JOBS__KEEP_DAYS="0.000001") as again,
        anybody(again) as by,
    ):
        until(lambda: by.get(f"/v1/jobs/{job_id}").status_code == 404, what="it is forgotten")
        for path in running.data_dir.glob("jobs.sqlite3*"):
            assert secret.encode() not in path.read_bytes() and job_id.encode() not in path.read_bytes(), path
        assert jobs(by) == []


# -- a file that its reader cannot stand -------------------------------------------------------------------------------

DEADLY = """
import os, sys
if "mediaworker.files.decoder" in sys.orig_argv:
    with open({log!r}, "a") as log:
        print(sys.argv[-1], file=log)
    if sys.argv[-1] == "kills.wav":
        os.kill(os.getpid(), 11)
    if sys.argv[-1] == "fails.wav":
        os._exit(3)
"""


def test_a_file_that_kills_its_reader_fails_after_three(tmp_path: Path, media: Path) -> None:
    log = tmp_path / "readers"
    (tmp_path / "sitecustomize.py").write_text(DEADLY.format(log=str(log)))
    path = os.pathsep.join([str(tmp_path), LISTENER_PATH["PYTHONPATH"]])
    with (
        worker(tmp_path, {"PYTHONPATH": path}, **SIMPLE) as running,
        anybody(running) as by,
    ):
        for filename, code, readers in (("kills.wav", "crashed", 3), ("fails.wav", "internal", 1)):
            job = ended(by, made(upload(by, media / "silent.wav", filename=filename)))
            assert (job["status"], job["error"]["code"]) == ("failed", code)
            assert log.read_text().count(filename) == readers
        assert "signal 11" in by.get("/v1/jobs?limit=2").json()["items"][1]["error"]["message"]
        log.write_text("")
        sync = by.post("/v1/audio/transcriptions", files={"file": ("kills.wav", (media / "silent.wav").read_bytes())},
                       data={"model": "whisper-1"}, timeout=seconds(30))  # fmt: skip
        assert (sync.status_code, sync.json()["error"]["code"]) == (500, "crashed")
        assert log.read_text().count("kills.wav") == 2
        assert ended(by, made(upload(by, media / "silent.wav")))["status"] == "completed"
