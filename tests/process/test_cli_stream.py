"""`mediaworker stream` as a program: what it reads, what it puts on the wire and when, and its exit codes."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import time
import wave
from urllib.parse import parse_qsl

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route
from twilio.request_validator import RequestValidator
from websockets.asyncio.server import serve

from audio.codecs.g711 import alaw_encode, ulaw_decode, ulaw_encode
from config.load import parse
from lab.calls.recording_call import Desk
from lab.http.media_shells import asgi_port, http_port, media_port
from mediaworker.cli.main import main
from mediaworker.cli.play import PlayError, load_pcm
from mediaworker.ingress.runner import Throttle
from mediaworker.ingress.twilio import messages as twilio_messages
from mediaworker.ingress.twilio.routes import STREAM, TwilioIngress
from mediaworker.ingress.twilio.sender import StreamWriter, new_sid, schedule

TOKEN = "12345"
TONE = (8000 * np.sin(2 * np.pi * 440 * np.arange(4000) / 8000)).astype(np.int16)


def write_wav(path, samples, *, rate_hz=8000, width=2, channels=1):
    with wave.open(str(path), "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(width)
        file.setframerate(rate_hz)
        file.writeframes(bytes(samples))
    return path


@pytest.fixture
def tone(tmp_path):
    return str(write_wav(tmp_path / "tone.wav", TONE.tobytes()))


async def mediaworker(*arguments):
    return await asyncio.to_thread(main, ["stream", *arguments])


# -- reading files ----------------------------------------------------------------------------------------------------


def test_pcm_of_every_width_is_the_same_sound(tmp_path):
    wide = TONE.astype(np.int32) << 16
    as_bytes = wide.astype("<i4").view(np.uint8).reshape(-1, 4)
    for width in (4, 3, 2):
        path = write_wav(tmp_path / f"{width}.wav", as_bytes[:, 4 - width :].tobytes(), width=width)
        assert np.array_equal(load_pcm(path, 8000), TONE)
    eight = write_wav(tmp_path / "1.wav", ((TONE >> 8) + 128).astype(np.uint8).tobytes(), width=1)
    assert np.array_equal(load_pcm(eight, 8000), TONE >> 8 << 8)


def test_channels_are_averaged_without_wrapping(tmp_path):
    loud = np.array([[32767, 32767], [-32768, -32768], [32767, -32767], [100, 200]], np.int16)
    path = write_wav(tmp_path / "stereo.wav", loud.tobytes(), channels=2)
    assert load_pcm(path, 8000).tolist() == [32767, -32768, 0, 150]


def test_raw_files_are_known_by_their_suffix(tmp_path):
    from G722 import G722

    (tmp_path / "a.ulaw").write_bytes(bytes(ulaw_encode(TONE)))
    (tmp_path / "a.AL").write_bytes(bytes(alaw_encode(TONE)))
    (tmp_path / "a.sln").write_bytes(TONE.tobytes() + b"\x00")
    (tmp_path / "a.g722").write_bytes(bytes(G722(16000, 64000).encode(np.repeat(TONE, 2))))
    assert np.array_equal(load_pcm(tmp_path / "a.sln", 8000), TONE)
    for name in ("a.ulaw", "a.AL", "a.g722"):
        samples = load_pcm(tmp_path / name, 8000).astype(int)
        assert samples.dtype == int and len(samples) == len(TONE)
        loudest = np.argmax(np.abs(np.fft.rfft(samples)))
        assert loudest * 8000 / len(samples) == 440, name


@pytest.mark.parametrize(("from_hz", "to_hz"), [(16000, 8000), (44100, 8000), (8000, 16000), (48000, 16000)])
def test_rates_are_converted(tmp_path, from_hz, to_hz):
    sound = (8000 * np.sin(2 * np.pi * 440 * np.arange(from_hz) / from_hz)).astype(np.int16)
    samples = load_pcm(write_wav(tmp_path / "tone.wav", sound.tobytes(), rate_hz=from_hz), to_hz)
    assert samples.dtype == np.int16 and samples.shape == (to_hz,)
    assert np.argmax(np.abs(np.fft.rfft(samples.astype(float)))) == 440


@pytest.mark.parametrize("content", [b"", b"RIFF", b"RIFF\x04\x00\x00\x00WAVE", b"ID3\x04 a song", b"\x00" * 100])
def test_what_is_no_wav_is_an_error_of_one_line(tmp_path, content):
    path = tmp_path / "song.mp3"
    path.write_bytes(content)
    with pytest.raises(PlayError, match="not a PCM WAV file") as caught:
        load_pcm(path, 8000)
    assert "\n" not in str(caught.value)


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(tmp_path_factory, content):
    path = tmp_path_factory.mktemp("any") / "x.wav"
    for data in (content, b"RIFF\xff\x00\x00\x00WAVEfmt \x10\x00\x00\x00\x01\x00" + content):
        path.write_bytes(data)
        with contextlib.suppress(PlayError):
            assert load_pcm(path, 8000).dtype == np.int16


def test_empty_and_missing_files_and_folders(tmp_path):
    (tmp_path / "a.ul").write_bytes(b"")
    for name, reason in (("a.ul", "no audio"), ("no.wav", "No such file"), (".", "directory")):
        with pytest.raises(PlayError, match=reason):
            load_pcm(tmp_path / name, 8000)


# -- the messages -----------------------------------------------------------------------------------------------------


@given(
    st.dictionaries(st.sampled_from(["inbound", "outbound"]), st.binary(min_size=1, max_size=900), min_size=1),
    st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=3),
    st.sampled_from([0.0, 0.02, 0.1]),
)
def test_the_sequence_of_a_stream(tracks, parameters, tail_s):
    writer = StreamWriter(new_sid("MZ"), new_sid("CA"), new_sid("AC"))
    timed = [(due_s, write()) for due_s, write in schedule(writer, tracks, parameters, tail_s=tail_s)]
    sent = [json.loads(text) for _, text in timed]
    assert sent[0] == {"event": "connected", "protocol": "Call", "version": "1.0.0"}
    assert sent[1]["start"] == {
        "accountSid": writer.account_sid,
        "streamSid": writer.stream_sid,
        "callSid": writer.call_sid,
        "tracks": list(tracks),
        "mediaFormat": {"encoding": "audio/x-mulaw", "sampleRate": 8000, "channels": 1},
        "customParameters": parameters,
    }
    assert sent[-1]["stop"] == {"accountSid": writer.account_sid, "callSid": writer.call_sid}
    assert [message["sequenceNumber"] for message in sent[1:]] == [str(n) for n in range(1, len(sent))]
    assert {message["streamSid"] for message in sent[1:]} == {writer.stream_sid}
    frames = -(-max(map(len, tracks.values())) // 160) + round(tail_s * 50)
    for track, codes in tracks.items():
        media = [message["media"] for message in sent if message["event"] == "media"]
        media = [body for body in media if body["track"] == track]
        assert [body["chunk"] for body in media] == [str(n + 1) for n in range(frames)]
        assert [body["timestamp"] for body in media] == [str(20 * n) for n in range(frames)]
        assert b"".join(base64.b64decode(body["payload"]) for body in media) == codes.ljust(frames * 160, b"\xff")
    times = [due_s for due_s, _ in timed]
    assert times == sorted(times)
    assert times[-1] == frames * 0.02
    for _, text in timed:
        twilio_messages.parse(text)  # what the test Twilio writes is what the worker reads


def test_digits_come_in_between():
    writer = StreamWriter("MZ1", "CA1", "AC1")
    texts = [write() for _, write in schedule(writer, {"inbound": b"\x00" * 160}, {}, tail_s=1.2, digits="5#")]
    messages = [twilio_messages.parse(text) for text in [*texts, writer.mark("m")]]
    digits = [message for message in messages if isinstance(message, twilio_messages.DtmfMessage)]
    assert [(message.dtmf.track, message.dtmf.digit) for message in digits] == [
        ("inbound_track", "5"),
        ("inbound_track", "#"),
    ]
    assert isinstance(messages[-1], twilio_messages.MarkMessage)


# -- against the worker's own port ------------------------------------------------------------------------------------


async def test_two_files_arrive_as_two_legs_in_real_time(tone, tmp_path):
    other = str(write_wav(tmp_path / "other.wav", TONE[:1600][::-1].tobytes()))
    desk = Desk()
    async with media_port(TwilioIngress(parse({}), desk), Throttle(), 65536) as port:
        arguments = ["--play", tone, "--play-outbound", other, "--from", "+1415", "--to", "+1416", "--tail", "0.1"]
        start_s = time.monotonic()
        code = await mediaworker(f"ws://127.0.0.1:{port}{STREAM}", *arguments, "--param", "order=A=17")
        took_s = time.monotonic() - start_s
    assert code == 0
    [call] = desk.calls
    assert call.arguments["from_"] == "+1415"
    assert call.arguments["custom"] == {"order": "A=17"}
    assert call.ends == ["hangup"]
    silence = b"\xff" * 800
    assert call.legs["inbound"].timeline() == bytes(ulaw_encode(TONE)) + silence
    assert call.legs["outbound"].timeline() == bytes(ulaw_encode(TONE[:1600][::-1])).ljust(4000, b"\xff") + silence
    assert took_s >= 0.6
    for position, payload, now in call.legs["inbound"].chunks:
        # Never before it was spoken. The worker's own idea of the beginning is as late as this machine let it be.
        assert now - start_s >= (position + len(payload)) / 8000 - 0.005


async def test_a_signed_upgrade_needs_no_call_token(tone):
    desk = Desk()
    settings = {"auth_token": TOKEN, "public_url": "https://calls.example.com"}
    async with media_port(TwilioIngress(parse({"twilio": settings}), desk), Throttle(), 65536) as port:
        url = f"ws://127.0.0.1:{port}{STREAM}"
        arguments = [url, "--play", tone, "--tail", "0", "--sign-url", "wss://calls.example.com/twilio/stream"]
        assert await mediaworker(*arguments, "--auth-token", TOKEN) == 0
        assert await mediaworker(*arguments, "--auth-token", "wrong") == 1
        assert await mediaworker(url, "--play", tone) == 1
    assert [call.ends for call in desk.calls] == [["hangup"]]


@pytest.mark.parametrize("mode", ["start", "connect"])
async def test_with_a_webhook_it_follows_the_twiml(tone, mode):
    desk = Desk()
    ingress = TwilioIngress(parse({"twilio": {"mode": mode}}), desk)
    async with http_port(ingress, Throttle(), 65536) as port:
        arguments = ["--play", tone, "--tail", "0", "--from", "+1415", "--call-sid", "CA1"]
        assert await mediaworker(f"http://127.0.0.1:{port}/twilio/voice", *arguments) == 0
        assert await mediaworker(f"http://127.0.0.1:{port}/twilio/nothing", *arguments) == 1
    [call] = desk.calls
    assert call.arguments["external_id"] == "CA1"
    assert call.arguments["from_"] == "+1415"
    assert call.arguments["custom"] == {}
    assert ingress.counters.webhooks == 1
    assert len(ingress._tokens._used) == 1


async def test_the_webhook_post_is_signed_as_twilio_signs(tone, capsys):
    seen = []

    async def voice(request):
        form = dict(parse_qsl((await request.body()).decode(), keep_blank_values=True))
        seen.append(RequestValidator(TOKEN).validate(url, form, request.headers["x-twilio-signature"]))
        return Response("<Response><Hangup/></Response>", media_type="text/xml")

    async with asgi_port(Starlette(routes=[Route("/voice", voice, methods=["POST"])])) as port:
        url = f"http://127.0.0.1:{port}/voice"
        assert await mediaworker(url, "--play", tone, "--auth-token", TOKEN) == 1
    assert seen == [True]
    assert "no <Start><Stream>" in capsys.readouterr().err


# -- against other servers --------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def server_of(handler):
    async with serve(handler, "127.0.0.1", 0) as server:
        yield f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}/"


async def test_upgrades_are_signed_as_twilio_signs(tone):
    seen = []

    async def listen(websocket):
        seen.append(websocket.request.headers.get("X-Twilio-Signature"))
        async for _ in websocket:
            pass

    async with server_of(listen) as url:
        assert await mediaworker(url, "--play", tone, "--tail", "0", "--auth-token", TOKEN) == 0
        assert RequestValidator(TOKEN).validate(url, {}, seen[0])


async def test_marks_come_back_on_a_connect_stream(tone):
    heard = []

    async def speak(websocket):
        async for text in websocket:
            heard.append(json.loads(text))
            if heard[-1]["event"] == "start":
                sid = heard[-1]["streamSid"]
                for event, body in (("media", {"payload": "//8="}), ("mark", {"name": "greeting"}), ("clear", None)):
                    await websocket.send(json.dumps({"event": event, "streamSid": sid, event: body or {}}))

    async with server_of(speak) as url:
        assert await mediaworker(url, "--play", tone, "--tail", "0.2", "--connect", "--dtmf", "9") == 0
    events = [message["event"] for message in heard]
    assert events[:2] == ["connected", "start"] and events[-1] == "stop"
    assert next(m["mark"] for m in heard if m["event"] == "mark") == {"name": "greeting"}
    assert next(m["dtmf"] for m in heard if m["event"] == "dtmf") == {"track": "inbound_track", "digit": "9"}
    assert [m["sequenceNumber"] for m in heard[1:]] == [str(n) for n in range(1, len(heard))]


async def test_a_mark_comes_back_when_its_sound_is_over_or_cleared(tone):
    heard = []

    async def speak(websocket):
        async for text in websocket:
            heard.append(json.loads(text))
            if heard[-1]["event"] == "start":
                minute = base64.b64encode(b"\xff" * 60 * 8000).decode()
                for event, body in (
                    ("mark", {"name": "now"}),
                    ("media", {"payload": minute}),
                    ("mark", {"name": "later"}),
                ):
                    await websocket.send(json.dumps({"event": event, "streamSid": "x", event: body}))
            if sum(message["event"] == "media" for message in heard) == 10 and heard[-1]["event"] == "media":
                await websocket.send(json.dumps({"event": "clear", "streamSid": "x"}))

    async with server_of(speak) as url:
        assert await mediaworker(url, "--play", tone, "--tail", "1", "--connect") == 0
    events = [message["event"] for message in heard]
    names = [message["mark"]["name"] for message in heard if message["event"] == "mark"]
    first, last = [index for index, event in enumerate(events) if event == "mark"]
    assert names == ["now", "later"] and events[:first].count("media") < 10 <= events[:last].count("media")


@pytest.mark.parametrize(
    ("connect", "text"),
    [(False, '{"event":"mark","streamSid":"x"}'), (False, "hello"), (True, '{"event":"say"}'), (True, "hello")],
)
async def test_a_server_that_says_what_twilio_would_not_take_fails(tone, capsys, connect, text):
    async def speak(websocket):
        await websocket.recv()
        await websocket.send(text)
        async for _ in websocket:
            pass

    async with server_of(speak) as url:
        assert await mediaworker(url, "--play", tone, *(["--connect"] if connect else [])) == 1
    assert "error 31924" in capsys.readouterr().err


@pytest.mark.parametrize(("close", "exit_code"), [((1008, "no, thanks"), 1), ((1000, ""), 0), (None, 1)])
async def test_a_server_that_closes_early_is_told_by_the_exit_code(tone, capsys, close, exit_code):
    async def shut(websocket):
        await websocket.recv()
        if close is None:
            websocket.transport.abort()
        else:
            await websocket.close(*close)

    async with server_of(shut) as url:
        assert await mediaworker(url, "--play", tone, "--tail", "60") == exit_code
    if close and exit_code:
        assert capsys.readouterr().err == "mediaworker: the server closed the stream: 1008 no, thanks\n"


async def test_nobody_there_and_no_websocket_there(tone, free_port, capsys):
    assert await mediaworker(f"ws://127.0.0.1:{free_port}/", "--play", tone) == 1
    assert capsys.readouterr().err.count("\n") == 1

    async def greet(reader, writer):
        writer.write(b"SSH-2.0-OpenSSH_9.2\r\n")
        writer.close()

    async with await asyncio.start_server(greet, "127.0.0.1", free_port):
        assert await mediaworker(f"ws://127.0.0.1:{free_port}/", "--play", tone) == 1
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["ftp://h/", "--play", "TONE"], "expected ws://"),
        (["ws://", "--play", "TONE"], "no host"),
        (["ws://h/", "--play", "nothing.wav"], "No such file"),
        (["ws://h/", "--play", "TONE", "--param", "x"], "expected K=V"),
        (["ws://h/", "--play", "TONE", "--param", "=x"], "expected K=V"),
        (["ws://h/", "--play", "TONE", "--dtmf", "1"], "--connect"),
        (["ws://h/", "--play", "TONE", "--connect", "--dtmf", "x"], "digits are"),
        (["ws://h/", "--play", "TONE", "--tail", "-1"], "0 to 3600"),
        (["ws://h/", "--play", "TONE", "--tail", "nan"], "0 to 3600"),
        (["ws://h/", "--play", "TONE", "--connect", "--play-outbound", "TONE"], "inbound track only"),
    ],
)
def test_wrong_usage_is_told_in_one_line(tone, capsys, arguments, reason):
    assert main(["stream", *(tone if argument == "TONE" else argument for argument in arguments)]) == 2
    said = capsys.readouterr().err
    assert said.startswith("mediaworker: ") and said.count("\n") == 1
    assert reason in said


def test_pcm_survives_the_line(tone):
    """What a listener decodes is the file, within µ-law's step."""
    heard = ulaw_decode(bytes(ulaw_encode(load_pcm(tone, 8000)))).astype(int)
    assert np.max(np.abs(heard - TONE)) <= 256
