"""Endpointing: the table, its scalar and its vectorised use, and what it promises."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from audio.endpointing.batch import BatchEndpointer
from audio.endpointing.detections import Detection, SpeechOffset, SpeechOnset, SpeechPaused, SpeechResumed
from audio.endpointing.table import (
    SPLIT_WINDOWS,
    TABLE,
    WINDOW,
    Action,
    Endpointer,
    EndpointEvent,
    EndpointState,
    Limits,
    UndefinedTransition,
)
from config import Endpointing

LEG = cast(Any, "leg")


def run(pattern: str, profile: Endpointing | None = None, reason: str | None = "hangup") -> list[Detection]:
    """`#` speech, `-` between exit and enter, `.` silence, `,` silence but less so; one character a window."""
    endpointer = Endpointer(profile or Endpointing(), LEG)
    detections: list[Detection] = []
    for index, character in enumerate(pattern):
        detections += endpointer.window(index * WINDOW, {"#": 0.9, "-": 0.4, ",": 0.2, ".": 0.01}[character])
    return detections + (endpointer.finish(cast(Any, reason)) if reason else [])


def onset(start: int, audio_start: int, profile: Endpointing | None = None) -> SpeechOnset:
    return SpeechOnset(LEG, start, audio_start, audio_start + Limits.of(profile or Endpointing()).split_from)


def w(windows: int) -> int:
    return windows * WINDOW


def test_speech_is_started_paused_and_ended() -> None:
    assert run("." * 20 + "#" * 10 + "." * 20) == [
        onset(w(20), w(20) - 2400),
        SpeechPaused(LEG, w(30)),
        SpeechOffset(LEG, w(20), w(30), w(30) + 1280, "endpoint"),
    ]


def test_a_short_yes_counts_and_a_click_does_not() -> None:
    assert run("." * 9 + "#.##.#" + "." * 30)[0] == onset(w(9), w(0))
    assert run("." * 9 + "###" + "." * 30) == []
    assert run("." * 9 + "##...##...##" + "." * 30) == []


def test_the_pre_roll_reaches_neither_before_the_call_nor_into_the_utterance_before() -> None:
    assert run("#" * 5, reason=None) == [onset(0, 0)]
    first, second = (d for d in run("#" * 5 + "." * 16 + "#" * 5, reason=None) if isinstance(d, SpeechOnset))
    assert (first.audio_start, second.audio_start) == (0, w(21) - 2400)
    profile = Endpointing(min_silence_ms=160, pre_roll_ms=1000)
    _, second = (d for d in run("#" * 5 + "." * 8 + "#" * 5, profile, None) if isinstance(d, SpeechOnset))
    assert second.audio_start == w(5)


def test_hysteresis_holds_speech_but_does_not_start_it() -> None:
    assert run("-" * 50) == []
    (started, ended) = run("#" * 4 + "-" * 30, reason="hangup")
    assert isinstance(started, SpeechOnset)
    assert ended == SpeechOffset(LEG, 0, w(34), w(34), "hangup")
    # Once silent, the lower threshold is not enough to speak again.
    assert run("#" * 4 + "." + "-" * 20)[-1] == SpeechOffset(LEG, 0, w(4), w(4) + 1280, "endpoint")


def test_speech_may_resume_after_a_pause() -> None:
    kinds = [type(d) for d in run("#" * 5 + "." * 6 + "#" * 5 + "." * 20)]
    assert kinds == [SpeechOnset, SpeechPaused, SpeechResumed, SpeechPaused, SpeechOffset]


def test_finish_ends_what_is_open_and_nothing_else() -> None:
    assert run("#" * 5 + "." * 2)[-1] == SpeechOffset(LEG, 0, w(5), w(7), "hangup")
    assert run("#" * 5 + "." * 8, reason="shutdown")[-1] == SpeechOffset(LEG, 0, w(5), w(5) + 1280, "shutdown")
    assert run("." * 5) == []
    assert run("##") == []


def test_a_long_utterance_is_split_at_the_quietest_spot_of_its_last_third() -> None:
    profile = Endpointing(max_utterance_s=2.0, pre_roll_ms=0, speculate_ms=160, min_silence_ms=500)
    pattern = "#" * 10 + "." + "#" * 34 + "," + "#" * 30
    started, ended, again = run(pattern, profile, None)
    spot = w(45) + WINDOW // 2
    assert ended == SpeechOffset(LEG, 0, spot, spot, "max_length")
    assert again == onset(spot, spot, profile)


@pytest.mark.parametrize("max_utterance_s", [1.0, 4.0, 20.0, 30.0])
@pytest.mark.parametrize("gap", ["", ".", ",,,", "-"])
def test_a_call_is_split_within_half_a_second(max_utterance_s: float, gap: str) -> None:
    """The final of a speaker without a pause waits for the decision: an early gap is no place to split at."""
    profile = Endpointing(max_utterance_s=max_utterance_s, pre_roll_ms=0)
    room = Limits.of(profile).room
    pattern = ("#" * int(0.7 * room / WINDOW) + gap + "#" * 1000)[: room // WINDOW + 5]
    endpointer, ended = Endpointer(profile, LEG), []
    for index, character in enumerate(pattern):
        found = endpointer.window(index * WINDOW, {"#": 0.9, "-": 0.4, ",": 0.2, ".": 0.01}[character])
        ended += [((index + 1) * WINDOW - each.end, each) for each in found if isinstance(each, SpeechOffset)]
    ((late, split),) = ended
    assert split.reason == "max_length" and late <= (SPLIT_WINDOWS + 2) * WINDOW


def test_a_call_that_ends_in_time_is_not_split() -> None:
    profile = Endpointing(max_utterance_s=4.0, pre_roll_ms=0)
    found = run("#" * 90 + "." * 5 + "#" * 20 + "." * 20, profile)
    assert [each.reason for each in found if isinstance(each, SpeechOffset)] == ["endpoint"]


def test_the_silence_thresholds_may_coincide() -> None:
    profile = Endpointing(min_silence_ms=160, speculate_ms=160)
    assert [type(d) for d in run("#" * 5 + "." * 5, profile, None)] == [SpeechOnset, SpeechOffset]
    profile = Endpointing(min_silence_ms=64, speculate_ms=32)
    assert [type(d) for d in run("#" * 5 + "." * 5, profile, None)] == [SpeechOnset, SpeechPaused, SpeechOffset]


def ended(powers: list[float]) -> int | None:
    """After how many windows of silence an utterance has ended, at these powers; 1 is as loud as the speech."""
    endpointer = Endpointer(Endpointing(), LEG)
    for at in range(10):
        endpointer.window(at * WINDOW, 0.9, 1.0)
    for at, power in enumerate(powers, 1):
        if any(isinstance(each, SpeechOffset) for each in endpointer.window((9 + at) * WINDOW, 0.1, power)):
            return at
    return None


@pytest.mark.parametrize(
    ("powers", "at"),
    [
        ([0.0] * 40, 16),
        ([1e-3] * 40, 16),  # a steady noise is silence
        ([1e-3, 3e-3] * 20, 16),
        ([0.0] * 15 + [1e-3] * 3 + [0.0] * 9, 19),  # a knock, or what might have become a word
        ([1e-5] * 14 + [1e-3] * 40, 22),  # not for ever
        ([0.0] * 15 + [1e-5] * 9, 16),  # too faint for a word
        ([0.0] * 13 + [1e-3] * 2 + [0.0] * 9, 16),  # it is over
        ([1e-3] * 5 + [0.0] * 20, 16),
    ],
)
def test_an_end_waits_for_a_sound_that_may_begin_a_word(powers: list[float], at: int) -> None:
    assert ended(powers) == at


def test_a_word_that_the_network_knows_late_is_no_new_utterance() -> None:
    endpointer, found = Endpointer(Endpointing(), LEG), []
    windows = [(0.9, 1.0)] * 10 + [(0.0, 0.0)] * 14 + [(0.2, 1e-3)] * 5 + [(0.9, 1.0)] * 10
    for at, window in enumerate(windows):
        found += endpointer.window(at * WINDOW, *window)
    assert [type(each) for each in found] == [SpeechOnset, SpeechPaused, SpeechResumed]


def test_the_table_is_complete_for_what_can_happen() -> None:
    silent = {EndpointEvent.QUIET, EndpointEvent.LAPSE, EndpointEvent.PAUSE, EndpointEvent.END}
    possible = {(EndpointState.IDLE, e) for e in silent | {EndpointEvent.VOICED, EndpointEvent.CONFIRMED}}
    possible |= {(EndpointState.ONSET, e) for e in silent | {EndpointEvent.VOICED, EndpointEvent.CONFIRMED}}
    possible |= {(EndpointState.SPEECH, e) for e in silent | {EndpointEvent.CONFIRMED, EndpointEvent.FULL}}
    possible |= {
        (EndpointState.PAUSED, e)
        for e in (EndpointEvent.PAUSE, EndpointEvent.END, EndpointEvent.CONFIRMED, EndpointEvent.FULL)
    }
    assert set(TABLE) == possible
    assert {action for _, action in TABLE.values()} == set(Action)


def test_an_impossible_event_is_a_named_error() -> None:
    endpointer = Endpointer(Endpointing(), LEG)
    endpointer.state = EndpointState.PAUSED
    with pytest.raises(UndefinedTransition, match="QUIET in PAUSED"):
        endpointer.window(0, 0.0)
    bank = BatchEndpointer(1)
    bank.open(0, Limits.of(Endpointing()))
    bank._state[0] = EndpointState.PAUSED
    with pytest.raises(UndefinedTransition, match="QUIET in PAUSED"):
        bank.step(np.array([0]), np.array([0]), *np.zeros((2, 1), np.float32), {0: LEG})


PROFILES = st.builds(
    Endpointing,
    enter=st.sampled_from([0.5, 0.6]),
    exit=st.sampled_from([0.35, 0.5]),
    min_speech_ms=st.sampled_from([0, 32, 120, 250]),
    min_silence_ms=st.sampled_from([0, 100, 160, 320, 500]),
    pre_roll_ms=st.sampled_from([0, 100, 300, 1000]),
    speculate_ms=st.sampled_from([32, 100, 160]),
    max_utterance_s=st.sampled_from([1.0, 1.5, 3.0, 30.0]),
)
RUNS = st.lists(st.tuples(st.sampled_from([0.0, 0.2, 0.35, 0.4, 0.5, 0.55, 0.8, 1.0]), st.integers(1, 25)), max_size=24)


TIGHT = Endpointing(min_speech_ms=0, min_silence_ms=320, pre_roll_ms=0, speculate_ms=32, max_utterance_s=1.0)


# A pause that begins within the room and ends beyond it: the quietest spot lies past the limit.
@example([(TIGHT, [(0.5, 1), (0.4, 23), (0.2, 4), (0.0, 4), (0.5, 2)])], 0)
@given(st.lists(st.tuples(PROFILES, RUNS), min_size=1, max_size=5), st.integers(0, 2**32 - 1))
def test_the_bank_equals_one_endpointer_for_each_row(legs: list[tuple[Endpointing, Any]], seed: int) -> None:
    rng = np.random.default_rng(seed)
    count = len(legs)
    names = [cast(Any, f"leg {row}") for row in range(count)]
    series = [
        np.repeat([p for p, _ in runs], [n for _, n in runs]).astype(np.float32) if runs else np.empty(0, np.float32)
        for _, runs in legs
    ]
    series = [(s * np.float32(0.98) + rng.random(len(s), np.float32) * np.float32(0.02)) for s in series]
    powers = [np.float32(10) ** rng.uniform(-6, -1, len(s)).astype(np.float32) for s in series]
    alone: list[list[Detection]] = []
    bank = BatchEndpointer(count)
    for row, (profile, _) in enumerate(legs):
        bank.open(row, Limits.of(profile))
        endpointer = Endpointer(profile, names[row])
        windows = enumerate(zip(series[row].tolist(), powers[row].tolist(), strict=True))
        alone.append([d for i, window in windows for d in endpointer.window(i * WINDOW, *window)])
        alone[row] += endpointer.finish("hangup")
    together: list[list[Detection]] = [[] for _ in legs]
    at = np.zeros(count, np.int64)
    lengths = np.array([len(s) for s in series])
    while (at < lengths).any():
        rows = np.flatnonzero((rng.random(count) < 0.7) & (at < lengths))
        if len(rows):
            probabilities = np.array([series[row][at[row]] for row in rows], np.float32)
            loud = np.array([powers[row][at[row]] for row in rows], np.float32)
            for detection in bank.step(rows, at[rows] * WINDOW, probabilities, loud, dict(enumerate(names))):
                together[names.index(detection.leg)].append(detection)
            at[rows] += 1
    for row in range(count):
        together[row] += bank.finish(row, "hangup", names[row], int(lengths[row]) * WINDOW)
        assert together[row] == alone[row]
        check_promises(alone[row], legs[row][0], int(lengths[row]) * WINDOW)


def check_promises(detections: list[Detection], profile: Endpointing, consumed: int) -> None:
    """Every start has one end; utterances do not overlap; nothing is longer than allowed or beyond what was heard."""
    opened: SpeechOnset | None = None
    paused, previous_end = False, 0
    for detection in detections:
        if isinstance(detection, SpeechOnset):
            assert opened is None and previous_end <= detection.audio_start <= detection.start
            opened = detection
            continue
        assert opened is not None
        if isinstance(detection, SpeechPaused):
            assert not paused and detection.end <= consumed
            paused = True
        elif isinstance(detection, SpeechResumed):
            assert paused
            paused = False
        else:
            assert isinstance(detection, SpeechOffset)
            assert detection.start == opened.start < detection.end <= detection.audio_end <= consumed
            assert detection.audio_end - opened.audio_start <= profile.max_utterance_s * 8000
            opened, paused, previous_end = None, False, detection.end
    assert opened is None
