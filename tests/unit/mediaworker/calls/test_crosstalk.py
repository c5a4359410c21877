"""Crosstalk in a call: each word is transcribed on the leg of whoever said it, and never on none."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from asr.utterance import Hypothesis
from audio import Codec
from audio.codecs import g711
from config.sections.recognition import Asr
from lab.calls.desks import Desk, Engine
from lab.media.speech import speech
from mediaworker.calls.call_leg import LegSpec
from mediaworker.calls.crosstalk import Comparison
from mediaworker.calls.live_utterance import LiveUtterance, Speaker
from mediaworker.events import schema as events

CUSTOMER = np.concatenate([np.zeros(4000), speech("demo-congrats")[: 10 * 8000]])
AGENT = speech("conf-adminmenu")[: 6 * 8000]


def later(samples: np.ndarray, ms: int, level_db: float) -> np.ndarray:
    return np.concatenate([np.zeros(8 * ms), samples * 10 ** (level_db / 20)])


def together(*sounds: np.ndarray) -> np.ndarray:
    mixed = np.zeros(max(map(len, sounds)))
    for sound in sounds:
        mixed[: len(sound)] += sound
    return mixed


def coded(codec: Codec, samples: np.ndarray) -> bytes:
    whole = np.clip(np.round(samples), -32768, 32767).astype(np.int16)
    if codec.wide:
        return np.repeat(whole, 2).astype("<i2").tobytes()
    return g711.alaw_encode(whole) if codec is Codec.PCMA else g711.ulaw_encode(whole)


async def finals(
    legs: dict[str, np.ndarray], *, codec: Codec = Codec.PCMU, desk: Desk | None = None
) -> dict[str, list[events.TranscriptFinal]]:
    """Of a call whose legs carry these sounds, and a second of silence behind them."""
    desk = desk or Desk()
    specs = [LegSpec(leg=name, codec=codec, transport="stream") for name in legs]
    call = desk.registry.open(source="twilio", legs=specs)
    length = max(map(len, legs.values())) + 8000
    codes = {name: coded(codec, np.append(sound, np.zeros(length - len(sound)))) for name, sound in legs.items()}
    size = len(next(iter(codes.values()))) // length
    for leg in call.legs.values():
        leg.start(desk.now)
    for at in range(0, length - 159, 160):
        for name, leg in call.legs.items():
            leg.receive_chunk(at, codes[name][at * size : (at + 160) * size], desk.now)
        desk.now += 0.020
        await desk.media.tick(desk.now)
    call.end("hangup")
    found: dict[str, list[events.TranscriptFinal]] = {name: [] for name in legs}
    for final in desk.of(events.TranscriptFinal):
        found[final.leg].append(final)
    started = {body.utterance_id for body in desk.of(events.SpeechStarted)}
    assert started == {final.utterance_id for each in found.values() for final in each}
    return found


@pytest.mark.parametrize(("ms", "level_db"), [(0, -15), (60, -20), (300, -30)])
@pytest.mark.parametrize("codec", [Codec.PCMU, Codec.PCMA, Codec.L16])
async def test_the_customer_in_the_agents_headset_is_transcribed_once(ms: int, level_db: int, codec: Codec) -> None:
    found = await finals({"agent": later(CUSTOMER, ms, level_db), "customer": CUSTOMER}, codec=codec)
    assert found["agent"] and not any(final.text for final in found["agent"])
    assert {final.crosstalk for final in found["agent"]} == {"customer"}
    assert all(final.text and not final.crosstalk for final in found["customer"])


async def test_an_utterance_that_is_withheld_is_told_as_such_and_is_no_overtalk() -> None:
    desk = Desk()
    found = await finals({"agent": later(CUSTOMER, 100, -20), "customer": CUSTOMER}, desk=desk)
    ended = [body for body in desk.of(events.SpeechEnded) if body.leg == "agent"]
    assert ended and {body.crosstalk for body in ended} == {"customer"}
    assert all(final.reason in ("endpoint", "hangup") and final.error is None for final in found["agent"])
    figures = desk.of(events.Metrics)[-1]
    assert figures.talk_ms["agent"] == figures.overtalk_ms == 0 < figures.talk_ms["customer"]
    assert desk.registry.stats.crosstalk_finals == len(found["agent"])


async def test_what_the_agent_says_meanwhile_is_transcribed() -> None:
    own = np.concatenate([np.zeros(5 * 8000), AGENT[: 2 * 8000]])
    found = await finals({"agent": together(later(CUSTOMER, 100, -25), own), "customer": CUSTOMER})
    assert any(final.text and final.start_ms < 7000 and final.end_ms > 5500 for final in found["agent"])


async def test_two_people_who_talk_at_once_are_both_transcribed() -> None:
    found = await finals({"agent": AGENT, "customer": CUSTOMER})
    assert all(final.text and not final.crosstalk for each in found.values() for final in each)


async def test_whoever_is_louder_is_heard_wherever_he_stands() -> None:
    found = await finals({"customer": CUSTOMER, "agent": later(CUSTOMER, 100, -20)})
    assert all(final.text for final in found["customer"]) and not any(final.text for final in found["agent"])


async def test_a_mix_on_all_legs_is_transcribed_once() -> None:
    mix = together(CUSTOMER, later(AGENT, 9000, 0))
    found = await finals({"a": mix, "b": mix, "c": later(mix, 20, 0)})
    assert all(final.text for final in found["a"])
    assert not any(final.text for name in "bc" for final in found[name])


@pytest.mark.parametrize("change", ["one leg", "the setting"])
async def test_all_is_transcribed_where_nothing_is_compared(change: str) -> None:
    if change == "one leg":
        found = await finals({"main": CUSTOMER})
    else:
        desk = Desk(asr=Asr(withhold_crosstalk=False))
        found = await finals({"agent": later(CUSTOMER, 100, -20), "customer": CUSTOMER}, desk=desk)
    assert all(final.text and not final.crosstalk for each in found.values() for final in each)


async def test_a_copy_without_its_source_is_transcribed() -> None:
    """The customer's own line is silent, for it is muted there: the words would be lost."""
    found: Any = await finals({"agent": later(CUSTOMER, 100, -15), "customer": np.zeros(len(CUSTOMER))})
    assert found["agent"] and all(final.text for final in found["agent"])


# -- partials ---------------------------------------------------------------------------------------------------------


class Eager(Engine):
    """Answers every request for a partial at once, with how much it has heard."""

    def partial(self, utterance_id: str, revision: int) -> None:
        _, heard, audio = self.utterances[utterance_id]
        text = f"{len(audio)} codes"
        heard(Hypothesis(utterance_id, revision, text, "en", len(text), False))


async def partials(legs: dict[str, np.ndarray], *, compared: bool = True) -> dict[str, list[events.TranscriptPartial]]:
    desk = Desk(engine=Eager(), asr=Asr(withhold_crosstalk=compared))
    await finals(legs, desk=desk)
    return {name: [body for body in desk.of(events.TranscriptPartial) if body.leg == name] for name in legs}


@pytest.mark.parametrize(("ms", "level_db"), [(0, -15), (60, -20), (200, -25)])
@pytest.mark.parametrize("said_ms", [350, 500, 900, 5000])
async def test_no_partial_shows_another_legs_words_not_even_when_it_has_fallen_silent(
    ms: int, level_db: int, said_ms: int
) -> None:
    said = np.concatenate([np.zeros(4000), speech("demo-congrats")[2000 : 2000 + 8 * said_ms]])
    found = await partials({"agent": later(said, ms, level_db), "customer": said})
    assert found["customer"] and not found["agent"]


@pytest.mark.parametrize("legs", ["one", "a silent one", "both at once"])
async def test_no_partial_of_a_legs_own_is_later_for_it(legs: str) -> None:
    sounds = {"a": CUSTOMER}
    if legs != "one":
        sounds["b"] = np.zeros(len(CUSTOMER)) if legs == "a silent one" else np.append(np.zeros(4000), AGENT)
    compared, plain = await partials(sounds), await partials(sounds, compared=False)
    assert all(plain.get(name) for name in sounds if sounds[name].any())
    for name in sounds:
        assert [(body.end_ms, body.text) for body in compared[name]] == [
            (each.end_ms, each.text) for each in plain[name]
        ]


def doubtful() -> tuple[LiveUtterance, Hypothesis]:
    utterance = LiveUtterance(
        id="u1", engine_id="u1", start=0, audio_start=0, start_ms=0, sent=0, next_partial=2000, cut_from=240_000,
        language="en", speaker=Speaker("agent"), crosstalk=Comparison(0, doubtful=True),
    )  # fmt: skip
    return utterance, Hypothesis("u1", 1, "a word", "en", 0, False)


def test_a_first_partial_in_doubt_is_held_for_300_ms_at_most() -> None:
    utterance, heard = doubtful()
    assert utterance.hold(heard, 4000) and utterance.release(4000 + 2399) is None
    assert utterance.release(4000 + 2400) is heard and utterance.held is None
    assert not utterance.hold(heard, 4000 + 2400), "once and no longer"


@pytest.mark.parametrize("decided", ["its own", "a copy"])
def test_a_partial_is_held_until_it_is_known_whose_it_is(decided: str) -> None:
    utterance, heard = doubtful()
    newer = Hypothesis("u1", 2, "two words", "en", 0, False)
    assert utterance.hold(heard, 4000) and utterance.hold(newer, 5000)
    utterance.crosstalk = Comparison(0, own=True) if decided == "its own" else Comparison(0, copy_of="customer")
    assert utterance.release(5000) is (newer if decided == "its own" else None) and utterance.held is None


def test_what_is_shown_already_or_empty_is_not_held() -> None:
    utterance, heard = doubtful()
    assert not utterance.hold(Hypothesis("u1", 1, "", "en", 0, False), 4000) and utterance.held_until is None
    utterance.text = "a"
    assert not utterance.hold(heard, 4000)
    utterance.text, utterance.crosstalk = "", None
    assert not utterance.hold(heard, 4000)
