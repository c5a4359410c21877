"""The inference process without its process: messages in, messages out, one bounded step at a time.

No I/O, no clock and no threads: `process` feeds it from a socket, `offline` and the tests from a list.
"""

from __future__ import annotations

from dataclasses import dataclass

from asr import messages, text
from asr.engine import Answer, Engine, EngineError, EngineExhausted
from asr.messages import FromEngine, ToEngine
from asr.pressure import Pressure
from asr.samples import Loudness
from asr.scheduler import LIVE, Lane, Request, Scheduler
from asr.utterance import BYTES_PER_S, Hypothesis, Utterance

SPECULATIVE_ALLOWANCE_S = 0.15
"""A speculative final has until the endpoint fires; one whose endpoint has fired goes before it."""
PARTIAL_ALLOWANCE_S = 0.3


@dataclass(slots=True)
class _Open:
    utterance: Utterance
    loudness: Loudness
    received: int = 0
    """Bytes of audio."""
    shown: str = ""
    """Text of the last hypothesis."""
    answered: bool = False
    """It has had a partial: the next one is a refresh."""
    asked_s: float = 0.0
    begun: int = -1
    """Revision of the newest request that the engine has begun with, after a wait of `queue_s`."""
    queue_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Work:
    """A bounded piece of work: on requests, or ahead of them."""

    requests: tuple[Request, ...]
    utterance_ids: tuple[str, ...]


class Inference:
    """Orders requests, drives the engine, and turns its raw words into hypotheses.

    Loop of the owner: `receive` what has come, `choose`, announce the choice, `perform` it, send what it returns.
    """

    def __init__(self, engine: Engine, *, max_partials: int = 256) -> None:
        self.engine = engine
        self.scheduler = Scheduler(max_partials=max_partials)
        self._open: dict[str, _Open] = {}
        self.pressure = Pressure(engine.capabilities.batch)
        self._shed = self._exhausted = 0

    def ready(self) -> messages.Ready:
        can = self.engine.capabilities
        return messages.Ready(self.engine.name, can.languages, can.speculative, can.words)

    def receive(self, message: ToEngine, now: float) -> None:
        """Take one message. One about a closed utterance has crossed with its end and is ignored."""
        match message:
            case messages.Open():
                utterance = message.utterance
                assert utterance.id not in self._open, f"{utterance.id} is open"
                self._open[utterance.id] = _Open(utterance, Loudness(utterance.format))
                self.engine.open(utterance)
            case messages.Append():
                self._append(message)
            case messages.Partial():
                self._submit(message, now, PARTIAL_ALLOWANCE_S)
            case messages.Final():
                self._submit(message, now, 0.0 if message.commit else SPECULATIVE_ALLOWANCE_S)
            case messages.Close():
                self._close(message.utterance_id)
            case messages.Configure():
                raise AssertionError("configured twice")
            case messages.Ping():
                raise AssertionError("answered by the process itself")

    def choose(self) -> Work | None:
        """The next bounded piece of work; None when there is nothing to do.

        Live requests first, then live audio nobody has asked about yet (so that a final finds it heard), then batch.
        """
        engine = self.engine
        limit = self.pressure.limit
        taken = self.scheduler.take(limit, lanes=LIVE, runnable=engine.runnable)
        if not taken and (ahead := engine.ahead()):
            return Work((), ahead)
        if len(taken) < limit and (self.pressure.files or not taken):
            taken += self.scheduler.take(limit - len(taken), lanes=(Lane.BATCH,), runnable=engine.runnable)
        return Work(tuple(taken), tuple(request.utterance_id for request in taken)) if taken else None

    def perform(self, work: Work, now: float = 0.0) -> list[FromEngine]:
        """Do what `choose` has just returned, beginning at `now`."""
        for request in work.requests:
            known = self._open[request.utterance_id]
            if known.begun != request.revision:
                known.begun, known.queue_s = request.revision, max(0.0, now - known.asked_s)
        try:
            if work.requests:
                answers = self.engine.step(work.requests)
            else:
                self.engine.feed(work.utterance_ids)
                answers = []
        except EngineError as error:
            return self._fail(error, work)
        except EngineExhausted as error:
            return self._relieve(error, work)
        self.pressure.went_well()
        out: list[FromEngine] = []
        for answer in answers:
            if self.scheduler.finish(answer.request):
                out.append(messages.Heard(self._hypothesis(answer)))
                if answer.request.commit:
                    self._close(answer.request.utterance_id)
        for request in work.requests:
            self.scheduler.put_back(request)
        return [*out, *self._dropped()]

    def _dropped(self) -> list[FromEngine]:
        shed, exhausted = self.scheduler.counters.shed, self.pressure.exhausted
        if (shed, exhausted) == (self._shed, self._exhausted):
            return []
        out = messages.Dropped(shed - self._shed, exhausted - self._exhausted)
        self._shed, self._exhausted = shed, exhausted
        return [out]

    # -- requests ---------------------------------------------------------------------------------------------------

    def _append(self, message: messages.Append) -> None:
        known = self._open.get(message.utterance_id)
        if known is None:
            return
        assert message.start == known.received, f"audio at {message.start}, expected {known.received}"
        known.received += len(message.audio)
        known.loudness.feed(message.audio)
        self.engine.append(message.utterance_id, message.audio)

    def _submit(self, message: messages.Partial | messages.Final, now: float, allowance_s: float) -> None:
        known = self._open.get(message.utterance_id)
        if known is None:
            return
        known.asked_s = now
        assert message.end <= known.received, "a request about audio that has not come"
        final = isinstance(message, messages.Final)
        if not known.utterance.live:
            lane = Lane.BATCH
        elif final:
            lane = Lane.FINAL
        else:
            lane = Lane.PARTIAL if known.answered else Lane.FIRST_PARTIAL
        self.scheduler.submit(
            Request(
                utterance_id=message.utterance_id,
                revision=message.revision,
                lane=lane,
                final=final,
                end=message.end,
                deadline_s=now + allowance_s,
                stream=known.utterance.stream,
                synchronous=known.utterance.synchronous,
                commit=isinstance(message, messages.Final) and message.commit,
            )
        )

    def _close(self, utterance_id: str) -> None:
        known = self._open.pop(utterance_id, None)
        if known is not None:
            self.scheduler.forget(utterance_id)
            self.engine.close(utterance_id)

    # -- answers ----------------------------------------------------------------------------------------------------

    def _hypothesis(self, answer: Answer) -> Hypothesis:
        request = answer.request
        known = self._open[request.utterance_id]
        utterance = known.utterance
        evidence = text.Evidence(
            seconds=request.end / BYTES_PER_S[utterance.format], peak_dbfs=known.loudness.peak_dbfs(request.end)
        )
        shown = text.clean(answer.text, context=utterance.context, previous=utterance.previous, evidence=evidence)
        stable_chars = len(shown) if request.final else text.stable_prefix(known.shown, shown)
        known.shown, known.answered = shown, True
        return Hypothesis(
            utterance_id=utterance.id,
            revision=request.revision,
            text=shown,
            language=answer.language,
            stable_chars=stable_chars,
            final=request.final,
            queue_s=known.queue_s,
        )

    def _relieve(self, error: EngineExhausted, work: Work) -> list[FromEngine]:
        """The step is done again, with less in it."""
        relief = self.pressure.failed(work.requests)
        if relief.give_up is not None:
            failed = EngineError(relief.give_up.utterance_id, f"out of memory: {error}")
            return [*self._fail(failed, work), *self._dropped()]
        for request in relief.shed:
            self.scheduler.shed(request)
        for request in work.requests:
            self.scheduler.put_back(request)
        return self._dropped()

    def _fail(self, error: EngineError, work: Work) -> list[FromEngine]:
        """One utterance is given up; the others of the step go on."""
        out: list[FromEngine] = []
        for request in work.requests:
            if request.utterance_id != error.utterance_id:
                self.scheduler.put_back(request)
            elif self.scheduler.finish(request):
                failed = Hypothesis(request.utterance_id, request.revision, "", "", 0, request.final, error.reason)
                out.append(messages.Heard(failed))
                if request.commit:
                    self._close(request.utterance_id)
        return out
