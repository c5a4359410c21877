"""What one worker has asked of an engine server: its messages become calls of the server's recognizer. No I/O.

Names of utterances and legs are unique in one worker only, so the recognizer knows them with the session's number.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from asr import messages
from asr.utterance import Alignment, Hypothesis, Utterance

MAX_UTTERANCES = 20_000
"""That one worker may have open."""
MAX_LEGS = 20_000
"""Of one worker that have their place here. A worker says when a leg is over; for one that does not, the leg that has
been silent for longest loses its place, and gets one again when it speaks."""
MAX_NAME = 200
"""Characters in the name of an utterance or leg."""


class ProtocolError(Exception):
    """A worker has sent what makes no sense. The message is for its log; the connection is closed."""


class SharedRecognizer(Protocol):
    """What a session needs of `asr.client.recognizer.Recognizer`, which documents the methods."""

    def open(
        self, utterance: Utterance, on_hypothesis: Callable[[Hypothesis], None], *, suspect: bool = False
    ) -> None: ...
    def append(self, utterance_id: str, audio: bytes) -> None: ...
    def partial(self, utterance_id: str, revision: int) -> None: ...
    def final(self, utterance_id: str, revision: int, *, commit: bool, wanted_in_ms: int = 0) -> None: ...
    def withdraw(self, utterance_id: str) -> None: ...
    def align(self, utterance_id: str, text: str, language: str, on_words: Callable[[Alignment], None]) -> None: ...
    def cancel(self, utterance_id: str) -> None: ...
    def release(self, stream: str) -> None: ...
    def is_open(self, utterance_id: str) -> bool: ...
    def crashes(self, utterance_id: str) -> int: ...


@dataclass(slots=True)
class _Known:
    """An utterance that the worker has open here."""

    utterance: Utterance
    """As the recognizer knows it."""
    suspect: bool
    received: int = 0
    """Bytes of its audio."""
    revision: int = -1
    """Of its newest request."""
    asked_s: float = 0.0
    """When the final was asked for that is awaited, if the utterance is traced."""


@dataclass(frozen=True, slots=True)
class AnsweredFinal:
    """What a final of a traced utterance has taken here."""

    traceparent: str
    worker: str
    """The name of the one that has asked."""
    asked_s: float
    queue_s: float
    failed: bool


class WorkerSession:
    """One connection of a worker.

    Args:
        number: of the connection; no other has it.
        worker: its name.
        on_answer: called when `take` has something, with how long the request has waited if it was one of a call.
        on_final: takes the times of each final of a traced utterance, as `clock` tells them.
    """

    def __init__(
        self,
        number: int,
        worker: str,
        recognizer: SharedRecognizer,
        on_answer: Callable[[float | None], None],
        *,
        on_final: Callable[[AnsweredFinal], None] | None = None,
        clock: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self.number, self.worker = number, worker
        self.legs: dict[str, None] = {}
        """Those that have their place here, by the worker's names, the one that has been silent for longest first."""
        self.files = 0
        """How many of the open utterances are of files."""
        self.told = messages.Load()
        """What the worker has last been told of the server's load."""
        self._recognizer, self._on_answer = recognizer, on_answer
        self._on_final, self._clock = on_final, clock
        self._open: dict[str, _Known] = {}
        self._answers: list[messages.FromEngine] = []

    def __len__(self) -> int:
        """How many utterances are open."""
        return len(self._open)

    def receive(self, message: messages.ToEngine) -> None:
        """A message has come. One about an utterance that is closed has crossed with its end and is ignored.

        Raises ProtocolError.
        """
        match message:
            case messages.Open():
                self._begin(message)
            case messages.Release():
                self._release(message.stream)
            case messages.Ping():
                self._answers.append(messages.Pong())
                self._on_answer(None)
            case messages.Configure() | messages.Hello() | messages.Proof():
                raise ProtocolError("a greeting in the middle of a connection")
            case _:
                if (known := self._open.get(message.utterance_id)) is not None:
                    self._pass_on(message, known)

    def take(self) -> list[messages.FromEngine]:
        """What is to be sent, in its order."""
        answers, self._answers = self._answers, []
        return answers

    @property
    def blamed(self) -> tuple[str, ...]:
        """Utterances that an inference process of this server has died over, by the worker's names."""
        return tuple(
            name
            for name, known in self._open.items()
            if self._recognizer.crashes(known.utterance.id) > int(known.suspect)
        )

    def close(self) -> None:
        """The worker is gone, or is to ask somebody else: nothing of it goes on. Answers that were given may still be
        taken."""
        for known in self._open.values():
            self._recognizer.cancel(known.utterance.id)
        for leg in self.legs:
            self._recognizer.release(self._name(leg))
        self._open.clear()
        self.legs.clear()
        self.files = 0

    def _name(self, name: str) -> str:
        return f"{self.number}/{name}"

    def _begin(self, message: messages.Open) -> None:
        utterance, name = message.utterance, message.utterance.id
        if name in self._open:
            raise ProtocolError(f"utterance {name[:MAX_NAME]} is open already")
        if len(self._open) >= MAX_UTTERANCES:
            raise ProtocolError(f"more than {MAX_UTTERANCES} utterances are open")
        if max(len(name), len(utterance.stream)) > MAX_NAME:
            raise ProtocolError(f"a name of more than {MAX_NAME} characters")
        stream = self._name(utterance.stream) if utterance.stream else ""
        ours = replace(utterance, id=self._name(name), stream=stream, source=str(self.number))
        self._open[name] = _Known(ours, message.suspect)
        self.files += not utterance.live
        if utterance.live and utterance.stream:
            self.legs.pop(utterance.stream, None)
            self.legs[utterance.stream] = None
            if len(self.legs) > MAX_LEGS:
                self._release(next(iter(self.legs)))
        self._recognizer.open(ours, lambda hypothesis: self._on_hypothesis(name, hypothesis), suspect=message.suspect)

    def _release(self, leg: str) -> None:
        if leg in self.legs:
            del self.legs[leg]
            self._recognizer.release(self._name(leg))

    def _pass_on(self, message: messages.OfUtterance, known: _Known) -> None:
        recognizer, ours = self._recognizer, known.utterance.id
        match message:
            case messages.Append(start=start, audio=audio):
                if start != known.received:
                    raise ProtocolError(f"audio from byte {start} on, after {known.received} bytes")
                known.received += len(audio)
                recognizer.append(ours, audio)
            case messages.PartialRequest(revision=revision, end=end):
                self._check(known, revision, end)
                recognizer.partial(ours, revision)
            case messages.FinalRequest(revision=revision, end=end, commit=commit, wanted_in_ms=wanted_in_ms):
                self._check(known, revision, end)
                if known.utterance.traceparent:
                    known.asked_s = self._clock()
                recognizer.final(ours, revision, commit=commit, wanted_in_ms=wanted_in_ms)
            case messages.Withdraw():
                recognizer.withdraw(ours)
            case messages.Align(revision=revision, text=text, language=language, end=end):
                if not known.utterance.words:
                    raise ProtocolError("times of words of an utterance that was opened without them")
                self._check(known, revision, end)
                name = message.utterance_id
                recognizer.align(ours, text, language, lambda alignment: self._on_alignment(name, revision, alignment))
            case messages.CloseUtterance():
                recognizer.cancel(ours)
                self._forget(message.utterance_id)

    def _check(self, known: _Known, revision: int, end: int) -> None:
        if end != known.received:
            raise ProtocolError(f"a request for {end} bytes of audio, after {known.received} bytes")
        if revision <= known.revision:
            raise ProtocolError(f"revision {revision} after {known.revision}")
        known.revision = revision

    def _on_hypothesis(self, name: str, hypothesis: Hypothesis) -> None:
        if (known := self._open.get(name)) is None:
            return
        self._answers.append(messages.Heard(replace(hypothesis, utterance_id=name)))
        if self._on_final is not None and known.utterance.traceparent and hypothesis.final:
            self._tell_times(known, hypothesis, self._on_final)
        if not self._recognizer.is_open(known.utterance.id):
            self._forget(name)
        self._on_answer(hypothesis.queue_s if known.utterance.live else None)

    def _tell_times(self, known: _Known, hypothesis: Hypothesis, tell: Callable[[AnsweredFinal], None]) -> None:
        if hypothesis.revision == known.revision:  # otherwise it has been superseded by a newer request
            traceparent, failed = known.utterance.traceparent, hypothesis.error is not None
            tell(AnsweredFinal(traceparent, self.worker, known.asked_s, hypothesis.queue_s, failed))

    def _on_alignment(self, name: str, revision: int, alignment: Alignment) -> None:
        if name in self._open:
            self._answers.append(messages.Words(replace(alignment, utterance_id=name, revision=revision)))
            self._forget(name)
            self._on_answer(None)

    def _forget(self, name: str) -> None:
        self.files -= not self._open.pop(name).utterance.live
