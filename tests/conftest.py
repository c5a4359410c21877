"""What all tests share: hypothesis settings, free ports, and the recorded speech."""

from __future__ import annotations

import gzip
import os
import re
import shlex
import signal
import subprocess
import time
from collections.abc import Generator, Iterator
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before numpy: as in the worker
if not Path("/dev/nvidiactl").exists():
    os.environ["TRITON_INTERPRET"] = "1"  # before triton, which decides with its import where its kernels run

import pytest  # noqa: E402
import structlog  # noqa: E402
from hypothesis import HealthCheck, settings  # noqa: E402

pytest.register_assert_rewrite("lab")  # so that what differs is shown

from lab import patience  # noqa: E402
from lab.chaos.ext4 import Ext4  # noqa: E402
from lab.media.speech import SPEECH, WORDS  # noqa: E402
from lab.network import ports  # noqa: E402
from lab.worker.peers import LOGS  # noqa: E402

patience.settle()

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell's background job, whose children would ignore it too
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The machines are shared: a slow draw or run says nothing about the code. What is drawn is the same everywhere, so that
# a failure is about what was changed. `make fuzz` draws anew, and many more.
settings.register_profile(
    "same", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True, max_examples=20
)
settings.register_profile("anew", settings.get_profile("same"), derandomize=False, print_blob=True, max_examples=500)
settings.load_profile("same")

UNCACHED = {"cache_logger_on_first_use": False}
"""A logger that is made once would keep writing to the standard error of the test that made it."""

collect_ignore = [] if Path("/dev/nvidiactl").exists() else ["engine/test_qwen_gpu.py"]


LONGEST = (
    "test_one_registration", "test_cluster", "test_word_timestamps_calls", "test_qwen_calls", "test_end_to_end",
    "test_page", "test_asterisk_calls", "test_ws_calls", "test_page_try", "test_peer_check", "test_cluster_jobs",
)  # fmt: skip
"""Files that take the better part of a minute, most of it in real time: none is begun when all others are over."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The longest files first. Even a test's own limit is longer where everything is slower."""
    items.sort(key=lambda item: LONGEST.index(item.path.stem) if item.path.stem in LONGEST else len(LONGEST))
    for item in items:
        marker = item.get_closest_marker("timeout")
        quiet_s = marker.args[0] if marker else float(config.getini("timeout"))
        if not config.getoption("timeout") and quiet_s:
            item.add_marker(pytest.mark.timeout(patience.seconds(quiet_s)), append=False)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failure says how to repeat it, and shows the end of the logs of the workers that were there."""
    report = yield
    if report.failed:
        factor = f"{patience.NAME}={os.environ[patience.NAME]}"
        report.sections.append(("repeat", f"{factor} .venv/bin/python -m pytest {shlex.quote(item.nodeid)}"))
        for log in dict.fromkeys(LOGS):
            if log.exists() and log.stat().st_mtime > time.time() - report.duration - 1:
                report.sections.append((f"log {log}", log.read_text(errors="replace")[-4000:]))
    return report


@pytest.fixture(autouse=True)
def logging(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A command that a test runs in this process sets the log up, and the next test has another standard error."""
    configure = structlog.configure
    monkeypatch.setattr(structlog, "configure", lambda **options: configure(**options | UNCACHED))
    yield
    structlog.reset_defaults()


@pytest.fixture
def free_port() -> int:
    """A port that nobody listens on."""
    return ports.free_port()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 12 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=12m", "tmpfs", str(folder)], capture_output=True).returncode:
        pytest.skip("only root mounts")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


@pytest.fixture
def failing_disk(tmp_path: Path) -> Iterator[Ext4]:
    """An ext4 that becomes read-only at will."""
    try:
        disk = Ext4(tmp_path / "ext4")
        disk.mount()
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("only root mounts, where there are loop devices")
    try:
        yield disk
    finally:
        disk.unmount()


@pytest.fixture(scope="session")
def prompts() -> dict[str, str]:
    """Prompt name → its words, for the prompts that are there as 8 kHz WAV."""
    found: dict[str, str] = {}
    for line in gzip.open(WORDS, "rt", encoding="utf-8", errors="replace"):
        name, _, words = line.partition(":")
        words = re.sub(r"\[[^\]]*\]", "", words).strip()
        if words and not line.startswith(";") and (SPEECH / f"{name.strip()}.wav").exists():
            found[name.strip()] = words
    assert len(found) > 100
    return found
