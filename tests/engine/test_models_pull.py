"""`mediaworker models pull` against a server that speaks the hub's protocol, and the engine on what it brought."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from asr.engines import weights
from asr.engines.qwen.build import build
from asr.engines.qwen.plugin import create_aligner
from asr.engines.selection import select
from config.settings import Asr, Qwen
from lab.engine.aligner_models import random_aligner, save
from lab.engine.qwen_models import TINY
from lab.house import ROOT
from lab.patience import seconds

NAME = "someone/qwen3-asr-tiny"
REVISION = "0123456789abcdef0123456789abcdef01234567"
OLDER = "fedcba9876543210fedcba9876543210fedcba98"
UNWANTED = "pytorch_model.bin"
SAFETENSORS = "model.safetensors"


class Hub:
    """One repository. What it is to do wrong is set before a request."""

    def __init__(self) -> None:
        self.files = {path.name: path.read_bytes() for path in TINY.iterdir()} | {UNWANTED: b"pickle" * 1000}
        self.published: dict[str, bytes] = {}
        """Files whose hashes are those of other content than what is served."""
        self.revision = REVISION
        self.served: dict[str, int] = {}
        """Bytes by file."""
        self.refusal: tuple[int, str] | None = None
        self.breaks_after: int | None = None
        """Bytes of the weights after which the connection is lost."""

    @contextmanager
    def running(self) -> Iterator[str]:
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_HEAD(self) -> None:
                hub.answer(self, body=False)

            def do_GET(self) -> None:
                hub.answer(self, body=True)

            def log_message(self, *_: Any) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
            server.server_close()

    def answer(self, request: BaseHTTPRequestHandler, *, body: bool) -> None:
        path = request.path.partition("?")[0]
        name = path.rpartition("/")[2]
        if self.refusal is not None:
            status, code = self.refusal
            self._send(request, status, b"{}", {"X-Error-Code": code} if code else {}, body)
        elif path.startswith(f"/api/models/{NAME}/tree/"):
            tree = [self._entry(each, data) for each, data in self.files.items()]
            self._send(request, 200, json.dumps(tree).encode(), {"Content-Type": "application/json"}, body)
        elif path.startswith(f"/api/models/{NAME}"):
            listing = {
                "id": NAME,
                "sha": self.revision_of(path),
                "siblings": [{"rfilename": each} for each in self.files],
            }
            self._send(request, 200, json.dumps(listing).encode(), {"Content-Type": "application/json"}, body)
        elif path.startswith(f"/{NAME}/resolve/") and name in self.files:
            self._file(request, name, body)
        else:
            self._send(request, 404, b"{}", {"X-Error-Code": "EntryNotFound"}, body)

    def revision_of(self, path: str) -> str:
        """The one that is asked for, or the newest."""
        return next((each for each in (REVISION, OLDER) if each in path), self.revision)

    def _entry(self, name: str, data: bytes) -> dict[str, Any]:
        """As the hub tells of a file: Git's hash of a blob, and of a large one that of its content."""
        data = self.published.get(name, data)
        oid = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
        entry: dict[str, Any] = {"type": "file", "path": name, "size": len(data), "oid": oid}
        if name == SAFETENSORS:
            entry["lfs"] = {"oid": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 134}
        return entry

    def _file(self, request: BaseHTTPRequestHandler, name: str, body: bool) -> None:
        data = self.files[name]
        headers = {
            "ETag": f'"{hashlib.sha256(data).hexdigest()}"',
            "X-Repo-Commit": self.revision_of(request.path),
            "Accept-Ranges": "bytes",
        }
        status, start = 200, 0
        if wanted := request.headers.get("Range"):
            start = int(wanted.removeprefix("bytes=").partition("-")[0])
            status, headers["Content-Range"] = 206, f"bytes {start}-{len(data) - 1}/{len(data)}"
        self._send(request, status, data[start:], headers, body, name)

    def _send(
        self, request: BaseHTTPRequestHandler, status: int, data: bytes, headers: dict[str, str], body: bool,
        name: str = "",
    ) -> None:  # fmt: skip
        request.send_response(status)
        for key, value in ({"Content-Length": str(len(data))} | headers).items():
            request.send_header(key, value)
        request.end_headers()
        if not body:
            return
        if name == SAFETENSORS and self.breaks_after is not None:
            data = data[: self.breaks_after]
            request.close_connection = True
        request.wfile.write(data)
        self.served[name] = self.served.get(name, 0) + len(data)


@pytest.fixture
def hub() -> Hub:
    return Hub()


def pull(endpoint: str, cache: Path, *name: str) -> subprocess.CompletedProcess[str]:
    environ = os.environ | {
        "HF_ENDPOINT": endpoint, "HF_HUB_CACHE": str(cache), "HF_HUB_DISABLE_XET": "1", "HF_HUB_ETAG_TIMEOUT": "5",
        "MEDIAWORKER_ASR__MODEL": NAME, "NO_PROXY": "127.0.0.1",
    }  # fmt: skip
    command = [sys.executable, "-m", "mediaworker.cli.main", "models", "pull", *name]
    return subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=seconds(60))


def test_the_configured_model_is_pulled_and_becomes_the_engine(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    assert select(Asr(model=NAME)).engine == "mixed"
    with hub.running() as endpoint:
        done = pull(endpoint, tmp_path)
        assert done.returncode == 0, done.stderr
        assert UNWANTED not in hub.served and hub.served[SAFETENSORS] == len(hub.files[SAFETENSORS])
        served = dict(hub.served)
        assert pull(endpoint, tmp_path, NAME).returncode == 0
        assert {name: hub.served[name] for name in hub.files if name in served} == {
            name: size for name, size in served.items() if name
        }, "nothing comes twice"
    folder = Path(done.stdout.strip())
    assert weights.find(NAME) == folder
    assert select(Asr(model=NAME)).engine == "qwen"
    engine = build(Asr(model=NAME), Qwen())
    engine.warm_up()
    assert engine.packed.forwards > 0


def test_all_models_that_are_configured_are_pulled(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here all have the same name: a folder that serves as any is not what is looked at."""
    folder = save(random_aligner(), tmp_path / "aligner")
    hub.files = {path.name: path.read_bytes() for path in folder.iterdir()}
    cache = tmp_path / "cache"
    monkeypatch.setenv("MEDIAWORKER_ASR__WORD_TIMESTAMPS", "true")
    monkeypatch.setenv("MEDIAWORKER_ASR__ALIGNER", NAME)
    monkeypatch.setenv("MEDIAWORKER_ASR__PARTIALS_MODEL", NAME)
    with hub.running() as endpoint:
        done = pull(endpoint, cache)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.split()) == 3, "the model, that of partials, and the aligner"
    monkeypatch.setenv("HF_HUB_CACHE", str(cache))
    aligner = create_aligner(Asr(word_timestamps=True, aligner=NAME), Qwen())
    assert aligner is not None
    aligner.warm_up()


def test_a_lost_connection_costs_no_more_than_a_chunk(hub: Hub, tmp_path: Path) -> None:
    hub.files[SAFETENSORS] = os.urandom(25_000_000)
    hub.breaks_after = 21_000_000
    with hub.running() as endpoint:
        done = pull(endpoint, tmp_path, NAME)
    assert done.returncode == 0, done.stderr
    assert (Path(done.stdout.strip()) / SAFETENSORS).read_bytes() == hub.files[SAFETENSORS]
    assert 0 < hub.served[SAFETENSORS] - 25_000_000 < 11_000_000


def test_a_connection_that_is_always_lost_is_a_sentence(hub: Hub, tmp_path: Path) -> None:
    hub.breaks_after = 300_000
    with hub.running() as endpoint:
        done = pull(endpoint, tmp_path, NAME)
        assert done.returncode == 1 and "goes on where it broke off" in done.stderr, done.stderr
        assert "Traceback" not in done.stderr
        assert weights.find(NAME, {"HF_HUB_CACHE": str(tmp_path)}) is None, "half a model is none"
        hub.breaks_after = None
        assert pull(endpoint, tmp_path, NAME).returncode == 0
    assert weights.find(NAME, {"HF_HUB_CACHE": str(tmp_path)}) is not None


def test_a_model_in_parts_is_there_when_all_of_them_are(tmp_path: Path) -> None:
    snapshot = tmp_path / "models--a--b" / "snapshots" / REVISION
    snapshot.mkdir(parents=True)
    (tmp_path / "models--a--b" / "refs").mkdir()
    (tmp_path / "models--a--b" / "refs" / "main").write_text(REVISION)
    parts = {"x": "model-1-of-2.safetensors", "y": "model-2-of-2.safetensors"}
    index = json.dumps({"weight_map": parts})
    for name, content in (
        ("config.json", "{}"), ("tokenizer_config.json", "{}"), ("model.safetensors.index.json", index),
        ("model-1-of-2.safetensors", ""),
    ):  # fmt: skip
        (snapshot / name).write_text(content)
        assert weights.find("a/b", {"HF_HUB_CACHE": str(tmp_path)}) is None
    (snapshot / "model-2-of-2.safetensors").write_text("")
    assert weights.find("a/b", {"HF_HUB_CACHE": str(tmp_path)}) == snapshot
    (snapshot / "model.safetensors.index.json").write_text("[]")
    assert weights.find("a/b", {"HF_HUB_CACHE": str(tmp_path)}) is None


@pytest.mark.parametrize(
    ("status", "code", "says"),
    [
        (404, "RepoNotFound", "the hub knows no model someone/qwen3-asr-tiny"),
        (403, "GatedRepo", "set HF_TOKEN to the token of one"),
        (500, "", "could not be downloaded: Server error '500"),
        (200, "", "its answer is none of a hub"),
    ],
)
def test_what_the_hub_refuses_is_a_sentence(hub: Hub, tmp_path: Path, status: int, code: str, says: str) -> None:
    hub.refusal = (status, code)
    with hub.running() as endpoint:
        done = pull(endpoint, tmp_path, NAME)
    assert done.returncode == 1 and says in done.stderr, done.stderr
    assert "Traceback" not in done.stderr and done.stderr.count("mediaworker: ") == 1


@pytest.mark.parametrize("name", [SAFETENSORS, "vocab.json"])
def test_a_file_with_another_hash_is_refused_and_comes_again(hub: Hub, tmp_path: Path, name: str) -> None:
    right = hub.files[name]
    hub.files[name], hub.published[name] = right[:-1] + b"?", right
    environ = {"HF_HUB_CACHE": str(tmp_path)}
    with hub.running() as endpoint:
        done = pull(endpoint, tmp_path, NAME)
        assert done.returncode == 1 and f"{name} is not what the hub has" in done.stderr, done.stderr
        assert weights.recorded(NAME, environ) is None
        hub.files[name] = right
        done = pull(endpoint, tmp_path, NAME)
        assert done.returncode == 0, done.stderr
    assert (Path(done.stdout.strip()) / name).read_bytes() == right
    assert weights.recorded(NAME, environ) is not None


def test_the_revision_stays_until_another_is_asked_for(hub: Hub, tmp_path: Path) -> None:
    environ = {"HF_HUB_CACHE": str(tmp_path)}
    hub.revision = OLDER
    with hub.running() as endpoint:
        assert pull(endpoint, tmp_path, NAME).returncode == 0
        hub.revision = REVISION  # somebody pushes to the repository
        assert Path(pull(endpoint, tmp_path, NAME).stdout.strip()).name == OLDER
        (tmp_path / "models--someone--qwen3-asr-tiny" / "refs" / "main").write_text(REVISION)
        assert str(weights.find(NAME, environ)).endswith(OLDER), "another program has pulled the newest"
        assert Path(pull(endpoint, tmp_path, NAME, "--revision", "main").stdout.strip()).name == REVISION
        assert str(weights.find(NAME, environ)).endswith(REVISION)
        assert Path(pull(endpoint, tmp_path, NAME, "--revision", OLDER).stdout.strip()).name == OLDER
    kept = weights.recorded(NAME, environ)
    assert kept is not None and kept.revision == OLDER and kept.bytes[SAFETENSORS] == len(hub.files[SAFETENSORS])


@pytest.mark.parametrize("content", ["", "[]", "{", '{"revision": "../../x", "bytes": {}}', '{"revision": 5}'])
def test_a_record_that_cannot_be_read_is_none(tmp_path: Path, content: str) -> None:
    folder = tmp_path / "models--a--b"
    folder.mkdir()
    (folder / weights.RECORD).write_text(content)
    assert weights.recorded("a/b", {"HF_HUB_CACHE": str(tmp_path)}) is None
