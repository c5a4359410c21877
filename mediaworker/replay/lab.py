"""Runs the worker's real media path on a simulated clock: latch, legs, VAD, endpointing, recognition and events, but no
sockets.

Time comes from the arrivals, so the result does not depend on the speed of the machine. At any speed except 1 the clock
stops while the engine computes a final, so the texts are the same at every speed. The number of partials depends on the
engine's speed.
"""

from __future__ import annotations

import asyncio
import heapq
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from operator import itemgetter

from asr.client.recognizer import Recognizer
from asr.utterance import Hypothesis, Utterance
from audio import Detector, Leg
from config import Settings
from config.settings import Media
from mediaworker.calls.call import Call
from mediaworker.calls.media_loop import TICK_S, MediaLoop, report
from mediaworker.calls.parts import TranscriberParts
from mediaworker.calls.registry import FINALS_S, CallRegistry
from mediaworker.events import schema as events
from mediaworker.events.frame import timestamp
from mediaworker.ingress.twilio.calls import TwilioCalls
from mediaworker.ingress.twilio.session import TwilioSession
from mediaworker.replay.rtp_call import Action, RtpCall
from mediaworker.replay.source import Messages, Packets
from sip.media.latching import SourceLatch

METRICS_EVERY_S = 5.0
ANSWER_S = 300.0
"""The longest wait for a final; an engine that is starting may load for minutes."""


class PatientRecognizer(Recognizer):
    """A recogniser that knows which finals are pending."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings, on_state=lambda state, why: None)
        self._awaited: set[str] = set()
        self.settled = asyncio.Event()
        """Set while no final is pending."""
        self.settled.set()

    def open(self, utterance: Utterance, on_hypothesis: Callable[[Hypothesis], None]) -> None:
        def receive(hypothesis: Hypothesis) -> None:
            try:
                on_hypothesis(hypothesis)
            finally:
                if hypothesis.final:
                    self._settle(utterance.id)

        super().open(utterance, receive)

    def partial(self, utterance_id: str, revision: int) -> None:
        super().partial(utterance_id, revision)
        self._settle(utterance_id)  # a newer request replaces the final

    def final(self, utterance_id: str, revision: int, *, commit: bool, wanted_in_ms: int = 0) -> None:
        self._awaited.add(utterance_id)
        self.settled.clear()
        super().final(utterance_id, revision, commit=commit, wanted_in_ms=wanted_in_ms)

    def withdraw(self, utterance_id: str) -> None:
        super().withdraw(utterance_id)
        self._settle(utterance_id)  # the speaker went on at once, so no final will come

    def cancel(self, utterance_id: str) -> None:
        super().cancel(utterance_id)
        self._settle(utterance_id)

    def _settle(self, utterance_id: str) -> None:
        self._awaited.discard(utterance_id)
        if not self._awaited:
            self.settled.set()


@dataclass(slots=True)
class LegResult:
    """The result of a leg: its texts, and the counters of its audio and its latch."""

    leg: str
    codec: str
    media: events.LegMedia | None = None
    position_s: float = 0.0
    duplicates: int = 0
    discarded: int = 0
    wrong_source: int = 0
    utterances: int = 0
    texts: list[str] = field(default_factory=list)

    @property
    def words(self) -> int:
        return sum(len(text.split()) for text in self.texts)


class Lab:
    """Replays one source. `on_event` is called with every published event in its envelope."""

    def __init__(self, settings: Settings, on_event: Callable[[events.Event], None], *, unix_s: float = 0.0) -> None:
        self.now = 0.0
        self.results: dict[tuple[str, str], LegResult] = {}
        self._on_event, self._unix_s = on_event, unix_s
        self._detector = Detector(jitter_s=settings.rtp.jitter_ms / 1000, stall_s=settings.media.silence_after_s)
        self._recognizer = PatientRecognizer(settings)
        self._calls = CallRegistry(
            settings,
            TranscriberParts(self._recognizer, lambda: self.now),
            detector=self._detector,
            publish=self._publish,
            calls_changed=self._calls_changed,
        )
        self._empty = asyncio.Event()
        self._seq: dict[str, int] = {}
        self._row = 0
        self._legs: list[tuple[LegResult, Leg, SourceLatch | None]] = []
        self._media = MediaLoop(self._calls)

    async def run(self, source: Packets | Messages, speed: float) -> list[LegResult]:
        """Replay the source and return the results of its legs. `speed`: a multiple of real time; 0: as fast as
        possible."""
        await self._recognizer.start()
        self._recognizer.keep_alive(True)
        try:
            actions = self._packets(source) if isinstance(source, Packets) else self._messages(source)
            await self._play(actions, speed)
            if len(self._calls):
                async with asyncio.timeout(FINALS_S):
                    await self._empty.wait()
        finally:
            await self._recognizer.stop()
        for result, leg, latch in self._legs:
            result.position_s = leg.position / 8000
            result.duplicates, result.discarded = leg.duplicates, leg.discarded
            result.wrong_source = latch.refused if latch is not None else 0
        return list(self.results.values())

    async def _play(self, actions: Iterator[tuple[float, Action]], speed: float) -> None:
        loop = asyncio.get_running_loop()
        started_s, tick, report_s = loop.time(), TICK_S, METRICS_EVERY_S
        held_s = 0.0
        for at_s, act in actions:
            while tick <= at_s:
                self.now = tick
                if speed and (wait_s := started_s + held_s + tick / speed - loop.time()) > 0:
                    await asyncio.sleep(wait_s)
                await self._media.tick(tick)
                if speed != 1 and not self._recognizer.settled.is_set():
                    before = loop.time()
                    async with asyncio.timeout(ANSWER_S):
                        await self._recognizer.settled.wait()
                    held_s += loop.time() - before
                if tick >= report_s:
                    report_s += METRICS_EVERY_S
                    for call in self._calls:
                        report(call)
                tick += TICK_S
            self.now = at_s
            act(at_s)

    # -- RTP ----------------------------------------------------------------------------------------------------------

    def _packets(self, source: Packets) -> Iterator[tuple[float, Action]]:
        by_call: dict[str, list[int]] = {}
        for index, stream in enumerate(source.streams):
            by_call.setdefault(stream.call, []).append(index)
        calls = [RtpCall(name, members, source, self._calls.open, self._keep) for name, members in by_call.items()]
        return heapq.merge(*(call.actions() for call in calls), key=itemgetter(0))

    # -- recorded streams ---------------------------------------------------------------------------------------------

    def _messages(self, source: Messages) -> Iterator[tuple[float, Action]]:
        session = TwilioSession(
            Settings(media=Media(start_timeout_s=math.inf)),
            TwilioCalls(self._calls),
            0.0,
            check_token=lambda token, call, stream: True,
        )

        def receive(text: str, now: float) -> None:
            before = session.call
            session.receive(text, now)
            call = session.call
            if before is None and isinstance(call, Call):
                for leg in call.members:
                    self._keep(call, leg)

        begin_s = source.arrivals[0].at_s
        for arrival in source.arrivals:
            yield arrival.at_s - begin_s, partial(receive, arrival.what.text)
        # One more tick processes the last arrival. A stream without a stop message ends as if its connection were lost.
        yield source.arrivals[-1].at_s - begin_s + TICK_S, session.connection_lost

    # -- results ------------------------------------------------------------------------------------------------------

    def _calls_changed(self, count: int) -> None:
        (self._empty.clear if count else self._empty.set)()

    def _keep(self, call: Call, leg: str, latch: SourceLatch | None = None) -> None:
        member = call.members[leg]
        result = LegResult(leg, member.audio.codec.rtp_name)
        self.results[call.id, leg] = result
        self._legs.append((result, member.audio, latch))

    def _publish(self, call_id: str, at_ms: int, body: events.EventBody) -> None:
        durable = events.is_durable(body)
        self._row += durable
        seq = self._seq[call_id] = self._seq.get(call_id, 0) + durable
        time = timestamp(self._unix_s + self.now)
        if isinstance(body, events.TranscriptFinal) and (found := self.results.get((call_id, body.leg))):
            found.utterances += 1
            found.texts += [body.text] if body.text else []
        elif isinstance(body, events.CallEnded):
            for media in body.legs:
                if found := self.results.get((call_id, media.leg)):
                    found.media = media
        self._on_event(events.Event(f"replay:{self._row}", call_id, seq, at_ms, time, body))
