"""A call between its ingress and its events: media descriptions, holds, ends, and the tick that serves all calls."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from audio import Codec, Shard
from audio.codecs.g711 import alaw_encode, ulaw_encode
from audio.rtp.packet import RtpPacket, TelephoneEvent
from lab.calls.desks import Desk, Hashed, SipDesk, sip_call
from lab.media.speech import speech
from lab.patience import timeout
from mediaworker.calls.call import CONFIRMED_S
from mediaworker.calls.call_leg import LegSpec
from mediaworker.calls.media_loop import TICK_S
from mediaworker.events import schema as events
from mediaworker.events.call_record import apply
from mediaworker.events.frame import encode
from mediaworker.ingress.audio_intake import AudioForm, AudioIntake
from mediaworker.ingress.sip.calls import SipIngress


async def test_a_dynamic_payload_type_is_the_codec_it_was_mapped_to() -> None:
    desk = SipDesk(sip_call(payload_type=97))
    await desk.hear(ulaw_encode(speech("auth-thankyou")), 97)
    desk.ingress.on_end(desk.sip, "hangup")
    (ended,) = desk.of(events.CallEnded)
    assert ended.legs[0].packets and desk.of(events.TranscriptFinal)


async def test_the_account_that_a_call_comes_by_is_in_its_first_event_and_its_record() -> None:
    sip = sip_call()
    sip.account = "sales"
    (started,) = SipDesk(sip).of(events.CallStarted)
    assert started.account == "sales"
    record = apply(None, events.Event("s:1", "c", 1, 0, "", started))
    assert record.account == "sales"
    assert "account" not in json.loads(encode(events.Event("s:1", "c", 1, 0, "", SipDesk(sip_call()).published[0])))


async def test_a_reinvite_may_move_digits_to_another_payload_type() -> None:
    desk = SipDesk(sip_call())
    await desk.hear(b"\xff" * 1600, 0)
    desk.sip.streams[0].telephone_event = 96
    desk.ingress.on_media(desk.sip)
    press = bytes(TelephoneEvent(event=5, end=True, volume=10, duration=800))
    desk.sip.streams[0].socket.leg.receive_rtp(bytes(RtpPacket(96, 11, 1760, 1, press)), desk.now)
    await desk.media.tick(desk.now)
    assert [body.digit for body in desk.of(events.Dtmf)] == ["5"]
    assert not desk.of(events.LegUpdated), "nothing that a user sees has changed"


async def test_a_reinvite_may_move_the_audio_to_another_socket() -> None:
    desk = SipDesk(sip_call())
    desk.sip.streams[:] = sip_call().streams
    desk.ingress.on_media(desk.sip)
    await desk.hear(ulaw_encode(speech("auth-thankyou")), 0)
    assert desk.of(events.SpeechStarted)


async def test_a_codec_change_in_mid_speech_ends_one_utterance_and_begins_another() -> None:
    desk, words = SipDesk(sip_call()), speech("demo-congrats")[: 8 * 8000]
    await desk.hear(ulaw_encode(words[: 3 * 8000]), 0)
    desk.sip.streams[0].codec, desk.sip.streams[0].payload_type = Codec.PCMA, 8
    desk.ingress.on_media(desk.sip)
    await desk.hear(alaw_encode(words[3 * 8000 :]), 8)
    desk.ingress.on_end(desk.sip, "hangup")
    first, *_, last = desk.of(events.TranscriptFinal)
    assert first.reason == "flush" and first.text.endswith("PCMU") and last.text.endswith("PCMA")
    assert last.start_ms >= first.end_ms
    assert [body.codec for body in desk.of(events.LegUpdated)] == ["PCMA"]
    assert isinstance(desk.published[-1], events.CallEnded) and not len(desk.registry) and not desk.detector.legs


async def test_a_call_whose_peer_never_sends_anything() -> None:
    desk = SipDesk(sip_call())
    for _ in range(100):
        desk.now += TICK_S
        await desk.media.tick(desk.now)
    desk.ingress.on_end(desk.sip, "media_timeout")
    (ended,) = desk.of(events.CallEnded)
    assert (ended.reason, ended.duration_ms, ended.legs[0].packets) == ("media_timeout", 3200, 0)
    assert desk.of(events.Metrics)[-1].silence_ms == 3200


async def test_a_call_that_begins_on_hold() -> None:
    sip = sip_call()
    sip.held = True
    desk = SipDesk(sip)
    desk.now += 2.0
    desk.sip.held = False
    desk.ingress.on_media(desk.sip)
    desk.now += 1.0
    desk.ingress.on_end(desk.sip, "hangup")
    kinds = [type(body) for body in desk.published]
    assert kinds == [events.CallStarted, events.CallHeld, events.CallResumed, events.Metrics, events.CallEnded]
    assert (desk.of(events.Metrics)[0].hold_ms, desk.of(events.Metrics)[0].silence_ms) == (2000, 1000)


@pytest.mark.parametrize(("draining", "status"), [(False, 486), (True, 503)])
async def test_a_worker_that_filled_up_since_the_invite_says_so(draining: bool, status: int) -> None:
    desk, said = Desk(max_calls=1), []
    desk.registry.open(source="sip", legs=[LegSpec("main", Codec.PCMU)])
    desk.registry.draining = draining
    sip = Hashed(sip_call())
    sip.hangup = said.append
    SipIngress(desk.registry).on_call(sip)
    assert said == [status] and len(desk.registry) == 1


async def test_hour_long_calls_cost_no_more_to_report_than_new_ones() -> None:
    desk = Desk()
    call = desk.registry.open(source="sip", legs=[LegSpec("main", Codec.PCMU), LegSpec("other", Codec.PCMU)])
    segments = [member.transcriber.segments for member in call.members.values()]
    for second in range(0, 3600, 4):
        segments[second % 8 // 4].append((second * 1000, second * 1000 + 3000))
        desk.now = 100.0 + second + 4
        call.publish_metrics()
        assert max(map(len, segments)) < 20
    assert desk.of(events.Metrics)[-1].talk_ms == {"main": 450 * 3000, "other": 450 * 3000}
    assert desk.of(events.Metrics)[-1].silence_ms == 900 * 1000


async def test_a_failed_tick_is_not_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    desk, steps = Desk(), 0
    step = desk.detector.step

    def faulty(now: float, turn: Shard) -> Any:
        nonlocal steps
        steps += 1
        if steps == 2:
            raise RuntimeError("a bug")
        return step(now, turn)

    monkeypatch.setattr(desk.detector, "step", faulty)
    desk.registry.open(source="sip", legs=[LegSpec("main", Codec.PCMU)])
    desk.media.start()
    async with timeout(10):
        while steps < 4:  # noqa: ASYNC110 - the loop under test has a clock of its own
            await asyncio.sleep(TICK_S)
    await desk.media.stop()
    assert desk.media.errors == 1 and desk.media.ticks >= 3


async def test_reports_are_spread_over_the_period() -> None:
    desk = Desk()
    for _ in range(100):
        desk.registry.open(source="sip", legs=[LegSpec("main", Codec.PCMU)])
    counts = []
    for tick in range(1, 2 * 157):
        before = len(desk.of(events.Metrics))
        desk.media._report(tick * TICK_S)
        counts.append(len(desk.of(events.Metrics)) - before)
    assert sum(counts) == 200 and max(counts) <= 2


async def test_without_calls_there_are_no_ticks() -> None:
    desk = Desk()
    desk.media.start()
    try:
        await asyncio.sleep(3 * TICK_S)  # time in which it would have ticked
        assert desk.media.ticks == 0
        call = desk.registry.open(source="sip", legs=[LegSpec("main", Codec.PCMU)])
        async with timeout(5):
            while desk.media.ticks < 3:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        call.end("hangup")
        ticks = -1
        async with timeout(5):
            while desk.media.ticks != ticks:  # until it has stopped ticking
                ticks = desk.media.ticks
                await asyncio.sleep(5 * TICK_S)
        desk.registry.open(source="sip", legs=[LegSpec("main", Codec.PCMU)]).end("hangup")
        async with timeout(5):
            while desk.media.ticks == ticks:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    finally:
        await desk.media.stop()


# -- who speaks, and who is held --------------------------------------------------------------------------------------


async def test_what_a_user_or_a_route_says_stays() -> None:
    desk = Desk()
    call = desk.registry.open(
        source="siprec",
        legs=[LegSpec("1", Codec.PCMU, role="customer", name="Bea"), LegSpec("2", Codec.PCMU, role="customer")],
        overrides={"role.2": "agent"},
    )
    call.rename("1", "Beatrice")
    for leg in ("1", "2"):
        call.describe(leg, role="unknown", name="from the metadata")
        call.describe(leg, role="unknown", name="from the metadata")
    told = [(body.leg, body.role, body.name) for body in desk.of(events.LegUpdated)]
    assert told == [("1", "customer", "Beatrice"), ("1", "unknown", "Beatrice"), ("2", "agent", "from the metadata")]
    await desk.play(ulaw_encode(speech("auth-thankyou")), 0, call.members["1"].audio.receive_rtp)
    call.end("hangup")
    assert {body.role for body in desk.of(events.TranscriptFinal)} == {"unknown"}


async def test_hold_is_when_nobody_can_be_heard() -> None:
    desk = Desk()
    call = desk.registry.open(source="siprec", legs=[LegSpec("1", Codec.PCMU), LegSpec("2", Codec.PCMU)])
    held, resumed = call.held, call.resumed
    for what, leg in ((held, "1"), (held, "1"), (held, "2"), (resumed, "1"), (resumed, "1"), (held, None)):
        what(leg)
        desk.now += 1.0
    call.add_leg(LegSpec("3", Codec.PCMU))  # and is heard
    desk.now += 5.0
    call.end("hangup")
    kinds = events.CallHeld | events.CallResumed
    said = [(type(body).__name__, body.leg) for body in desk.published if isinstance(body, kinds)]
    assert said == [("CallHeld", "1"), ("CallHeld", "2"), ("CallResumed", "1"), ("CallHeld", None)]
    assert desk.of(events.Metrics)[-1].hold_ms == 2000
    assert [leg.leg for leg in desk.of(events.CallEnded)[0].legs] == ["1", "2", "3"]


async def test_a_leg_may_join_and_be_renamed_and_digits_may_come_beside_the_media() -> None:
    desk = Desk()
    call = desk.registry.open(source="asterisk-ws", legs=[LegSpec("a", Codec.PCMU)])
    desk.now += 1.5
    leg = call.add_leg(LegSpec("b", Codec.PCMA))
    assert call.legs["b"] is leg and desk.detector.legs == 2
    call.dtmf("b", "5", 80)
    call.rename("b", "Dora")
    with pytest.raises(KeyError):
        call.rename("c", "Nobody")
    assert [(body.leg, body.name, body.codec) for body in desk.of(events.LegUpdated)] == [
        ("b", "", "PCMA"), ("b", "Dora", "PCMA"),
    ]  # fmt: skip
    assert desk.of(events.Dtmf) == [events.Dtmf("b", "5", 80)]
    assert call.elapsed_ms() == 1500 and call.leg_ms(leg, 16_000) == 2000


async def test_a_listener_that_fails_does_not_end_the_call() -> None:
    desk = Desk()
    call = desk.registry.open(source="sip", legs=[LegSpec("main", Codec.PCMU)])
    heard: list[tuple[int, events.EventBody]] = []

    def listen(at_ms: int, body: events.EventBody) -> None:
        heard.append((at_ms, body))
        raise RuntimeError("a listener's fault")

    call.on_event = listen
    desk.now += 0.25
    call.dtmf("main", "1")
    call.dtmf("main", "2")
    assert [at_ms for at_ms, _ in heard] == [250, 250] and len(desk.of(events.Dtmf)) == 2


async def test_a_hangup_ends_the_call_at_the_peer_and_here_once() -> None:
    desk, said = Desk(), []
    call = desk.registry.open(source="sip", legs=[LegSpec("main", Codec.PCMU)])
    call.on_hangup = lambda: said.append(call.ending)
    call.hangup()
    call.end("later")
    call.held()
    call.resumed()
    call.left("main")
    call.flush("main")
    assert said == [False] and [body.reason for body in desk.of(events.CallEnded)] == ["api"]
    assert not desk.of(events.CallHeld) and not desk.of(events.CallResumed) and not len(desk.registry)


async def test_a_stream_that_is_taken_out_is_on_hold_until_it_is_back() -> None:
    desk = Desk()
    call = desk.registry.open(source="siprec", legs=[LegSpec("1", Codec.PCMU), LegSpec("2", Codec.PCMU)])
    desk.now += 1.0
    call.left("2")
    call.left("2")
    desk.now += 1.0
    call.left("1")
    desk.now += 2.0
    call.resumed("2")
    desk.now += 1.0
    call.end("hangup")
    holds = [(type(body), body.leg, getattr(body, "left", None)) for body in desk.published if hasattr(body, "leg")]
    assert holds == [
        (events.CallHeld, "2", True), (events.CallHeld, "1", True), (events.CallResumed, "2", None),
    ]  # fmt: skip
    assert desk.of(events.Metrics)[-1].hold_ms == 2000, "while all legs are"


async def test_a_changed_endpointing_ends_the_open_utterance() -> None:
    desk = Desk()
    call = desk.registry.open(source="websocket", legs=[LegSpec("main", Codec.PCMU)])
    await desk.play(ulaw_encode(speech("auth-thankyou")), 0, call.legs["main"].receive_rtp)
    call.set_language("de")
    assert call.members["main"].transcriber.language == "de"
    call.retune({"context": "names"}, lambda endpointing: endpointing)
    assert not desk.of(events.TranscriptFinal) and call.members["main"].transcriber.context == "names"
    call.retune({}, lambda endpointing: msgspec.structs.replace(endpointing, min_silence_ms=2000))
    assert [body.reason for body in desk.of(events.TranscriptFinal)] == ["flush"]
    assert call.members["main"].transcriber.endpointing.min_silence_ms == 2000
    call.end("hangup")
    call.retune({"language": "fr"}, lambda endpointing: endpointing)
    assert call.members["main"].transcriber.language == ""


async def test_alerts_are_raised_by_events_and_by_the_clock_and_without_rules_by_nothing() -> None:
    desk = Desk()
    call = desk.registry.open(source="sip", legs=[LegSpec("main", Codec.PCMU)])
    call._alerts = None
    call.check_alerts()
    raised = events.Alert("dead-air", "main", "", "", 0, 500, "info")
    asked: list[tuple[str, int]] = []

    def on_event(at_ms: int, body: events.EventBody) -> list[events.Alert]:
        asked.append((type(body).__name__, at_ms))
        return [raised]

    def check(now_ms: int) -> list[events.Alert]:
        asked.append(("check", now_ms))
        return [raised, raised]

    call._alerts = SimpleNamespace(on_event=on_event, check=check)  # type: ignore[assignment]
    desk.now += 1.25
    call.dtmf("main", "1")
    desk.now += 0.25
    call.check_alerts()
    assert asked == [("Dtmf", 1250), ("check", 1500)] and desk.of(events.Alert) == [raised] * 3


class Speaker:
    """Plays for as long as the test says, and confirms it when told."""

    def __init__(self, left_s: float) -> None:
        self.left_s, self.playing, self.clears = left_s, left_s > 0, 0
        self.on_silent: Any = None

    def play(self, codes: bytes, mark: str = "") -> bool:
        return True

    def clear(self) -> None: ...

    def confirm(self) -> None:
        self.left_s, self.playing = 0.0, False
        self.on_silent()


def playing(left_s: float) -> tuple[SipDesk, Speaker, list[tuple[float, Any]]]:
    """A call to which something is played, and what it has put off."""
    desk, put_off = SipDesk(sip_call()), []
    desk.call._later = lambda delay_s, run: put_off.append((delay_s, run))
    desk.call.player = speaker = Speaker(left_s)
    return desk, speaker, put_off


async def test_a_hangup_waits_for_what_is_queued() -> None:
    desk, speaker, put_off = playing(5.5)
    desk.call.hangup_after_playback()
    assert not desk.call.ending and [delay_s for delay_s, _ in put_off] == [5.5 + CONFIRMED_S]
    speaker.confirm()
    assert [body.reason for body in desk.of(events.CallEnded)] == ["api"]
    for _, run in put_off:
        run()
    assert len(desk.of(events.CallEnded)) == 1


async def test_a_hangup_does_not_wait_for_a_peer_that_confirms_nothing() -> None:
    desk, speaker, put_off = playing(2.0)
    desk.call.hangup_after_playback()
    speaker.left_s = 3.0  # more has been queued meanwhile
    put_off.pop()[1]()
    assert not desk.call.ending and put_off[0][0] == 3.0 + CONFIRMED_S
    speaker.left_s = 0.0
    put_off.pop()[1]()
    assert desk.call.ending


@pytest.mark.parametrize("left_s", [0.0, None])
async def test_a_hangup_where_nothing_is_played_is_at_once(left_s: float | None) -> None:
    desk, _, put_off = playing(left_s or 0.0)
    if left_s is None:
        desk.call.player = None
    desk.call.hangup_after_playback()
    assert desk.call.ending and not put_off


async def test_a_second_hangup_does_not_wait() -> None:
    desk, _, put_off = playing(60.0)
    desk.call.hangup_after_playback()
    desk.call.hangup()
    assert desk.call.ending
    put_off.pop()[1]()
    assert len(desk.of(events.CallEnded)) == 1


# -- another format than was agreed -----------------------------------------------------------------------------------

SAID = speech("demo-congrats")
WRONG = {"A-law": alaw_encode(SAID), "16-bit PCM": SAID.tobytes(), "WAV": b"\xff" * 800 + b"RIFF" + ulaw_encode(SAID)}


async def suspicions(desk: Desk, codes: bytes, take: Any) -> list[events.AudioSuspect]:
    for at in range(0, len(codes), 5 * 8000):
        await desk.play(codes[at : at + 5 * 8000], 0, take)
        desk.media._report(desk.now)
    return desk.of(events.AudioSuspect)


@pytest.mark.parametrize("looks", WRONG)
@pytest.mark.parametrize("source", ["sip", "twilio"])
async def test_g711_that_is_something_else_is_told_once_a_leg(source: str, looks: str) -> None:
    desk, codes = Desk(), WRONG[looks] * 2
    transport: Any = "rtp" if source == "sip" else "stream"
    legs = [LegSpec("in", Codec.PCMU, transport=transport), LegSpec("out", Codec.PCMU, transport=transport)]
    leg = desk.registry.open(source=source, legs=legs).legs["in"]
    take = leg.receive_rtp if source == "sip" else lambda packet, now: leg.receive_chunk(None, packet[12:], now)
    (found,) = await suspicions(desk, codes, take)
    assert (found.leg, found.why) == ("in", "format") and looks in found.detail


async def test_g711_as_agreed_is_not_suspected_after_a_change_of_codec_either() -> None:
    desk = SipDesk(sip_call())
    leg = desk.sip.streams[0].socket.leg
    assert await suspicions(desk, ulaw_encode(SAID), leg.receive_rtp) == []
    desk.sip.streams[0].codec, desk.sip.streams[0].payload_type = Codec.PCMA, 8
    desk.ingress.on_media(desk.sip)
    for at in range(0, len(SAID), 5 * 8000):
        await desk.hear(alaw_encode(SAID[at : at + 5 * 8000]), 8)
        desk.media._report(desk.now)
    assert desk.of(events.AudioSuspect) == []


async def test_other_codecs_and_legs_that_are_judged_where_they_come_in_are_not_looked_at() -> None:
    desk = Desk()
    legs = [LegSpec("wide", Codec.L16, transport="stream"), LegSpec("mulaw", Codec.PCMU, transport="stream")]
    call = desk.registry.open(source="websocket", legs=legs)
    AudioIntake(call, ("mulaw",), AudioForm("mulaw", 8000))
    leg = call.legs["mulaw"]
    assert await suspicions(desk, WRONG["A-law"], lambda packet, now: leg.receive_chunk(None, packet[12:], now)) == []
