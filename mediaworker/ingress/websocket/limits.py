"""The limits and timeouts of a stream session, and the counters of all sessions."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass

from asr.languages import QWEN3_ASR
from config.metrics.counters import counter, counter_by
from mediaworker.ingress.counters import IngressCounters

MAX_ERRORS = 20
"""Errors in a row after which a session is closed."""
MAX_AWAITED = 8
"""The number of outstanding finals above which a session's audio waits: a file sent at once must not fill the engine's
lanes, which live calls share."""
FINISH_S = 300.0
"""How long the socket is kept open for the last finals: the engine may have to load its model first."""


@dataclass(slots=True)
class StreamCounters(IngressCounters):
    """The totals over all sessions since the start of the worker."""

    refused: Counter[str] = counter_by("reason", "Counts refused sessions of /ws/asr and /ws/transcribe by reason.")
    sessions: int = counter("Counts sessions of /ws/asr and /ws/transcribe since the worker started.")
    errors: Counter[str] = counter_by(
        "code", "Counts errors reported to clients of /ws/asr and /ws/transcribe, by code."
    )
    slow: int = counter(
        "Counts sessions of /ws/asr and /ws/transcribe that were cut because the client did not read.",
        name="stream_slow_clients",
    )
    nonfinite: int = counter(
        "Counts samples of float audio that were infinite or not a number.", name="stream_nonfinite_samples"
    )

    def error(self, code: str) -> None:
        self.errors[code] += 1


@dataclass(frozen=True, slots=True)
class StreamEngine:
    """The engine as a session sees it."""

    ready: Callable[[], bool]
    languages: Callable[[], Collection[str]] = lambda: QWEN3_ASR
    """The languages that can be requested."""


@dataclass(frozen=True, slots=True)
class StreamPolicy:
    """The identity and the limits of a session, fixed when its upgrade is accepted."""

    session_id: str
    caller: str
    """The name of the API key, or `loopback`."""
    start_timeout_s: float
    idle_s: float
    max_s: float
    engine: StreamEngine
    unix_time: Callable[[], float] = time.time
