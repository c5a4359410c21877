"""People on the phone, in real time, who ask the recogniser for what a leg asks (`mediaworker.calls.transcriber`):
audio in pieces of 200 ms, partials, a final as soon as they pause, which is taken when the endpoint fires.

A wait begins when something was to be asked: an event loop that files hold up counts.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from asr import messages
from asr.client.recognizer import Recognizer
from asr.utterance import Hypothesis
from benchmarks.engine.plan import TAIL_MS, Arrival

PERCENTILES = (50, 95, 99)


@dataclass(frozen=True, slots=True)
class _Asked:
    revision: int
    final: bool
    due_s: float


class Calls:
    """See the module. Every utterance gets its final before `run` is over.

    Args:
        min_silence_ms: after which the endpoint fires.
    """

    def __init__(self, recognizer: Recognizer, arrivals: Sequence[Arrival], *, min_silence_ms: int) -> None:
        self._recognizer, self._arrivals = recognizer, arrivals
        self._endpoint_ms = max(0, min_silence_ms - TAIL_MS)
        """From the question for the final."""
        self._pending: dict[str, list[_Asked]] = defaultdict(list)
        self._fired: set[str] = set()
        """Utterances whose endpoint has fired before their final was there."""
        self._open = sum(isinstance(each.message, messages.Open) for each in arrivals)
        self._over = asyncio.Event()
        self.waits_s: dict[bool, list[float]] = {True: [], False: []}
        """Of finals and of partials, each to the first answer to it or to a newer one."""
        self.late_s: list[float] = []
        """Of finals, beyond the endpoint."""
        self.replaced = 0
        self.errors: list[str] = []

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        begun_s = loop.time()
        for arrival in self._arrivals:
            due_s = begun_s + arrival.time_s
            await asyncio.sleep(max(0.0, due_s - loop.time()))
            self._send(arrival.message, due_s)
        await self._over.wait()

    def _send(self, message: messages.ToEngine, due_s: float) -> None:
        match message:
            case messages.Open(utterance=utterance):
                self._recognizer.open(utterance, self._heard)
            case messages.Append(utterance_id=name, audio=audio):
                self._recognizer.append(name, audio)
            case messages.PartialRequest(utterance_id=name, revision=revision):
                self._pending[name].append(_Asked(revision, False, due_s))
                self._recognizer.partial(name, revision)
            case messages.FinalRequest(utterance_id=name, revision=revision):
                self._pending[name].append(_Asked(revision, True, due_s))
                self._recognizer.final(name, revision, commit=False, wanted_in_ms=self._endpoint_ms)
                asyncio.get_running_loop().call_at(due_s + self._endpoint_ms / 1000, self._fire, name)

    def _heard(self, hypothesis: Hypothesis) -> None:
        name, now_s = hypothesis.utterance_id, asyncio.get_running_loop().time()
        if hypothesis.error is not None:
            self.errors.append(hypothesis.error)
        answered = [asked for asked in self._pending[name] if asked.revision <= hypothesis.revision]
        del self._pending[name][: len(answered)]
        for asked in answered:
            self.waits_s[asked.final].append(now_s - asked.due_s)
            self.replaced += asked.revision < hypothesis.revision
            if asked.final:
                self.late_s.append(max(0.0, now_s - asked.due_s - self._endpoint_ms / 1000))
                if name in self._fired:
                    self._commit(name)

    def _fire(self, name: str) -> None:
        if self._pending[name]:
            self._fired.add(name)
        else:
            self._commit(name)

    def _commit(self, name: str) -> None:
        self._recognizer.commit(name)
        self._open -= 1
        if not self._open:
            self._over.set()

    def figures(self) -> dict[str, Any]:
        finals, partials = self.waits_s[True], self.waits_s[False]
        return {
            "finals": len(finals),
            "partials": len(partials),
            "partials_answered_share": round(1 - self.replaced / len(partials), 4) if partials else None,
            **_milliseconds("final", finals),
            **_milliseconds("final_after_endpoint", self.late_s),
            **_milliseconds("partial", partials),
        }


def _milliseconds(what: str, waits_s: Sequence[float]) -> dict[str, float | None]:
    """Nearest ranks, and the worst."""
    ranked = sorted(waits_s)
    ranks = {f"p{percent}": -(-len(ranked) * percent // 100) - 1 for percent in PERCENTILES} | {"max": len(ranked) - 1}
    return {f"{what}_{name}_ms": round(1000 * ranked[rank], 1) if ranked else None for name, rank in ranks.items()}
