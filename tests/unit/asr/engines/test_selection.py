"""What times the words, by engine and settings. Nothing is loaded."""

from __future__ import annotations

from pathlib import Path

import pytest

from asr.engines.selection import select_words
from asr.engines.whisper import base
from config.settings import Asr


@pytest.mark.parametrize("engine", ["mixed", "whisper"])
@pytest.mark.parametrize("aligner", ["auto", "whisper", "/nowhere"])
def test_an_engine_with_whisper_times_the_words_of_files_by_it(engine: str, aligner: str) -> None:
    """Unless `asr.word_timestamps` asks for another aligner, whichever is named."""
    timing = select_words(Asr(aligner=aligner), engine)
    assert timing.aligner == "whisper" and {"en", "ru", "zh"} <= set(timing.languages)


@pytest.mark.parametrize("engine", ["moonshine", "openai"])
def test_others_load_nothing_that_nobody_asked_for(engine: str) -> None:
    timing = select_words(Asr(), engine)
    assert (timing.languages, timing.reason, timing.aligner) == ((), "", "")


def test_whisper_takes_the_place_of_an_aligner_that_is_not_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    asr = Asr(word_timestamps=True, whisper_model=str(tmp_path))
    (tmp_path / "model.bin").touch()
    timing = select_words(asr, "moonshine")
    assert timing.aligner == "whisper" and timing.reason.endswith("times them")


def test_without_either_the_reason_names_both_ways(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "find", lambda: None)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    timing = select_words(Asr(word_timestamps=True), "moonshine")
    assert timing.languages == () and "models pull whisper-base" in timing.reason
    assert "Qwen/Qwen3-ForcedAligner-0.6B" in timing.reason
