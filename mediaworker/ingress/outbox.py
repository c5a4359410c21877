"""What a session has to say and its peer has not taken yet. No I/O: the shell takes one output at a time.

Of partials only the newest of each utterance waits; everything else waits in its order, up to a bound. A peer that lets
more than that pile up is cut off: nothing that it was promised is left out in silence.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from mediaworker.ingress.interfaces import CloseConnection, Output, Send

MAX_WAITING = 256
"""Messages that wait for one peer, beside partials."""


def _nothing() -> None:
    """Until the shell listens."""


class Outbox:
    """`overrun` stays set once a message did not fit; the shell is told by `cut` to close without waiting."""

    def __init__(self, limit: int = MAX_WAITING) -> None:
        self.overrun = False
        self._limit = limit
        self._waiting: OrderedDict[str | int, Output] = OrderedDict()
        """Partials by the utterance's id, the rest by number."""
        self._partials = self._count = 0
        self._closed = False
        self._ready: Callable[[], None] = _nothing
        self._cut: Callable[[], None] = _nothing

    def listen(self, ready: Callable[[], None], cut: Callable[[], None]) -> None:
        """`ready`: there is something for `next`; `cut`: close now, whatever still waits."""
        self._ready, self._cut = ready, cut
        if self._waiting:
            ready()

    @property
    def room(self) -> int:
        """So many more messages fit."""
        return max(0, self._limit - len(self._waiting) + self._partials)

    def say(self, text: str) -> None:
        self._put(Send(text))

    def show(self, utterance_id: str, text: str) -> None:
        """A partial, in place of the one before it."""
        if self._closed:
            return
        # Taken out and put in at the end: in its predecessor's place it would overtake what was said since.
        self._partials += self._waiting.pop(utterance_id, None) is None
        self._waiting[utterance_id] = Send(text)
        self._ready()

    def hide(self, utterance_id: str) -> None:
        """The utterance's partial, if it still waits, is of no use any more."""
        self._partials -= self._waiting.pop(utterance_id, None) is not None

    def close(self, code: int, reason: str) -> None:
        """The last output; what comes later is left out."""
        # A close frame holds 125 bytes, two of them the code (RFC 6455 section 5.5).
        self._put(CloseConnection(code, reason.encode()[:123].decode(errors="ignore")), fits=True)
        self._closed = True

    def cut(self) -> None:
        """The peer does not take what waits for it: give up."""
        self._waiting.clear()
        self._partials, self._closed = 0, True
        self._cut()

    def next(self) -> Output | None:
        """The oldest, or None when nothing waits."""
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
        self._ready()
