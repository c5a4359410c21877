"""The engine's end of its links: passes each worker's requests to the one `Inference`, and its answers back.

No I/O, no clock and no threads; `asr.inference.process` has the sockets. A worker that sends invalid messages or does
not read its answers loses its link; the other links are not affected.
"""

from __future__ import annotations

from dataclasses import replace

import msgspec

from asr import messages
from asr.inference.inference import Inference, Work
from asr.inference.utterances import ProtocolError
from asr.messages import FromEngine, ToEngine, decode_to_engine
from asr.utterance import Alignment, Hypothesis
from config.process.framing import FrameError, Frames, encode

MAX_UTTERANCES = 20_000
"""The most utterances that one worker may have open."""
MAX_LEGS = 20_000
"""The most legs of one worker that are placed here. A worker sends `Release` when a leg is over. If it does not, the
leg that has been silent for longest is dropped, and is counted again when it speaks."""
MAX_NAME = 200
"""The most characters in the name of an utterance or leg."""
MAX_SHARES = 4
"""A worker is cut off when its audio exceeds `max_bytes` this many times. A correct worker opens no utterance beyond
its share, but its open utterances go on and may exceed it."""
SLOW_BYTES, FULL_BYTES = 1 << 20, 16 << 20
"""A worker with more than `SLOW_BYTES` of unread answers gets no partials; above `FULL_BYTES` it is cut off."""
REPORT_S = 1.0
"""The interval at which a changed load is sent to workers that get no answers."""


class ServedLink:
    """One link to a worker, or to the parent process.

    `receive_data` and `events_received` may be called by another thread than the other methods.
    """

    def __init__(self, number: int = 0, worker: str = "") -> None:
        """`number`: 0 for the link to the parent process."""
        self.number, self.worker = number, worker
        self.source = str(number) if number else ""
        """The `Utterance.source` of utterances that arrive over this link."""
        self.outgoing = bytearray()
        """The bytes for the other end. The caller removes those that it has written."""
        self.closed = ""
        """Why nothing more is received or sent; empty while the link is open."""
        self.legs: dict[str, None] = {}
        """The legs that are placed here, by the worker's names; the one that has been silent for longest is first."""
        self.reported = messages.ServerLoad()
        """The load that was last sent to the worker."""
        self._frames: Frames | None = Frames()
        """Cuts the bytes into frames; None after an error, when nothing more can be decoded."""
        self._events: list[ToEngine | ProtocolError] = []

    def receive_data(self, data: bytes) -> None:
        """Decode bytes that were received from the other end."""
        if self._frames is None:
            return
        try:
            for body in self._frames.feed(data):
                self._events.append(decode_to_engine(body))
        except FrameError as error:
            self._frames = None
            self._events.append(ProtocolError(str(error)))

    def events_received(self) -> list[ToEngine | ProtocolError]:
        """Return the messages received since the last call. An error is the last event."""
        events, self._events = self._events, []
        return events

    def send(self, message: FromEngine) -> None:
        if not self.closed:
            self.outgoing += encode(message)

    def inner(self, name: str) -> str:
        """The engine's name for a worker's utterance or leg. It is prefixed, as two workers may use the same name."""
        return f"{self.source}/{name}" if self.source and name else name

    def outer(self, name: str) -> str:
        """The inverse of `inner`."""
        return name.partition("/")[2] if self.source else name

    def join(self, leg: str) -> None:
        """The leg has begun an utterance, so it is placed here and is the latest to speak."""
        self.legs.pop(leg, None)
        self.legs[leg] = None
        if len(self.legs) > MAX_LEGS:
            del self.legs[next(iter(self.legs))]


class ServedLinks:
    """All links of one engine.

    The owner's loop: `receive` the events, `choose`, `report_load`, write the messages to `parent`, `perform`, write.

    Args:
        parent: the link to the parent process. It is sent everything that concerns the engine as a whole.
        max_bytes: the room for the audio of all workers, which they share equally; 0 where only the parent itself has
            utterances.
        languages: the codes of the languages that the engine supports; empty if it accepts any.
    """

    def __init__(
        self, inference: Inference, parent: ServedLink, *, max_bytes: int = 0, languages: tuple[str, ...] = ()
    ) -> None:
        self.inference, self.parent = inference, parent
        self.links: dict[str, ServedLink] = {}
        """`ServedLink.source` → the link of a worker that is connected to this engine server."""
        self._max_bytes, self._languages = max_bytes, languages
        self._working: tuple[str, ...] = ()
        self._answered: dict[ServedLink, None] = {}
        """The links that were sent an answer since the last `report_load`."""
        self._usage = messages.Usage()
        """The sums that were last sent to the parent."""
        self._reported_s = 0.0
        """When the load was last reported to all links."""
        self._dropped_partials = 0
        parent.send(inference.ready())

    # -- from the other ends ----------------------------------------------------------------------------------------

    def attach(self, link: ServedLink, now: float) -> None:
        """Add a worker's link, and send it the load and `EngineReady`."""
        self.links[link.source] = link
        self._report_to(link, self._sum(now))
        link.send(self.inference.ready())

    def remove(self, link: ServedLink) -> None:
        """The worker is gone: close all its utterances."""
        link.closed = link.closed or "the worker is gone"
        if self.links.pop(link.source, None) is not None:
            self.inference.close_source(link.source)
            self._answered.pop(link, None)

    def receive(self, link: ServedLink, message: ToEngine | ProtocolError, now: float) -> None:
        """Process a message that arrived at `now`. Raises ProtocolError if the parent has sent an invalid one."""
        if link.closed:
            return
        try:
            if isinstance(message, ProtocolError):
                raise message
            self._receive(link, message, now)
        except ProtocolError as error:
            if link is self.parent:
                raise
            self._cut_off(link, str(error), slow=False)

    def _receive(self, link: ServedLink, message: ToEngine, now: float) -> None:
        match message:
            case messages.Ping():
                link.send(messages.Pong())
            case messages.Release(stream=leg):
                link.legs.pop(leg, None)
            case messages.Configure() | messages.WorkerHello() | messages.Proof():
                raise ProtocolError("a greeting in the middle of a connection")
            case _ if link is self.parent:
                self.inference.receive(message, now)
            case messages.Open():
                self._open(link, message, now)
            case _:
                self.inference.receive(
                    msgspec.structs.replace(message, utterance_id=link.inner(message.utterance_id)), now
                )
                if isinstance(message, messages.Append):
                    self._check_room(link)

    def _open(self, link: ServedLink, message: messages.Open, now: float) -> None:
        utterance, usage = message.utterance, self.inference.usage
        if usage.utterances[link.source] >= MAX_UTTERANCES:
            raise ProtocolError(f"more than {MAX_UTTERANCES} utterances are open")
        if max(len(utterance.id), len(utterance.stream)) > MAX_NAME:
            raise ProtocolError(f"a name of more than {MAX_NAME} characters")
        if utterance.language and self._languages and utterance.language not in self._languages:
            raise ProtocolError(f"an utterance in {utterance.language!r}, which the engine does not know")
        stream = link.inner(utterance.stream)
        ours = replace(utterance, id=link.inner(utterance.id), stream=stream, source=link.source)
        self.inference.receive(messages.Open(ours, message.suspect), now)
        if utterance.live and utterance.stream:
            link.join(utterance.stream)

    def _check_room(self, link: ServedLink) -> None:
        if self._max_bytes and self.inference.usage.audio[link.source] > MAX_SHARES * self._max_bytes:
            raise ProtocolError("far more audio than the worker's share of the room")

    def _cut_off(self, link: ServedLink, reason: str, *, slow: bool) -> None:
        if not slow:
            link.send(messages.Refused(reason))
        link.closed = reason
        self.parent.send(messages.LinkClosed(link.number, reason, slow))
        self.remove(link)

    # -- the engine -------------------------------------------------------------------------------------------------

    def choose(self, now: float) -> Work | None:
        """Choose the next piece of work, as `Inference.choose` does, and send the parent its utterances.

        The owner must write this `Working` before `perform`. If the process dies in the step, the parent can blame only
        utterances that it knows of; the culprit would otherwise be sent again as if it were innocent.
        """
        work = self.inference.choose(now)
        working = tuple(dict.fromkeys((*self.inference.working, *work.utterance_ids))) if work is not None else ()
        if working != self._working:
            self._working = working
            self.parent.send(messages.Working(working))
        return work

    def perform(self, work: Work, now: float) -> None:
        """Do the work that `choose` has returned, beginning at `now`, and send the answers to their links."""
        for answer in self.inference.perform(work, now):
            match answer:
                case messages.Heard(hypothesis=result) | messages.Words(alignment=result) if (
                    link := self.links.get(result.utterance_id.partition("/")[0])
                ) is not None:
                    self._answer(link, result)
                case _:
                    self.parent.send(answer)

    def _answer(self, link: ServedLink, result: Hypothesis | Alignment) -> None:
        own = replace(result, utterance_id=link.outer(result.utterance_id))
        if isinstance(own, Alignment):
            link.send(messages.Words(own))
        elif own.final or len(link.outgoing) <= SLOW_BYTES:
            link.send(messages.Heard(own))
        else:
            self._dropped_partials += 1
        self._answered[link] = None
        if len(link.outgoing) > FULL_BYTES:
            self._cut_off(link, "it does not read its answers", slow=True)

    # -- the load ---------------------------------------------------------------------------------------------------

    def report_load(self, now: float) -> None:
        """Report the load to the links that got answers, and to all links every `REPORT_S`; and to the parent the sums
        if they have changed. The owner calls this before each step and each wait, at least every `REPORT_S`."""
        if not self._max_bytes:
            return
        usage = self._sum(now)
        due: list[ServedLink] = list(self._answered)
        if now - self._reported_s >= REPORT_S:
            self._reported_s, due = now, list(self.links.values())
        self._answered.clear()
        for link in due:
            self._report_to(link, usage)
        if usage != self._usage:
            self._usage = usage
            self.parent.send(usage)

    def _report_to(self, link: ServedLink, usage: messages.Usage) -> None:
        files, share = usage.files - self.inference.usage.files[link.source], self._max_bytes // len(self.links)
        load = messages.ServerLoad(usage.legs - len(link.legs), files, usage.delay_ms, share)
        if load != link.reported:
            link.reported = load
            link.send(load)

    def _sum(self, now: float) -> messages.Usage:
        legs = sum(len(each.legs) for each in self.links.values())
        usage = self.inference.usage.sum(now)
        return msgspec.structs.replace(usage, legs=legs, dropped_partials=self._dropped_partials)


def blamed(working: tuple[str, ...], link: int) -> messages.Working:
    """Return the `Working` for one worker after the engine has died over these utterances. It names only the worker's
    own. `shared` is set if there were others, because an utterance that was not alone in the step is blamed less."""
    own = tuple(name.partition("/")[2] for name in working if name.partition("/")[0] == str(link))
    return messages.Working(own, shared=len(own) < len(working))
