"""The fields of a transcription request: whatever comes, it is a form or an OpenAI error that names the field."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from config import Endpointing
from mediaworker.http.openai.form import Can, parse
from mediaworker.http.problem import Problem

CAN = Can(("whisper-1", "tiny"), ("en", "de", "zh"), words=True, endpointing=Endpointing())
NAMES = [
    "model", "language", "languages[]", "prompt", "keywords[]", "response_format", "temperature", "stream",
    "timestamp_granularities[]", "timestamp_granularities", "chunking_strategy", "chunking_strategy[type]",
    "chunking_strategy[threshold]", "chunking_strategy[silence_duration_ms]", "chunking_strategy[prefix_padding_ms]",
    "include[]", "known_speaker_names[]", "known_speaker_references[]", "channels", "condition_on_previous_text",
    "unknown",
]  # fmt: skip
VALUES = st.one_of(
    st.text(max_size=12),
    st.sampled_from([
        "whisper-1", "en", "de-DE", "json", "verbose_json", "srt", "diarized_json", "word", "segment", "true", "false",
        "1", "0.5", "nan", "inf", "-1", "1e400", "auto", "server_vad", "split", "mix", "{", "[]",
        '{"type": "server_vad"}',
        '{"type": "server_vad", "threshold": "high"}', '{"type": "server_vad", "silence_duration_ms": 1e99}',
        '{"type": "server_vad", "threshold": null}', "{" * 5000,
    ]),
)  # fmt: skip


@given(st.dictionaries(st.sampled_from(NAMES), st.lists(VALUES, min_size=1, max_size=3), max_size=8))
def test_any_fields_are_a_form_or_a_reason(fields: dict[str, list[str]]) -> None:
    try:
        form = parse(fields, CAN)
    except Problem as error:
        assert error.status in (400, 404) and error.detail and error.field
        assert error.field in {name.split("[")[0] for name in fields}
        return
    endpointing = form.options.endpointing
    assert form.options.language in ("", *CAN.languages)
    assert endpointing is None or (0 <= endpointing.exit <= endpointing.enter <= 1 and endpointing.min_silence_ms >= 0)
    assert form.granularities and form.options.channels in ("mix", "split")


def form(**fields: Any) -> Any:
    return parse({name: [value] if isinstance(value, str) else value for name, value in fields.items()}, CAN)


def test_what_is_not_said() -> None:
    made = form()
    assert (made.format, made.granularities, made.stream) == ("json", ("segment",), False)
    assert made.options.language == "" and made.options.channels == "mix" and made.options.endpointing is None


def test_vad_as_json_and_as_fields_is_the_same() -> None:
    text = '{"type": "server_vad", "threshold": 0.6, "silence_duration_ms": 700, "prefix_padding_ms": 100}'
    one = form(chunking_strategy=text).options.endpointing
    fields = {
        "chunking_strategy[type]": "server_vad", "chunking_strategy[threshold]": "0.6",
        "chunking_strategy[silence_duration_ms]": "700", "chunking_strategy[prefix_padding_ms]": "100",
    }  # fmt: skip
    assert form(**fields).options.endpointing == one
    assert (one.enter, one.exit, one.min_silence_ms, one.pre_roll_ms) == (0.6, 0.35, 700, 100)
    low = form(chunking_strategy='{"type": "server_vad", "threshold": 0.2}').options.endpointing
    assert low.enter == low.exit == 0.2


def test_languages_and_hints() -> None:
    assert form(language="de-DE").options.language == "de"
    assert form(**{"languages[]": ["zh"]}).options.language == "zh"
    assert form(**{"languages[]": ["zh", "en"]}).options.language == ""
    assert form(prompt="Ann calls", **{"keywords[]": ["Bob", "Eve"]}).options.prompt == "Ann calls Bob, Eve"


@pytest.mark.parametrize("asked", ["English", "english ", "eng", "EN", "en-GB", "en_US", " en "])
def test_a_language_has_several_spellings(asked: str) -> None:
    """Its name, its codes of ISO 639-1 to 639-3, and those with a region."""
    assert form(language=asked).options.language == form(**{"languages[]": [asked]}).options.language == "en"


@pytest.mark.parametrize(("asked", "code"), [("ger", "de"), ("deu", "de"), ("Mandarin", "zh"), ("chi", "zh")])
def test_both_codes_of_a_language_and_its_other_names_are_known(asked: str, code: str) -> None:
    assert form(language=asked).options.language == code


@pytest.mark.parametrize("asked", ["auto", "AUTO", "", " "])
def test_auto_leaves_the_language_to_the_engine(asked: str) -> None:
    assert form(language=asked).options.language == ""
    assert form(**{"languages[]": [asked, asked]}).options.language == ""


@pytest.mark.parametrize("asked", ["klingon", "automatic", "xx", "e", "en glish", "tlh"])
def test_what_is_no_language_is_named_as_it_was_written(asked: str) -> None:
    with pytest.raises(Problem, match=f"does not know {asked!r}; it knows de, en, zh"):
        form(language=asked)


def test_words_only_where_they_are_shown() -> None:
    assert form(response_format="srt").options.words
    assert not form(response_format="verbose_json").options.words
    assert form(response_format="verbose_json", **{"timestamp_granularities[]": ["word"]}).options.words
    without = Can(CAN.models, CAN.languages, words=False, endpointing=CAN.endpointing)
    with pytest.raises(Problem, match=r"asr\.word_timestamps"):
        parse({"response_format": ["verbose_json"], "timestamp_granularities[]": ["word"]}, without)
    assert not parse({"response_format": ["srt"]}, without).options.words


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"include[]": "logprobs"}, "include: log probabilities are not available"),
        ({"stream": "true", "response_format": "srt"}, "stream: cannot be combined with response_format=srt"),
        (
            {"stream": "true", "response_format": "vtt", "model": "gpt-4o-transcribe"},
            "stream: cannot be combined with response_format=vtt",
        ),
        ({"language": "xx"}, "language: the engine does not know 'xx'; it knows de, en, zh"),
        ({"stream": "yes"}, "stream: must be true or false"),
        ({"temperature": "7"}, "temperature: must be a number from 0 to 1"),
        ({"model": "gpt-5"}, "the model `gpt-5` does not exist here; available are tiny, whisper-1"),
        (
            {"known_speaker_references[]": "data:"},
            "known_speaker_references: not supported, since speakers are told apart by channel, not by voice",
        ),
    ],
)
def test_messages_name_the_field_and_read_well(fields: dict[str, str], message: str) -> None:
    with pytest.raises(Problem) as raised:
        form(**fields)
    assert raised.value.detail == message


@pytest.mark.parametrize("format", ["json", "text", "srt", "vtt", "verbose_json", "diarized_json"])
def test_segments_may_be_asked_for_with_any_format(format: str) -> None:
    asked = form(response_format=format, **{"timestamp_granularities[]": "segment"})
    assert asked == form(response_format=format)


@pytest.mark.parametrize("name", ["gpt-4o-mini-transcribe-2025-12-15", "whisper-2", "gpt-6-transcribe", "tiny"])
def test_names_of_models_that_transcribe_are_taken(name: str) -> None:
    assert form(model=name).format == "json"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"response_format": "xml"},
            "response_format: must be one of json, text, srt, vtt, verbose_json, diarized_json",
        ),
        ({"timestamp_granularities": "char"}, "timestamp_granularities: must be one of word, segment, not 'char'"),
        ({"timestamp_granularities": "word"}, "timestamp_granularities: words can only be combined with response_form"),
        ({"temperature": "hot"}, "temperature: must be a number from 0 to 1"),
        ({"temperature": "-0.1"}, "temperature: must be a number from 0 to 1"),
        ({"prompt": "x" * 8001}, "prompt: must be at most 8000 characters long"),
        ({"prompt": "x" * 7999, "keywords": "yz"}, "keywords: must be at most 8000 characters long, together with"),
        ({"chunking_strategy": "none"}, "chunking_strategy: must be auto or an object of type server_vad"),
        ({"chunking_strategy": "{"}, "chunking_strategy: must be auto or a JSON object of type server_vad"),
        ({"chunking_strategy": '{"type": "vad"}'}, "chunking_strategy: must be auto or an object of type server_vad"),
        (
            {"chunking_strategy": '{"type": "server_vad", "threshold": "high"}'},
            "chunking_strategy: threshold must be a number",
        ),
        (
            {"chunking_strategy": '{"type": "server_vad", "threshold": 1.5}'},
            "chunking_strategy: threshold: must be a number <= 1.0",
        ),
        (
            {"chunking_strategy": '{"type": "server_vad", "silence_duration_ms": "long"}'},
            "chunking_strategy: silence_duration_ms: must be a whole number, not text",
        ),
        (
            {"chunking_strategy": '{"type": "server_vad", "silence_duration_ms": -1}'},
            "chunking_strategy: silence_duration_ms: must be a whole number >= 0",
        ),
        (
            {"chunking_strategy[type]": "server_vad", "chunking_strategy[prefix_padding_ms]": "5000"},
            "chunking_strategy: prefix_padding_ms: must be a whole number <= 1000",
        ),
        ({"languages[]": ["xx", "yy"]}, "languages: the engine does not know 'xx', 'yy'; it knows de, en, zh"),
    ],
)
def test_a_field_out_of_its_range_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(Problem) as raised:
        form(**fields)
    assert raised.value.detail.startswith(message)
    assert raised.value.status == 400 and raised.value.code == "invalid_value"
    assert raised.value.field == message.partition(":")[0]


def test_fields_at_their_limits_are_taken() -> None:
    assert form(prompt="x" * 8000).options.prompt == "x" * 8000
    assert form(prompt="x" * 7997, keywords="yz").options.prompt == "x" * 7997 + " yz"
    assert form(temperature="1").options == form(temperature="0").options == form().options
    assert form(chunking_strategy="auto").options.endpointing is None
    assert form(stream="1", response_format="text").stream and not form(stream="false").stream
    assert form(condition_on_previous_text="true").options.condition_on_previous_text


@pytest.mark.parametrize("format", ["srt", "vtt", "verbose_json"])
def test_a_whisper_model_ignores_stream_where_a_format_has_none(format: str) -> None:
    asked = {"model": "whisper-1", "response_format": format}
    assert form(stream="true", **asked) == form(**asked) and not form(**asked).stream
    assert form(stream="true", model="whisper-1").stream


def test_speakers_are_told_apart_by_channel_where_they_are_shown() -> None:
    shown = form(response_format="diarized_json", **{"known_speaker_names[]": ["Ann", "Bob"]}).options
    assert (shown.channels, shown.speakers) == ("split", ["Ann", "Bob"])
    assert form(response_format="diarized_json", channels="mix").options.channels == "mix"


def test_an_unknown_model_is_not_found() -> None:
    with pytest.raises(Problem) as raised:
        form(model="gpt-5")
    assert (raised.value.status, raised.value.code) == (404, "model_not_found")
