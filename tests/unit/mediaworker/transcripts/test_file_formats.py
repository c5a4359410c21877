"""A file's transcript in every format that can be asked for, character by character."""

from __future__ import annotations

import json

import pytest

from mediaworker.events.schema import Word
from mediaworker.files.segments import FileSegment, arranged, language, mend, speaker, whole_text
from mediaworker.transcripts.file import FORMATS, MEDIA_TYPES, FileTranscript, Format, render, spoken_line

HELLO = FileSegment(0, 0, 1250, 2500, "Hello there.", "en", [Word("Hello", 1250, 1600), Word("there", 1700, 2500, 0.5)])
YES = FileSegment(1, 1, 3000, 3999, "Ja, gern.", "de")
NOTHING = FileSegment(2, 0, 5000, 6000, "", error="the engine failed")
ONE = FileTranscript([HELLO, NOTHING], 61.4567)
TWO = FileTranscript([HELLO, YES], 10.0, channels=2, speakers=["Agent", ""], damaged=3)


def test_text() -> None:
    assert render(ONE, "text") == "Hello there.\n"
    assert render(TWO, "text") == "Agent: Hello there.\nB: Ja, gern.\n"
    assert spoken_line(TWO, YES) == "B: Ja, gern.\n"


def test_json() -> None:
    failed = ["1 of 2 stretches of speech could not be recognised"]
    damaged = ["the file is damaged or cut off: in 3 places silence stands for what cannot be decoded"]
    usage = {"type": "duration", "seconds": 61}
    assert json.loads(render(ONE, "json")) == {"text": "Hello there.", "usage": usage, "warnings": failed}
    assert json.loads(render(TWO, "json"))["warnings"] == damaged
    assert "warnings" not in json.loads(render(FileTranscript([HELLO], 1.0), "json"))


def test_verbose_json() -> None:
    found = json.loads(render(ONE, "verbose_json", granularities=("segment", "word")))
    assert found.pop("segments") == [
        {
            "id": 0, "seek": 125, "start": 1.25, "end": 2.5, "text": "Hello there.", "tokens": [], "temperature": 0.0,
            "avg_logprob": 0.0, "compression_ratio": 0.6, "no_speech_prob": 0.0, "language": "en", "channel": 0,
        }
    ]  # fmt: skip
    assert found.pop("words") == [
        {"word": "Hello", "start": 1.25, "end": 1.6}, {"word": "there", "start": 1.7, "end": 2.5},
    ]  # fmt: skip
    assert found.pop("warnings") and found.pop("usage") == {"type": "duration", "seconds": 61}
    assert found == {"task": "transcribe", "language": "english", "duration": 61.457, "text": "Hello there."}
    plain = json.loads(render(ONE, "verbose_json"))
    assert "words" not in plain and "segments" in plain
    words = json.loads(render(ONE, "verbose_json", granularities=("word",)))
    assert "words" in words and "segments" not in words
    assert [each["speaker"] for each in json.loads(render(TWO, "verbose_json"))["segments"]] == ["Agent", "B"]


def test_diarized_json() -> None:
    found = json.loads(render(TWO, "diarized_json"))
    assert found.pop("warnings") and found.pop("usage") == {"type": "duration", "seconds": 10}
    assert found == {
        "task": "transcribe", "duration": 10.0, "text": "Hello there. Ja, gern.",
        "segments": [
            {
                "type": "transcript.text.segment", "id": "seg_0", "start": 1.25, "end": 2.5, "text": "Hello there.",
                "speaker": "Agent",
            },
            {
                "type": "transcript.text.segment", "id": "seg_1", "start": 3.0, "end": 3.999, "text": "Ja, gern.",
                "speaker": "B",
            },
        ],
    }  # fmt: skip
    alone = json.loads(render(ONE, "diarized_json"))
    assert alone["duration"] == 61.457 and [each["speaker"] for each in alone["segments"]] == ["A"]


def test_cues() -> None:
    assert render(ONE, "srt") == "1\n00:00:01,250 --> 00:00:02,500\nHello there.\n"
    assert render(TWO, "vtt").startswith("WEBVTT\n\n00:00:01.250 --> 00:00:02.500\n<v Agent>Hello there.")
    assert set(MEDIA_TYPES) == set(FORMATS)


@pytest.mark.parametrize("format", FORMATS)
def test_nothing_was_said(format: Format) -> None:
    assert isinstance(render(FileTranscript([], 0.0), format), str)


def test_speakers_are_named_only_where_there_is_more_than_one() -> None:
    assert ONE.speaker(HELLO) == "" and FileTranscript([HELLO], 1.0, speakers=["Ann"]).speaker(HELLO) == "Ann"
    assert [speaker(channel, ()) for channel in (0, 1, 25, 26, 27, 701, 702)] == "A B Z AA AB ZZ AAA".split()


def test_the_language_is_that_of_most_of_the_time() -> None:
    short = FileSegment(3, 0, 0, 100, "x", "fr")
    assert language([short, HELLO, YES]) == "en" and language([YES, short]) == "de"
    assert language([NOTHING]) == language([]) == ""
    assert language([FileSegment(0, 0, 0, 9000, "", "fr"), YES]) == "de", "one without words does not count"


def test_segments_are_arranged_by_time_then_channel() -> None:
    late, left, right = (FileSegment(n, n % 2, start, start + 1, str(n)) for n, start in ((0, 9), (2, 5), (1, 5)))
    assert [each.text for each in arranged([late, right, left])] == ["2", "1", "0"]
    assert whole_text([left, right]) == "2 1"


def test_a_word_that_a_cut_has_doubled_is_said_once() -> None:
    before = FileSegment(0, 0, 0, 1000, "one two")
    torn = FileSegment(
        1, 0, 1000, 2000, "Two three", words=[Word("Two", 1000, 1100), Word("three", 1200, 1300)], torn=True
    )
    mended = mend(before, torn)
    assert mended.text == "three" and [word.word for word in mended.words] == ["three"]
    unlike = FileSegment(1, 0, 1000, 2000, "four three", torn=True)
    assert mend(before, unlike) is unlike and mend(None, torn) is torn
    whole = FileSegment(1, 0, 1000, 2000, "two three")
    assert mend(before, whole) is whole, "nothing was cut"
    assert [each.text for each in arranged([before, torn])] == ["one two", "three"]
    other = FileSegment(1, 1, 1000, 2000, "two three", torn=True)
    assert [each.text for each in arranged([before, other])] == ["one two", "two three"], "another channel"
