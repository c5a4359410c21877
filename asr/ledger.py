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
from dataclasses import dataclass

from asr.messages import MAX_AUDIO_BYTES, Append, Close, Final, Open, Partial, ToEngine
from asr.spill import Kept, Spill, SpillError
from asr.utterance import Hypothesis, Utterance

CRASHES_ALLOWED = 1
"""The second time the engine dies over an utterance, the utterance is given up and not the engine."""

Deliver = Callable[[Hypothesis], None]
Delivery = tuple[Deliver, Hypothesis]


@dataclass(slots=True)
class Counters:
    """Plain integers for the metrics."""

    utterances: int = 0
    partials: int = 0
    """Delivered."""
    finals: int = 0
    """Delivered, speculative ones included."""
    errors: int = 0
    """Finals that carry an error."""
    stale: int = 0
    """Answers that nobody waits for any more."""
    refused_partials: int = 0
    """Not asked for, because more than `asr.max_backlog_mb` of audio waits."""
    shed_partials: int = 0
    """Dropped by the scheduler."""
    exhausted_steps: int = 0
    """Of the engine, which needed more memory than there was, and were done again with less in them."""
    crashes: int = 0
    """Ends of the inference process that nobody asked for."""
    hangs: int = 0
    """Of those, processes that were ended because they did not answer."""
    spill_failures: int = 0
    """Utterances given up because the disk had no room for their audio, or did not give it back."""
    replayed: int = 0
    """Utterances that were open when that happened."""


@dataclass(slots=True)
class _Spoken:
    utterance: Utterance
    deliver: Deliver
    audio: Kept
    """All of it, for a replay, until the utterance is over."""
    newest: int = -1
    """Highest revision asked for."""
    delivered: int = -1
    request: Partial | Final | None = None
    """The newest, as long as it is not answered."""
    opened: bool = False
    """`opened`, `sent` and `asked`: what this life of the inference process has been told."""
    sent: int = 0
    asked: bool = False
    begun_bytes: int = 0
    """What of it is counted as being at the process."""
    crashes: int = 0
    failed: str | None = None


class Ledger:
    """See the module. Beyond `max_bytes` of audio partials are not asked for; finals are always taken."""

    def __init__(self, *, max_bytes: int, spill: Spill) -> None:
        self.counters = Counters()
        self.audio_bytes = 0
        """Of open utterances, in memory and on disk."""
        self._max_bytes, self._spill = max_bytes, spill
        self._begun_bytes = 0
        """Of those that this life of the inference process has been told of."""
        self._open: dict[str, _Spoken] = {}
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
        self._open[utterance.id] = _Spoken(utterance, deliver, Kept(self._spill))
        self.counters.utterances += 1
        self._dirty[utterance.id] = None

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
            self._ask(spoken, Partial(utterance_id, revision, len(spoken.audio)))

    def final(self, utterance_id: str, revision: int, *, commit: bool) -> Delivery | None:
        """What can be said at once: the error of an utterance that has been given up."""
        spoken = self._open[utterance_id]
        self._revise(spoken, revision)
        self._ask(spoken, Final(utterance_id, revision, len(spoken.audio), commit))
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
            return Close(self._closed.popleft())
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
        if spoken is None or not self._counts(spoken, hypothesis):
            self.counters.stale += 1
            return None
        return self._delivery(spoken, hypothesis)

    def restart(self, reason: str) -> list[Delivery]:
        """The inference process has died. Everything is to be sent again, but for utterances it died over too often."""
        self.counters.crashes += 1
        self.counters.replayed += len(self._open)
        deliveries: list[Delivery] = []
        for name in self.working:
            if (spoken := self._open.get(name)) is None:
                continue
            spoken.crashes += 1
            if spoken.crashes > CRASHES_ALLOWED and (delivery := self._give_up(spoken, reason)) is not None:
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
            spoken.opened, spoken.sent, spoken.asked, spoken.begun_bytes = False, 0, False, 0
            if spoken.failed is None:
                self._dirty[name] = None

    def fail_finals(self, reason: str) -> list[Delivery]:
        """No engine is to be had: the finals that wait for one get an error. Their utterances stay given up."""
        waiting = [spoken for spoken in self._open.values() if isinstance(spoken.request, Final)]
        return [delivery for spoken in waiting if (delivery := self._give_up(spoken, reason)) is not None]

    # -- inside -----------------------------------------------------------------------------------------------------

    def _revise(self, spoken: _Spoken, revision: int) -> None:
        assert revision > spoken.newest, f"{spoken.utterance.id}: revision {revision} after {spoken.newest}"
        spoken.newest = revision

    def _ask(self, spoken: _Spoken, request: Partial | Final) -> None:
        spoken.request, spoken.asked = request, False
        self._mark(spoken.utterance.id)

    def _mark(self, name: str) -> None:
        """It has something to send."""
        if name not in self._held:
            self._dirty[name] = None

    def _begin(self, spoken: _Spoken) -> None:
        """All of its audio is at the process, or about to be."""
        self._begun_bytes += len(spoken.audio) - spoken.begun_bytes
        spoken.begun_bytes = len(spoken.audio)

    def _put_on_disk(self, spoken: _Spoken) -> None:
        """As much of it as there is too much in memory."""
        while self.audio_bytes - self.spilled_bytes > self._max_bytes and spoken.audio.movable:
            try:
                spoken.audio.move()
            except SpillError as error:
                # Nobody waits at the other end of a batch utterance; of those the oldest goes first.
                batch = (other for other in self._open.values() if other.audio.on_disk and not other.utterance.live)
                self._lose(next(batch, spoken), str(error))

    def _lose(self, spoken: _Spoken, reason: str) -> None:
        self.counters.spill_failures += 1
        if (delivery := self._give_up(spoken, reason)) is not None:
            self._failures.append(delivery)

    def _drop(self, spoken: _Spoken) -> None:
        """Its audio, and what of it was to be sent."""
        name = spoken.utterance.id
        self.audio_bytes -= len(spoken.audio)
        self._begun_bytes -= spoken.begun_bytes
        spoken.begun_bytes = 0
        spoken.audio.drop()
        self._dirty.pop(name, None)
        self._held.pop(name, None)

    def _next_of(self, spoken: _Spoken) -> ToEngine | None:
        if spoken.failed is not None:
            return None
        if not spoken.opened:
            spoken.opened = True
            self._begin(spoken)
            return Open(spoken.utterance)
        request = None if spoken.asked else spoken.request
        # Audio that came after a request goes after it, in a replay too.
        end = len(spoken.audio) if request is None else request.end
        if spoken.sent < end:
            start = spoken.sent
            try:
                audio = spoken.audio.read(start, min(end, start + MAX_AUDIO_BYTES))
            except SpillError as error:
                self._lose(spoken, str(error))
                return None
            spoken.sent += len(audio)
            return Append(spoken.utterance.id, start, audio)
        if request is not None:
            spoken.asked = True
        return request

    def _counts(self, spoken: _Spoken, hypothesis: Hypothesis) -> bool:
        if hypothesis.final:
            request = spoken.request
            return isinstance(request, Final) and request.revision == hypothesis.revision
        # A partial that was overtaken by a newer request is still news.
        return hypothesis.revision > spoken.delivered

    def _delivery(self, spoken: _Spoken, hypothesis: Hypothesis) -> Delivery:
        name = spoken.utterance.id
        spoken.delivered = hypothesis.revision
        if hypothesis.final:
            self.counters.finals += 1
            self.counters.errors += hypothesis.error is not None
        else:
            self.counters.partials += 1
        request = spoken.request
        if request is not None and request.revision == hypothesis.revision:
            spoken.request = None
            if isinstance(request, Final) and request.commit:
                # The process closes it too, on the same message.
                spoken.opened = False
                self.close(name)
        return spoken.deliver, hypothesis

    def _give_up(self, spoken: _Spoken, reason: str) -> Delivery | None:
        """No more is sent of it; its final, now or when it is asked for, carries the reason."""
        name = spoken.utterance.id
        if spoken.failed is None:
            spoken.failed = reason
            self._drop(spoken)
            if spoken.opened:
                self._closed.append(name)
        request = spoken.request
        if not isinstance(request, Final):
            spoken.request = None
            return None
        failed = Hypothesis(name, request.revision, "", "", 0, True, spoken.failed)
        spoken.opened = False
        return self._delivery(spoken, failed)
