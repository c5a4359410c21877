"""The open utterances of the media process: their audio, their requests, and which of them are blamed for crashes.

This is the bookkeeping of `asr.client.recognizer`. Each engine server has a `SendQueue`. Each utterance is placed in
one of them, or waits until a server is ready; when a server dies, its utterances are placed again. `take_deliveries`
returns the answers for callers.

Memory is bounded on both sides. In the media process, audio beyond `max_bytes` goes to disk, the newest first because
it is sent last. In the inference process, no further utterance is opened while `max_bytes` of audio are held there;
workers that share an engine server have a share each (`ServerLoad.max_bytes`).

Blame: each inference process reports what it works on (`Working`) before it begins. If it dies, one of these utterances
may be the cause, and sending it again would kill the next process too, and the next. A death shows the culprit only if
the utterance had the step for itself, so one that was in a fatal step is sent as a suspect from then on, and the engine
processes suspects alone. If it is alone at the second death, it is given up (`CRASHES_ALLOWED`). An answer clears the
suspicion. An utterance that kills the engine only together with others would be cleared each time, so deaths in
company are also counted without regard to answers (`SHARED_CRASHES_ALLOWED`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import structlog

from asr import messages
from asr.client.placement import Placement
from asr.client.send_queue import OnAlignment, OnHypothesis, PendingUtterance, SendQueue
from asr.client.spill import Spill, SpillError, UtteranceAudio
from asr.counters import RecognizerCounters
from asr.messages import Align, FinalRequest, FromEngine, PartialRequest
from asr.utterance import Alignment, Hypothesis, Utterance

CRASHES_ALLOWED = 1
"""How many processes may die over an utterance, with no answer to it in between. At the next death it is given up if it
was alone in the step: a kill from outside, as by the OOM killer, rarely hits the same utterance twice in this way."""
SHARED_CRASHES_ALLOWED = 3
"""How many processes may die over an utterance that was not alone in the step. At the next such death it is given up
all the same."""

Delivery = tuple[Callable[[Any], None], Hypothesis | Alignment]
"""A caller's callback, and its argument."""

log = structlog.get_logger("asr")


class OutstandingWork:
    """The open utterances and their answers. Beyond `max_bytes` of audio it refuses partials and alignments, but never
    finals."""

    def __init__(self, *, max_bytes: int, spill: Spill) -> None:
        self.counters = RecognizerCounters()
        self.queues: list[EngineQueue] = []
        """The send queue of each engine server."""
        self._max_bytes, self._spill = max_bytes, spill
        self.backlog_bytes = 0
        """The audio of open utterances, in memory and on disk."""
        self._placement = Placement(self.queues)
        self._open: dict[str, PendingUtterance] = {}
        self._deliveries: list[Delivery] = []

    @property
    def open_utterances(self) -> int:
        return len(self._open)

    def __contains__(self, utterance_id: str) -> bool:
        return utterance_id in self._open

    def add_queue(self, name: str = "", *, shared: bool = False) -> EngineQueue:
        """Add the queue of one more engine server of this name. `shared`: other workers use it as well."""
        queue = EngineQueue(self, name, max_bytes=self._max_bytes, shared=shared)
        self.queues.append(queue)
        return queue

    def remove_queue(self, queue: EngineQueue) -> None:
        """The server has been removed for good. Its utterances move to others."""
        self.queues.remove(queue)
        self._placement.forget(queue)
        self.forget_process(queue)

    @property
    def spilled_bytes(self) -> int:
        """The part of `backlog_bytes` that is on disk."""
        return self._spill.used_bytes

    # -- from the caller --------------------------------------------------------------------------------------------

    def open(self, utterance: Utterance, on_hypothesis: OnHypothesis) -> None:
        """Begin an utterance; its id must not be open."""
        assert utterance.id not in self._open, f"{utterance.id} is open"
        pending = PendingUtterance(utterance, on_hypothesis, UtteranceAudio(self._spill))
        self._open[utterance.id] = pending
        self.counters.utterances += 1
        self._place(pending)

    def refuse(self, utterance_id: str, reason: str) -> None:
        """The engine cannot recognise this utterance, which has just been opened: its final carries the reason."""
        pending = self._open[utterance_id]
        pending.refused = True
        self._give_up(pending, reason)

    def append(self, utterance_id: str, audio: bytes) -> None:
        """Append the next bytes, in the utterance's format. They are kept for a replay until the utterance is over."""
        pending = self._open[utterance_id]
        if pending.failed is None:
            pending.audio.append(audio)
            self.backlog_bytes += len(audio)
            if pending.queue is not None:
                pending.queue.count(pending)
                pending.queue.mark(utterance_id)
            self._move_to_disk(pending)

    def partial(self, utterance_id: str, revision: int) -> None:
        """Request a partial in place of any earlier request. Under load it may not be answered."""
        pending = self._open[utterance_id]
        if self.backlog_bytes > self._max_bytes:
            self.counters.refused_partials += 1
            pending.revise(revision)
            pending.request = None
        elif pending.failed is not None:
            pending.revise(revision)
        else:
            self._request(pending, PartialRequest(utterance_id, revision, len(pending.audio)))

    def final(self, utterance_id: str, revision: int, *, commit: bool, wanted_in_ms: int = 0) -> None:
        """Request the final text of the audio appended so far. An utterance that has been given up fails at once.

        Args:
            commit: the utterance ends with the answer. Otherwise it may go on with more audio and a higher revision, or
                end with `commit` or `cancel`.
            wanted_in_ms: nobody waits for the answer before this time, so under load partials of others go first.
        """
        pending = self._open[utterance_id]
        self._request(pending, FinalRequest(utterance_id, revision, len(pending.audio), commit, wanted_in_ms))
        if pending.failed is not None:
            self._give_up(pending, pending.failed)

    def withdraw(self, utterance_id: str) -> None:
        """The utterance goes on: the answer to a final requested without `commit` is not needed, but may still
        arrive."""
        pending = self._open[utterance_id]
        if isinstance(pending.request, FinalRequest) and not pending.request.commit and pending.failed is None:
            pending.withdrawn = True
            self._mark(pending)

    def align(self, utterance_id: str, text: str, language: str, on_alignment: OnAlignment) -> None:
        """Accept the final of an utterance with `words`, and request the timestamps of its words.

        The caller gets exactly one `Alignment`, with words or without, unless it cancels the utterance first. The
        answer ends the utterance. It comes at once if the final brought the timestamps along, or if there will be none.

        Args:
            text: the text of the final.
            language: the code of one of the engine's languages.
        """
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
        elif self.backlog_bytes > self._max_bytes:
            self.counters.refused_alignments += 1
            self._give_up(pending, "more audio waits for the engine than asr.max_backlog_mb allows")

    def close(self, utterance_id: str) -> None:
        """Forget an utterance that was committed or cancelled. It does nothing if the utterance has ended."""
        if (pending := self._open.get(utterance_id)) is not None:
            self._end(pending, notify=True)

    def release(self, stream: str) -> None:
        """The leg is over and begins no more utterances, so its place is free for another leg. Its open utterances go
        on."""
        self._placement.release(stream)

    def drop_spilled(self) -> None:
        """Delete all audio on disk, at the worker's end."""
        self._spill.close()

    # -- to the caller ----------------------------------------------------------------------------------------------

    def on_deliveries(self) -> None:
        """Called when the first answer since `take_deliveries` is due."""

    def take_deliveries(self) -> list[Delivery]:
        """Return the answers that are due, oldest first. Any method may have added some."""
        deliveries, self._deliveries = self._deliveries, []
        return deliveries

    # -- from the inference processes -------------------------------------------------------------------------------

    def on_queue_ready(self, queue: SendQueue) -> None:
        """The process accepts utterances from now on."""
        queue.available = True
        for pending in self._open.values():
            if pending.queue is None and pending.failed is None:
                self._place(pending)

    def on_hypothesis(self, queue: SendQueue, hypothesis: Hypothesis) -> None:
        """Deliver the hypothesis if its utterance is still placed at this process and waits for this revision."""
        pending = self._open.get(hypothesis.utterance_id)
        if pending is None or pending.queue is not queue or not pending.waits_for(hypothesis):
            self.counters.stale += 1
            return
        pending.unanswered_crashes = 0  # the engine has survived it: no longer a suspect
        self._answer(pending, hypothesis)

    def on_alignment(self, queue: SendQueue, alignment: Alignment) -> None:
        """Deliver the alignment if its utterance is still placed at this process and waits for this revision."""
        pending = self._open.get(alignment.utterance_id)
        if pending is not None and pending.queue is queue:
            match pending.request:
                case Align(revision=revision) if revision == alignment.revision:
                    self._end_aligned(pending, alignment, notify=False)
                    return
        self.counters.stale += 1

    def on_queue_death(self, queue: SendQueue, reason: str) -> None:
        """The process has died. Its utterances are sent again, to other processes or to its successor. Those over which
        too many processes have died fail instead."""
        self.counters.crashes += 1
        self.counters.replayed += len(queue.utterances)
        # Any utterance of the step may be the culprit. They are all sent again as suspects (`unanswered_crashes` > 0),
        # each alone in its steps, so that a second death shows which one it was. See the module's docstring.
        alone = len(queue.working) == 1 and not queue.shared_step
        for name in queue.working:
            if (pending := queue.utterances.get(name)) is None:
                continue
            pending.unanswered_crashes += 1
            pending.shared_crashes += not alone
            to_blame = alone and pending.unanswered_crashes > CRASHES_ALLOWED
            if to_blame or pending.shared_crashes > SHARED_CRASHES_ALLOWED:
                pending.died = pending.failed is None
                self._give_up(pending, reason)
        self.forget_process(queue)

    def forget_process(self, queue: SendQueue) -> None:
        """The process is gone, by a crash or on request: place its utterances again."""
        for pending in queue.clear():
            self._place(pending)

    def fail_waiting(self, reason: str) -> None:
        """There is no engine: finals that wait for one get an error, and alignments get no words. These utterances stay
        given up, even if an engine starts later."""
        for pending in list(self._open.values()):
            if isinstance(pending.request, FinalRequest | Align):
                self._give_up(pending, reason)

    # -- inside: requests and audio ---------------------------------------------------------------------------------

    def _request(self, pending: PendingUtterance, request: PartialRequest | FinalRequest | Align) -> None:
        pending.ask(request)
        self._mark(pending)

    def _place(self, pending: PendingUtterance) -> None:
        pending.queue = self._placement.choose(pending.utterance)
        if pending.queue is not None:
            pending.queue.add(pending)

    def _mark(self, pending: PendingUtterance) -> None:
        if pending.queue is not None:
            pending.queue.mark(pending.utterance.id)

    def _move_to_disk(self, pending: PendingUtterance) -> None:
        """Move audio of this utterance to disk while all utterances together have too much in memory."""
        while self.backlog_bytes - self.spilled_bytes > self._max_bytes and pending.audio.movable:
            try:
                pending.audio.move()
            except SpillError as error:
                # Batch utterances are given up first, the oldest of them before others: no caller listens to them live.
                files = (other for other in self._open.values() if not other.utterance.live)
                batch = (other for other in files if other.audio.on_disk)
                self.lose(next(batch, pending), str(error))

    def _end(self, pending: PendingUtterance, *, notify: bool) -> None:
        """The utterance is over. `notify`: as for `SendQueue.drop`."""
        del self._open[pending.utterance.id]
        self._drop(pending, notify=notify)
        if not pending.utterance.stream:  # it was placed under its own id, see `Placement.choose`
            self._placement.release(pending.utterance.id)

    def _drop(self, pending: PendingUtterance, *, notify: bool = True) -> None:
        """Drop the utterance's audio, sent or not."""
        self.backlog_bytes -= len(pending.audio)
        if pending.queue is not None:
            pending.queue.drop(pending, notify=notify)
            pending.queue = None
        pending.audio.drop()

    # -- inside: answers and failures -------------------------------------------------------------------------------

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
            self._end(pending, notify=False)  # the process closes it by itself with a committed final
        self._deliver(pending.on_hypothesis, hypothesis)

    def _end_aligned(self, pending: PendingUtterance, alignment: Alignment, *, notify: bool = True) -> None:
        """End the utterance and deliver its alignment. `notify`: the process does not know yet that it is over."""
        assert pending.on_alignment is not None
        self.counters.on_alignment(alignment)
        self._end(pending, notify=notify)
        self._deliver(pending.on_alignment, alignment)

    def _deliver(self, callback: Callable[[Any], None], answer: Hypothesis | Alignment) -> None:
        self._deliveries.append((callback, answer))
        if len(self._deliveries) == 1:
            self.on_deliveries()

    def lose(self, pending: PendingUtterance, reason: str) -> None:
        """Give the utterance up, because the disk has no room for its audio or cannot read it back."""
        self.counters.spill_failures += 1
        self._give_up(pending, reason)

    def _give_up(self, pending: PendingUtterance, reason: str) -> None:
        """Send nothing more of the utterance. Its final or alignment carries the reason, now or when requested."""
        name = pending.utterance.id
        if pending.failed is None:
            pending.failed = reason
            self._drop(pending)
        match pending.request:
            case Align(revision=revision):
                self._end_aligned(pending, Alignment(name, revision, (), pending.failed, died=pending.died))
            case FinalRequest(revision=revision):
                error, died, refused = pending.failed, pending.died, pending.refused
                self._answer(pending, Hypothesis(name, revision, "", "", 0, True, error, died=died, refused=refused))
            case _:
                pending.request = None


class EngineQueue(SendQueue):
    """The utterances that are placed at one engine server. It applies the server's messages to the outstanding work.

    It is the user of an `asr.client.engine_server.EngineServer`; `EngineUser` documents the methods.
    """

    def __init__(self, work: OutstandingWork, name: str, *, max_bytes: int, shared: bool) -> None:
        """`name`: the server's name, for the log."""
        super().__init__(max_bytes=max_bytes, shared=shared)
        self.name, self.counters = name, work.counters
        self._work = work

    @property
    def open_utterances(self) -> int:
        return len(self.utterances)

    @property
    def to_blame(self) -> bool:
        return any(name in self._work for name in self.working)

    def on_ready(self) -> None:
        self._work.on_queue_ready(self)

    def on_message(self, message: FromEngine) -> None:
        match message:
            case messages.Welcome():
                self.languages = message.languages
            case messages.Working():
                self.working, self.shared_step = message.utterance_ids, message.shared
            case messages.Heard():
                self._work.on_hypothesis(self, message.hypothesis)
            case messages.Words():
                self._work.on_alignment(self, message.alignment)
            case messages.ServerLoad():
                self.load = message
                self.wake()
            case messages.Draining():
                log.info("engine server draining", server=self.name, utterances=self.open_utterances)
                self.available = False
            case messages.Dropped():
                self.counters.on_dropped(self.name, message.partials, message.exhausted)

    def lose(self, pending: PendingUtterance, reason: str) -> None:
        self._work.lose(pending, reason)

    def stop_accepting(self, *, replaced: bool) -> None:
        self.available = False

    def on_death(self, reason: str, *, failed: bool = False) -> None:
        self._work.on_queue_death(self, reason)

    def on_end(self) -> None:
        self._work.forget_process(self)
