"""AudioSocket without a socket: frames, calls, and how each call ends."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from audio.rtp.dtmf import DIGIT_BURST
from config.load import parse
from lab.asterisk.audiosocket_frames import HELLO, NAME, pcm
from lab.asterisk.peers import frame
from lab.calls.stream_desks import Desk, StreamCall
from mediaworker.calls.registry import CallRefused
from mediaworker.ingress.audiosocket.messages import DTMF, ERROR, HANGUP, RATES_HZ, SLIN, Frame, FrameReader, silence
from mediaworker.ingress.audiosocket.messages import UUID as ID
from mediaworker.ingress.audiosocket.session import SILENT_S, AudioSocketSession
from mediaworker.ingress.session import SessionState
from sip.pjsip.call_control import HOLD_S


def session(desk: Desk | None = None, *, silent_s: float = 60.0, sends: bool = True, problems: Any = None) -> Any:
    settings = parse({"audiosocket": {"send_audio": "silence" if sends else "none"}})
    on_problem = (lambda what, detail: problems.append((what, detail))) if problems is not None else lambda *_: None
    made = AudioSocketSession(settings, desk if desk is not None else Desk(), 0.0, on_problem=on_problem)
    made.silent_s = silent_s
    return made


def begun(**options: Any) -> tuple[AudioSocketSession, StreamCall]:
    desk = Desk()
    made = session(desk, **options)
    made.receive(HELLO, 0.0)
    assert made.state is SessionState.STREAMING and sent(made) == b""
    return made, desk.calls[0]


def sent(of: AudioSocketSession) -> bytes:
    """The frames that wait to be sent; a close may wait behind them."""
    outputs = []
    while (output := of.outbox.next()) is not None:
        outputs.append(output)
    return b"".join(each for each in outputs if isinstance(each, bytes))


def cut(data: bytes, places: list[int]) -> list[bytes]:
    at = sorted(place % (len(data) + 1) for place in places)
    return [data[start:end] for start, end in zip([0, *at], [*at, len(data)], strict=True)]


FRAMES = st.builds(Frame, st.integers(0, 255), st.binary(max_size=700))


@given(st.lists(FRAMES, max_size=8), st.lists(st.integers(0, 10_000), max_size=12))
def test_frames_are_the_same_wherever_they_are_cut(frames: list[Frame], places: list[int]) -> None:
    reader, found = FrameReader(), []
    for part in cut(b"".join(map(bytes, frames)), places):
        reader.feed(part)
        while (each := reader.next()) is not None:
            found.append(each)
    assert found == frames


def test_silence_is_20_ms_of_every_kind() -> None:
    for kind, rate_hz in RATES_HZ.items():
        made = silence(kind)
        assert struct.unpack("!BH", made[:3]) == (kind, len(made) - 3) and made[3:] == bytes(rate_hz // 50 * 2)


def test_the_uuid_names_the_call() -> None:
    made, call = begun()
    assert call.arguments["source"] == "audiosocket" and call.arguments["external_id"] == str(NAME)
    (leg,) = call.arguments["legs"]
    assert (leg.leg, leg.codec.name, leg.transport) == ("main", "L16", "stream")
    made.receive(frame(0x12, pcm(320)) + frame(HANGUP), 0.1)
    assert call.ends == ["hangup"] and made.closed and call.leg.audio == pcm(320)
    assert sent(made) == b"", "who has hung up needs no answer"


@pytest.mark.parametrize("kind", RATES_HZ)
def test_every_rate_comes_out_at_16_khz(kind: int) -> None:
    """A tone keeps its frequency and its length."""
    rate_hz = RATES_HZ[kind]
    tone = np.sin(np.arange(rate_hz) * (2 * np.pi * 440 / rate_hz)) * 12000
    data = np.rint(tone).astype("<i2").tobytes()
    made, call = begun()
    for at in range(0, len(data), rate_hz // 50 * 2):
        made.receive(frame(kind, data[at : at + rate_hz // 50 * 2]), 0.0)
        call.leg.catch_up()
    made.receive(frame(HANGUP), 1.0)
    heard = np.frombuffer(call.leg.audio, "<i2").astype(float)
    assert abs(len(heard) - 16000) <= 2
    spectrum = np.abs(np.fft.rfft(heard[2000:14000] * np.hanning(12000)))
    assert abs(np.argmax(spectrum) * 16000 / 12000 - 440) < 2
    assert abs(np.abs(heard[4000:12000]).max() - 12000) < 300


@given(
    st.sampled_from(sorted(RATES_HZ)),
    st.lists(st.integers(1, 400), min_size=1, max_size=12),
    st.lists(st.integers(0, 20_000), max_size=20),
)
def test_samples_do_not_depend_on_the_cuts(kind: int, sizes: list[int], places: list[int]) -> None:
    frames = b"".join(frame(kind, pcm(size, seed)) for seed, size in enumerate(sizes))
    heard = []
    for parts in ([frames], cut(frames, places)):
        made, call = begun()
        for part in parts:
            made.receive(part, 0.0)
            while made.is_ahead():
                call.leg.catch_up()
                made.receive(b"", 0.0)
        made.receive(frame(HANGUP), 0.0)
        heard.append(call.leg.audio)
    assert heard[0] == heard[1]


def test_another_rate_within_a_call_goes_on_behind_the_one_before() -> None:
    made, call = begun()
    made.receive(frame(0x12, pcm(320)) + frame(SLIN, pcm(160, 2)) + frame(0x12, pcm(320, 3)) + frame(HANGUP), 0.0)
    audio = call.leg.audio
    assert audio.startswith(pcm(320)) and audio.endswith(pcm(320, 3)) and len(audio) == 3 * 640


def test_a_leg_takes_no_more_than_it_has_room_for() -> None:
    """The rest waits in the session, which says that it is ahead, and loses nothing."""
    made, call = begun()
    data = pcm(16000 * 4)
    made.receive(b"".join(frame(0x12, data[at : at + 640]) for at in range(0, len(data), 640)) + frame(HANGUP), 0.0)
    assert made.is_ahead() and call.deferred and not call.ends
    rounds = 0
    while made.is_ahead():
        assert call.leg.ahead <= 8 * 256
        call.leg.catch_up()
        made.receive(b"", 0.0)
        rounds += 1
    assert rounds > 10 and call.leg.audio == data and call.ends == ["hangup"]


def test_digits() -> None:
    problems: list[tuple[str, str]] = []
    made, call = begun(problems=problems)
    for payload in (b"5", b"#", b"*", b"d"):
        made.receive(frame(DTMF, payload), 0.0)
    for payload in (b"", b"55", b"x", b"\xff"):
        made.receive(frame(DTMF, payload), 0.0)
    assert [digit for _, digit, _ in call.digits] == ["5", "#", "*", "D"] and made.counters.malformed == 4
    made.receive(frame(DTMF, b"1") * 100, 0.0)
    assert DIGIT_BURST - 1 <= len(call.digits) <= DIGIT_BURST
    assert made.counters.implausible == 104 - len(call.digits)
    assert {what for what, _ in problems} == {
        "malformed AudioSocket digit",
        "AudioSocket digits faster than any phone",
    }
    assert not [detail for _, detail in problems if "55" in detail or b"55".hex() in detail], "digits are never logged"


@pytest.mark.parametrize(
    "data",
    [
        frame(SLIN, bytes(320)),
        frame(ID, bytes(15)),
        frame(ID, bytes(17)),
        frame(ERROR, b"\1"),
        frame(0x77, b"what"),
        b"GET / HTTP/1.1\r\nHost: a\r\n\r\n" * 1000,
    ],
)
def test_a_wrong_first_frame_is_answered_by_an_error(data: bytes) -> None:
    desk = Desk()
    made = session(desk)
    made.receive(data, 0.0)
    assert made.closed and sent(made) == frame(ERROR) and not desk.calls
    assert made.counters.refused == {"first_frame": 1}


def test_whoever_does_not_say_who_it_is_is_let_go() -> None:
    made = session()
    made.receive(HELLO[:18], 1.0)
    made.expire(4.9)
    assert not made.closed and made.deadline == 5.0
    made.expire(5.0)
    assert made.closed and sent(made) == frame(ERROR) and made.counters.refused == {"start_timeout": 1}


def test_wrong_frames_within_a_call_are_left_out_and_it_goes_on() -> None:
    made, call = begun()
    good = [pcm(320, seed) for seed in range(6)]
    wrong = [
        frame(0x12, b"\1"), frame(0x12), frame(0x12, bytes(32002)), frame(0x19, bytes(320)), frame(ID, NAME.bytes),
        frame(ERROR, b"\4"),
    ]  # fmt: skip
    for each, bad in zip(good, wrong, strict=True):
        made.receive(frame(0x12, each) + bad, 0.0)
        call.leg.catch_up()
    counters = made.counters
    assert (counters.malformed, counters.too_long, counters.unknown, counters.unexpected) == (2, 1, 1, 2)
    made.receive(frame(0x12, pcm(320, 9) + b"\7") + frame(0x12, pcm(320, 10)), 0.0)
    assert call.leg.audio == b"".join([*good, pcm(320, 9), pcm(320, 10)]), "half a sample moves nothing"
    assert not made.closed and call.ends == [] and sent(made) == b""


def test_a_peer_that_stops_is_let_go_unless_it_may() -> None:
    made, call = begun()
    made.receive(frame(SLIN, bytes(320)), 30.0)
    made.expire(60.0)
    assert made.deadline == 90.0 and not made.closed
    made.expire(90.0)
    assert call.ends == ["media_timeout"] and sent(made) == frame(ERROR) and made.counters.silent == 1
    patient, call = begun(silent_s=0.0)
    assert patient.deadline is None
    patient.expire(1e6)
    assert call.ends == []


def test_a_hold_may_last_as_long_as_on_sip() -> None:
    """Asterisk sends nothing of a caller who holds."""
    assert SILENT_S >= HOLD_S


def test_no_room_closes_at_once() -> None:
    made = session(Desk(CallRefused(503, "full", busy=True)))
    made.receive(HELLO + frame(SLIN, bytes(320)), 0.0)
    assert made.closed and sent(made) == b"" and made.counters.refused == {"capacity": 1}


@pytest.mark.parametrize(("broken", "reason"), [(False, "hangup"), (True, "disconnected")])
def test_the_end_of_the_connection_is_the_end_of_the_call(broken: bool, reason: str) -> None:
    made, call = begun()
    made.connection_lost(1.0, broken=broken)
    made.connection_lost(2.0, broken=broken)
    assert call.ends == [reason]
    assert (made.counters.hangups, made.counters.disconnected) == (int(not broken), int(broken))


def test_what_has_come_before_a_loss_is_still_taken() -> None:
    """As far as a leg has room: a second beyond what it is ever given at once."""
    made, call = begun()
    data = pcm(16000 * 2)
    made.receive(b"".join(frame(0x12, data[at : at + 640]) for at in range(0, len(data), 640)), 0.0)
    taken = len(call.leg.audio)
    made.connection_lost(1.0, broken=True)
    assert call.ends == ["disconnected"] and len(call.leg.audio) - taken >= 32000
    assert data.startswith(call.leg.audio)


def test_our_hang_up_says_so() -> None:
    changes: list[int] = []
    desk = Desk()
    made = session(desk)
    made.outbox.listen(lambda: changes.append(1), lambda close: None)
    made.receive(HELLO + frame(SLIN, pcm(160)), 0.0)
    call = desk.calls[0]
    call.hangup()
    assert call.ends == ["api"] and made.closed and sent(made) == frame(HANGUP) and changes
    made.receive(frame(HANGUP), 0.1)
    made.connection_lost(0.2, broken=True)
    assert call.ends == ["api"] and made.silence(1.0) == b""


def test_silence_is_of_the_kind_that_comes() -> None:
    made, _ = begun()
    assert made.silence(0.5) == b"" and made.silence(1.0) == silence(SLIN), "the application waits two seconds"
    made.receive(frame(0x12, bytes(640)), 1.0)
    assert made.silence(1.0) == silence(0x12)
    quiet, _ = begun(sends=False)
    assert quiet.silence(9.0) == b""


ANYTHING = st.one_of(
    FRAMES.map(bytes),
    st.builds(frame, st.sampled_from([HANGUP, ID, DTMF, ERROR, *RATES_HZ]), st.binary(max_size=400)),
    st.just(HELLO),
    st.binary(max_size=50),
)


@given(st.lists(st.tuples(st.sampled_from("mmmmmeh"), ANYTHING, st.floats(0, 30)), max_size=30), st.booleans())
def test_nothing_raises_and_a_call_ends_once(story: list[Any], greeted: bool) -> None:
    desk, now = Desk(), 0.0
    made = session(desk)
    if greeted:
        made.receive(HELLO, 0.0)
    for what, data, wait in story:
        now += wait
        if what == "m":
            made.receive(data, now)
        elif what == "e":
            made.expire(now)
        elif desk.calls and not desk.calls[0].ending:
            desk.calls[0].hangup()
        if desk.calls:
            desk.calls[0].leg.catch_up()
        made.silence(now)
    made.connection_lost(now, broken=True)
    assert made.closed and len(desk.calls) <= 1
    assert all(len(call.ends) == 1 for call in desk.calls)


def test_each_problem_is_counted_and_says_what_came() -> None:
    problems: list[tuple[str, str]] = []
    made, call = begun(problems=problems)
    made.receive(HELLO + frame(ERROR, b"\x01") + frame(0x77, b"abc") + frame(DTMF, b"X") + frame(SLIN, b"\1\2\3"), 0.1)
    made.receive(frame(SLIN, b""), 0.2)
    assert problems == [
        ("unexpected AudioSocket frame", f"kind 0x01 {NAME.hex}"),
        ("unexpected AudioSocket frame", "kind 0xff 01"),
        ("unknown AudioSocket frame", "kind 0x77 of 3 bytes"),
        ("malformed AudioSocket digit", "1 characters"),
        ("malformed AudioSocket frame", "3 bytes of samples of two"),
        ("malformed AudioSocket frame", "0 bytes of samples of two"),
    ]
    counters = made.counters
    assert (counters.unexpected, counters.unknown, counters.malformed, counters.started) == (2, 1, 3, 1)
    assert call.ends == [] and not made.closed
    made.receive(frame(HANGUP), 0.3)
    assert call.ends == ["hangup"] and call.on_hangup is None


def test_what_is_refused_says_why() -> None:
    problems: list[tuple[str, str]] = []
    wrong = session(problems=problems)
    wrong.receive(frame(SLIN, bytes(320)), 0.0)
    late = session(problems=problems)
    assert late.deadline == 5.0
    late.expire(4.9)
    late.expire(5.0)
    desk = Desk()
    desk.refused = CallRefused(503, "all 1 calls are taken")
    full = session(desk, problems=problems)
    full.receive(HELLO, 0.0)
    assert problems == [
        ("AudioSocket connection refused", "kind 0x10 of 320 bytes, where the UUID comes"),
        ("AudioSocket connection refused", "no UUID within 5 s"),
        ("AudioSocket call refused", "all 1 calls are taken"),
    ]
    assert [sent(each) for each in (wrong, late, full)] == [frame(ERROR), frame(ERROR), b""]
    assert wrong.closed and late.closed and full.closed and wrong.deadline is None
    refused = [each.counters.refused for each in (wrong, late, full)]
    assert refused == [{"first_frame": 1}, {"start_timeout": 1}, {"capacity": 1}]
