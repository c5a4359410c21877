"""What the media process owes its callers and has not got back yet: audio, requests, and who is to blame for a crash.

Pure bookkeeping behind `client.Recognizer`. What has to be written is asked for one message at a time
(`next_message`), so the only queue is the audio itself, and sending for the first time and replaying after a crash are
the same thing: after `restart` nothing counts as sent.

Memory is bounded on both sides. Here, audio beyond `max_bytes` goes to disk, the newest first: its turn comes last.
There, no utterance is begun while the process holds `max_bytes` of those before it.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Any

from asr.client.pending import Deliver, PendingUtterance, RecognizerCounters, TakeWords
from asr.client.spill import Kept, Spill, SpillError
from asr.messages import Align, CloseUtterance, FinalRequest, PartialRequest, ToEngine
from asr.utterance import Alignment, Hypothesis, Utterance

CRASHES_ALLOWED = 1
"""The second time the engine dies over an utterance, the utterance is given up and not the engine, if it was the only
one in the step."""
CRASHES_IN_COMPANY = 3
"""The same for one that was not: it has been answered alone in between, so another one in the step may be to blame."""

Delivery = tuple[Callable[[Any], None], Hypothesis | Alignment]
"""Who takes it, and what."""


class Ledger:
    """See the module. Beyond `max_bytes` of audio neither partials nor words are asked for; finals always are."""

    def __init__(self, *, max_bytes: int, spill: Spill) -> None:
        self.counters = RecognizerCounters()
        self.audio_bytes = 0
        """Of open utterances, in memory and on disk."""
        self._max_bytes, self._spill = max_bytes, spill
        self._begun_bytes = 0
        """Of those that this life of the inference process has been told of."""
        self._open: dict[str, PendingUtterance] = {}
        self._dirty: OrderedDict[str, None] = OrderedDict()
        """Utterances with something to send."""
        self._held: OrderedDict[str, None] = OrderedDict()
        """Those that wait until there is room for them in the inference process."""
        self._failures: list[Delivery] = []
        self._closed: deque[str] = deque()
        self.working: tuple[str, ...] = ()
        """Utterances the engine is at: theirs is the blame when it dies."""

    def __len__(self) -> int:
        """Open utterances."""
        return len(self._open)

    def __contains__(self, utterance_id: str) -> bool:
        return utterance_id in self._open

    # -- from the caller --------------------------------------------------------------------------------------------

    def open(self, utterance: Utterance, deliver: Deliver) -> None:
        assert utterance.id not in self._open, f"{utterance.id} is open"
        self._open[utterance.id] = PendingUtterance(utterance, deliver, Kept(self._spill))
        self.counters.utterances += 1
        self._dirty[utterance.id] = None

    def refuse(self, utterance_id: str, reason: str) -> None:
        """The engine cannot be asked for this utterance, which has just been opened: its final says why."""
        spoken = self._open[utterance_id]
        spoken.refused = True
        self._give_up(spoken, reason)

    def append(self, utterance_id: str, audio: bytes) -> None:
        spoken = self._open[utterance_id]
        if spoken.failed is None:
            spoken.audio.append(audio)
            self.audio_bytes += len(audio)
            self._mark(utterance_id)
            if spoken.opened:
                self._begin(spoken)
            self._put_on_disk(spoken)

    def partial(self, utterance_id: str, revision: int) -> None:
        spoken = self._open[utterance_id]
        self._revise(spoken, revision)
        if self.audio_bytes > self._max_bytes:
            self.counters.refused_partials += 1
            spoken.request = None
        elif spoken.failed is None:
            self._ask(spoken, PartialRequest(utterance_id, revision, len(spoken.audio)))

    def final(self, utterance_id: str, revision: int, *, commit: bool, wanted_in_ms: int = 0) -> Delivery | None:
        """What can be said at once: the error of an utterance that has been given up."""
        spoken = self._open[utterance_id]
        self._revise(spoken, revision)
        self._ask(spoken, FinalRequest(utterance_id, revision, len(spoken.audio), commit, wanted_in_ms))
        return self._give_up(spoken, spoken.failed) if spoken.failed is not None else None

    def withdraw(self, utterance_id: str) -> None:
        """An answer that is on its way is still delivered."""
        spoken = self._open[utterance_id]
        if isinstance(spoken.request, FinalRequest) and not spoken.request.commit and spoken.failed is None:
            spoken.withdrawn = True
            self._mark(utterance_id)

    def align(self, utterance_id: str, text: str, language: str, take: TakeWords) -> Delivery | None:
        """The final is taken, and the times of its words are wanted: what can be said at once, when there will be none.
        The utterance is over with the answer."""
        spoken = self._open[utterance_id]
        assert spoken.utterance.words, f"{utterance_id} was opened without words"
        spoken.take_words = take
        self._revise(spoken, spoken.newest + 1)
        if spoken.words:
            return self._words(spoken, Alignment(utterance_id, spoken.newest, spoken.words))
        self._ask(spoken, Align(utterance_id, spoken.newest, text, language, len(spoken.audio)))
        if spoken.failed is None and self.audio_bytes > self._max_bytes:
            self.counters.refused_alignments += 1
            return self._give_up(spoken, "more audio waits for the engine than asr.max_backlog_mb allows")
        return self._give_up(spoken, spoken.failed) if spoken.failed is not None else None

    def close(self, utterance_id: str) -> None:
        """Committed or cancelled. One that is not open has ended by itself."""
        spoken = self._open.pop(utterance_id, None)
        if spoken is None:
            return
        self._drop(spoken)
        if spoken.opened:
            self._closed.append(utterance_id)

    @property
    def spilled_bytes(self) -> int:
        """Audio on disk."""
        return self._spill.used_bytes

    def take_failures(self) -> list[Delivery]:
        """Finals of utterances that were given up meanwhile, because of the disk. To be asked after each call."""
        failures, self._failures = self._failures, []
        return failures

    def drop_spilled(self) -> None:
        """The end: nothing is recognised any more."""
        self._spill.close()

    # -- to and from the inference process --------------------------------------------------------------------------

    def next_message(self) -> ToEngine | None:
        """The next thing to write; it counts as sent."""
        if self._closed:
            return CloseUtterance(self._closed.popleft())
        room = self._begun_bytes < self._max_bytes
        if room and self._held:
            self._dirty[self._held.popitem(last=False)[0]] = None
        while self._dirty:
            name = next(iter(self._dirty))
            spoken = self._open[name]
            if not room and not spoken.opened and spoken.failed is None:
                del self._dirty[name]
                self._held[name] = None
            elif (message := self._next_of(spoken)) is not None:
                self._dirty.move_to_end(name)
                return message
            else:
                self._dirty.pop(name, None)
        return None

    def heard(self, hypothesis: Hypothesis) -> Delivery | None:
        """The delivery an answer becomes, if it still counts."""
        spoken = self._open.get(hypothesis.utterance_id)
        if spoken is None or not spoken.counts(hypothesis):
            self.counters.stale += 1
            return None
        return self._delivery(spoken, hypothesis)

    def aligned(self, alignment: Alignment) -> Delivery | None:
        """The same for the times of words."""
        spoken = self._open.get(alignment.utterance_id)
        if spoken is None or not isinstance(spoken.request, Align) or spoken.request.revision != alignment.revision:
            self.counters.stale += 1
            return None
        spoken.opened = False  # the process closes it too, on the same message
        return self._words(spoken, alignment)

    def restart(self, reason: str) -> list[Delivery]:
        """The inference process has died. Everything is to be sent again, but for utterances it died over too often."""
        self.counters.crashes += 1
        self.counters.replayed += len(self._open)
        deliveries: list[Delivery] = []
        allowed = CRASHES_ALLOWED if len(self.working) == 1 else CRASHES_IN_COMPANY
        for name in self.working:
            if (spoken := self._open.get(name)) is None:
                continue
            spoken.crashes += 1
            if spoken.crashes > allowed:
                spoken.died = spoken.failed is None
                if (delivery := self._give_up(spoken, reason)) is not None:
                    deliveries.append(delivery)
        self.forget_process()
        return deliveries

    def forget_process(self) -> None:
        """The inference process is gone, by a crash or as asked: the next one knows nothing."""
        self.working = ()
        self._closed.clear()
        self._held.clear()
        self._dirty.clear()
        self._begun_bytes = 0
        for name, spoken in self._open.items():
            spoken.forget_process()
            if spoken.failed is None:
                self._dirty[name] = None

    def fail_finals(self, reason: str) -> list[Delivery]:
        """No engine is to be had: the finals that wait for one get an error, and words no times. Their utterances stay
        given up."""
        waiting = [spoken for spoken in self._open.values() if isinstance(spoken.request, FinalRequest | Align)]
        return [delivery for spoken in waiting if (delivery := self._give_up(spoken, reason)) is not None]

    # -- inside -----------------------------------------------------------------------------------------------------

    def _revise(self, spoken: PendingUtterance, revision: int) -> None:
        assert revision > spoken.newest, f"{spoken.utterance.id}: revision {revision} after {spoken.newest}"
        spoken.newest = revision

    def _ask(self, spoken: PendingUtterance, request: PartialRequest | FinalRequest | Align) -> None:
        spoken.ask(request)
        self._mark(spoken.utterance.id)

    def _mark(self, name: str) -> None:
        """It has something to send."""
        if name not in self._held:
            self._dirty[name] = None

    def _begin(self, spoken: PendingUtterance) -> None:
        """All of its audio is at the process, or about to be."""
        self._begun_bytes += len(spoken.audio) - spoken.begun_bytes
        spoken.begun_bytes = len(spoken.audio)

    def _put_on_disk(self, spoken: PendingUtterance) -> None:
        """As much of it as there is too much in memory."""
        while self.audio_bytes - self.spilled_bytes > self._max_bytes and spoken.audio.movable:
            try:
                spoken.audio.move()
            except SpillError as error:
                # Nobody waits at the other end of a batch utterance; of those the oldest goes first.
                batch = (other for other in self._open.values() if other.audio.on_disk and not other.utterance.live)
                self._lose(next(batch, spoken), str(error))

    def _lose(self, spoken: PendingUtterance, reason: str) -> None:
        self.counters.spill_failures += 1
        if (delivery := self._give_up(spoken, reason)) is not None:
            self._failures.append(delivery)

    def _drop(self, spoken: PendingUtterance) -> None:
        """Its audio, and what of it was to be sent."""
        name = spoken.utterance.id
        self.audio_bytes -= len(spoken.audio)
        self._begun_bytes -= spoken.begun_bytes
        spoken.begun_bytes = 0
        spoken.audio.drop()
        self._dirty.pop(name, None)
        self._held.pop(name, None)

    def _next_of(self, spoken: PendingUtterance) -> ToEngine | None:
        if spoken.failed is not None:
            return None
        if not spoken.opened:
            self._begin(spoken)
        try:
            return spoken.next_message()
        except SpillError as error:
            self._lose(spoken, str(error))
            return None

    def _delivery(self, spoken: PendingUtterance, hypothesis: Hypothesis) -> Delivery:
        name = spoken.utterance.id
        spoken.delivered = hypothesis.revision
        if hypothesis.final:
            spoken.words = hypothesis.words
            self.counters.finals += 1
            self.counters.errors += hypothesis.error is not None
        else:
            self.counters.partials += 1
        over = spoken.ends_with(hypothesis)
        if spoken.request is not None and spoken.request.revision == hypothesis.revision:
            spoken.request = None
        if over:
            # The process closes it too, on the same message.
            spoken.opened = False
            self.close(name)
        return spoken.deliver, hypothesis

    def _words(self, spoken: PendingUtterance, alignment: Alignment) -> Delivery:
        assert spoken.take_words is not None
        self.counters.alignments += bool(alignment.words)
        self.counters.words += len(alignment.words)
        self.counters.failed_alignments += alignment.error is not None
        self.close(spoken.utterance.id)
        return spoken.take_words, alignment

    def _give_up(self, spoken: PendingUtterance, reason: str) -> Delivery | None:
        """No more is sent of it; its final, or its words, now or when they are asked for, carry the reason."""
        name = spoken.utterance.id
        if spoken.failed is None:
            spoken.failed = reason
            self._drop(spoken)
            if spoken.opened:
                self._closed.append(name)
        request = spoken.request
        if isinstance(request, Align):
            spoken.opened = False
            return self._words(spoken, Alignment(name, request.revision, (), spoken.failed, died=spoken.died))
        if not isinstance(request, FinalRequest):
            spoken.request = None
            return None
        failed = Hypothesis(
            name, request.revision, "", "", 0, True, spoken.failed, died=spoken.died, refused=spoken.refused
        )
        spoken.opened = False
        return self._delivery(spoken, failed)
