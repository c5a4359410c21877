"""Not part of the default run, since a whole system is made for it: `make interop`, or pytest and this folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.asterisk import pbx
from lab.patience import until
from lab.worker.peers import Worker, worker
from lab.worker.qwen import QWEN
from lab.worker.readiness import ready


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    here = Path(__file__).parent
    named = [(config.invocation_params.dir / str(name).split("::")[0]).resolve() for name in config.args]
    return None if any(path == here or here in path.parents for path in named) else True


@pytest.fixture(scope="session")
def system() -> Path:
    """The folder with the Debian system in which Asterisk and baresip are."""
    return pbx.system()


@pytest.fixture(scope="session")
def asterisk(system: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[pbx.Asterisk]:
    with pbx.running(system, tmp_path_factory.mktemp("asterisk")) as started:
        yield started


@pytest.fixture(scope="module")
def listening(asterisk: pbx.Asterisk, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    """A worker that is registered with this Asterisk and has its engine loaded."""
    # What customer and agent say one after the other happens to be the number of a card.
    routes = '[{headers = {X-Talk = "*"}, join = "X-Talk"}]'
    options = QWEN | {"ASR__PRELOAD": "true", "PRIVACY__CARDS": "false", "ROUTES": routes} | asterisk.account()
    with worker(tmp_path_factory.mktemp("worker"), **options) as started:
        until(lambda: ready(started), 60, "registered")
        yield started


@pytest.fixture(scope="module")
def streamed(asterisk: pbx.Asterisk, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    """A worker that takes audio without SIP where this Asterisk brings it, from five channels at once."""
    options = {
        "ASR__PRELOAD": "true",
        "PRIVACY__CARDS": "false",
        "SIP__ENABLED": "false",
        "MAX_CALLS": "5",
        "AUDIOSOCKET__ENABLED": "true",
        "AUDIOSOCKET__PORT": str(asterisk.audiosocket_port),
        "MEDIA__PORT": str(asterisk.media_port),
        "HTTP__PORT": str(asterisk.worker_http_port),
        "ROUTES": '[{source = "audiosocket", roles = {main = "customer"}}]',
    }
    with worker(tmp_path_factory.mktemp("worker"), **QWEN | options) as started:
        until(lambda: ready(started), 60)
        yield started
