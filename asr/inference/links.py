"""The engine's end of its links: what each worker asks goes to the one `Inference`, and to each goes what is its own.

No I/O, no clock and no threads; `asr.inference.process` has the sockets. A worker that makes no sense, or does not
read, loses its link; the other links notice nothing.
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
"""Utterances that one worker may have open."""
MAX_LEGS = 20_000
"""Legs of one worker that have their place here. A worker says when a leg is over; for one that does not, the leg that
has been silent for longest loses its place, and gets one again when it speaks."""
MAX_NAME = 200
"""Characters in the name of an utterance or leg."""
MAX_SHARES = 4
"""So many times the room for all audio one worker may have here. It opens no utterance beyond its share of the room,
but those that are open go on."""
SLOW_BYTES, FULL_BYTES = 1 << 20, 16 << 20
"""A worker that has so much to read gets no partials; one that has so much is cut off."""
REPORT_S = 1.0
"""How often a change of the load is told to a worker that gets no answers."""


class ServedLink:
    """One link.

    `receive_data` and `events_received` may be called by another thread than the rest.
    """

    def __init__(self, number: int = 0, worker: str = "") -> None:
        """`number`: 0 is the link of the process that has started this one."""
        self.number, self.worker = number, worker
        self.source = str(number) if number else ""
        """`Utterance.source` of what comes over it."""
        self.outgoing = bytearray()
        """Bytes for the other end. The caller removes what it has written."""
        self.closed = ""
        """Why nothing more is received or sent; empty while it is open."""
        self.legs: dict[str, None] = {}
        """Legs that have their place here, by the worker's names, the one that has been silent for longest first."""
        self.reported = messages.ServerLoad()
        """The load that the worker has last been sent."""
        self._frames: Frames | None = Frames()
        """None after an error."""
        self._events: list[ToEngine | ProtocolError] = []

    def receive_data(self, data: bytes) -> None:
        """Bytes have come from the other end."""
        if self._frames is None:
            return
        try:
            for body in self._frames.feed(data):
                self._events.append(decode_to_engine(body))
        except FrameError as error:
            self._frames = None
            self._events.append(ProtocolError(str(error)))

    def events_received(self) -> list[ToEngine | ProtocolError]:
        """What has come. An error is the last event."""
        events, self._events = self._events, []
        return events

    def send(self, message: FromEngine) -> None:
        if not self.closed:
            self.outgoing += encode(message)

    def inner(self, name: str) -> str:
        """The name of an utterance or leg as the engine knows it: those of different workers may be the same."""
        return f"{self.source}/{name}" if self.source and name else name

    def outer(self, name: str) -> str:
        """The inverse of `inner`."""
        return name.partition("/")[2] if self.source else name

    def join(self, leg: str) -> None:
        """The leg speaks, and has its place here."""
        self.legs.pop(leg, None)
        self.legs[leg] = None
        if len(self.legs) > MAX_LEGS:
            del self.legs[next(iter(self.legs))]


class ServedLinks:
    """All links of one engine.

    Loop of the owner: `receive` what has come, `choose`, `report_load`, write what `parent` is sent, `perform`, and
    write.

    Args:
        parent: the link to the process that has started this one. It hears of everything that concerns the engine.
        max_bytes: room for the audio of all workers, which they share equally; 0: the parent's own utterances are all.
        languages: those that the engine can be asked for; none: any.
    """

    def __init__(
        self, inference: Inference, parent: ServedLink, *, max_bytes: int = 0, languages: tuple[str, ...] = ()
    ) -> None:
        self.inference, self.parent = inference, parent
        self.links: dict[str, ServedLink] = {}
        """`ServedLink.source` → link, of the workers that are relayed for."""
        self._max_bytes, self._languages = max_bytes, languages
        self._working: tuple[str, ...] = ()
        self._answered: dict[ServedLink, None] = {}
        """Links that have been sent an answer since the last `report_load`."""
        self._usage = messages.Usage()
        """The sums that the parent has last been told."""
        self._reported_s = 0.0
        """When the load was last told to all."""
        self._dropped_partials = 0
        parent.send(inference.ready())

    # -- from the other ends ----------------------------------------------------------------------------------------

    def attach(self, link: ServedLink, now: float) -> None:
        """A worker has come, which knows that the engine is ready by this."""
        self.links[link.source] = link
        self._load(link, self._sum(now))
        link.send(self.inference.ready())

    def remove(self, link: ServedLink) -> None:
        """The worker is gone, and nothing of it goes on."""
        link.closed = link.closed or "the worker is gone"
        if self.links.pop(link.source, None) is not None:
            self.inference.close_source(link.source)
            self._answered.pop(link, None)

    def receive(self, link: ServedLink, message: ToEngine | ProtocolError, now: float) -> None:
        """A message has come at `now`. Raises ProtocolError if the parent makes no sense."""
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
            raise ProtocolError("far more audio than it has been told that there is room for")

    def _cut_off(self, link: ServedLink, reason: str, *, slow: bool) -> None:
        if not slow:
            link.send(messages.Refused(reason))
        link.closed = reason
        self.parent.send(messages.LinkClosed(link.number, reason, slow))
        self.remove(link)

    # -- the engine -------------------------------------------------------------------------------------------------

    def choose(self, now: float) -> Work | None:
        """See `Inference.choose`. The parent is to know what is worked on before `perform`: if the process dies, one of
        these utterances is to blame."""
        work = self.inference.choose(now)
        working = (*self.inference.begun, *work.utterance_ids) if work is not None else ()
        if working != self._working:
            self._working = working
            self.parent.send(messages.Working(working))
        return work

    def perform(self, work: Work, now: float) -> None:
        """Do what `choose` has returned, beginning at `now`."""
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

    # -- what all have here -----------------------------------------------------------------------------------------

    def report_load(self, now: float) -> None:
        """Report the load to those that have been answered, and to all once in `REPORT_S`; and to the parent what has
        changed. Called before each step, when there is none, and every `REPORT_S` while there are links."""
        if not self._max_bytes:
            return
        usage = self._sum(now)
        due: list[ServedLink] = list(self._answered)
        if now - self._reported_s >= REPORT_S:
            self._reported_s, due = now, list(self.links.values())
        self._answered.clear()
        for link in due:
            self._load(link, usage)
        if usage != self._usage:
            self._usage = usage
            self.parent.send(usage)

    def _load(self, link: ServedLink, all: messages.Usage) -> None:
        files, share = all.files - self.inference.usage.files[link.source], self._max_bytes // len(self.links)
        load = messages.ServerLoad(all.legs - len(link.legs), files, all.delay_ms, share)
        if load != link.reported:
            link.reported = load
            link.send(load)

    def _sum(self, now: float) -> messages.Usage:
        legs = sum(len(each.legs) for each in self.links.values())
        usage = self.inference.usage.sum(now)
        return msgspec.structs.replace(usage, legs=legs, dropped_partials=self._dropped_partials)


def blamed(working: tuple[str, ...], link: int) -> messages.Working:
    """What the worker of a link is told when the engine has died over these utterances: its own of them."""
    own = tuple(name.partition("/")[2] for name in working if name.partition("/")[0] == str(link))
    return messages.Working(own, shared=len(own) < len(working))
