"""`mediaworker models check`: the tiny model says digits, and one with random numbers says nonsense, as it should."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from lab.engine.qwen_models import TINY
from lab.worker.qwen import DIGITS
from mediaworker.cli import main
from tools.make_checkpoint import write

WORDS = {"customer": "four seven one two", "agent": "zero six two"}
"""In front of the pause: what stands behind it is another utterance."""
SILENCE = b"\xff" * 4000
SPEAKS = 12_000
"""Bytes into each clip: past the silence at its beginning."""


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("prompts")
    for name, words in WORDS.items():
        audio = (DIGITS / f"{name}.ulaw").read_bytes()
        (folder / f"{name}.ulaw").write_bytes(audio[: audio.index(SILENCE, SPEAKS)])
        (folder / f"{name}.txt").write_text(words)
    return folder


def run(*arguments: str | Path) -> int:
    return main.main(["models", "check", *map(str, arguments)])


def test_the_tiny_model_is_fine(prompts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status = run(TINY, "--prompts", prompts)
    out = capsys.readouterr().out
    assert "0 of 7 words wrong (0%); 0 of 2 answers differ" in out and status == 0, out


def test_other_words_are_bad(prompts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copy(prompts / "agent.ulaw", tmp_path)
    (tmp_path / "agent.txt").write_text("nobody says that here")
    assert run(TINY, "--prompts", tmp_path) == 1
    assert "0 of 1 answers differ" in capsys.readouterr().out


def test_a_random_checkpoint_agrees_and_its_words_are_bad(
    prompts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write(tmp_path / "random", "0.6B", "original", shrink=True)
    assert run(folder, "--prompts", prompts) == 1
    out = capsys.readouterr().out
    assert "0 of 2 answers differ" in out and "of 7 words wrong" in out, out


def test_an_engine_that_says_something_else_is_found(
    prompts: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from asr.engines.qwen.encoder import Encoder

    finish = Encoder.finish
    monkeypatch.setattr(Encoder, "finish", lambda self, encoding: [-each for each in finish(self, encoding)])
    assert run(TINY, "--prompts", prompts) == 1
    assert "2 of 2 answers differ" in capsys.readouterr().out


def test_nothing_to_check(prompts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("nobody/nothing", "--prompts", prompts) == 2
    assert "mediaworker models pull nobody/nothing" in capsys.readouterr().err
    assert run(TINY, "--prompts", tmp_path) == 2
    assert "no prompts" in capsys.readouterr().err
    (tmp_path / "a.wav").write_bytes(b"no")
    assert run(TINY, "--prompts", tmp_path) == 2
    assert "is no WAV file" in capsys.readouterr().err
