"""The try-out engine: its text depends on the samples and on nothing else, and its pool of decoders keeps its rules."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from conftest import SPEECH, speech
from G722 import G722

from asr.engine import Answer
from asr.offline import transcribe
from asr.pocketsphinx import SLICE_FRAMES, PocketSphinxEngine
from asr.scheduler import Lane, Request
from asr.utterance import Format, Utterance
from audio.g711 import alaw_encode, ulaw_encode
from config.settings import Settings

PROMPT = "conf-onlyperson"  # "You are currently the only person in this conference."
MIDDLE = "agent-loggedoff"  # "Agent logged off."
SHORT = "auth-thankyou"  # "Thank you."


def wide(name: str) -> bytes:
    """The prompt's wideband version: little-endian int16 at 16 kHz."""
    return np.asarray(G722(16000, 64000).decode((SPEECH / f"{name}.g722").read_bytes()), "<i2").tobytes()


def codes(name: str) -> bytes:
    return ulaw_encode(speech(name))


@pytest.fixture(scope="module")
def shared() -> PocketSphinxEngine:
    """One decoder that all tests of determinism use one after another, so that each finds what the others left."""
    return PocketSphinxEngine(1)


@pytest.fixture(scope="module")
def pool() -> PocketSphinxEngine:
    return PocketSphinxEngine(2)


@pytest.fixture(autouse=True)
def closed(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    for name in ("shared", "pool"):
        if name in request.fixturenames:
            engine = request.getfixturevalue(name)
            for utterance_id in list(engine._open):
                engine.close(utterance_id)


def ask(name: str, revision: int, end: int, *, final: bool = True, live: bool = True) -> Request:
    lane = Lane.BATCH if not live else Lane.FINAL if final else Lane.PARTIAL
    return Request(name, revision, lane, final, end, 0.0)


def answer(engine: PocketSphinxEngine, request: Request) -> Answer:
    while True:
        heard = engine._open[request.utterance_id].frames
        answers = engine.step([request])
        assert engine._open[request.utterance_id].frames - heard <= SLICE_FRAMES
        if answers:
            return answers[0]


def trace(engine: PocketSphinxEngine, audio: bytes) -> tuple[str, int]:
    """The final text and the score of the best path: the score differs long before the words do."""
    engine.open(Utterance("t", "PCMU"))
    engine.append("t", audio)
    text = answer(engine, ask("t", 1, len(audio))).text
    score = engine._open["t"].decoder.hyp().score
    engine.close("t")
    return text, score


def final(engine: PocketSphinxEngine, audio: bytes, format: Format = "PCMU", name: str = "u") -> str:
    engine.open(Utterance(name, format))
    engine.append(name, audio)
    text = answer(engine, ask(name, 1, len(audio))).text
    engine.close(name)
    return text


def test_it_understands_wideband_speech(shared: PocketSphinxEngine) -> None:
    assert final(shared, wide(PROMPT), "L16") == "you are currently the only person in this conference"


def test_cuts_partials_and_speculative_finals_change_nothing(shared: PocketSphinxEngine) -> None:
    audio = codes(MIDDLE)
    whole = trace(shared, audio)
    rng = np.random.default_rng(1)
    shared.open(Utterance("u", "PCMU"))
    at = revision = 0
    while at < len(audio):
        step = int(rng.integers(1, 4000))
        shared.append("u", audio[at : at + step])
        at = min(at + step, len(audio))
        revision += 1
        if rng.random() < 0.4:
            answer(shared, ask("u", revision, at, final=rng.random() < 0.5))
        elif "u" in shared.ahead():
            shared.feed(("u",))
    assert (answer(shared, ask("u", revision + 1, at)).text, shared._open["u"].decoder.hyp().score) == whole
    assert whole[0]


@pytest.fixture(scope="module")
def fresh() -> tuple[str, int]:
    """What a decoder that has heard nothing else makes of the short prompt; offline agrees."""
    audio = codes(SHORT)
    traced = trace(PocketSphinxEngine(1), audio)
    assert traced[0] == transcribe(Settings(), "PCMU", audio)
    return traced


@pytest.mark.parametrize("before", ["noise", "speech", "wideband", "silence", "interrupted"])
def test_what_a_decoder_heard_before_changes_nothing(
    shared: PocketSphinxEngine, fresh: tuple[str, int], before: str
) -> None:
    audio = codes(SHORT)
    match before:
        case "noise":
            final(shared, np.random.default_rng(2).integers(0, 256, 12000, np.uint8).tobytes())
        case "speech":
            final(shared, codes(MIDDLE))
        case "wideband":
            final(shared, wide(SHORT), "L16")
        case "silence":
            final(shared, b"\xff" * 12000)
        case "interrupted":
            shared.open(Utterance("cut", "PCMU"))
            shared.append("cut", codes(MIDDLE))
            shared.step([ask("cut", 1, 8000)])
            shared.close("cut")
    assert trace(shared, audio) == fresh


def test_a_new_decoder_agrees_with_a_used_one(shared: PocketSphinxEngine) -> None:
    final(shared, codes(SHORT))
    assert trace(PocketSphinxEngine(1), codes(MIDDLE)) == trace(shared, codes(MIDDLE))


def test_a_final_hears_no_more_than_it_may(shared: PocketSphinxEngine) -> None:
    """A replayed request arrives after all the audio, and the decoder may have run ahead of it."""
    audio = codes(MIDDLE)
    half = len(audio) // 2
    expected = final(shared, audio[:half])
    whole = final(shared, audio)
    shared.open(Utterance("u", "PCMU"))
    shared.append("u", audio)
    while ahead := shared.ahead():
        shared.feed(ahead)
    assert answer(shared, ask("u", 1, half)).text == expected
    assert answer(shared, ask("u", 2, len(audio))).text == whole
    assert expected != whole


def test_a_laws_and_u_laws_text_is_about_the_same(shared: PocketSphinxEngine) -> None:
    a_law = final(shared, alaw_encode(speech(MIDDLE)), "PCMA").split()
    u_law = final(shared, codes(MIDDLE)).split()
    assert len(set(a_law) & set(u_law)) >= len(u_law) // 2


@pytest.mark.parametrize(("format", "size"), [("PCMU", 0), ("PCMU", 1), ("PCMU", 79), ("L16", 1), ("L16", 641)])
def test_too_little_to_hear(shared: PocketSphinxEngine, format: Format, size: int) -> None:
    assert final(shared, b"\x7f" * size, format) == ""


def test_silence_has_no_words(shared: PocketSphinxEngine) -> None:
    assert final(shared, b"\xff" * 8000) == ""


# -- the pool ----------------------------------------------------------------------------------------------------------


def test_owners_get_partials_and_the_others_finals_wait(pool: PocketSphinxEngine) -> None:
    audio = codes(SHORT)
    for name in ("a", "b", "c"):
        pool.open(Utterance(name, "PCMU"))
        pool.append(name, audio)
    served = []
    while ahead := pool.ahead():
        pool.feed(ahead)
        served += ahead
    assert set(served) == {"a", "b"}
    assert pool.runnable(ask("a", 1, len(audio), final=False))
    assert not pool.runnable(ask("c", 1, len(audio), final=False))
    assert not pool.runnable(ask("c", 2, len(audio)))
    owned = answer(pool, ask("a", 2, len(audio))).text
    pool.close("a")
    assert not pool.runnable(ask("c", 1, len(audio), final=False)), "a partial is no reason to take a decoder"
    assert pool.runnable(ask("c", 2, len(audio)))
    assert answer(pool, ask("c", 2, len(audio))).text == owned


def test_an_owner_has_heard_everything_when_its_final_is_asked_for(pool: PocketSphinxEngine) -> None:
    audio = codes(SHORT)
    pool.open(Utterance("a", "PCMU"))
    pool.append("a", audio)
    while ahead := pool.ahead():
        pool.feed(ahead)
    assert len(pool.step([ask("a", 1, len(audio))])) == 1, "one step, with nothing left to decode"


def test_batch_has_one_decoder_and_lives_with_less(pool: PocketSphinxEngine) -> None:
    audio = codes(SHORT)
    for name in ("job 1", "job 2"):
        pool.open(Utterance(name, "PCMU", live=False))
        pool.append(name, audio)
    pool.step([ask("job 1", 1, len(audio), live=False)])
    assert not pool.runnable(ask("job 2", 1, len(audio), live=False))
    for name in ("a", "b"):
        pool.open(Utterance(name, "PCMU"))
        pool.append(name, audio)
        while ahead := pool.ahead():
            pool.feed(ahead)
    assert not pool.runnable(ask("job 1", 1, len(audio), live=False)), "live speech has taken its decoder"
    live = answer(pool, ask("a", 1, len(audio))).text
    pool.close("a")
    assert answer(pool, ask("job 1", 1, len(audio), live=False)).text == live
