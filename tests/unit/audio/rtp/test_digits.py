"""RFC 4733 digits, out of packets that repeat themselves and get lost."""

from __future__ import annotations

from audio.rtp.dtmf import DIGIT_BURST, DIGIT_S, SILENCE_S, DigitCollector, DigitRate
from audio.rtp.packet import TelephoneEvent


def event(key: int, duration: int, *, end: bool = False) -> TelephoneEvent:
    return TelephoneEvent(event=key, end=end, volume=10, duration=duration)


def test_a_press_is_taken_once_however_often_it_is_repeated() -> None:
    digits = DigitCollector()
    for duration in (160, 320, 240):
        digits.receive(event(5, duration), 1000, 800, 1.0)
    assert digits.pop_ended() == [] and digits.open is not None
    for _ in range(3):
        digits.receive(event(5, 400, end=True), 1000, 900, 1.1)
    (press,) = digits.pop_ended()
    assert (press.digit, press.position, press.duration, press.now) == ("5", 800, 400, 1.1)
    assert digits.pop_ended() == [] and digits.open is None


def test_the_next_press_ends_one_whose_end_was_lost() -> None:
    digits = DigitCollector()
    digits.receive(event(1, 160), 1000, 0, 1.0)
    digits.receive(event(1, 160), 2000, 1000, 1.1)
    assert [press.timestamp for press in digits.pop_ended()] == [1000]
    digits.receive(event(1, 480), 1000, 0, 1.15)  # late
    digits.expire(1.1 + SILENCE_S - 0.01)
    assert digits.pop_ended() == []
    digits.expire(1.11 + SILENCE_S)
    assert [press.timestamp for press in digits.pop_ended()] == [2000]


def test_repetitions_of_the_last_eight_presses_are_known() -> None:
    digits = DigitCollector()
    for number in range(9):
        digits.receive(event(number, 160, end=True), number, 0, float(number))
    assert len(digits.pop_ended()) == 9
    for number in range(1, 9):
        digits.receive(event(number, 160, end=True), number, 0, 9.0)
    assert digits.pop_ended() == []


def test_what_is_no_digit_is_passed_over() -> None:
    digits = DigitCollector()
    digits.receive(event(16, 160, end=True), 1000, 0, 1.0)  # a flash
    assert digits.pop_ended() == [] and digits.open is None


def test_a_flood_is_cut_at_its_burst_and_ordinary_dialling_is_not() -> None:
    rate = DigitRate()
    assert [rate.allow(5.0) for _ in range(DIGIT_BURST + 1)] == [True] * DIGIT_BURST + [False]
    assert rate.refused == 1
    assert rate.allow(5.0 + DIGIT_S) and not rate.allow(5.0 + DIGIT_S)
    assert all(rate.allow(100.0 + number * DIGIT_S) for number in range(200))
