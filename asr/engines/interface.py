"""An engine follows growing utterances, and does bounded steps on requests that somebody else has ordered.

The scheduler decides what is urgent, `Inference` moves audio and answers, the engine computes. An engine is used from
one thread. `step` gets the most urgent requests it can hold (`Capabilities.batch`) and does a bounded piece of work on
all of them together: for Moonshine a few calls of its network for each, for a batched transformer one packed forward
that mixes prefill, verification and decoding of many utterances. What has no answer after the step comes back later.

Everything that an engine's own module needs can be imported from here; docs/how-to/engines.md shows a whole engine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Protocol

from asr.errors import AsrError
from asr.runtime import Runtime
from asr.scheduling.request import Request
from asr.utterance import BYTES_PER_S, Languages, TimedWord, Utterance

__all__ = [
    "BYTES_PER_S", "Answer", "Capabilities", "Engine", "EngineError", "EngineExhausted", "EngineUnusable", "Request",
    "Runtime", "TimedWord", "Utterance", "described", "first_line",
]  # fmt: skip


class EngineError(AsrError):
    """The engine cannot go on with this one utterance, but with the others. Anything else it raises ends the process,
    which starts again and replays."""

    def __init__(self, utterance_id: str, reason: str) -> None:
        self.utterance_id, self.reason = utterance_id, reason
        super().__init__(f"{utterance_id}: {reason}")


class EngineExhausted(AsrError):
    """The step needs more memory than there is. It has answered nobody and can be done again, with less in it."""


class EngineUnusable(AsrError):
    """The engine cannot be built here: no weights, wrong ones, or no such device. The message says what to do."""


def first_line(error: BaseException) -> str:
    """The first line of a library's error, as a part of a sentence."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def described(error: BaseException) -> str:
    """The kind of an error and its first line, for whoever wrote the code that raised it."""
    return f"{type(error).__name__}: {first_line(error)}"


@dataclass(frozen=True, slots=True)
class Capabilities:
    """The abilities of a loaded engine. Its plug-in (`asr.engines.plugin`) says what must be known before."""

    batch: int = 1
    """The most requests in one step."""
    partials: bool = True
    """Without them the engine is asked for finals alone."""
    pipelined: bool = False
    """It has the method `launch`, which returns while the device computes: the next step is prepared meanwhile."""
    longest_s: float = inf
    """The longest audio of one utterance. The engine gets no more, and a final about more fails without asking the
    engine."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Raw words of the engine to one request."""

    request: Request
    text: str
    language: str
    """ISO 639 code, or empty."""
    words: tuple[TimedWord, ...] = ()
    """The words of `text` in their order, with their times: of a final, by an engine whose plug-in promises them."""
    heard: Languages = ()
    """What the next utterance of the leg or file is told about its language; see `Utterance.heard`."""


Collect = Callable[[], list[Answer]]
"""Waits for what has been launched. Raises EngineExhausted."""


class Engine(Protocol):
    """Calls for one utterance come in this order: open, append…, close. Ids are unique among the open ones.

    It may have a method `runtime() -> Runtime` that says where it computes, once it is warm; and, where it goes on
    computing between two steps, `under_way() -> frozenset[str]`, the open utterances that it computes on.

    The text of a final depends on the utterance and on its first `request.end` bytes alone: not on how they were cut
    into appends, on partials or speculative finals before, on other utterances, or on what was decoded earlier.
    """

    name: str
    capabilities: Capabilities

    def open(self, utterance: Utterance) -> None: ...

    def append(self, utterance_id: str, audio: bytes) -> None:
        """The next bytes in the utterance's format. Cheap: decoding belongs into `step`."""

    def close(self, utterance_id: str) -> None:
        """Committed or cancelled; its state goes."""

    def runnable(self, request: Request) -> bool:
        """True when `step` could work on the request now (a KV slot is free or its own)."""

    def step(self, requests: Sequence[Request]) -> list[Answer]:
        """One bounded piece of work. Raises EngineError, EngineExhausted."""

    def warm_up(self) -> None:
        """Load what the first request needs. Raises EngineUnusable."""


class PipelinedEngine(Engine, Protocol):
    """One whose device computes while the host goes on. `step` does both."""

    def launch(self, requests: Sequence[Request]) -> Collect:
        """Begin a bounded piece of work. One more may be begun before the first is collected, about other utterances;
        in between any of them may be appended to or closed. Raises EngineError, EngineExhausted."""
