"""Files through a real worker: every word, once, at its time; in little memory; and in nobody's way."""

from __future__ import annotations

import json
from collections.abc import Iterator
from difflib import SequenceMatcher
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asr import text
from lab.engine.listener import LISTENER_PATH
from lab.media import material
from lab.media.material import RATE_HZ
from lab.patience import seconds
from lab.worker.peers import ROOT, Worker, worker
from mediaworker.events.schema import Word
from mediaworker.files.segments import FileSegment, arranged, language, mend, speaker, whole_text
from mediaworker.transcripts.file import FileTranscript, render

ALIGNER = ROOT / "models" / "qwen3-aligner-tiny"
MB = 1 << 20
WITHIN_S = 0.2


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    environ = {
        "SIP__ENABLED": "false", "ASR__WORD_TIMESTAMPS": "true", "ASR__ALIGNER": str(ALIGNER),
        "ENDPOINTING__FILES__MAX_UTTERANCE_S": "5",
    }  # fmt: skip
    with worker(tmp_path_factory.mktemp("files"), **environ) as made:
        yield made


def transcribe(running: Worker, path: Path, **fields: Any) -> dict[str, Any]:
    """The answer, with segments."""
    url = f"{running.url}/v1/audio/transcriptions"
    data = {"response_format": "verbose_json"} | fields
    with path.open("rb") as file:
        answer = httpx.post(url, files={"file": (path.name, file)}, data=data, timeout=seconds(120))
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def test_two_minutes_of_digits_and_noise(running: Worker, tmp_path: Path) -> None:
    """Exactly its words in order, and where the splice has put them."""
    path = tmp_path / "splice.wav"
    table = material.splice(path, 120.0, seed=600)
    assert len(table) > 20
    found = transcribe(running, path, **{"timestamp_granularities[]": ["segment", "word"]})
    assert found["text"].split() == [word for each in table for word in each.words]
    assert found["duration"] == 120.0 and "warnings" not in found
    for segment, each in zip(found["segments"], table, strict=True):
        assert segment["text"] == each.text
        assert abs(segment["start"] - each.start_s) <= WITHIN_S and abs(segment["end"] - each.end_s) <= WITHIN_S
    spans = [span for each in table for span in each.spans_s]
    off = sorted(abs(word["start"] - span[0]) for word, span in zip(found["words"], spans, strict=True))
    assert off[len(off) * 95 // 100] <= WITHIN_S, "one word in twenty may be further off, with the tiny aligner"


def test_a_speaker_who_does_not_pause_is_cut_between_words(running: Worker, tmp_path: Path) -> None:
    """A minute without half a second of silence: no word is lost at a cut, none is there twice."""
    rng = np.random.default_rng(1)
    parts: list[np.ndarray] = []
    words: list[str] = []
    for clip in material.digit_clips(20, seed=20):
        samples, _ = clip.cut()
        parts += [samples, rng.normal(0, 60, int(rng.uniform(0.16, 0.3) * RATE_HZ)).astype(np.int16)]
        words += clip.words
    path = tmp_path / "breathless.wav"
    material.encode(path, np.concatenate(parts), "pcm_s16le")
    found = transcribe(running, path)
    assert found["text"].split() == words
    assert len(found["segments"]) >= 8
    assert all(segment["end"] - segment["start"] <= 5.0 for segment in found["segments"])
    assert all(one["end"] <= other["start"] for one, other in pairwise(found["segments"]))


def test_the_text_before_may_be_context(running: Worker, tmp_path: Path) -> None:
    """The tiny model has not learnt to read digits before digits: a word or two may go."""
    path = tmp_path / "splice.wav"
    table = material.splice(path, 40.0, seed=41)
    found = transcribe(running, path, condition_on_previous_text="true")
    words = [word for each in table for word in each.words]
    assert len(found["segments"]) == len(table)
    assert SequenceMatcher(None, words, found["text"].split()).ratio() > 0.9


def test_a_long_file_takes_no_more_memory_than_a_short_one(running: Worker, tmp_path: Path) -> None:
    """Half an hour of samples is 58 MB."""
    long, short = tmp_path / "night.flac", tmp_path / "short.wav"
    table = material.mostly_silent(long, 0.5, clips=2, seed=2)
    material.splice(short, 6.0, seed=7)
    transcribe(running, short)
    before = peak_bytes(running.process.pid)
    assert transcribe(running, long)["text"].split() == [word for each in table for word in each.words]
    assert peak_bytes(running.process.pid) - before < 20 * MB


def peak_bytes(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


def test_without_an_engine_there_is_a_reason_and_a_time(tmp_path: Path) -> None:
    path = tmp_path / "speech.wav"
    assert material.splice(path, 12.0, seed=1)
    with worker(tmp_path, LISTENER_PATH, SIP__ENABLED="false", ASR__ENGINE="unusable") as broken:
        for _ in range(2):
            with path.open("rb") as file:
                url = f"{broken.url}/v1/audio/transcriptions"
                answer = httpx.post(url, files={"file": ("speech.wav", file)}, timeout=seconds(60))
            assert answer.status_code == 503 and int(answer.headers["retry-after"]) > 0
            assert answer.json()["error"]["type"] == "server_error"


# -- segments, pure ----------------------------------------------------------------------------------------------------


def segment(index: int, said: str, *, torn: bool = False, channel: int = 0, **more: Any) -> FileSegment:
    return FileSegment(index, channel, 1000 * index, 1000 * index + 900, said, torn=torn, **more)


def test_a_word_that_a_cut_has_doubled_is_there_once() -> None:
    one, two = segment(0, "My number is forty"), segment(1, "Forty two.", torn=True)
    assert whole_text(arranged([two, one])) == "My number is forty two."
    whole = segment(1, "Forty two.")
    assert whole_text(arranged([one, whole])) == "My number is forty Forty two.", "said twice"
    words = [Word("Forty", 1000, 1100, 1.0), Word("two", 1100, 1300, 1.0)]
    assert mend(one, segment(1, "Forty two.", torn=True, words=words)).words == words[1:]
    assert mend(one, segment(1, "fifty", torn=True)).text == "fifty"
    assert mend(segment(0, "我们今天"), segment(1, "天气很好", torn=True)).text == "气很好"
    other = segment(0, "forty", channel=1)
    assert whole_text(arranged([other, two])) == "forty Forty two.", "of another speaker"


@given(st.lists(st.text(max_size=12), max_size=8))
def test_texts_are_joined_without_a_loss(parts: list[str]) -> None:
    joined = text.joined(parts)
    assert joined.replace(" ", "") == "".join(part.strip() for part in parts).replace(" ", "")
    assert joined == joined.strip()


@given(st.text(max_size=30))
def test_without_its_first_word_a_text_is_an_end_of_itself(said: str) -> None:
    rest = text.without_first_word(said)
    assert said.endswith(rest)
    if text.words(said):
        assert len(text.words(rest)) <= len(text.words(said))


def test_speakers_have_names_or_letters() -> None:
    assert [speaker(each, ["agent", ""]) for each in (0, 1, 2, 25, 26, 27)] == ["agent", "B", "C", "Z", "AA", "AB"]


def test_the_language_is_the_one_most_was_said_in() -> None:
    said = [segment(0, "ja", language="de"), segment(1, "yes", language="en"), segment(2, "no", language="en")]
    assert language(said) == "en"
    assert language([segment(0, "", language="de")]) == ""


SEGMENTS = st.lists(
    st.builds(
        lambda index, channel, start, length, said, torn, error: FileSegment(
            index, channel, start, start + length, "" if error else said, "en", torn=torn, error=error
        ),
        st.integers(0, 50), st.integers(0, 2), st.integers(0, 10**7), st.integers(1, 30_000), st.text(max_size=60),
        st.booleans(), st.one_of(st.none(), st.just("out of memory")),
    ),
    max_size=8,
)  # fmt: skip


@given(SEGMENTS, st.sampled_from(["json", "text", "srt", "vtt", "verbose_json", "diarized_json"]), st.integers(1, 3))
def test_any_segments_can_be_shown_in_any_format(segments: list[FileSegment], format: Any, channels: int) -> None:
    transcript = FileTranscript(arranged(segments), duration_s=10_000.0, channels=channels, speakers=["<i>x</i>"])
    shown = render(transcript, format, granularities=("segment", "word"))
    if "json" in format:
        found = json.loads(shown)
        assert found["text"] == whole_text(arranged(segments))
        alone = format == "diarized_json" and channels == 1
        assert ("warnings" in found) == (alone or any(each.error for each in segments))
