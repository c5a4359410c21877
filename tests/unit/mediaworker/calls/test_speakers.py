"""Who said it: a final keeps the role and name of who held the leg when it was spoken, in the transcript too."""

from __future__ import annotations

from asr.utterance import Hypothesis
from audio import Codec
from audio.codecs.g711 import ulaw_encode
from lab.calls.desks import Desk
from lab.media.speech import speech
from mediaworker.calls.call import Call
from mediaworker.calls.call_leg import LegSpec
from mediaworker.events import schema as events
from mediaworker.events.call_record import apply, closing
from mediaworker.events.frame import timestamp
from mediaworker.events.schema import CallRecord, Event, EventBody
from mediaworker.transcripts.call import segments

WORDS = ulaw_encode(speech("auth-thankyou"))


def opened(desk: Desk, name: str = "Ann", **options: object) -> Call:
    legs = [LegSpec("1", Codec.PCMU, role="customer", name="Bea"), LegSpec("2", Codec.PCMU, role="agent", name=name)]
    return desk.registry.open(source="siprec", legs=legs, **options)  # type: ignore[arg-type]


async def says(desk: Desk, call: Call, leg: str = "2", pause: bool = True) -> None:
    await desk.play(WORDS + b"\xff" * (8000 * pause), 0, call.legs[leg].receive_rtp)


def read(desk: Desk, names: dict[str, str] = {}) -> list[tuple[str, str, str]]:  # noqa: B006 - read only
    """(leg, role, speaker) of each line of the transcript, `names` given to the legs after the end."""
    found, frames = desk.stored()
    legs = [events.LegInfo(leg.leg, leg.role, leg.label, names.get(leg.leg, leg.name), leg.codec) for leg in found.legs]
    found = CallRecord(**{name: getattr(found, name) for name in found.__struct_fields__} | {"legs": legs})
    return [(each.leg, each.role, each.speaker) for each in segments(found, frames)]


def finals(desk: Desk) -> list[tuple[str, str, str]]:
    return [(body.leg, body.role, body.name) for body in desk.of(events.TranscriptFinal)]


async def test_who_has_handed_the_stream_over_keeps_what_was_said() -> None:
    desk = Desk()
    call = opened(desk)
    await says(desk, call)
    call.describe("2", role="customer", name="Cleo", another=True)
    await says(desk, call)
    call.end("hangup")
    assert finals(desk) == [("2", "agent", "Ann"), ("2", "customer", "Cleo")]
    assert read(desk) == [("2", "agent", "Ann"), ("2", "customer", "Cleo")]


async def test_nobody_finishes_the_sentence_of_another() -> None:
    """Who speaks while the stream is taken over says one utterance, and who comes another."""
    desk = Desk()
    call = opened(desk)
    await says(desk, call, pause=False)
    call.describe("2", role="agent", name="Cleo", another=True)
    (updated,) = desk.of(events.LegUpdated)
    await says(desk, call)
    call.end("hangup")
    first, second = desk.of(events.TranscriptFinal)
    assert (first.name, first.reason, second.name) == ("Ann", "flush", "Cleo")
    assert first.start_ms < first.end_ms <= updated.since_ms <= second.start_ms


async def test_a_final_that_comes_late_is_whose_it_was() -> None:
    desk = Desk()
    answers = []
    call = opened(desk)
    answer = desk.engine.final
    desk.engine.final = lambda *args, **more: answers.append((args, more))  # type: ignore[method-assign, assignment]
    await says(desk, call)
    call.describe("2", role="customer", name="Cleo", another=True)
    for args, more in answers:
        answer(*args, **more)
    assert finals(desk) == [("2", "agent", "Ann")]


async def test_a_correction_is_of_what_was_said_before_and_only_by_them() -> None:
    """A name that comes later, by metadata or from a user, is that of whoever has the stream."""
    desk = Desk()
    call = opened(desk, name="")
    await says(desk, call)
    call.describe("2", role="agent", name="Ann")
    await says(desk, call)
    call.describe("2", role="agent", name="Cleo", another=True)
    await says(desk, call)
    call.describe("2", role="agent", name="Cleo C.")
    call.rename("2", "Cleo Cole")
    call.end("hangup")
    assert [name for _, _, name in finals(desk)] == ["", "Ann", "Cleo"]
    assert [speaker for *_, speaker in read(desk)] == ["Ann", "Ann", "Cleo Cole"]
    assert [speaker for *_, speaker in read(desk, {"2": "C. Cole"})] == ["Ann", "Ann", "C. Cole"]


async def test_a_correction_is_in_the_final_of_what_is_being_said() -> None:
    desk = Desk()
    call = opened(desk, name="")
    await says(desk, call, pause=False)
    call.describe("2", role="customer", name="Dan")
    call.end("hangup")
    assert finals(desk) == [("2", "customer", "Dan")] and len(desk.of(events.SpeechStarted)) == 1


async def test_there_and_back_again() -> None:
    desk = Desk()
    call = opened(desk)
    for name in ("Cleo", "Ann", "", "Ann"):
        await says(desk, call)
        call.describe("2", role="agent", name=name, another=True)
    await says(desk, call)
    await says(desk, call, "1")
    call.end("hangup")
    assert [speaker for *_, speaker in read(desk)] == ["Ann", "Cleo", "Ann", "agent", "Ann", "Bea"]


async def test_a_stream_that_is_taken_over_before_anything_was_said_has_had_no_other() -> None:
    desk = Desk()
    call = opened(desk)
    call.describe("2", role="agent", name="Cleo", another=True)
    await says(desk, call)
    call.end("hangup")
    assert [body.since_ms for body in desk.of(events.LegUpdated)] == [0]
    assert read(desk) == [("2", "agent", "Cleo")]


async def test_what_is_set_stays_set_whoever_speaks() -> None:
    desk = Desk()
    call = opened(desk, overrides={"role.2": "agent", "name.2": "Desk 2"})
    await says(desk, call, pause=False)
    call.describe("2", role="customer", name="Cleo", another=True)
    call.end("hangup")
    assert not desk.of(events.LegUpdated) and finals(desk) == [("2", "agent", "Desk 2")]


async def test_later_news_of_a_leg_say_since_when_it_is_theirs() -> None:
    desk = Desk()
    call = opened(desk)
    await says(desk, call)
    call.describe("2", role="agent", name="Cleo", another=True)
    call.media_changed("2", Codec.PCMA, None, None)
    call.rename("2", "Cleo Cole")
    first, *others = (body.since_ms for body in desk.of(events.LegUpdated))
    assert first > 500 and others == [first, first]


def test_speech_that_a_dead_worker_left_open_is_whose_it_was() -> None:
    leg = events.LegInfo("2", "agent", "2", "Cleo", "PCMU")
    bodies: list[EventBody] = [
        events.CallStarted("siprec", "inbound", "", "", "x", [leg], {}), events.SpeechStarted("2", "u1", 100),
    ]  # fmt: skip
    found: CallRecord | None = None
    for seq, body in enumerate(bodies, 1):
        found = apply(found, Event("s:1", "c1", seq, 0, timestamp(0), body))
    assert found is not None
    partial = events.TranscriptPartial("2", "customer", "u1", 1, 100, 200, "yes", 3, "en", name="Bea")
    for said, whose in (({}, ("agent", "Cleo")), ({"u1": partial}, ("customer", "Bea"))):
        (final,) = (body for body in closing(found, [], partials=said) if isinstance(body, events.TranscriptFinal))
        assert (final.role, final.name) == whose


async def test_partials_say_who_speaks() -> None:
    desk = Desk()
    call = opened(desk)

    def partial(name: str, revision: int) -> None:
        desk.engine.utterances[name][1](Hypothesis(name, revision, "some", "en", 0, False))

    desk.engine.partial = partial  # type: ignore[method-assign]
    await says(desk, call)
    assert {(body.role, body.name) for body in desk.of(events.TranscriptPartial)} == {("agent", "Ann")}
