"""The utterances placed at one engine server, how much of each has been sent, and which message goes next. No I/O.

No message is queued: `next_message` cuts the next one from the audio of the utterances. A replay after a crash is
therefore no special case, because the counters simply say that the new process has been sent nothing.
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
"""From this delay on, a server counts as slow for new utterances; each doubling makes it one step slower."""
OnHypothesis = Callable[[Hypothesis], None]
OnAlignment = Callable[[Alignment], None]


@dataclass(slots=True)
class PendingUtterance:
    """One open utterance at the recognizer: its audio, its newest request, and how much of them has been sent."""

    utterance: Utterance
    on_hypothesis: OnHypothesis
    audio: UtteranceAudio
    """All audio of the utterance, kept for a replay until the utterance is over."""
    queue: SendQueue | None = None
    """The queue of its server; None while it waits for a server to be ready, and after it has failed."""
    newest: int = -1
    """The highest revision that was requested."""
    delivered: int = -1
    """The highest revision that was delivered."""
    request: PartialRequest | FinalRequest | Align | None = None
    """The newest request, until it is answered."""
    words: tuple[TimedWord, ...] = ()
    """The words of its newest final, if the engine itself timestamps words."""
    on_alignment: OnAlignment | None = None
    """Set with an `Align`, which is the last request."""
    opened: bool = False
    """Whether the present process has been sent `Open`; `sent` and `asked` refer to the same process."""
    sent: int = 0
    """The number of bytes of audio that have been sent."""
    asked: bool = False
    """Whether `request` has been sent."""
    withdrawn: bool = False
    """Whether `request` has been withdrawn and the process has not been sent that yet."""
    begun_bytes: int = 0
    """The bytes of this utterance in the queue's count of audio at the process."""
    unanswered_crashes: int = 0
    """How many processes have died over it since its latest answer."""
    shared_crashes: int = 0
    """How many processes have died over it while it was not alone in the step; an answer does not reset this."""
    failed: str | None = None
    """Why the utterance was given up; None while it was not."""
    died: bool = False
    """Whether it failed because processes died over it."""
    refused: bool = False
    """Whether it failed because the engine does not support its language: see `Hypothesis.refused`."""

    def revise(self, revision: int) -> None:
        assert revision > self.newest, f"{self.utterance.id}: revision {revision} after {self.newest}"
        self.newest = revision

    def ask(self, request: PartialRequest | FinalRequest | Align) -> None:
        """Set the newest request, in place of the previous one."""
        self.revise(request.revision)
        self.request, self.asked, self.withdrawn = request, False, False

    def next_message(self) -> ToEngine | None:
        """Return the next message to send; it counts as sent. Raises SpillError."""
        if not self.opened:
            self.opened = True
            return messages.Open(self.utterance, suspect=self.unanswered_crashes > 0)
        if self.withdrawn:
            self.withdrawn = False
            if self.asked:
                return messages.Withdraw(self.utterance.id)
            self.asked = True  # the present process never gets the request
        request = None if self.asked else self.request
        # Audio that was appended after a request is sent after it, in a replay too. Otherwise the engine would answer
        # the request from more audio than the first process had, and the text could differ.
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
        """The process is gone, and its successor has been sent nothing."""
        self.opened, self.sent, self.asked, self.withdrawn, self.begun_bytes = False, 0, False, False, 0

    def waits_for(self, hypothesis: Hypothesis) -> bool:
        """Whether the hypothesis can still be used."""
        if hypothesis.final:
            request = self.request
            return isinstance(request, FinalRequest) and request.revision == hypothesis.revision
        # A partial is still useful after a newer request, unless a newer answer has been delivered.
        return hypothesis.revision > self.delivered

    def ends_with(self, hypothesis: Hypothesis) -> bool:
        """Whether this answer ends the utterance."""
        request = self.request
        if not isinstance(request, FinalRequest) or not request.commit or request.revision != hypothesis.revision:
            return False
        return not self.utterance.words or hypothesis.error is not None


class SendQueue:
    """The utterances placed at one engine server, and the order in which their messages are sent.

    Args:
        max_bytes: no further utterance is opened while the process holds this much audio of earlier ones.
        shared: other workers use the engine server as well, so it is sent a `Release` when a leg leaves it.
    """

    def __init__(self, *, max_bytes: int, shared: bool = False) -> None:
        self.available = False
        """Whether the process is ready and accepts further utterances."""
        self.wake: Callable[[], None] = lambda: None
        """Called when there may be something to send."""
        self.working: tuple[str, ...] = ()
        """The utterances that the process is working on: they are blamed if it dies."""
        self.shared_step = False
        """Whether the process was working on utterances of other workers as well when it died."""
        self.languages: Collection[str] = ()
        """ISO 639 codes of the languages that the server supports; empty if all servers support the same ones."""
        self.load = messages.ServerLoad()
        """The load that the engine server last reported; all zeros where no other worker uses it."""
        self.utterances: dict[str, PendingUtterance] = {}
        """The utterances that are placed here, by their ids."""
        self.legs = 0
        """The number of this worker's legs that are placed here; see `asr.client.placement`."""
        self.files = 0
        """The number of utterances of files among `utterances`."""
        self._max_bytes, self._shared = max_bytes, shared
        self._begun_bytes = 0
        """The bytes of audio of the opened utterances, sent or about to be."""
        self._unsent: OrderedDict[str, None] = OrderedDict()
        """The utterances with something to send, by turns."""
        self._held: OrderedDict[str, None] = OrderedDict()
        """The utterances that are not opened yet because the process has no room for their audio."""
        self._ends: deque[ToEngine] = deque()
        """`CloseUtterance` and `Release` messages, which are sent before everything else because they free room."""

    @property
    def all_legs(self) -> int:
        """The number of legs of all workers that are placed at the server."""
        return self.legs + self.load.legs

    @property
    def all_files(self) -> int:
        return self.files + self.load.files

    @property
    def slow(self) -> int:
        """How slow the server is: 0 below `SLOW_MS` of delay, 1 from there on, and one more with each doubling."""
        return (self.load.delay_ms // SLOW_MS).bit_length()

    def speaks(self, language: str) -> bool:
        """Whether the server supports this language. If it is empty, the engine detects the language itself."""
        return not language or not self.languages or language in self.languages

    def join(self, leg: str) -> None:
        """The leg is placed here from now on."""
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
        """Count the audio of an opened utterance: all of it is at the process, or about to be sent."""
        if pending.opened:
            self._begun_bytes += len(pending.audio) - pending.begun_bytes
            pending.begun_bytes = len(pending.audio)

    def drop(self, pending: PendingUtterance, *, notify: bool) -> None:
        """Send nothing more of the utterance. `notify`: the process needs a `CloseUtterance`, since it does not close
        the utterance by itself."""
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
        self.wake()  # there may now be room to open another one

    def clear(self) -> list[PendingUtterance]:
        """The process is gone. Returns its utterances, oldest first; none of their audio counts as sent any more."""
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
        """Return the next message to write; it counts as sent. None if there is nothing to send now."""
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
