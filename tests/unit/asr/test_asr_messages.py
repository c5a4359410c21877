"""The border between the two processes: every message survives it, however the bytes are cut, and noise is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asr import messages
from asr.counters import RecognizerCounters
from asr.messages import FromEngine, ToEngine
from asr.runtime import Runtime
from asr.utterance import MAX_TEXT, Alignment, Hypothesis, TimedWord, Utterance
from config.process.framing import MAX_FRAME_BYTES, FramedMessage, FrameError, Frames, encode
from config.settings import Asr, Qwen

WORD = TimedWord("w", 0, 1, 1.0)
text = st.text(max_size=40)
number = st.integers(0, 2**40)
utterances = st.builds(
    Utterance,
    id=text,
    format=st.sampled_from(["PCMU", "PCMA", "L16"]),
    language=text,
    context=text,
    live=st.booleans(),
    previous=text,
    stream=text,
    synchronous=st.booleans(),
    words=st.booleans(),
)
hypotheses = st.builds(
    Hypothesis,
    utterance_id=text,
    revision=number,
    text=text,
    language=text,
    stable_chars=number,
    final=st.booleans(),
    error=st.none() | text,
)
seconds = st.floats(0, 1e6)
counters = st.builds(RecognizerCounters, finals=number, errors=number)
words = st.lists(
    st.builds(TimedWord, word=text, start_ms=number, end_ms=number, confidence=st.floats(0, 1)), max_size=4
)
alignments = st.builds(
    Alignment,
    utterance_id=text,
    revision=number,
    words=words.map(tuple),
    error=st.none() | text,
    queue_s=seconds,
)
FIELDS = {
    str: text,
    int: number,
    bool: st.booleans(),
    float: seconds,
    RecognizerCounters: counters,
    bytes: st.binary(max_size=500),
    tuple[str, ...]: st.lists(text, max_size=4).map(tuple),
    Utterance: utterances,
    Hypothesis: hypotheses,
    Alignment: alignments,
    Runtime: st.builds(
        Runtime,
        device=text,
        self_check=text,
        graphs=st.none() | st.booleans(),
        memory_bytes=number,
        slots=number,
        warnings=st.lists(text, max_size=2).map(tuple),
    ),
    Asr: st.builds(Asr, model=text, threads=st.integers(0, 256)),
    Qwen: st.builds(
        Qwen,
        dtype=st.sampled_from(["auto", "float32"]),
        slots=st.integers(1, 4096),
        experimental=st.sampled_from([(), ("int8",), ("fp8", "short_windows")]),
    ),
}


def every(union: object) -> st.SearchStrategy[FramedMessage]:
    """Any message of the union, built from its own field types: a new message is tested without a new test."""
    kinds = get_args(union)
    return st.one_of(
        *(st.builds(kind, **{f.name: FIELDS[f.type] for f in msgspec.structs.fields(kind)}) for kind in kinds)
    )


@given(st.lists(every(ToEngine), max_size=6), st.lists(st.integers(1, 300), min_size=1))
def test_to_engine_round_trip_in_any_pieces(sent: list[ToEngine], sizes: list[int]) -> None:
    assert [messages.decode_to_engine(body) for body in cut(sent, sizes)] == sent


@given(st.lists(every(FromEngine), max_size=6), st.lists(st.integers(1, 300), min_size=1))
def test_from_engine_round_trip_in_any_pieces(sent: list[FromEngine], sizes: list[int]) -> None:
    assert [messages.decode_from_engine(body) for body in cut(sent, sizes)] == sent


def cut(sent: list, sizes: list[int]) -> list[bytes]:
    stream = b"".join(map(encode, sent))
    frames = Frames()
    bodies: list[bytes] = []
    turn = 0
    while stream:
        size = sizes[turn % len(sizes)]
        bodies += frames.feed(stream[:size])
        stream, turn = stream[size:], turn + 1
    return bodies


@given(st.binary(max_size=200))
def test_noise_is_refused_and_nothing_else(body: bytes) -> None:
    for decode in (messages.decode_to_engine, messages.decode_from_engine):
        try:
            decode(body)
        except FrameError:
            pass


@given(st.binary(max_size=64))
def test_frames_of_noise(data: bytes) -> None:
    try:
        bodies = Frames().feed(data)
    except FrameError:
        return
    assert sum(len(body) + 4 for body in bodies) <= len(data)


@pytest.mark.parametrize("length", [0, MAX_FRAME_BYTES + 1, 2**32 - 1])
def test_a_length_no_message_has(length: int) -> None:
    with pytest.raises(FrameError, match=str(length)):
        Frames().feed(length.to_bytes(4, "big"))


def test_the_directions_are_told_apart() -> None:
    with pytest.raises(FrameError):
        messages.decode_from_engine(encode(messages.CloseUtterance("a"))[4:])


@pytest.mark.parametrize(
    ("what", "longest"),
    [
        (lambda size: messages.Heard(Hypothesis("u", 1, "w" * size, "en", 0, True)), MAX_TEXT),
        (lambda size: messages.Heard(Hypothesis("u", 1, "€" * size, "en", 0, False)), MAX_TEXT),
        (lambda size: messages.Heard(Hypothesis("u", 1, "", "e" * size, 0, True)), 64),
        (lambda size: messages.Heard(Hypothesis("u", 1, "", "", 0, True, words=(WORD,) * size)), MAX_TEXT),
        (lambda size: messages.Words(Alignment("u", 1, (replace(WORD, word="w" * size),))), MAX_TEXT),
        (lambda size: messages.Words(Alignment("u", 1, (WORD,) * size)), MAX_TEXT),
    ],
    ids=["final", "partial", "language", "words", "a word", "alignment"],
)  # fmt: skip
def test_nobody_has_to_store_what_no_speech_can_be(what: Callable[[int], FromEngine], longest: int) -> None:
    """An engine server may be anybody's, and its finals are stored and sent to everybody."""
    message = what(longest)
    assert messages.decode_from_engine(encode(message)[4:]) == message
    with pytest.raises(FrameError):
        messages.decode_from_engine(encode(what(longest + 1))[4:])
