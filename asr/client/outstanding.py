"""What the media process owes its callers and has not got back yet: audio, requests, and who is to blame for a crash.

Bookkeeping for `asr.client.recognizer`, which calls two methods. `next_message` returns the next message to the
inference process. The audio itself is the only queue, and a replay after a crash is no special case, because after
`on_death` nothing counts as sent. `take_deliveries` returns the answers for callers.

Memory is bounded on both sides. Here, audio beyond `max_bytes` goes to disk, the newest first because it is sent last.
There, no further utterance is sent while the process holds `max_bytes` of earlier ones.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Any

from asr.client.pending import OnAlignment, OnHypothesis, PendingUtterance, RecognizerCounters
from asr.client.spill import Spill, SpillError, UtteranceAudio
from asr.messages import Align, CloseUtterance, FinalRequest, PartialRequest, ToEngine
from asr.utterance import Alignment, Hypothesis, Utterance

CRASHES_ALLOWED = 1
"""How often the engine may die over an utterance that was alone in the step, before the utterance is given up."""
CRASHES_IN_COMPANY = 3
"""The same for an utterance that was not alone: another one in the step may be to blame."""

Delivery = tuple[Callable[[Any], None], Hypothesis | Alignment]
"""A caller's callback, and its argument."""


class OutstandingWork:
    """Beyond `max_bytes` of audio it refuses partials and alignments, but never finals."""

    def __init__(self, *, max_bytes: int, spill: Spill) -> None:
        self.counters = RecognizerCounters()
        self.audio_bytes = 0
        """The audio of open utterances, in memory and on disk."""
        self.working: tuple[str, ...] = ()
        """Utterances that the engine is working on: they are blamed if it dies."""
        self._max_bytes, self._spill = max_bytes, spill
        self._begun_bytes = 0
        """Audio of the utterances that this life of the inference process has been sent."""
        self._open: dict[str, PendingUtterance] = {}
        self._unsent: OrderedDict[str, None] = OrderedDict()
        """Utterances with something to send."""
        self._held: OrderedDict[str, None] = OrderedDict()
        """Utterances that wait for room in the inference process."""
        self._closed: deque[str] = deque()
        """Utterances that the process still has to close."""
        self._deliveries: list[Delivery] = []

    def __len__(self) -> int:
        """How many utterances are open."""
        return len(self._open)

    def __contains__(self, utterance_id: str) -> bool:
        return utterance_id in self._open

    @property
    def spilled_bytes(self) -> int:
        """Audio on disk."""
        return self._spill.used_bytes

    # -- from the caller --------------------------------------------------------------------------------------------

    def open(self, utterance: Utterance, on_hypothesis: OnHypothesis) -> None:
        assert utterance.id not in self._open, f"{utterance.id} is open"
        self._open[utterance.id] = PendingUtterance(utterance, on_hypothesis, UtteranceAudio(self._spill))
        self.counters.utterances += 1
        self._unsent[utterance.id] = None

    def refuse(self, utterance_id: str, reason: str) -> None:
        """The engine cannot recognise this utterance, which has just been opened: its final carries the reason."""
        pending = self._open[utterance_id]
        pending.refused = True
        self._give_up(pending, reason)

    def append(self, utterance_id: str, audio: bytes) -> None:
        pending = self._open[utterance_id]
        if pending.failed is None:
            pending.audio.append(audio)
            self.audio_bytes += len(audio)
            self._mark_unsent(utterance_id)
            if pending.opened:
                self._count_begun(pending)
            self._move_to_disk(pending)

    def partial(self, utterance_id: str, revision: int) -> None:
        pending = self._open[utterance_id]
        if self.audio_bytes > self._max_bytes:
            self.counters.refused_partials += 1
            pending.revise(revision)
            pending.request = None
        elif pending.failed is not None:
            pending.revise(revision)
        else:
            self._request(pending, PartialRequest(utterance_id, revision, len(pending.audio)))

    def final(self, utterance_id: str, revision: int, *, commit: bool, wanted_in_ms: int = 0) -> None:
        """An utterance that has been given up fails at once."""
        pending = self._open[utterance_id]
        self._request(pending, FinalRequest(utterance_id, revision, len(pending.audio), commit, wanted_in_ms))
        if pending.failed is not None:
            self._give_up(pending, pending.failed)

    def withdraw(self, utterance_id: str) -> None:
        """Withdraw a speculative final. An answer that is on its way is still delivered."""
        pending = self._open[utterance_id]
        if isinstance(pending.request, FinalRequest) and not pending.request.commit and pending.failed is None:
            pending.withdrawn = True
            self._mark_unsent(utterance_id)

    def align(self, utterance_id: str, text: str, language: str, on_alignment: OnAlignment) -> None:
        """The final is taken, and the times of its words are wanted. The utterance is over with the answer, which comes
        at once when the final had the times with it, or when there will be none."""
        pending = self._open[utterance_id]
        assert pending.utterance.words, f"{utterance_id} was opened without words"
        pending.on_alignment = on_alignment
        revision = pending.newest + 1
        if pending.words:
            self._end_aligned(pending, Alignment(utterance_id, revision, pending.words))
            return
        self._request(pending, Align(utterance_id, revision, text, language, len(pending.audio)))
        if pending.failed is not None:
            self._give_up(pending, pending.failed)
        elif self.audio_bytes > self._max_bytes:
            self.counters.refused_alignments += 1
            self._give_up(pending, "more audio waits for the engine than asr.max_backlog_mb allows")

    def close(self, utterance_id: str) -> None:
        """Forget an utterance that was committed or cancelled. Does nothing if it has ended."""
        pending = self._open.pop(utterance_id, None)
        if pending is None:
            return
        self._drop_audio(pending)
        if pending.opened:
            self._closed.append(utterance_id)

    def drop_spilled(self) -> None:
        """Delete all audio on disk, at the worker's end."""
        self._spill.close()

    # -- to the caller ----------------------------------------------------------------------------------------------

    @property
    def has_deliveries(self) -> bool:
        return bool(self._deliveries)

    def take_deliveries(self) -> list[Delivery]:
        """Answers that are due, oldest first. Any method may have added some."""
        deliveries, self._deliveries = self._deliveries, []
        return deliveries

    # -- to and from the inference process --------------------------------------------------------------------------

    def next_message(self) -> ToEngine | None:
        """The next message to write; it counts as sent."""
        if self._closed:
            return CloseUtterance(self._closed.popleft())
        room = self._begun_bytes < self._max_bytes
        if room and self._held:
            self._unsent[self._held.popitem(last=False)[0]] = None
        while self._unsent:
            name = next(iter(self._unsent))
            pending = self._open[name]
            if not room and not pending.opened and pending.failed is None:
                del self._unsent[name]
                self._held[name] = None
            elif (message := self._next_of(pending)) is not None:
                self._unsent.move_to_end(name)
                return message
            else:
                self._unsent.pop(name, None)
        return None

    def on_hypothesis(self, hypothesis: Hypothesis) -> None:
        """Deliver the hypothesis if it is still wanted."""
        pending = self._open.get(hypothesis.utterance_id)
        if pending is None or not pending.waits_for(hypothesis):
            self.counters.stale += 1
            return
        self._answer(pending, hypothesis)

    def on_alignment(self, alignment: Alignment) -> None:
        """Deliver the alignment if it is still wanted."""
        pending = self._open.get(alignment.utterance_id)
        if pending is None or not isinstance(pending.request, Align) or pending.request.revision != alignment.revision:
            self.counters.stale += 1
            return
        pending.opened = False  # the process closes it too, on the same message
        self._end_aligned(pending, alignment)

    def on_death(self, reason: str) -> None:
        """The inference process has died. Everything is to be sent again, except for utterances that it died over too
        often: they fail."""
        self.counters.crashes += 1
        self.counters.replayed += len(self._open)
        allowed = CRASHES_ALLOWED if len(self.working) == 1 else CRASHES_IN_COMPANY
        for name in self.working:
            if (pending := self._open.get(name)) is None:
                continue
            pending.crashes += 1
            if pending.crashes > allowed:
                pending.died = pending.failed is None
                self._give_up(pending, reason)
        self.forget_process()

    def forget_process(self) -> None:
        """The inference process is gone, by a crash or by request: the next one has been sent nothing."""
        self.working = ()
        self._closed.clear()
        self._held.clear()
        self._unsent.clear()
        self._begun_bytes = 0
        for name, pending in self._open.items():
            pending.forget_process()
            if pending.failed is None:
                self._unsent[name] = None

    def fail_waiting(self, reason: str) -> None:
        """There is no engine: finals that wait for one get an error, and alignments no words. Their utterances stay
        given up."""
        for pending in list(self._open.values()):
            if isinstance(pending.request, FinalRequest | Align):
                self._give_up(pending, reason)

    # -- inside: what is sent ---------------------------------------------------------------------------------------

    def _request(self, pending: PendingUtterance, request: PartialRequest | FinalRequest | Align) -> None:
        pending.ask(request)
        self._mark_unsent(pending.utterance.id)

    def _mark_unsent(self, name: str) -> None:
        if name not in self._held:
            self._unsent[name] = None

    def _next_of(self, pending: PendingUtterance) -> ToEngine | None:
        if pending.failed is not None:
            return None
        if not pending.opened:
            self._count_begun(pending)
        try:
            return pending.next_message()
        except SpillError as error:
            self._lose(pending, str(error))
            return None

    def _count_begun(self, pending: PendingUtterance) -> None:
        """All of its audio is at the process, or about to be."""
        self._begun_bytes += len(pending.audio) - pending.begun_bytes
        pending.begun_bytes = len(pending.audio)

    def _move_to_disk(self, pending: PendingUtterance) -> None:
        """Move its audio to disk while too much is in memory."""
        while self.audio_bytes - self.spilled_bytes > self._max_bytes and pending.audio.movable:
            try:
                pending.audio.move()
            except SpillError as error:
                # Batch utterances are given up first, the oldest of them before others: no caller listens to them live.
                batch = (other for other in self._open.values() if other.audio.on_disk and not other.utterance.live)
                self._lose(next(batch, pending), str(error))

    def _drop_audio(self, pending: PendingUtterance) -> None:
        """Drop its audio, sent or not."""
        name = pending.utterance.id
        self.audio_bytes -= len(pending.audio)
        self._begun_bytes -= pending.begun_bytes
        pending.begun_bytes = 0
        pending.audio.drop()
        self._unsent.pop(name, None)
        self._held.pop(name, None)

    # -- inside: what is answered -----------------------------------------------------------------------------------

    def _answer(self, pending: PendingUtterance, hypothesis: Hypothesis) -> None:
        pending.delivered = hypothesis.revision
        if hypothesis.final:
            pending.words = hypothesis.words
            self.counters.finals += 1
            self.counters.errors += hypothesis.error is not None
        else:
            self.counters.partials += 1
        over = pending.ends_with(hypothesis)
        if pending.request is not None and pending.request.revision == hypothesis.revision:
            pending.request = None
        if over:
            pending.opened = False  # the process closes it too, on the same message
            self.close(pending.utterance.id)
        self._deliveries.append((pending.on_hypothesis, hypothesis))

    def _end_aligned(self, pending: PendingUtterance, alignment: Alignment) -> None:
        assert pending.on_alignment is not None
        self.counters.alignments += bool(alignment.words)
        self.counters.words += len(alignment.words)
        self.counters.failed_alignments += alignment.error is not None
        self.close(pending.utterance.id)
        self._deliveries.append((pending.on_alignment, alignment))

    def _lose(self, pending: PendingUtterance, reason: str) -> None:
        """The disk has no room for its audio, or cannot read it back."""
        self.counters.spill_failures += 1
        self._give_up(pending, reason)

    def _give_up(self, pending: PendingUtterance, reason: str) -> None:
        """Send nothing more of it. Its final or alignment, now or when requested, carries the reason."""
        name = pending.utterance.id
        if pending.failed is None:
            pending.failed = reason
            self._drop_audio(pending)
            if pending.opened:
                self._closed.append(name)
        match pending.request:
            case Align(revision=revision):
                pending.opened = False
                self._end_aligned(pending, Alignment(name, revision, (), pending.failed, died=pending.died))
            case FinalRequest(revision=revision):
                pending.opened = False
                error, died, refused = pending.failed, pending.died, pending.refused
                self._answer(pending, Hypothesis(name, revision, "", "", 0, True, error, died=died, refused=refused))
            case _:
                pending.request = None
