"""Where dialects are found, and what can be wrong with one of another package."""

from __future__ import annotations

from pathlib import Path

import pytest

from config import ConfigError
from mediaworker.ingress.websocket.asr import AsrSession
from mediaworker.ingress.websocket.dialects import dialects
from mediaworker.ingress.websocket.transcribe import TranscribeSession

MODULE = """
from mediaworker.ingress.session import Session
from mediaworker.ingress.websocket.session import StreamSession

class Good(StreamSession):
    path, subprotocols = "/good", ("good",)

class Taken(StreamSession):
    path = "/ws/asr"

class Nowhere(StreamSession): ...

class Relative(StreamSession):
    path = "captions"

class Other(Session):
    path = "/other"

nothing = None
"""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "some_dialects.py").write_text(MODULE)
    offered = tmp_path / "some_dialects-1.0.dist-info"
    offered.mkdir()
    (offered / "METADATA").write_text("Metadata-Version: 2.1\nName: some-dialects\nVersion: 1.0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    return offered


def offer(site: Path, *names: str) -> None:
    lines = [f"{name} = some_dialects:{name}" for name in names]
    (site / "entry_points.txt").write_text("[mediaworker.dialects]\n" + "\n".join(lines) + "\n")


def test_the_built_in_ones_are_always_there() -> None:
    assert dialects() == {"/ws/asr": AsrSession, "/ws/transcribe": TranscribeSession}


def test_one_of_another_package_is_found_beside_them(site: Path) -> None:
    offer(site, "Good")
    found = dialects()
    assert list(found) == ["/ws/asr", "/ws/transcribe", "/good"] and found["/good"].subprotocols == ("good",)
    with pytest.raises(ConfigError, match="the path /good is taken"):
        dialects(["/good"])


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("Taken", "the path /ws/asr is taken"),
        ("Nowhere", "the dialect has no path that begins with a slash"),
        ("Relative", "the dialect has no path that begins with a slash"),
        ("Other", "the dialect is no subclass of StreamSession"),
        ("nothing", "the dialect is no subclass of StreamSession"),
        ("missing", "the dialect cannot be imported (AttributeError: "),
    ],
)
def test_one_that_cannot_be_used_is_named(site: Path, name: str, why: str) -> None:
    offer(site, name)
    with pytest.raises(ConfigError) as wrong:
        dialects()
    assert str(wrong.value).startswith(f"mediaworker.dialects = 'some_dialects:{name}': {why}")
