"""What one engine server is still to be sent, and what it has been sent. No I/O.

The audio of its utterances is the only queue: `next_message` cuts the next message from it, and a replay after a crash
is no special case, because a process that has just started has been sent nothing.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Collection
from dataclasses import dataclass

from asr import messages
from asr.client.spill import SpillError, UtteranceAudio
from asr.messages import MAX_AUDIO_BYTES, Align, FinalRequest, PartialRequest, ToEngine
from asr.utterance import Alignment, Hypothesis, TimedWord, Utterance

SLOW_MS = 150
"""A delay of this many milliseconds at a server makes others better, and twice as many again."""
OnHypothesis = Callable[[Hypothesis], None]
OnAlignment = Callable[[Alignment], None]


@dataclass(slots=True)
class PendingUtterance:
    """One open utterance at the recognizer: its audio, its newest request, and how much of them has been sent."""

    utterance: Utterance
    on_hypothesis: OnHypothesis
    audio: UtteranceAudio
    """All of it, for a replay, until the utterance is over."""
    queue: SendQueue | None = None
    """Where it is placed; None: it waits until a server is ready, or has failed."""
    newest: int = -1
    """The highest revision that was requested."""
    delivered: int = -1
    request: PartialRequest | FinalRequest | Align | None = None
    """The newest request, until it is answered."""
    words: tuple[TimedWord, ...] = ()
    """The words of its newest final, from an engine that gives their times."""
    on_alignment: OnAlignment | None = None
    """Set with an `Align`, which is the last request."""
    opened: bool = False
    """`opened`, `sent` and `asked`: what has been sent to this life of the inference process."""
    sent: int = 0
    asked: bool = False
    withdrawn: bool = False
    """The request has been withdrawn, and the process has not been sent that."""
    begun_bytes: int = 0
    """How much of the audio is counted as being at the process."""
    unanswered_crashes: int = 0
    """How many processes have died over it since its last answer."""
    shared_crashes: int = 0
    failed: str | None = None
    died: bool = False
    """It failed because the process died over it."""
    refused: bool = False
    """It failed because the engine does not know its language: see `Hypothesis.refused`."""

    def revise(self, revision: int) -> None:
        assert revision > self.newest, f"{self.utterance.id}: revision {revision} after {self.newest}"
        self.newest = revision

    def ask(self, request: PartialRequest | FinalRequest | Align) -> None:
        """Replace the previous request."""
        self.revise(request.revision)
        self.request, self.asked, self.withdrawn = request, False, False

    def next_message(self) -> ToEngine | None:
        """The next message to send; it counts as sent. Raises SpillError."""
        if not self.opened:
            self.opened = True
            return messages.Open(self.utterance, suspect=self.unanswered_crashes > 0)
        if self.withdrawn:
            self.withdrawn = False
            if self.asked:
                return messages.Withdraw(self.utterance.id)
            self.asked = True  # so this life of the process never gets the request
        request = None if self.asked else self.request
        # Audio that was appended after a request is sent after it, in a replay too.
        end = len(self.audio) if request is None else request.end
        if self.sent < end:
            start = self.sent
            audio = self.audio.read(start, min(end, start + MAX_AUDIO_BYTES))
            self.sent += len(audio)
            return messages.Append(self.utterance.id, start, audio)
        if request is not None:
            self.asked = True
        return request

    def forget_process(self) -> None:
        """The process is gone, and the next one has been sent nothing."""
        self.opened, self.sent, self.asked, self.withdrawn, self.begun_bytes = False, 0, False, False, 0

    def waits_for(self, hypothesis: Hypothesis) -> bool:
        """Whether the hypothesis is still wanted."""
        if hypothesis.final:
            request = self.request
            return isinstance(request, FinalRequest) and request.revision == hypothesis.revision
        # A partial is still wanted after a newer request.
        return hypothesis.revision > self.delivered

    def ends_with(self, hypothesis: Hypothesis) -> bool:
        """Whether this answer ends the utterance."""
        request = self.request
        if not isinstance(request, FinalRequest) or not request.commit or request.revision != hypothesis.revision:
            return False
        return not self.utterance.words or hypothesis.error is not None


class SendQueue:
    """No further utterance is sent while the process holds `max_bytes` of earlier ones.

    Args:
        shared: it is of an engine server that other workers use as well, and is told when a leg leaves it.
    """

    def __init__(self, *, max_bytes: int, shared: bool = False) -> None:
        self.available = False
        """Its process is ready, and takes further utterances."""
        self.wake: Callable[[], None] = lambda: None
        """Called when there may be something to send."""
        self.working: tuple[str, ...] = ()
        """Utterances that the process is working on: they are blamed if it dies."""
        self.shared_step = False
        """It was working on utterances of other workers as well."""
        self.languages: Collection[str] = ()
        """ISO 639 codes that the server can be asked for; empty: every server knows the same."""
        self.load = messages.ServerLoad()
        """The load of an engine server that other workers use as well, as it has last told it."""
        self.utterances: dict[str, PendingUtterance] = {}
        """The utterances that were placed here, by their ids."""
        self.legs = 0
        """Legs that have their place here; see `asr.client.placement`."""
        self.files = 0
        """How many of the utterances are of files."""
        self._max_bytes, self._shared = max_bytes, shared
        self._begun_bytes = 0
        """Audio of the utterances that the process has been sent."""
        self._unsent: OrderedDict[str, None] = OrderedDict()
        """Utterances with something to send."""
        self._held: OrderedDict[str, None] = OrderedDict()
        """Utterances that wait for room in the process."""
        self._ends: deque[ToEngine] = deque()
        """Utterances that the process still has to close, and legs that have left the server; they are sent first."""

    @property
    def all_legs(self) -> int:
        """Legs of all workers that have their place at the server."""
        return self.legs + self.load.legs

    @property
    def all_files(self) -> int:
        return self.files + self.load.files

    @property
    def slow(self) -> int:
        """0 while its answers are prompt; one more with each doubling of the delay."""
        return (self.load.delay_ms // SLOW_MS).bit_length()

    def speaks(self, language: str) -> bool:
        """Whether it can be asked for an utterance in this language; empty: the engine is to find out."""
        return not language or not self.languages or language in self.languages

    def join(self, leg: str) -> None:
        """The leg has its place here from now on."""
        self.legs += 1

    def leave(self, leg: str) -> None:
        self.legs -= 1
        if self._shared:
            self._ends.append(messages.Release(leg))
            self.wake()

    def add(self, pending: PendingUtterance) -> None:
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

    def drop(self, pending: PendingUtterance, *, notify: bool) -> None:
        """Send nothing more of the utterance. `notify`: the process closes it when it is told to, not by itself."""
        name = pending.utterance.id
        if self.utterances.pop(name, None) is None:
            return
        self.files -= not pending.utterance.live
        self._begun_bytes -= pending.begun_bytes
        pending.begun_bytes = 0
        self._unsent.pop(name, None)
        self._held.pop(name, None)
        if notify and pending.opened:
            self._ends.append(messages.CloseUtterance(name))
        pending.opened = False
        self.wake()  # it has made room for the next

    def clear(self) -> list[PendingUtterance]:
        """The process is gone. -> its utterances, oldest first; nothing of them counts as sent."""
        placed = list(self.utterances.values())
        self.utterances.clear()
        self._unsent.clear()
        self._held.clear()
        self._ends.clear()
        self._begun_bytes = 0
        self.working, self.shared_step, self.available, self.files = (), False, False, 0
        self.load = messages.ServerLoad()
        for pending in placed:
            pending.forget_process()
        return placed

    def next_message(self) -> ToEngine | None:
        """The next message to write; it counts as sent."""
        if self._ends:
            return self._ends.popleft()
        if self._held and self._has_room:
            self._unsent[self._held.popitem(last=False)[0]] = None
        while self._unsent:
            name = next(iter(self._unsent))
            pending = self.utterances[name]
            if not (pending.opened or self._has_room):
                del self._unsent[name]
                self._held[name] = None
            elif (message := self._next_of(pending)) is not None:
                self._unsent.move_to_end(name)
                return message
            else:
                self._unsent.pop(name, None)
        return None

    @property
    def _has_room(self) -> bool:
        """Whether the process has room for one more utterance."""
        return self._begun_bytes < min(self._max_bytes, self.load.max_bytes or self._max_bytes)

    def lose(self, pending: PendingUtterance, reason: str) -> None:
        """The audio of this utterance cannot be read back from the disk."""

    def _next_of(self, pending: PendingUtterance) -> ToEngine | None:
        try:
            message = pending.next_message()
        except SpillError as error:
            self.lose(pending, str(error))
            return None
        self.count(pending)
        return message
