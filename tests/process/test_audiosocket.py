"""The AudioSocket listener with real connections."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import Any

import pytest

from config import ConfigError
from config.load import parse
from config.network.access_list import AccessList
from config.reload import merge
from lab.asterisk.audiosocket_frames import HELLO, pcm
from lab.asterisk.peers import AudioSocketPeer, frame
from lab.calls.stream_desks import Desk
from lab.http.media_shells import until
from lab.patience import timeout
from mediaworker.calls.registry import CallRefused
from mediaworker.ingress.audiosocket.listener import MAX_UNREAD, AudioSocketListener
from mediaworker.ingress.audiosocket.messages import ERROR, HANGUP
from mediaworker.ingress.runner import Throttle

TIMEOUT_S = 10


async def sweeping(listener: AudioSocketListener) -> None:
    """What the media tick does."""
    while True:
        listener.sweep()
        await asyncio.sleep(0.005)


@contextlib.asynccontextmanager
async def listening(desk: Desk, **options: Any):
    config = parse({"audiosocket": {"port": 0, **options}, "media": {"start_timeout_s": 1}})
    listener = AudioSocketListener(config, desk, Throttle())
    await listener.start()
    ticks = asyncio.create_task(sweeping(listener))
    try:
        yield listener
    finally:
        ticks.cancel()
        async with timeout(TIMEOUT_S):
            await listener.stop()
        assert listener.connections == 0 and listener.limit.open == 0 and not listener.due


def held(listener: AudioSocketListener) -> bool:
    """In the runner as the first audio comes, and between media ticks from then on."""
    return listener.throttle.held > 0 or any(connection.held for connection in listener._connections)


async def test_a_connection_is_held_back_until_the_vad_has_caught_up() -> None:
    desk, data = Desk(), pcm(16000 * 20)
    async with listening(desk) as listener, AudioSocketPeer.connect(listener.port) as peer:
        saying = asyncio.create_task(peer.say(data, 16000, speed=0))
        await until(lambda: held(listener))
        (call,) = desk.calls

        def over() -> bool:
            call.leg.catch_up()
            listener.throttle.release()
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
        assert held(listener)
        (connection,) = listener._connections
        assert len(connection._data or b"") + len(connection.session._reader._data) < MAX_UNREAD
        assert desk.calls[0].leg.ahead <= 8 * 256 and desk.calls[0].deferred


async def test_a_peer_that_does_not_read_is_sent_no_more() -> None:
    desk = Desk()
    async with listening(desk) as listener:
        with socket.socket() as mute:
            mute.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
            mute.connect(("127.0.0.1", listener.port))
            mute.sendall(HELLO + frame(0x18, bytes(7680)))
            async with timeout(60):
                await until_withheld(listener)
            (connection,) = listener._connections
            assert connection.transport.get_write_buffer_size() <= 3 + 7680
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
    desk = Desk()
    async with listening(desk) as listener:
        listener.lower(1)
        async with AudioSocketPeer.connect(listener.port):
            await until(lambda: desk.calls)
            async with AudioSocketPeer.connect(listener.port) as second:
                await second.ended(TIMEOUT_S)
                assert second.heard == []
        await until(lambda: not listener.connections)
        desk.refused = CallRefused(503, "draining")
        async with AudioSocketPeer.connect(listener.port) as third:
            await third.ended(TIMEOUT_S)
        assert listener.counters.refused == {"connections": 1, "capacity": 1} and len(desk.calls) == 1


def test_who_may_connect() -> None:
    allowed = AccessList(["10.1.0.0/16", "192.0.2.7", "2001:db8::/32"]).allows
    for peer in ("127.0.0.1", "::1", "::ffff:127.0.0.1", "10.1.2.3", "::ffff:10.1.2.3", "192.0.2.7", "2001:db8::5"):
        assert allowed(peer), peer
    for peer in ("10.2.0.1", "192.0.2.8", "2001:db9::1", "", "pbx", "::ffff:10.2.0.1"):
        assert not allowed(peer), peer
    for allow in (["10.0.0.1", "pbx.example"], ["10.0.0.1", "10.0.0.0/99"]):
        with pytest.raises(ConfigError, match=r"audiosocket.allow\[1\]"):
            parse({"audiosocket": {"allow": allow}})


async def test_the_list_may_change_while_calls_run() -> None:
    listener = AudioSocketListener(parse({"audiosocket": {"allow": ["10.0.0.1"]}}), Desk(), Throttle())
    assert (listener.admit("10.0.0.1"), listener.admit("10.0.0.2")) == ("", "not_allowed")
    listener.use(parse({"audiosocket": {"allow": ["10.0.0.2"]}}))
    assert (listener.admit("10.0.0.1"), listener.admit("10.0.0.2")) == ("not_allowed", "")
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
            async with timeout(TIMEOUT_S):
                with contextlib.suppress(OSError):
                    assert await reader.read() == b""
            writer.close()
            assert len(desk.calls) == calls
            assert listener.counters.refused == ({} if calls else {"not_allowed": 1})


async def test_a_refused_peer_that_has_spoken_sees_the_end_and_no_reset() -> None:
    """Asterisk speaks first, and takes a reset for a fault of the network."""
    async with listening(Desk(CallRefused(503, "draining"))) as listener:
        with socket.create_connection(("127.0.0.1", listener.port), timeout=TIMEOUT_S) as peer:
            peer.sendall(HELLO + frame(0x12, pcm(320)))  # before the worker can look
            assert await asyncio.to_thread(peer.recv, 1) == b""
            peer.sendall(frame(0x12, pcm(320, 2)))
            assert await asyncio.to_thread(peer.recv, 1) == b""
            await until(lambda: listener.refused_places.open == 1)
        await until(lambda: listener.refused_places.open == 0)


async def test_a_refused_peer_is_read_no_further_than_the_bound() -> None:
    async with listening(Desk(CallRefused(503, "draining"))) as listener:
        with socket.create_connection(("127.0.0.1", listener.port), timeout=TIMEOUT_S) as peer:
            with pytest.raises(OSError):
                while True:
                    await asyncio.to_thread(peer.sendall, bytes(1 << 16))
        await until(lambda: listener.refused_places.open == 0)
