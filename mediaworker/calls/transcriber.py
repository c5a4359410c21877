"""One leg's speech becomes text: detections in, recognition requests and transcript events out.

Every `speech.started` is followed by exactly one `transcript.final`, and finals keep the order of speech. Revisions of
an utterance increase and end with the final; a hypothesis for superseded audio is dropped by its revision.

An exception in this code costs the leg one utterance, which ends in a final with an error. It reaches neither the media
tick, which serves all other calls, nor the end of this call.

The engine receives an utterance up to `end + speculate_ms` and no further, so that a speculative final, the real one
and one replayed after a crash decode the same samples.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import structlog

from asr.text import takes_back
from asr.utterance import Format, Hypothesis, Languages, Utterance
from audio import WINDOW, Codec, Detection, Digit, Leg, SpeechOffset, SpeechOnset, SpeechPaused, SpeechResumed
from mediaworker.calls.crosstalk import Comparison, Crosstalk
from mediaworker.calls.live_utterance import FIRST_PARTIAL_MS, POSITIONS_PER_MS, LiveUtterance
from mediaworker.calls.parts import LegPlan, TranscriberParts
from mediaworker.calls.word_timestamps import FinalText, LegWordTimestamps
from mediaworker.events import schema as events

log = structlog.get_logger()

APPEND_MS = 200
"""The length of the pieces of audio sent to the engine: long enough to be cheap, and short enough that little remains
to be decoded when the speaker stops."""


class LegTranscriber:
    """The recognition side of one leg.

    Args:
        publish: takes (at_ms, event body).
        call_ms: turns a leg position into milliseconds of call time.
        drained: called whenever the last open utterance has got its final.
        words: requests the timestamps of the finals' words; None if they are not requested.
        crosstalk: finds utterances that are another leg's sound; None if all are transcribed.
    """

    def __init__(
        self,
        leg: Leg,
        plan: LegPlan,
        parts: TranscriberParts,
        *,
        publish: Callable[[int, events.EventBody], None],
        call_ms: Callable[[int], int],
        drained: Callable[[], None],
        words: LegWordTimestamps | None = None,
        crosstalk: Crosstalk | None = None,
    ) -> None:
        self.name, self.speaker, self.leg = plan.name, plan.speaker, leg
        self.language, self.context = plan.language, plan.context
        self.segments: list[tuple[int, int]] = []
        """Finished speech in call milliseconds; the call removes the segments that it has added to its totals."""
        self._prefix, self._count = plan.prefix, 0
        self._partial_ms = plan.partial_ms
        self.endpointing = plan.endpointing
        """The leg's endpointing profile."""
        self._recognizer, self._clock, self._guard = parts.recognizer, parts.clock, parts.guard
        self._stats, self._latency, self._traces = parts.stats, parts.latency, parts.traces
        self._publish, self._call_ms, self._drained = publish, call_ms, drained
        self.words, self._crosstalk = words, crosstalk
        self._open: dict[str, LiveUtterance] = {}
        self._current: LiveUtterance | None = None
        self._given_up = False
        """The detector's current utterance already has a failed final, so its further detections are ignored."""
        self._previous = ""
        """The text of the latest final. Engines tend to repeat it in silence, so it goes with the next request."""
        self._heard: Languages = ()
        """What the latest final has shown of the language. It goes with the next request, as an inference process that
        takes over after a crash has heard nothing of the leg."""

    @property
    def open_utterances(self) -> int:
        return len(self._open)

    @property
    def speaking_since_ms(self) -> int | None:
        return self._current.start_ms if self._current and not self._current.copy_of else None

    def talked_ms(self, start_ms: int, end_ms: int) -> int:
        """The duration of speech in this part of the call, without crosstalk."""
        spans = self.segments if self.speaking_since_ms is None else [*self.segments, (self.speaking_since_ms, end_ms)]
        return sum(max(0, min(end, end_ms) - max(start, start_ms)) for start, end in spans)

    @property
    def hears_another(self) -> bool:
        """Whether the open utterance counts as crosstalk so far."""
        return self._current is not None and bool(self._current.copy_of)

    def release(self) -> None:
        """Let the recognizer reuse the leg's place, because the call has ended."""
        self._recognizer.release(self._prefix)

    # -- from the detector ------------------------------------------------------------------------------------------

    def on_detection(self, detection: Detection) -> None:
        if self._given_up and isinstance(detection, SpeechPaused | SpeechResumed | SpeechOffset):
            return
        utterance = self._current
        try:
            match detection:
                case SpeechOnset():
                    self._started(detection)
                case SpeechPaused():
                    self._paused(detection)
                case SpeechResumed():
                    self._resumed()
                case SpeechOffset():
                    self._ended(detection)
                case Digit():
                    at_ms = self._call_ms(detection.position)
                    self._publish(at_ms, events.Dtmf(self.name, detection.digit, detection.duration_ms))
        except Exception:
            self._give_up(utterance or self._current)

    def feed(self) -> int:
        """Send new audio to the engine, if there is enough. Returns 0 while nobody speaks.

        Otherwise returns the number of detector steps at real-time speed after which there is more to send: the owner
        calls again that many steps later or earlier, and at once after a detection.
        """
        utterance = self._current
        if utterance is None:
            return 0
        try:
            if utterance.paused is None:
                self._send_audio(utterance)
            if utterance.held is not None and (hypothesis := utterance.release(self.leg.position)) is not None:
                self._publish_partial(utterance, hypothesis)
        except Exception:
            self._give_up(utterance)
            return 1
        if utterance.paused is not None or utterance.held is not None:
            return 1
        due = min(utterance.next_partial, utterance.sent + APPEND_MS * POSITIONS_PER_MS)
        return max(1, -(-(due - self.leg.position) // WINDOW))

    def _send_audio(self, utterance: LiveUtterance) -> None:
        position = min(self.leg.position, utterance.cut_from)
        if position <= utterance.sent:
            return  # until it is known whether the utterance is cut
        if position >= utterance.next_partial:
            self._append(utterance, position)
            utterance.schedule_partial(position, self._partial_ms)
            if self._guard.takes_partial() and not self._is_copy(utterance, position):
                utterance.revision += 1
                self._recognizer.partial(utterance.engine_id, utterance.revision)
        elif position - utterance.sent >= APPEND_MS * POSITIONS_PER_MS:
            self._append(utterance, position)

    def _started(self, detection: SpeechOnset) -> None:
        assert self._current is None, "an utterance starts before the previous one has ended"
        self._given_up = False
        self._count += 1
        name = f"{self._prefix}{self._count}"
        utterance = LiveUtterance(
            id=name,
            engine_id=name,
            start=detection.start,
            audio_start=detection.audio_start,
            start_ms=self._call_ms(detection.start),
            sent=detection.audio_start,
            next_partial=detection.start + FIRST_PARTIAL_MS * POSITIONS_PER_MS,
            cut_from=detection.cut_from,
            language=self.language,
            speaker=self.speaker,
        )
        if self._crosstalk is not None:
            utterance.crosstalk = Comparison(detection.start)
        if self._traces is not None:
            utterance.traceparent = self._traces.utterance(name)
        self._stats.utterances += 1
        self._current = self._open[name] = utterance
        at_ms = self._call_ms(self.leg.position)
        self._publish(at_ms, events.SpeechStarted(self.name, name, utterance.start_ms))
        self._engine_open(utterance)

    def _paused(self, detection: SpeechPaused) -> None:
        utterance = self._expect_current()
        self._append(utterance, detection.end + self.endpointing.speculate_ms * POSITIONS_PER_MS)
        if self._is_copy(utterance, detection.end):
            utterance.next_partial = sys.maxsize  # silence belongs to no leg: comparison resumes with the speech
            return
        utterance.revision += 1
        utterance.paused = detection.end
        utterance.guess = None
        utterance.asked_s = self._clock()
        left_ms = max(0, self.endpointing.min_silence_ms - self.endpointing.speculate_ms)
        self._recognizer.final(utterance.engine_id, utterance.revision, commit=False, wanted_in_ms=left_ms)

    def _resumed(self) -> None:
        utterance = self._expect_current()
        if utterance.guess is None:
            self._recognizer.withdraw(utterance.engine_id)
        utterance.paused = utterance.guess = None
        utterance.revision += 1  # drops a response that is still on its way
        # The speculative final has most likely shown the words before the pause.
        utterance.next_partial = self.leg.position + FIRST_PARTIAL_MS * POSITIONS_PER_MS
        self._stats.resumed += 1

    def _ended(self, detection: SpeechOffset) -> None:
        utterance = self._expect_current()
        if self._is_copy(utterance, detection.end, last=True):
            self._withhold(utterance, detection)
            return
        self._close(utterance, detection)
        if utterance.paused == detection.end and utterance.sent == detection.audio_end:
            if utterance.guess is not None:
                self._stats.speculative_hits += 1
                self._finish(utterance, utterance.guess)
            return  # otherwise the speculative final is on its way and becomes the final
        utterance.revision += 1
        if detection.audio_end < utterance.sent:
            self._start_over(utterance, detection.audio_end)
        else:
            self._append(utterance, detection.audio_end)
        utterance.asked_s = self._clock()
        self._recognizer.final(utterance.engine_id, utterance.revision, commit=True)

    def _is_copy(self, utterance: LiveUtterance, end: int, *, last: bool = False) -> bool:
        """Whether the utterance counts as another leg's sound so far."""
        if self._crosstalk is None or utterance.crosstalk is None:
            return False
        return self._crosstalk.compare(self.name, utterance.start, end, utterance.crosstalk, last=last)

    def _withhold(self, utterance: LiveUtterance, detection: SpeechOffset) -> None:
        """Publish an empty final for crosstalk: the other leg has the words."""
        self._recognizer.cancel(utterance.engine_id)
        utterance.words, utterance.asked_s = False, self._clock()
        self._close(utterance, detection)
        self._stats.crosstalk_finals += 1
        self._finish(utterance, Hypothesis(utterance.engine_id, utterance.revision, "", "", 0, True))

    def _close(self, utterance: LiveUtterance, detection: SpeechOffset) -> None:
        """Record and publish the end of speech; the final follows later."""
        self._current = None
        utterance.ended = detection
        utterance.end_ms = self._call_ms(detection.end)
        origin_s, rate_hz = self.leg.origin_s or 0.0, 1000 * POSITIONS_PER_MS
        utterance.end_s = origin_s + detection.end / rate_hz
        if detection.reason == "endpoint":
            utterance.endpoint = self._latency.endpoint(
                speech_end_s=utterance.end_s,
                window_end_s=origin_s + self.leg.position / rate_hz,
                now_s=self._clock(),
            )
        lost = self.leg.lost(utterance.audio_start, detection.audio_end) + self.leg.overdue()
        utterance.lost_ms = lost // POSITIONS_PER_MS
        if not utterance.copy_of:
            self.segments.append((utterance.start_ms, utterance.end_ms))
        at_ms = self._call_ms(self.leg.position)
        self._publish(at_ms, events.SpeechEnded(self.name, utterance.id, utterance.end_ms, utterance.copy_of))

    def _give_up(self, utterance: LiveUtterance | None) -> None:
        """Called in an exception handler: publish a failed final, unless the utterance has one."""
        call_id = self._prefix.partition("/")[0]
        about = utterance.id if utterance else None
        log.exception("an utterance failed", call_id=call_id, leg=self.name, utterance_id=about)
        if utterance is None or utterance.last is not None:
            return
        if utterance.ended is None:
            self._given_up = True
            position = self.leg.position
            self._close(utterance, SpeechOffset(self.leg, utterance.start, position, position, "flush"))
        self._finish(
            utterance, Hypothesis(utterance.engine_id, utterance.revision, "", "", 0, True, "an error in the worker")
        )

    def _start_over(self, utterance: LiveUtterance, end: int) -> None:
        """Send the utterance to the engine again, under a new id, up to `end`.

        The utterance has been cut for its length within a pause, and the engine has already received audio of that
        pause which belongs to the next utterance.
        """
        self._recognizer.cancel(utterance.engine_id)
        utterance.engine_id = f"{utterance.id}/cut"
        self._engine_open(utterance)
        utterance.sent = utterance.audio_start
        self._append(utterance, end)

    def _engine_open(self, utterance: LiveUtterance) -> None:
        codec = self.leg.codec
        form: Format = "L16" if codec.wide else "PCMA" if codec is Codec.PCMA else "PCMU"
        request = Utterance(
            id=utterance.engine_id,
            format=form,
            language=self.language,
            context=self.context,
            live=True,
            previous=self._previous,
            heard=self._heard,
            stream=self._prefix,
            words=self.words is not None and self.words.wanted,
            traceparent=utterance.traceparent,
        )
        utterance.words = request.words
        self._recognizer.open(request, lambda hypothesis: self._on_hypothesis(utterance, hypothesis))

    def _append(self, utterance: LiveUtterance, end: int) -> None:
        if end > utterance.sent:
            self._recognizer.append(utterance.engine_id, self.leg.read(utterance.sent, end))
            utterance.sent = end

    def _expect_current(self) -> LiveUtterance:
        assert self._current is not None, "a detection without an open utterance"
        return self._current

    # -- from the engine --------------------------------------------------------------------------------------------

    def _on_hypothesis(self, utterance: LiveUtterance, hypothesis: Hypothesis) -> None:
        if utterance.last is not None or hypothesis.utterance_id != utterance.engine_id:
            return
        if hypothesis.final and hypothesis.revision == utterance.revision:
            utterance.engine_s = self._clock() - utterance.asked_s
            if utterance.ended is not None:
                self._finish(utterance, hypothesis)
                return
            utterance.guess = hypothesis
            if takes_back(utterance.text, hypothesis.text):
                return  # if the utterance ends here, the final shows it
        shown = utterance.ended is None and not utterance.copy_of
        if shown and hypothesis.error is None and hypothesis.revision <= utterance.revision:
            if not utterance.hold(hypothesis, self.leg.position):
                self._publish_partial(utterance, hypothesis)

    def _publish_partial(self, utterance: LiveUtterance, hypothesis: Hypothesis) -> None:
        end_ms = self._call_ms(utterance.paused if utterance.paused is not None else utterance.sent)
        if (body := utterance.partial(self.name, hypothesis, end_ms)) is not None:
            self._stats.partials += 1
            self._publish(self._call_ms(utterance.sent), body)

    def _finish(self, utterance: LiveUtterance, hypothesis: Hypothesis) -> None:
        """Store the final, and publish all finals that no longer wait for an earlier utterance.

        The engine may answer out of order: within a batch a short utterance can finish before an earlier, longer one.
        """
        assert utterance.ended is not None
        if not self._request_words(utterance, hypothesis):
            self._recognizer.commit(utterance.engine_id)
        utterance.last = hypothesis
        while (oldest := next(iter(self._open.values()), None)) is not None and oldest.last is not None:
            del self._open[oldest.id]
            self._publish_final(oldest, oldest.last)
        if not self._open:
            self._drained()

    def _request_words(self, utterance: LiveUtterance, hypothesis: Hypothesis) -> bool:
        if self.words is None or not utterance.words or hypothesis.error is not None:
            return False
        lead_ms = (utterance.start - utterance.audio_start) // POSITIONS_PER_MS
        return self.words.align(
            FinalText(
                utterance_id=utterance.id,
                engine_id=utterance.engine_id,
                text=hypothesis.text,
                language=hypothesis.language or utterance.language,
                start_ms=utterance.start_ms,
                end_ms=utterance.end_ms,
                audio_ms=utterance.start_ms - lead_ms,
                end_s=utterance.end_s,
            )
        )

    def _publish_final(self, utterance: LiveUtterance, hypothesis: Hypothesis) -> None:
        now_s = self._clock()
        latency_s = max(0.0, now_s - utterance.end_s)
        if not utterance.copy_of:
            self._previous = hypothesis.text
            self._heard = hypothesis.heard or self._heard
        self._stats.finals += 1
        self._stats.failed_finals += hypothesis.error is not None
        self._stats.empty_finals += not hypothesis.text
        self._latency.finished(
            utterance.endpoint,
            latency_s=latency_s,
            queue_s=hypothesis.queue_s,
            engine_s=utterance.engine_s,
            now_s=now_s,
        )
        latency_ms = round(latency_s * 1000)
        body = utterance.final(self.name, hypothesis, latency_ms)
        if self._traces is not None and utterance.traceparent:
            self._traces.on_final(utterance.times(body, hypothesis.queue_s, now_s))
        self._publish(utterance.end_ms + latency_ms, body)
        if self.words is not None:
            self.words.on_final_published(utterance.id)
