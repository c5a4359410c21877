"""The logic of the inference process: messages in, messages out, one bounded step of the engine at a time.

No I/O, no clock and no threads: `process` feeds it from sockets, the tests from lists.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from typing import cast

from asr import messages, text
from asr.engines.aligner import Aligner
from asr.engines.interface import Answer, Collect, Engine, EngineError, EngineExhausted, PipelinedEngine
from asr.inference.alignments import Alignments
from asr.inference.utterances import EngineRequest, EngineUsage, ProtocolError, ServedUtterance
from asr.messages import FromEngine, ToEngine
from asr.runtime import Runtime
from asr.samples import Loudness
from asr.scheduling.oom_backoff import OomBackoff
from asr.scheduling.request import LIVE, Lane, Request
from asr.scheduling.scheduler import Scheduler
from asr.utterance import BYTES_PER_S, Alignment, Hypothesis, Utterance

HEADROOM_S = 0.2
"""How long before the earliest time of its endpoint a speculative final takes precedence over partials."""
PARTIAL_ALLOWANCE_S = 0.3
"""The deadline of a partial, counted from its request. Deadlines order the requests of a lane."""
FOREVER_S = 1e9
MAX_WORDS = 128
"""So many requests for words of calls may wait. Beyond that, the oldest are answered without words."""
PASSED_OVER = 8
"""After this many steps without one, word timestamps and suspects get a step even though partials wait. With many calls
there is always a partial, and they would starve."""


@dataclass(frozen=True, slots=True)
class Work:
    """A bounded piece of work: a step of the engine, or an alignment."""

    requests: tuple[Request, ...]
    """Requests for the engine or for the aligner, not for both. If it is empty, the work is only to collect the step
    that was begun before."""

    @property
    def utterance_ids(self) -> tuple[str, ...]:
        return tuple(request.utterance_id for request in self.requests)

    @property
    def align(self) -> bool:
        return bool(self.requests) and self.requests[0].align


@dataclass(frozen=True, slots=True)
class _Begun:
    """A step that a pipelined engine has begun, and the function that returns its answers."""

    work: Work
    names: frozenset[str]
    collect: Collect


class Inference:
    """Orders requests, drives the engine, and turns its raw words into hypotheses.

    The owner's loop: `receive` the messages, `choose`, announce the choice, `perform` it, send the messages that it
    returns. With a pipelined engine, `perform` begins this step and returns the answers of the one before, so that the
    device always has its next step when one ends. No utterance is in both steps.
    """

    def __init__(
        self,
        engine: Engine,
        aligner: Aligner | None = None,
        *,
        max_partials: int | None = None,
        max_bytes: float = inf,
    ) -> None:
        """Create the logic around a warm engine.

        Args:
            max_partials: the most partials that may wait; by default as many as fit into eight steps, and at least 256.
            max_bytes: while there is more audio than this, a source that has more than its share gets no partials.
        """
        self._open: dict[str, ServedUtterance] = {}
        self.usage, self._max_bytes = EngineUsage(), max_bytes
        self.engine, self.alignments = engine, Alignments(aligner, self._open)
        self.scheduler = Scheduler(max_partials=max_partials or max(256, 8 * engine.capabilities.batch))
        self.oom_backoff = OomBackoff(engine.capabilities.batch)
        self._shed = self._exhausted = 0
        self._passed_over = 0
        """The number of steps since the latest alignment, or since nothing was waiting."""
        self._now_s = 0.0
        """When the latest piece of work was begun."""
        self._out: list[FromEngine] = []
        """The messages that the present `perform` will return."""
        self._begun: _Begun | None = None
        """The step of a pipelined engine that has not been collected."""
        self._under_way: Callable[[], frozenset[str]] = getattr(engine, "under_way", frozenset)

    def ready(self) -> messages.EngineReady:
        runtime = getattr(self.engine, "runtime", Runtime)
        return messages.EngineReady(self.engine.name, self.alignments.languages, runtime())

    def receive(self, message: ToEngine, now: float) -> None:
        """Process a message that arrived at `now`. One about a closed utterance is ignored: its sender had
        not received the last answer yet.

        Raises ProtocolError for an invalid message, which changes nothing.
        """
        match message:
            case messages.Open(utterance=utterance):
                if utterance.id in self._open:
                    raise ProtocolError(f"utterance {utterance.id} is open already")
                loudness = Loudness(utterance.format, enough_dbfs=text.QUIET_DBFS)
                longest = self._longest(utterance)
                self._open[utterance.id] = served = ServedUtterance(utterance, loudness, longest, message.suspect)
                self.usage.on_open(served)
                self.engine.open(utterance)
            case messages.Append():
                self._append(message)
            case messages.PartialRequest():
                self._submit(message, now + PARTIAL_ALLOWANCE_S, now)
            case messages.FinalRequest():
                self._submit(message, now + max(0.0, message.wanted_in_ms / 1000 - HEADROOM_S), now)
            case messages.Withdraw():
                self.scheduler.withdraw(message.utterance_id)
            case messages.Align():
                self._submit(message, now, now)
            case messages.CloseUtterance():
                self._close(message.utterance_id)
            case _:
                raise ProtocolError(f"a message of the kind {type(message).__name__} in the middle of a connection")

    def close_source(self, source: str) -> None:
        """The link is gone: close its utterances, which frees their memory and their sessions at the engine."""
        for name in [name for name, served in self._open.items() if served.utterance.source == source]:
            self._close(name)

    def choose(self, now: float = inf) -> Work | None:
        """Choose the next bounded piece of work at `now`; None when there is nothing to do and nothing to collect."""
        # A suspect's step must neither follow nor precede another one in the pipeline. If the process died while two
        # steps were under way, either of them could be the cause, and the death would prove nothing.
        if any(self._suspect(name) for name in self.begun):
            return Work(())
        self._passed_over += 1
        overdue = self._passed_over > PASSED_OVER and not self.scheduler.final_due(now)
        taken = next(filter(None, self._in_order(now, overdue=overdue)), [])
        others = self.begun or self._under_way() - {request.utterance_id for request in taken}
        if taken and others and not taken[0].align and self._suspect(taken[0].utterance_id):
            self.scheduler.put_back(taken[0])  # it is chosen again once the step before has been collected
            return Work(())
        if overdue or not taken or taken[0].align:
            self._passed_over = 0
        return Work(tuple(taken)) if taken or self._begun is not None else None

    def _in_order(self, now: float, *, overdue: bool) -> Iterator[list[Request]]:
        """Yield the candidates for the next step in order of precedence; the first that is not empty is chosen.

        This is a generator so that no later candidate is taken from the scheduler in vain. When `overdue`, alignments
        and suspects of the batch lane go before everything but finals. A suspect is always alone in its step.
        """
        words, take = partial(self.alignments.choose, self.scheduler), self.scheduler.take
        suspect = partial(take, 1, lanes=(Lane.BATCH,), runnable=self._alone)
        if overdue:
            yield words(Lane.WORDS, Lane.BATCH)
            yield suspect()
        yield self._calls(now)
        yield words(Lane.WORDS, *[Lane.BATCH] * (self._passed_over > 1))
        yield take(self.oom_backoff.limit, lanes=(Lane.BATCH,), runnable=self._together)
        yield words(Lane.BATCH)
        yield suspect()

    def _calls(self, now: float) -> list[Request]:
        """Take a step's requests from the calls, and fill the rest of the step with files."""
        limit, take = self.oom_backoff.limit, partial(self.scheduler.take, now_s=now)
        taken = take(1, lanes=LIVE, runnable=self._runnable)
        if taken and not self._suspect(taken[0].utterance_id):
            taken += take(limit - 1, lanes=LIVE, runnable=self._together)
            if self.oom_backoff.files:
                taken += take(limit - len(taken), lanes=(Lane.BATCH,), runnable=self._together)
        return taken

    @property
    def begun(self) -> frozenset[str]:
        """The utterances of a step that has not been collected."""
        return self._begun.names if self._begun is not None else frozenset()

    @property
    def working(self) -> frozenset[str]:
        """The utterances that may be to blame if the process dies now, before the next step."""
        return self.begun | self._under_way()

    def _suspect(self, name: str) -> bool:
        return name in self._open and self._open[name].suspect

    def _runnable(self, request: Request) -> bool:
        name = request.utterance_id
        with_suspect = any(self._suspect(each) and each != name for each in self._under_way())
        return name not in self.begun and not with_suspect and self.engine.runnable(request)

    def _alone(self, request: Request) -> bool:
        return self._suspect(request.utterance_id) and not request.align and self._runnable(request)

    def _together(self, request: Request) -> bool:
        """Whether the request may share a step with others."""
        return not self._suspect(request.utterance_id) and not request.align and self._runnable(request)

    def perform(self, work: Work, now: float = 0.0) -> list[FromEngine]:
        """Do the work that `choose` has just returned, beginning at `now`, and return the messages to send. A pipelined
        engine only begins it, and the answers are those of the step before."""
        for request in work.requests:
            served = self._open[request.utterance_id]
            if served.begun != request.revision:
                served.begun, served.queue_s = request.revision, max(0.0, now - served.asked_s)
        self._now_s = now
        before, self._begun = self._begun, None
        if work.align:
            self._align(work.requests)
        elif work.requests or (before is None and self._under_way()):
            self._begin(work)
        if before is not None:
            self._collect(before.work, before.collect)
        shed, exhausted = self.scheduler.shed_partials, self.oom_backoff.exhausted
        if (shed, exhausted) != (self._shed, self._exhausted):
            self._out.append(messages.Dropped(shed - self._shed, exhausted - self._exhausted))
            self._shed, self._exhausted = shed, exhausted
        out, self._out = self._out, []
        return out

    def _begin(self, work: Work) -> None:
        for request in work.requests:
            served = self._open[request.utterance_id]
            if request.end > served.longest:
                why = served.too_long(self.engine.name, request.end)
                self._fail(EngineError(request.utterance_id, why), work, refused=True)
                return
        if not self.engine.capabilities.pipelined:
            self._collect(work, lambda: self.engine.step(work.requests))
            return
        with self._failures(work):
            launched = cast(PipelinedEngine, self.engine).launch(work.requests)
            self._begun = _Begun(work, frozenset(work.utterance_ids), launched)

    def _collect(self, work: Work, collect: Collect) -> None:
        with self._failures(work):
            answers = collect()
            self.oom_backoff.on_success()
            for answer in answers:
                if self.scheduler.finish(answer.request):
                    self._answer(self._hypothesis(answer))
                    if answer.request.commit:
                        self._committed(answer.request.utterance_id)
            for request in work.requests:
                self.scheduler.put_back(request)

    @contextmanager
    def _failures(self, work: Work) -> Iterator[None]:
        """Handle the errors of a step: an EngineError fails one utterance, and after EngineExhausted the step is
        repeated with fewer requests. Any other error ends the process."""
        try:
            yield
        except EngineError as error:
            self._fail(error, work)
        except EngineExhausted as error:
            relief = self.oom_backoff.on_exhausted(work.requests)
            if relief.give_up is not None:
                self._fail(EngineError(relief.give_up.utterance_id, f"out of memory: {error}"), work)
                return
            for request in relief.shed:
                self.scheduler.shed(request)
            for request in work.requests:
                self.scheduler.put_back(request)

    # -- requests ---------------------------------------------------------------------------------------------------

    def _append(self, message: messages.Append) -> None:
        served = self._open.get(message.utterance_id)
        if served is None:
            return
        served.check_audio(message.start)
        served.received += len(message.audio)
        self.usage.on_audio(served, len(message.audio))
        served.loudness.feed(message.audio)
        if self.alignments.keeps(served):
            served.audio += message.audio
        if not served.at_engine:
            return
        if served.received <= served.longest:
            self.engine.append(message.utterance_id, message.audio)
        elif message.start < served.longest:
            self.engine.append(message.utterance_id, message.audio[: served.longest - message.start])

    def _submit(self, message: EngineRequest, deadline_s: float, now: float) -> None:
        if (served := self._open.get(message.utterance_id)) is None:
            return
        served.check(message)
        is_partial = isinstance(message, messages.PartialRequest)
        if is_partial and (
            not self.engine.capabilities.partials
            or message.end > served.longest
            or self.usage.refuses_partial(served, self._max_bytes)
        ):
            return
        if not (is_partial and self.scheduler.pending(message.utterance_id)):
            served.asked_s = now  # a partial that replaces a waiting one keeps that one's time of arrival
        if isinstance(message, messages.FinalRequest):
            served.final_asked_s = now
        if isinstance(message, messages.Align):
            served.align = message
            self._close_at_engine(served)
        self.scheduler.submit(served.request(message, deadline_s))
        if served.align is not None:
            for request in self.scheduler.shed_words(MAX_WORDS):
                self._answer_words(
                    Alignment(request.utterance_id, request.revision, (), "too many wait for times", refused=True)
                )

    def _committed(self, utterance_id: str) -> None:
        """A committed final has been answered: the engine needs the utterance no more, but an alignment may follow."""
        served = self._open[utterance_id]
        if served.utterance.words:
            self._close_at_engine(served)
        else:
            self._close(utterance_id)

    def _close_at_engine(self, served: ServedUtterance) -> None:
        if served.at_engine:
            served.at_engine = False
            self.engine.close(served.utterance.id)

    def _close(self, utterance_id: str) -> None:
        served = self._open.pop(utterance_id, None)
        if served is not None:
            self.usage.on_close(served)
            self.scheduler.forget(utterance_id)
            self._close_at_engine(served)

    # -- answers ----------------------------------------------------------------------------------------------------

    def _answer(self, hypothesis: Hypothesis) -> None:
        self._out += self.usage.on_hypothesis(self._open[hypothesis.utterance_id], hypothesis, self._now_s)

    def _hypothesis(self, answer: Answer) -> Hypothesis:
        request = answer.request
        served = self._open[request.utterance_id]
        utterance = served.utterance
        evidence = text.Evidence(
            seconds=request.end / BYTES_PER_S[utterance.format], peak_dbfs=served.loudness.peak_dbfs(request.end)
        )
        shown = text.clean(answer.text, context=utterance.context, previous=utterance.previous, evidence=evidence)
        stable_chars = len(shown) if request.final else text.stable_prefix(served.shown, shown)
        served.shown, served.answered, served.suspect = shown, True, False
        # If cleaning has changed the text, the engine's timed words are no longer the words of the text.
        timed = request.final and utterance.words and shown.split() == answer.text.split()
        return Hypothesis(
            utterance_id=utterance.id,
            revision=request.revision,
            text=shown,
            language=answer.language,
            stable_chars=stable_chars,
            final=request.final,
            queue_s=served.queue_s,
            words=answer.words if timed else (),
            heard=answer.heard,
        )

    def _longest(self, utterance: Utterance) -> int:
        longest_s = min(self.engine.capabilities.longest_s, FOREVER_S)
        return int(longest_s * BYTES_PER_S[utterance.format]) // 2 * 2  # whole samples

    def _fail(self, error: EngineError, work: Work, *, refused: bool = False) -> None:
        """Fail one utterance's request; the other requests of the step are done again."""
        for request in work.requests:
            if request.utterance_id != error.utterance_id:
                self.scheduler.put_back(request)
            elif self.scheduler.finish(request):
                name, revision = request.utterance_id, request.revision
                self._answer(Hypothesis(name, revision, "", "", 0, request.final, error.reason, refused=refused))
                if request.commit:
                    self._close(name)

    def _align(self, requests: tuple[Request, ...]) -> None:
        """Align these requests; each answer ends its utterance."""
        for request, alignment in zip(requests, self.alignments.perform(requests), strict=True):
            if self.scheduler.finish(request):
                self._answer_words(alignment)

    def _answer_words(self, alignment: Alignment) -> None:
        name = alignment.utterance_id
        self.usage.on_alignment(alignment)
        self._out.append(messages.Words(replace(alignment, queue_s=self._open[name].queue_s)))
        self._close(name)
