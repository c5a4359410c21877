"""What one inference process is still to be sent, and what it has been sent. No I/O.

The audio of its utterances is the only queue: `next_message` cuts the next message from it, and a replay after a crash
is no special case, because a process that has just started has been sent nothing.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable

from asr.client.pending import PendingUtterance
from asr.client.spill import SpillError
from asr.messages import CloseUtterance, ToEngine


class SendQueue:
    """No further utterance is sent while the process holds `max_bytes` of earlier ones.

    Args:
        lose: takes an utterance whose audio cannot be read back from the disk, and the reason.
    """

    def __init__(self, *, max_bytes: int, lose: Callable[[PendingUtterance, str], None]) -> None:
        self.available = False
        """Its process is ready, and takes further utterances."""
        self.wake: Callable[[], None] = lambda: None
        """Called when there may be something to send."""
        self.working: tuple[str, ...] = ()
        """Utterances that the process is working on: they are blamed if it dies."""
        self.utterances: dict[str, PendingUtterance] = {}
        """Those that were placed here."""
        self.legs = 0
        """Whose utterances are placed here; see `asr.client.placement`."""
        self.files = 0
        """How many of the utterances are of files."""
        self._max_bytes, self._lose = max_bytes, lose
        self._begun_bytes = 0
        """Audio of the utterances that the process has been sent."""
        self._unsent: OrderedDict[str, None] = OrderedDict()
        """Utterances with something to send."""
        self._held: OrderedDict[str, None] = OrderedDict()
        """Utterances that wait for room in the process."""
        self._closed: deque[str] = deque()
        """Utterances that the process still has to close."""

    def put(self, pending: PendingUtterance) -> None:
        name = pending.utterance.id
        self.utterances[name] = pending
        self.files += not pending.utterance.live
        self.mark(name)

    def mark(self, name: str) -> None:
        """The utterance may have something to send."""
        if name not in self._held:
            self._unsent[name] = None
        self.wake()

    def count(self, pending: PendingUtterance) -> None:
        """All audio of an utterance that has been opened is at the process, or about to be."""
        if pending.opened:
            self._begun_bytes += len(pending.audio) - pending.begun_bytes
            pending.begun_bytes = len(pending.audio)

    def drop(self, pending: PendingUtterance, *, tell: bool) -> None:
        """Send nothing more of the utterance. `tell`: the process closes it when it is told to, not by itself."""
        name = pending.utterance.id
        if self.utterances.pop(name, None) is None:
            return
        self.files -= not pending.utterance.live
        self._begun_bytes -= pending.begun_bytes
        pending.begun_bytes = 0
        self._unsent.pop(name, None)
        self._held.pop(name, None)
        if tell and pending.opened:
            self._closed.append(name)
        pending.opened = False
        self.wake()  # it has made room for the next

    def clear(self) -> list[PendingUtterance]:
        """The process is gone. -> its utterances, oldest first; nothing of them counts as sent."""
        placed = list(self.utterances.values())
        self.utterances.clear()
        self._unsent.clear()
        self._held.clear()
        self._closed.clear()
        self.working, self.available, self.files, self._begun_bytes = (), False, 0, 0
        for pending in placed:
            pending.forget_process()
        return placed

    def next_message(self) -> ToEngine | None:
        """The next message to write; it counts as sent."""
        if self._closed:
            return CloseUtterance(self._closed.popleft())
        room = self._begun_bytes < self._max_bytes
        if room and self._held:
            self._unsent[self._held.popitem(last=False)[0]] = None
        while self._unsent:
            name = next(iter(self._unsent))
            pending = self.utterances[name]
            if not room and not pending.opened:
                del self._unsent[name]
                self._held[name] = None
            elif (message := self._next_of(pending)) is not None:
                self._unsent.move_to_end(name)
                return message
            else:
                self._unsent.pop(name, None)
        return None

    def _next_of(self, pending: PendingUtterance) -> ToEngine | None:
        try:
            message = pending.next_message()
        except SpillError as error:
            self._lose(pending, str(error))
            return None
        self.count(pending)
        return message
