"""Recognition by a server elsewhere: requests are under way to it while the scheduler goes on choosing.

A step starts the requests that there is room for, waits a moment, and returns what has been answered. A request that
nobody waits for any more is cancelled, and so is a partial whose place a final needs. A server that is busy, or away,
is asked again later, and less of it at once; one that fails is asked once more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from asr.engines.interface import Answer, Capabilities, EngineError, Request, Runtime, Utterance
from asr.engines.openai.client import TranscriptionClient
from asr.engines.openai.wire import Outcome, Recognised, RequestFailed, RequestSimplified, ServerBusy
from asr.scheduling.request import Lane

STEP_S = 0.01
"""A step waits this long for answers, so a new request starts so much later while others are under way."""
ATTEMPTS = 2
"""A request that the server fails at is sent this many times."""
ATTEMPTS_LOST = 12
"""A request over which the connection was lost is sent this many times, which takes a minute, as each pause is twice as
long up to BUSY_MAX_S. A proxy that turns a request away before it has read it resets the connection, and its 429 is
lost with it (RFC 9112 section 9.6). A server may end over a request as well, and that must not go on."""
BUSY_S, BUSY_MAX_S = 0.5, 8.0
"""A server that does not say when it wants to be asked again is left alone for so long, and twice as long each time."""
PATIENCE_CALLS, PATIENCE_FILES = 2.0, 20.0
"""A request fails when a busy server has not accepted it for as many times `asr.url_timeout_s`."""


@dataclass(slots=True, eq=False)
class _Attempt:
    """An attempt at the newest request of an utterance."""

    request: Request
    since_s: float
    """The time at which the request was first to be sent."""
    failures: int = 0
    lost: int = 0
    not_before_s: float = 0.0
    cancel: Callable[[], object] | None = None
    """A function that cancels the request; None when it is not under way."""
    outcome: Outcome | None = None


class RemoteEngine:
    """Implements `asr.engines.interface.Engine` by requests to a server.

    Args:
        parallel: the most requests that are under way at once; files have half of them at most.
        partials: partials are requested as well, each with all audio so far.
    """

    name = "openai"

    def __init__(self, client: TranscriptionClient, *, parallel: int, timeout_s: float, partials: bool) -> None:
        self.capabilities = Capabilities(batch=parallel, partials=partials)
        self._client, self._parallel, self._timeout_s = client, parallel, timeout_s
        self._room = float(parallel)
        """The number of requests that the server gets at once: half after it was busy, more with each answer."""
        self._open: dict[str, tuple[Utterance, bytearray]] = {}
        self._attempts: dict[str, _Attempt] = {}
        self._not_before_s = 0.0
        self._pause_s = BUSY_S

    def warm_up(self) -> None:
        """Raises EngineUnusable."""
        self._client.start()

    def runtime(self) -> Runtime:
        return Runtime(device="remote")

    def open(self, utterance: Utterance) -> None:
        self._open[utterance.id] = utterance, bytearray()

    def append(self, utterance_id: str, audio: bytes) -> None:
        self._open[utterance_id][1].extend(audio)

    def close(self, utterance_id: str) -> None:
        self._forget(utterance_id)
        del self._open[utterance_id]

    def runnable(self, request: Request) -> bool:
        return True

    def step(self, requests: Sequence[Request]) -> list[Answer]:
        """Raises EngineError."""
        if len(requests) < self.capabilities.batch:
            for name in self._attempts.keys() - {request.utterance_id for request in requests}:
                self._forget(name)
        for request in requests:
            self._begin(request)
        attempts = [self._attempts[request.utterance_id] for request in requests]
        for mark, outcome in self._client.wait(0.0 if any(each.outcome for each in attempts) else STEP_S):
            assert isinstance(mark, _Attempt)
            if self._attempts.get(mark.request.utterance_id) is mark:
                mark.cancel, mark.outcome = None, outcome
        for attempt in attempts:
            failed = attempt.outcome is not None and not isinstance(attempt.outcome, Recognised)
            if failed and (why := self._failed(attempt)):
                self._forget(attempt.request.utterance_id)  # answers to others are kept for the next step
                raise EngineError(attempt.request.utterance_id, why)
        return [answer for request in requests if (answer := self._answer(request)) is not None]

    def _answer(self, request: Request) -> Answer | None:
        outcome = self._attempts[request.utterance_id].outcome
        if not isinstance(outcome, Recognised):
            return None
        self._room, self._pause_s = min(self._parallel, self._room + 1 / self._room), BUSY_S
        self._forget(request.utterance_id)
        return Answer(request, outcome.text, outcome.language)

    def _begin(self, request: Request) -> None:
        """Send it, if there is room."""
        name, now_s = request.utterance_id, self._client.now_s()
        attempt = self._attempts.get(name)
        if attempt is None or attempt.request.revision != request.revision:
            self._forget(name)
            attempt = self._attempts[name] = _Attempt(request, now_s)
        not_before_s = max(self._not_before_s, attempt.not_before_s)
        if attempt.cancel is not None or attempt.outcome is not None or now_s < not_before_s:
            return
        under_way = [each for each in self._attempts.values() if each.cancel is not None]
        if request.lane is Lane.BATCH:
            files = sum(each.request.lane is Lane.BATCH for each in under_way)
            if files >= max(1, int(self._room) // 2):
                return
        if len(under_way) >= int(self._room) and not (request.final and self._make_room(request, under_way)):
            return
        utterance, audio = self._open[name]
        attempt.cancel = self._client.send(attempt, utterance, bytes(audio[: request.end]), request.lane)

    def _make_room(self, request: Request, under_way: list[_Attempt]) -> bool:
        """Cancel the least urgent request, if a final is more urgent."""
        last = max(under_way, key=lambda each: each.request.lane)
        if last.request.lane <= request.lane or last.cancel is None:
            return False
        last.cancel()
        last.cancel = None
        return True

    def _failed(self, attempt: _Attempt) -> str:
        """The reason why the attempt is over; empty when it is tried again."""
        request, now_s, outcome = attempt.request, self._client.now_s(), attempt.outcome
        attempt.outcome = None
        if isinstance(outcome, ServerBusy):
            if outcome.lost:
                attempt.not_before_s = now_s + min(BUSY_MAX_S, BUSY_S * 2**attempt.lost)
                attempt.lost += 1
                if attempt.lost >= ATTEMPTS_LOST:
                    return outcome.reason
            if now_s >= self._not_before_s:  # the first of those that were under way together
                self._room = max(1.0, self._room / 2)
                self._not_before_s = now_s + (outcome.retry_s if outcome.retry_s is not None else self._pause_s)
                self._pause_s = min(BUSY_MAX_S, 2 * self._pause_s)
            patience_s = self._timeout_s * (PATIENCE_FILES if request.lane is Lane.BATCH else PATIENCE_CALLS)
            return "" if now_s - attempt.since_s < patience_s else f"{outcome.reason}, for {patience_s:g} s"
        if isinstance(outcome, RequestSimplified):
            return ""
        assert isinstance(outcome, RequestFailed)
        attempt.failures += 1
        return "" if outcome.again and attempt.failures < ATTEMPTS else outcome.reason

    def _forget(self, name: str) -> None:
        attempt = self._attempts.pop(name, None)
        if attempt is not None and attempt.cancel is not None:
            attempt.cancel()
