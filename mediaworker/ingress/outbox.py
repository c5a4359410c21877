"""The queue of a session's outputs that its peer has not read yet. No I/O: the shell fetches one output at a time.

Only the newest partial of each utterance is kept; everything else waits in order, up to a bound. A peer that falls
further behind is disconnected, because no message but a partial may be dropped silently.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

NORMAL, GOING_AWAY, UNSUPPORTED, POLICY, INTERNAL, TRY_LATER = 1000, 1001, 1003, 1008, 1011, 1013
"""Close codes of RFC 6455 section 7.4.1."""
LINGER_S = 5.0
"""The time that a peer has to read the last outputs and the close before it is disconnected."""
MAX_WAITING = 256
"""The most messages that wait for one peer, not counting partials."""
SLOW = 4008
"""Close code for a peer that does not read, as on `/v1/events`; 4000 to 4999 are private (section 7.4.2)."""


@dataclass(frozen=True, slots=True)
class CloseConnection:
    """Close the WebSocket with this code (RFC 6455 section 7.4.1) and reason."""

    code: int
    reason: str = ""

    @classmethod
    def of(cls, code: int, reason: str) -> CloseConnection:
        """A close whose reason is cut to fit: a close frame has at most 125 bytes, two for the code (section 5.5)."""
        return cls(code, reason.encode()[:123].decode(errors="ignore"))


Output = str | bytes | CloseConnection
"""A text or binary message, or the end of the connection."""


class SessionOutbox:
    """The queue. `overrun` stays set once a message did not fit. `close` waits for its turn, `abort` does not."""

    def __init__(self, limit: int = MAX_WAITING) -> None:
        self.overrun = False
        self._limit = limit
        self._waiting: OrderedDict[str | int, Output] = OrderedDict()
        """The waiting outputs: partials by their utterance's id, others by number."""
        self._partials = self._count = 0
        self._closed = False
        self._on_ready: Callable[[], None] = lambda: None
        self._on_abort: Callable[[CloseConnection], None] = lambda close: None

    def listen(self, on_ready: Callable[[], None], on_abort: Callable[[CloseConnection], None]) -> None:
        """Set the callbacks: `on_ready` when `next` has an output, `on_abort` to close at once without sending more."""
        self._on_ready, self._on_abort = on_ready, on_abort
        if self._waiting:
            on_ready()

    @property
    def room(self) -> int:
        """The number of further messages that fit."""
        return max(0, self._limit - len(self._waiting) + self._partials)

    def send(self, message: str | bytes) -> None:
        self._put(message)

    def send_partial(self, utterance_id: str, message: str | bytes) -> None:
        """Send a partial in place of the utterance's previous one."""
        if self._closed:
            return
        # The new partial goes to the end: in its predecessor's place it would overtake later outputs.
        self._partials += self._waiting.pop(utterance_id, None) is None
        self._waiting[utterance_id] = message
        self._on_ready()

    def drop_partial(self, utterance_id: str) -> None:
        """Drop the utterance's partial if it still waits."""
        self._partials -= self._waiting.pop(utterance_id, None) is not None

    def close(self, code: int, reason: str) -> None:
        """Send the close as the last output; later ones are dropped."""
        self._put(CloseConnection.of(code, reason), fits=True)
        self._closed = True

    def abort(self, code: int = SLOW, reason: str = "what waits is not read") -> None:
        """Close now and drop the queue; by default because the peer does not read."""
        self.discard()
        self._on_abort(CloseConnection.of(code, reason))

    def discard(self) -> None:
        """Drop the queue and all later outputs, because the connection is gone."""
        self._waiting.clear()
        self._partials, self._closed = 0, True

    def next(self) -> Output | None:
        """Remove and return the oldest output; None if the queue is empty."""
        if not self._waiting:
            return None
        key, output = self._waiting.popitem(last=False)
        self._partials -= isinstance(key, str)
        return output

    def _put(self, output: Output, *, fits: bool = False) -> None:
        if self._closed:
            return
        if not fits and len(self._waiting) - self._partials >= self._limit:
            self.overrun = True
            return
        self._count += 1
        self._waiting[self._count] = output
        self._on_ready()
