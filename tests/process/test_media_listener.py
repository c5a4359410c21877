"""Both shells under real WebSockets: the media listener, and the same route on the HTTP port under uvicorn."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import gc
import json
import logging
import socket
import struct
import weakref

import pytest
import uvloop
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from config.load import parse
from lab.calls.recording_call import Desk
from lab.http.media_shells import TIMEOUT_S, http_port, media_port, until
from lab.patience import timeout
from mediaworker.calls.registry import CallRefused
from mediaworker.ingress.interfaces import MAX_AHEAD_S
from mediaworker.ingress.listener import READ_BYTES, MediaListener
from mediaworker.ingress.outbox import SLOW, SessionOutbox
from mediaworker.ingress.runner import Throttle
from mediaworker.ingress.twilio import session as twilio_session
from mediaworker.ingress.twilio.routes import STREAM, TwilioIngress
from mediaworker.ingress.twilio.webhook import sign

TOKEN = "12345"
SID = "MZ1"
START = {"event": "start", "streamSid": SID, "start": {"callSid": "CA1", "tracks": ["inbound"]}}
STOP = {"event": "stop", "streamSid": SID, "stop": {}}


def media(index, track="inbound"):
    payload = base64.b64encode(bytes([index % 256]) * 160).decode()
    body = {"track": track, "timestamp": str(index * 20), "payload": payload}
    return json.dumps({"event": "media", "streamSid": SID, "media": body})


class Echo:
    """The smallest endpoint: says back what it hears, and closes when told or when it has waited too long."""

    subprotocols = ("bearer", "media")
    text_as_bytes = False
    streaming = False
    call_id = None

    def __init__(self, deadline_s=None):
        self.heard, self.lost, self.deadline_s, self.outbox = [], [], deadline_s, SessionOutbox()

    def admit(self, upgrade):
        if upgrade.header("x-no"):
            raise CallRefused(401, "not you")
        self.upgrade = upgrade
        return self._open

    def _open(self, now):
        self.deadline = None if self.deadline_s is None else now + self.deadline_s
        return self

    def is_ahead(self):
        return False

    def receive(self, message, now):
        self.heard.append(message)
        if message == "close":
            self.outbox.close(4000, "told to")
            return
        if message == "raise":
            raise RuntimeError("a defect of ours")
        if message == "binary":
            self.outbox.send(b"\x00\xff")
            return
        self.outbox.send(f"{type(message).__name__} {len(message)}")

    def expire(self, now):
        assert now >= self.deadline
        self.deadline = None
        self.outbox.close(4001, "too late")

    def connection_lost(self, now, *, broken=False):
        self.lost.append(now)


@pytest.fixture(params=[media_port, http_port], ids=["media port", "HTTP port"])
def shell(request):
    @contextlib.asynccontextmanager
    async def serve(endpoint, *, throttle=None, max_bytes=65536):
        async with request.param(endpoint, throttle or Throttle(), max_bytes) as port:
            yield f"ws://127.0.0.1:{port}{STREAM}"

    return serve


def client(url, **options):
    return connect(url, compression=None, proxy=None, close_timeout=TIMEOUT_S, **options)


# -- the shells -------------------------------------------------------------------------------------------------------


async def test_messages_go_in_and_answers_come_out(shell):
    endpoint = Echo()
    async with shell(endpoint) as url:
        async with client(url, subprotocols=["chat", "media", "bearer"]) as websocket:
            assert websocket.subprotocol == "media"
            assert not websocket.protocol.extensions
            await websocket.send("h\u00e9llo")
            await websocket.send(b"\x00\x01")
            await websocket.send("binary")
            assert [await websocket.recv() for _ in range(3)] == ["str 5", "bytes 2", b"\x00\xff"]
        await until(lambda: endpoint.lost)
    assert endpoint.heard == ["h\u00e9llo", b"\x00\x01", "binary"]
    assert endpoint.upgrade.path == STREAM
    assert endpoint.upgrade.peer == "127.0.0.1"
    assert endpoint.upgrade.header("host") in url
    assert len(endpoint.lost) == 1


@pytest.mark.parametrize(("deadline_s", "say", "code"), [(None, "close", 4000), (0.05, "hello", 4001)])
async def test_the_session_closes(shell, deadline_s, say, code):
    endpoint = Echo(deadline_s)
    async with shell(endpoint) as url, client(url) as websocket:
        await websocket.send(say)
        with pytest.raises(ConnectionClosed) as caught:
            while True:
                await websocket.recv()
        assert caught.value.rcvd.code == code
        await until(lambda: endpoint.lost)
    assert len(endpoint.lost) == 1


async def test_the_worker_hangs_up(shell):
    endpoint = Echo()
    async with shell(endpoint) as url, client(url) as websocket:
        await websocket.send("hello")
        await websocket.recv()
        endpoint.outbox.abort(1000, "call ended by the worker")
        endpoint.outbox.abort(1000, "again")
        with pytest.raises(ConnectionClosed) as caught:
            await websocket.recv()
        assert caught.value.rcvd.code == 1000
        await until(lambda: endpoint.lost)


async def test_a_refused_upgrade_is_answered_with_its_status(shell):
    async with shell(Echo()) as url:
        with pytest.raises(InvalidStatus) as caught:
            await client(url, additional_headers={"X-No": "1"})
        assert caught.value.response.status_code == 401
        assert caught.value.response.headers["Content-Type"] == "application/problem+json"
        problem = json.loads(caught.value.response.body)
        assert (problem["status"], problem["title"], problem["detail"]) == (401, "Unauthorized", "not you")


async def test_a_message_beyond_the_limit_closes_with_1009(shell):
    endpoint = Echo()
    async with shell(endpoint, max_bytes=1000) as url, client(url) as websocket:
        await websocket.send("x" * 1000)
        assert await websocket.recv() == "str 1000"
        await websocket.send("x" * 1001)
        with pytest.raises(ConnectionClosed) as caught:
            await websocket.recv()
        assert caught.value.rcvd.code == 1009
        await until(lambda: endpoint.lost)
    assert endpoint.heard == ["x" * 1000]


class Echoes(Echo):
    """A session of its own for each connection."""

    def _open(self, now):
        session = Echo(self.deadline_s)
        session.lost = self.lost
        return session._open(now)


async def test_a_defect_of_one_session_stays_in_it():
    endpoint = Echoes()
    async with media_port(endpoint, Throttle(), 65536) as port:
        url = f"ws://127.0.0.1:{port}{STREAM}"
        async with client(url) as healthy, client(url) as broken:
            await broken.send("raise")
            with pytest.raises(ConnectionClosed) as caught:
                await broken.recv()
            assert caught.value.rcvd.code == 1011
            await healthy.send("hello")
            assert await healthy.recv() == "str 5"
    assert len(endpoint.lost) == 2


async def test_paths_are_routed_and_plain_http_is_answered():
    listener = MediaListener(
        parse({"media": {"host": "127.0.0.1", "port": 0}}).media, {STREAM: Echo(), "/ws/asr": Echo()}, Throttle()
    )
    await listener.start()
    base = f"ws://127.0.0.1:{listener.port}"
    async with client(base + STREAM + "?x=1") as one, client(base + "/ws/asr") as two:
        await one.send("a")
        await two.send("b")
        assert [await one.recv(), await two.recv()] == ["str 1", "str 1"]
        assert listener.connections == 2
    for path in ("/", STREAM + "/", "/twilio"):
        with pytest.raises(InvalidStatus) as caught:
            await client(base + path)
        assert caught.value.response.status_code == 404
    reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
    writer.write(f"GET {STREAM} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    assert (await reader.readline()).startswith(b"HTTP/1.1 426")
    writer.close()
    _, writer = await asyncio.open_connection("127.0.0.1", listener.port)
    writer.write(b"\x16\x03\x01\x02\x00 not HTTP\r\n\r\n")
    writer.close()
    assert listener.rejected == {404: 3, 426: 1}
    await listener.stop()
    assert listener.connections == 0


async def test_stop_closes_every_connection_and_a_taken_port_is_an_error(free_port):
    endpoint = Echo()
    settings = parse({"media": {"host": "127.0.0.1", "port": free_port}}).media
    listener = MediaListener(settings, {STREAM: endpoint}, Throttle())
    await listener.start()
    with pytest.raises(OSError, match="address already in use"):
        await MediaListener(settings, {}, Throttle()).start()
    async with client(f"ws://127.0.0.1:{settings.port}{STREAM}") as websocket:
        await websocket.send("hello")
        await websocket.recv()
        async with timeout(TIMEOUT_S):
            await listener.stop()
        with pytest.raises(ConnectionClosed) as caught:
            await websocket.recv()
        assert caught.value.rcvd.code == 1001
    assert len(endpoint.lost) == 1


# -- Twilio over both -------------------------------------------------------------------------------------------------


def signed_settings():
    return parse({"twilio": {"auth_token": TOKEN, "public_url": "https://calls.example.com"}})


async def test_a_stream_becomes_a_call(shell):
    desk = Desk()
    ingress = TwilioIngress(parse({}), desk)
    async with shell(ingress) as url, client(url) as websocket:
        for message in ({"event": "connected", "protocol": "Call", "version": "1.0.0"}, START):
            await websocket.send(json.dumps(message))
        for index in range(50):
            await websocket.send(media(index))
        await websocket.send("garbage")
        await websocket.send(json.dumps(STOP))
        await until(lambda: desk.calls and desk.calls[0].ends)
    [call] = desk.calls
    assert call.legs["inbound"].timeline() == b"".join(bytes([index]) * 160 for index in range(50))
    assert call.ends == ["hangup"]
    counters = ingress.counters
    assert (counters.messages, counters.media, counters.malformed, counters.stopped) == (54, 50, 1, 1)


@pytest.mark.parametrize("linger", [None, struct.pack("ii", 1, 0)], ids=["end of stream", "reset"])
async def test_a_dropped_connection_ends_the_call(shell, linger, caplog):
    desk = Desk()
    async with shell(TwilioIngress(parse({}), desk)) as url:
        websocket = await client(url)
        await websocket.send(json.dumps(START))
        await websocket.send(media(0))
        await until(lambda: desk.calls and desk.calls[0].legs["inbound"].chunks)
        library = logging.getLogger("mediaworker.ingress.websockets")
        library.addHandler(caplog.handler)
        if linger:
            peer = websocket.transport.get_extra_info("socket")
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        websocket.transport.abort()
        await until(lambda: desk.calls[0].ends)
    library.removeHandler(caplog.handler)
    assert desk.calls[0].ends == ["disconnected"]
    assert caplog.text == "", "nothing broke on the way"


async def test_a_connection_whose_transport_gives_up_is_swept_no_more(caplog):
    desk = Desk()
    settings = parse({"media": {"host": "127.0.0.1", "port": 0}}).media
    listener = MediaListener(settings, {STREAM: TwilioIngress(parse({}), desk)}, Throttle())
    library = logging.getLogger("mediaworker.ingress.websockets")
    library.addHandler(caplog.handler)
    await listener.start()
    try:
        async with client(f"ws://127.0.0.1:{listener.port}{STREAM}") as websocket:
            await websocket.send(json.dumps(START))
            await until(lambda: listener.batched)
            [connection] = listener.batched
            connection.transport.abort()  # as it does itself when it cannot write
            await until(lambda: desk.calls[0].ends)
        await until(lambda: not listener.connections)
    finally:
        await listener.stop()
        library.removeHandler(caplog.handler)
    assert desk.calls[0].ends == ["disconnected"] and not listener.batched
    assert caplog.text == "", "nothing broke on the way"


async def test_a_hangup_by_the_worker_closes_the_stream(shell):
    desk = Desk()
    async with shell(TwilioIngress(parse({}), desk)) as url, client(url) as websocket:
        await websocket.send(json.dumps(START))
        await until(lambda: desk.calls)
        desk.calls[0].hangup()
        with pytest.raises(ConnectionClosed) as caught:
            await websocket.recv()
        assert caught.value.rcvd.code == 1000
    assert desk.calls[0].ends == ["api"]


async def test_who_does_not_start_in_time_is_closed(shell):
    ingress = TwilioIngress(parse({"media": {"start_timeout_s": 0.1}}), Desk())
    async with shell(ingress) as url, client(url) as websocket:
        with pytest.raises(ConnectionClosed) as caught:
            await websocket.recv()
        assert (caught.value.rcvd.code, caught.value.rcvd.reason) == (1008, "no start message within 0.1 s")
    assert ingress.counters.refused == {"start_timeout": 1}


async def test_no_stream_is_let_in_when_no_call_can_be_taken(shell):
    ingress = TwilioIngress(parse({}), Desk(CallRefused(503, "the worker is shutting down")))
    async with shell(ingress) as url:
        with pytest.raises(InvalidStatus) as caught:
            await client(url)
        response = caught.value.response
        assert (response.status_code, response.headers["Retry-After"]) == (503, "5")
        assert json.loads(response.body)["detail"] == "the worker is shutting down"
    assert ingress.counters.refused == {"capacity": 1}


async def test_upgrades_are_signed_when_there_is_a_token(shell):
    desk = Desk()
    ingress = TwilioIngress(signed_settings(), desk)
    good = sign(TOKEN, "wss://calls.example.com/twilio/stream")
    async with shell(ingress) as url:
        for headers in ({}, {"X-Twilio-Signature": good[:-2] + "A="}, {"X-Twilio-Signature": sign("other", url)}):
            with pytest.raises(InvalidStatus) as caught:
                await client(url, additional_headers=headers)
            assert caught.value.response.status_code == 403
        async with client(url, additional_headers={"X-Twilio-Signature": good}) as websocket:
            await websocket.send(json.dumps(START))
            await until(lambda: desk.calls)
    assert ingress.counters.forbidden == 3


@pytest.mark.parametrize(
    "headers", [{"X-Forwarded-For": "203.0.113.7"}, {"Origin": "https://evil.example"}, {"Host": "evil.example"}]
)
async def test_without_a_token_nobody_comes_through_a_proxy_or_a_page(headers):
    async with media_port(TwilioIngress(parse({}), Desk()), Throttle(), 65536) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        fields = {
            "Host": f"127.0.0.1:{port}",
            "Connection": "Upgrade",
            "Upgrade": "websocket",
            "Sec-WebSocket-Version": "13",
            "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
            **headers,
        }
        lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        writer.write(f"GET {STREAM} HTTP/1.1\r\n{lines}\r\n".encode())
        assert (await reader.readline()).startswith(b"HTTP/1.1 403")
        writer.close()


async def test_a_token_opens_one_stream_only(shell):
    desk = Desk()
    ingress = TwilioIngress(parse({}), desk, unix_time=lambda: 1000.0)
    token = ingress._tokens.issue("CA1", 1000.0)

    def start(stream_sid):
        body = {**START["start"], "customParameters": {"mw_token": token}}
        return json.dumps({**START, "streamSid": stream_sid, "start": body})

    async with shell(ingress) as url:
        async with client(url) as websocket:
            await websocket.send(start("MZ1"))
            await until(lambda: desk.calls)
        async with client(url) as websocket:
            await websocket.send(start("MZ2"))
            with pytest.raises(ConnectionClosed) as caught:
                await websocket.recv()
            assert caught.value.rcvd.code == 1008
        async with client(url) as websocket:
            await websocket.send(start("MZ1"))
            await until(lambda: len(desk.calls) == 2)


async def test_nothing_is_left_of_streams_however_they_end(shell):
    desk = Desk()
    sessions = []
    ingress = TwilioIngress(parse({}), desk)
    admit = ingress.admit

    def watched(upgrade):
        opens = admit(upgrade)

        def opened(now):
            session = opens(now)
            sessions.append(weakref.ref(session))
            return session

        return opened

    ingress.admit = watched
    async with shell(ingress) as url:
        before = len(asyncio.all_tasks())
        for how in ("stop", "close", "abort", "hang up", "refuse") * 4:
            websocket, calls = await client(url), len(desk.calls)
            await websocket.send(media(0) if how == "refuse" else json.dumps(START))
            if how != "refuse":
                await until(lambda calls=calls: len(desk.calls) > calls)
            if how == "stop":
                await websocket.send(json.dumps(STOP))
            elif how == "abort":
                websocket.transport.abort()
            elif how == "hang up":
                desk.calls[-1].hangup()
            await websocket.close()
        await until(lambda: len(asyncio.all_tasks()) == before)
    ended = [call.ends for call in desk.calls]
    desk.calls.clear()
    gc.collect()
    assert len(sessions) == 20
    assert [ref for ref in sessions if ref() is not None] == []
    assert ended == [["hangup"], ["disconnected"], ["disconnected"], ["api"]] * 4
    assert ingress.counters.refused == {"media_before_start": 4}


async def test_a_stream_that_has_stopped_is_not_kept(shell, monkeypatch):
    """Whoever does not close after `stop` is closed after `LINGER_S`, not after the minute that silence may last."""
    monkeypatch.setattr(twilio_session, "LINGER_S", 0.2)
    desk = Desk()
    ingress = TwilioIngress(parse({"media": {"start_timeout_s": 0.1}}), desk)
    async with shell(ingress) as url, client(url) as websocket:
        await websocket.send(json.dumps(START))
        for index in range(12):  # paced, and longer than the first deadline: the next one is a minute away
            await websocket.send(media(index))
            await asyncio.sleep(0.02)
        await websocket.send(json.dumps(STOP))
        async with timeout(5):
            await websocket.wait_closed()
        assert websocket.close_code == 1000
    assert desk.calls[0].ends == ["hangup"]


class Parting(Echo):
    """Says something unasked and has little time left then; its peer reads nothing."""

    def __init__(self):
        super().__init__(60.0)
        self.cuts = 0

    def expire(self, now):
        assert now >= self.deadline
        self.deadline, self.cuts = None, self.cuts + 1
        self.outbox.abort()


async def test_a_deadline_that_comes_nearer_without_a_message_is_held(shell):
    endpoint = Parting()
    async with shell(endpoint) as url, client(url) as websocket:
        await until(lambda: endpoint.lost or hasattr(endpoint, "deadline"))
        endpoint.deadline = asyncio.get_running_loop().time() + 0.1
        endpoint.outbox.send("the last word")
        await until(lambda: endpoint.cuts)
        await websocket.wait_closed()
    assert endpoint.cuts == 1 and websocket.close_code == SLOW


# -- back-pressure ----------------------------------------------------------------------------------------------------


async def test_a_client_ahead_of_the_vad_is_read_no_further_until_it_has_caught_up(shell):
    desk = Desk()
    throttle = Throttle()
    ingress = TwilioIngress(parse({}), desk)
    total = 3000  # a minute of audio, as fast as the socket takes it
    limit = int(MAX_AHEAD_S * 50) + 1
    async with shell(ingress, throttle=throttle) as url, client(url) as websocket:
        await websocket.send(json.dumps(START))
        await until(lambda: desk.calls)
        leg = desk.calls[0].legs["inbound"]
        leg.consumed = 0

        async def blast():
            for index in range(total):
                await websocket.send(media(index))
            await websocket.send(json.dumps(STOP))

        blasting = asyncio.create_task(blast())
        await until(lambda: len(leg.chunks) >= limit)
        for _ in range(20):
            throttle.release()  # a step that took nothing of this leg
            await asyncio.sleep(0.002)
        held = len(leg.chunks)
        assert limit <= held <= limit + READ_BYTES / len(media(0))
        leg.consumed = 32000
        while len(leg.chunks) < limit + 200:
            throttle.release()
            await asyncio.sleep(0.002)
        for _ in range(20):
            throttle.release()
            await asyncio.sleep(0.002)
        assert len(leg.chunks) <= limit + 200 + READ_BYTES / len(media(0))
        leg.consumed = None  # from here on the VAD keeps up
        while not desk.calls[0].ends:
            throttle.release()
            await asyncio.sleep(0.002)
        await blasting
    assert leg.timeline() == b"".join(bytes([index % 256]) * 160 for index in range(total))
    assert desk.calls[0].ends == ["hangup"]
    assert throttle.held == throttle.waiting_bytes == 0


async def test_stop_does_not_wait_for_a_client_that_is_held_back():
    desk = Desk()
    throttle = Throttle()
    async with media_port(TwilioIngress(parse({}), desk), throttle, 65536) as port:
        async with client(f"ws://127.0.0.1:{port}{STREAM}") as websocket:
            await websocket.send(json.dumps(START))
            await until(lambda: desk.calls)
            desk.calls[0].legs["inbound"].consumed = 0
            for index in range(1000):
                await websocket.send(media(index))
            await until(lambda: len(desk.calls[0].legs["inbound"].chunks) > MAX_AHEAD_S * 50)
            desk.calls[0].hangup()  # what a drain does first
            throttle.release()
    assert desk.calls[0].ends == ["api"]
    assert throttle.held == throttle.waiting_bytes == 0


def test_on_uvloop():
    """The loop of the worker."""

    async def main():
        desk = Desk()
        async with media_port(TwilioIngress(parse({}), desk), Throttle(), 65536) as port:
            async with client(f"ws://127.0.0.1:{port}{STREAM}") as websocket:
                await websocket.send(json.dumps(START))
                for index in range(500):
                    await websocket.send(media(index))
                await websocket.send(json.dumps(STOP))
                await until(lambda: desk.calls and desk.calls[0].ends)
        return desk.calls[0]

    call = uvloop.run(main())
    assert len(call.legs["inbound"].chunks) == 500
    assert call.ends == ["hangup"]
