"""AudioSocket frame by frame, without a socket or a clock; then the listener with real connections."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from typing import Any
from uuid import UUID

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from audio.rtp.dtmf import DIGIT_BURST
from config import ConfigError
from config.access_list import AccessList
from config.load import parse
from config.reload import merge
from mediaworker.calls.registry import CallRefused
from mediaworker.ingress.audiosocket.listener import MAX_UNREAD, AudioSocketListener
from mediaworker.ingress.audiosocket.messages import DTMF, ERROR, HANGUP, RATES_HZ, SLIN, Frame, FrameReader, silence
from mediaworker.ingress.audiosocket.messages import UUID as ID
from mediaworker.ingress.audiosocket.session import AudioSocketPolicy, AudioSocketSession, AudioSocketState
from mediaworker.ops.reload import check
from sip.pjsip.call_control import HOLD_S
from tests.support.asterisk_peers import AudioSocketPeer, frame
from tests.support.media_shells import until
from tests.unit.ingress.test_ws_session import Desk, StreamCall

NAME = UUID("40325ec2-5efd-4bd3-805f-53576e581d13")
HELLO = bytes(Frame(ID, NAME.bytes))
TIMEOUT_S = 10


def session(desk: Desk | None = None, *, silent_s: float = 60.0, sends: bool = True, problems: Any = None) -> Any:
    policy = AudioSocketPolicy(start_timeout_s=5.0, silent_s=silent_s, sends_silence=sends)
    on_problem = (lambda what, detail: problems.append((what, detail))) if problems is not None else lambda *_: None
    return AudioSocketSession(policy, desk if desk is not None else Desk(), 0.0, on_problem=on_problem)


def begun(**options: Any) -> tuple[AudioSocketSession, StreamCall]:
    desk = Desk()
    made = session(desk, **options)
    made.receive(HELLO, 0.0)
    assert made.state is AudioSocketState.STREAMING and made.data_to_send() == b""
    return made, desk.calls[0]


def pcm(count: int, seed: int = 1) -> bytes:
    return np.random.default_rng(seed).integers(-20000, 20000, count).astype("<i2").tobytes()


def cut(data: bytes, places: list[int]) -> list[bytes]:
    at = sorted(place % (len(data) + 1) for place in places)
    return [data[start:end] for start, end in zip([0, *at], [*at, len(data)], strict=True)]


# -- frames -----------------------------------------------------------------------------------------------------------


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


# -- a call -----------------------------------------------------------------------------------------------------------


def test_the_uuid_names_the_call() -> None:
    made, call = begun()
    assert call.arguments["source"] == "audiosocket" and call.arguments["external_id"] == str(NAME)
    (leg,) = call.arguments["legs"]
    assert (leg.leg, leg.codec.name, leg.transport) == ("main", "L16", "stream")
    made.receive(frame(0x12, pcm(320)) + frame(HANGUP), 0.1)
    assert call.ends == ["hangup"] and made.closed and call.leg.audio == pcm(320)
    assert made.data_to_send() == b"", "who has hung up needs no answer"


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


@settings(max_examples=60)
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


# -- what is wrong ----------------------------------------------------------------------------------------------------


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
    assert made.closed and made.data_to_send() == frame(ERROR) and not desk.calls
    assert made.counters.refused == {"first_frame": 1}


def test_whoever_does_not_say_who_it_is_is_let_go() -> None:
    made = session()
    made.receive(HELLO[:18], 1.0)
    made.expire(4.9)
    assert not made.closed and made.deadline == 5.0
    made.expire(5.0)
    assert made.closed and made.data_to_send() == frame(ERROR) and made.counters.refused == {"start_timeout": 1}


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
    assert not made.closed and call.ends == [] and made.data_to_send() == b""


def test_a_peer_that_stops_is_let_go_unless_it_may() -> None:
    made, call = begun()
    made.receive(frame(SLIN, bytes(320)), 30.0)
    made.expire(60.0)
    assert made.deadline == 90.0 and not made.closed
    made.expire(90.0)
    assert call.ends == ["media_timeout"] and made.data_to_send() == frame(ERROR) and made.counters.silent == 1
    patient, call = begun(silent_s=0.0)
    assert patient.deadline is None
    patient.expire(1e6)
    assert call.ends == []


def test_a_hold_may_last_as_long_as_on_sip() -> None:
    """Asterisk sends nothing of a caller who holds."""
    assert parse({}).audiosocket.silent_s >= HOLD_S


def test_no_room_closes_at_once() -> None:
    made = session(Desk(CallRefused(503, "full", busy=True)))
    made.receive(HELLO + frame(SLIN, bytes(320)), 0.0)
    assert made.closed and made.data_to_send() == b"" and made.counters.refused == {"capacity": 1}


@pytest.mark.parametrize(("broken", "reason"), [(False, "hangup"), (True, "disconnected")])
def test_the_end_of_the_connection_is_the_end_of_the_call(broken: bool, reason: str) -> None:
    made, call = begun()
    made.connection_lost(1.0, broken=broken)
    made.connection_lost(2.0, broken=broken)
    assert call.ends == [reason]


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
    policy = AudioSocketPolicy(5.0, 60.0, True)
    made = AudioSocketSession(policy, desk, 0.0, on_change=lambda: changes.append(1))
    made.receive(HELLO + frame(SLIN, pcm(160)), 0.0)
    call = desk.calls[0]
    call.hangup()
    assert call.ends == ["api"] and made.closed and made.data_to_send() == frame(HANGUP) and changes
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


@settings(max_examples=200)
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


# -- the listener -----------------------------------------------------------------------------------------------------


async def sweeping(listener: AudioSocketListener) -> None:
    """What the media tick does."""
    while True:
        listener.sweep()
        await asyncio.sleep(0.005)


@contextlib.asynccontextmanager
async def listening(desk: Desk, refusals: list[CallRefused] | None = None, **options: Any):
    config = parse({"audiosocket": {"port": 0, **options}, "media": {"start_timeout_s": 1}})
    held = refusals if refusals is not None else []
    listener = AudioSocketListener(config, desk, refusal=lambda: held[0] if held else None)
    await listener.start()
    ticks = asyncio.create_task(sweeping(listener))
    try:
        yield listener
    finally:
        ticks.cancel()
        async with asyncio.timeout(TIMEOUT_S):
            await listener.stop()
        assert listener.connections == 0 and listener.limit.open == 0 and not listener.held


async def test_a_connection_is_held_back_until_the_vad_has_caught_up() -> None:
    desk, data = Desk(), pcm(16000 * 20)
    async with listening(desk) as listener, AudioSocketPeer.connect(listener.port) as peer:
        saying = asyncio.create_task(peer.say(data, 16000, speed=0))
        await until(lambda: listener.held)
        (call,) = desk.calls

        def over() -> bool:
            call.leg.catch_up()
            listener.release()
            if saying.done() and not peer.writer.is_closing():
                peer.writer.write_eof()
            return bool(call.ends)

        await until(over)
        await peer.ended(TIMEOUT_S)
        assert call.leg.audio == data and call.ends == ["hangup"]


async def test_what_waits_for_the_vad_is_bounded() -> None:
    """However little comes at a time."""
    desk = Desk()
    async with listening(desk) as listener, AudioSocketPeer.connect(listener.port) as peer:
        for _ in range(100):
            peer.send(frame(0x12, bytes(640)) * 10)
            await asyncio.sleep(0.003)
        (connection,) = listener.held
        assert connection._session is not None
        assert len(connection._data) + len(connection._session._reader._data) < MAX_UNREAD
        assert desk.calls[0].leg.ahead <= 8 * 256 and desk.calls[0].deferred


async def test_a_peer_that_does_not_read_is_sent_no_more() -> None:
    desk = Desk()
    async with listening(desk) as listener:
        with socket.socket() as mute:
            mute.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
            mute.connect(("127.0.0.1", listener.port))
            mute.sendall(HELLO + frame(0x18, bytes(7680)))
            async with asyncio.timeout(60):
                await until_withheld(listener)
            (connection,) = listener._connections
            assert connection._transport.get_write_buffer_size() <= 3 + 7680
            assert not desk.calls[0].ends, "what it says is still heard"


async def test_who_closes_without_having_read_all_of_our_silence_has_hung_up() -> None:
    """The kernel then resets the connection; what had come before is taken all the same."""
    desk = Desk()
    async with listening(desk) as listener:
        with socket.create_connection(("127.0.0.1", listener.port)) as peer:
            peer.sendall(HELLO + frame(0x12, pcm(320)))
            await until(lambda: listener.counters.silence > 2)
            peer.sendall(frame(0x12, pcm(320, 2)))
        await until(lambda: desk.calls and desk.calls[0].ends)
        assert desk.calls[0].ends == ["hangup"] and desk.calls[0].leg.audio == pcm(320) + pcm(320, 2)


async def until_withheld(listener: AudioSocketListener) -> None:
    while not listener.counters.withheld:
        for connection in listener._connections:
            connection.send_silence(1)
        await asyncio.sleep(0)


async def test_our_hang_up_reaches_the_peer() -> None:
    desk = Desk()
    async with listening(desk, send_audio="none") as listener, AudioSocketPeer.connect(listener.port) as peer:
        await until(lambda: desk.calls)
        desk.calls[0].hangup()
        await peer.ended(TIMEOUT_S)
        assert peer.heard == [(HANGUP, b"")]


async def test_who_says_nothing_is_closed() -> None:
    async with listening(Desk()) as listener, AudioSocketPeer.connect(listener.port, greet=False) as peer:
        await peer.ended(TIMEOUT_S)
        assert peer.heard == [(ERROR, b"")] and listener.counters.refused == {"start_timeout": 1}


async def test_the_limit_and_a_full_worker_close_at_once() -> None:
    desk, refusals = Desk(), []
    async with listening(desk, refusals, max_connections=1) as listener:
        async with AudioSocketPeer.connect(listener.port):
            await until(lambda: desk.calls)
            async with AudioSocketPeer.connect(listener.port) as second:
                await second.ended(TIMEOUT_S)
                assert second.heard == []
        await until(lambda: not listener.connections)
        refusals.append(CallRefused(503, "draining"))
        async with AudioSocketPeer.connect(listener.port) as third:
            await third.ended(TIMEOUT_S)
        assert listener.counters.refused == {"connections": 1, "capacity": 1} and len(desk.calls) == 1


def test_who_may_connect() -> None:
    allowed = AccessList(["10.1.0.0/16", "192.0.2.7", "2001:db8::/32"]).allows
    for peer in ("127.0.0.1", "::1", "::ffff:127.0.0.1", "10.1.2.3", "::ffff:10.1.2.3", "192.0.2.7", "2001:db8::5"):
        assert allowed(peer), peer
    for peer in ("10.2.0.1", "192.0.2.8", "2001:db9::1", "", "pbx", "::ffff:10.2.0.1"):
        assert not allowed(peer), peer
    with pytest.raises(ConfigError, match=r"audiosocket.allow\[1\]"):
        AccessList(["10.0.0.1", "pbx.example"], key="audiosocket.allow")
    with pytest.raises(ConfigError, match=r"audiosocket.allow\[0\]"):
        check(parse({"audiosocket": {"allow": ["10.0.0.0/99"]}}))


async def test_the_list_may_change_while_calls_run() -> None:
    listener = AudioSocketListener(parse({"audiosocket": {"allow": ["10.0.0.1"]}}), Desk())
    assert (listener.admit("10.0.0.1"), listener.admit("10.0.0.2")) == ("", "not_allowed")
    listener.use(parse({"audiosocket": {"allow": ["10.0.0.2"]}}))
    assert (listener.admit("10.0.0.1"), listener.admit("10.0.0.2")) == ("not_allowed", "")
    with pytest.raises(ConfigError):
        listener.use(parse({"audiosocket": {"allow": ["nobody"]}}))
    assert listener.admit("10.0.0.2") == "", "nothing has changed"
    merged = merge(parse({}), parse({"audiosocket": {"allow": ["10.0.0.2"], "port": 9}, "asterisk": {"answer": False}}))
    assert set(merged.changed) == {"audiosocket.allow", "asterisk.answer"} and merged.waiting == ("audiosocket.port",)


def own_address() -> str:
    """Of this machine, and not loopback."""
    with socket.socket(type=socket.SOCK_DGRAM) as probe:
        with contextlib.suppress(OSError):
            probe.connect(("192.0.2.1", 9))
            return str(probe.getsockname()[0])
    return ""


@pytest.mark.skipif(not own_address() or own_address().startswith("127."), reason="this machine is loopback only")
async def test_a_stranger_is_cut_off_and_a_friend_is_not() -> None:
    for allow, calls in (((), 0), ((own_address(),), 1)):
        desk = Desk()
        async with listening(desk, host="0.0.0.0", allow=allow) as listener:
            reader, writer = await asyncio.open_connection(own_address(), listener.port)
            writer.write(HELLO + frame(HANGUP))
            async with asyncio.timeout(TIMEOUT_S):
                with contextlib.suppress(OSError):
                    assert await reader.read() == b""
            writer.close()
            assert len(desk.calls) == calls
            assert listener.counters.refused == ({} if calls else {"not_allowed": 1})
