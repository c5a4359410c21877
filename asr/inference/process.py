"""The inference process: one engine, the sockets of its links, and the two threads that serve them.

The command is `python -m asr.inference.process [LINKS] REQUESTS ANSWERS`, where each argument is the descriptor of a
socket. REQUESTS and ANSWERS connect the process with its parent. Over LINKS, which only an engine server has, the
parent passes the ends of further links (`messages.Attach`).

The reader thread reads all links. The main thread owns the engine and the scheduler, does one bounded step at a time,
and writes. A peer that does not read does not stop the engine: its answers wait in memory, up to a limit. The process
ends when its parent closes the requests or dies. An engine that hangs in a library may hold the interpreter lock, so
that the reader thread never sees the end of the requests; the kernel is therefore asked to end the process with its
parent as well (`end_with_parent`).
"""

from __future__ import annotations

import gc
import logging
import os
import select
import selectors
import socket
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any

import structlog

from asr.engines.aligner import Aligner
from asr.engines.interface import EngineUnusable, described, first_line
from asr.engines.plugin import find
from asr.engines.qwen import plugin as qwen
from asr.engines.selection import select_words
from asr.engines.whisper import plugin as whisper
from asr.inference.inference import Inference
from asr.inference.links import REPORT_S, ServedLink, ServedLinks
from asr.inference.utterances import ProtocolError
from asr.messages import Attach, Configure, EngineCrashed, EngineFailed, FromEngine, ToEngine, decode_attach
from config import ConfigError
from config.log.console import ConsoleRenderer
from config.process.child_process import end_with_parent

RECEIVE_BYTES = 256 * 1024
MAX_WAITING_BYTES = 16 * 1024 * 1024
"""The most bytes of answers that the parent has not read; above it the engine waits."""
MAX_UNREAD_BYTES = 16 * 1024 * 1024
"""The most bytes of one worker's messages that wait for the engine's thread; above it nothing is read from the worker.

The bound is per worker and pauses only that worker's socket. The parent then stops to read from the worker's
connection, and TCP slows the worker down. The inbox itself must stay unbounded: a reader thread that blocked in `put`
could no longer see that the parent has closed its requests. The parent's own messages are never paused, because it
limits the audio that it sends itself (`asr.max_backlog_mb`).
"""
RETRY_S = 0.01
"""The interval at which an idle engine's thread writes waiting answers again, and at which the reader thread checks
whether paused workers may be read again."""
MB = 1024 * 1024
log = structlog.get_logger("asr.inference.process")


class LinkSocket:
    """A link and its socket."""

    def __init__(self, link: ServedLink, channel: socket.socket) -> None:
        channel.setblocking(False)
        self.link, self.channel = link, channel
        self.read_bytes = self.processed_bytes = 0
        """The bytes that the reader thread has read, and those that the engine's thread has processed. Each thread
        writes only its own count, so no lock is needed."""

    def send(self, message: FromEngine) -> None:
        """Send the last message before the process ends, and wait until all of it is written."""
        self.link.send(message)
        self.write(0)

    @property
    def unread_bytes(self) -> int:
        """The bytes that wait for the engine's thread."""
        return self.read_bytes - self.processed_bytes

    def write(self, most_left: int = MAX_WAITING_BYTES) -> None:
        """Write what the socket accepts at once, and wait while more than `most_left` bytes remain. Raises OSError."""
        outgoing = self.link.outgoing
        while outgoing:
            try:
                del outgoing[: self.channel.send(outgoing)]
            except BlockingIOError:
                if len(outgoing) <= most_left:
                    return
                select.select([], [self.channel], [])


Event = tuple[LinkSocket, float, int, Sequence[ToEngine | ProtocolError | Attach | None]]
"""The link, the time of receipt, the number of bytes, and what they contain: messages and errors, `Attach` for a new
link, or None for the end of a link."""
Inbox = SimpleQueue[Event]
"""The events that the reader thread hands over to the engine's thread, which collects them between two steps."""


class Reader:
    """The reader thread, which reads all links.

    Args:
        requests: the socket from which the messages of `parent` are read.
        links: the socket over which the parent passes further links; None where it passes none.
    """

    def __init__(self, requests: socket.socket, parent: LinkSocket, links: socket.socket | None, inbox: Inbox) -> None:
        self._inbox, self._selector = inbox, selectors.DefaultSelector()
        self._paused: list[LinkSocket] = []
        for channel, link in ((requests, parent), (links, None)):
            if channel is not None:
                channel.setblocking(False)
                self._selector.register(channel, selectors.EVENT_READ, link)

    def run(self) -> None:
        """Read until the process ends."""
        try:
            while True:
                for key, _ in self._selector.select(RETRY_S if self._paused else None):
                    if key.data is None:
                        self._attach(key.fileobj)  # type: ignore[arg-type]
                    else:
                        self._read(key.fileobj, key.data)  # type: ignore[arg-type]
                for link in [each for each in self._paused if each.unread_bytes <= MAX_UNREAD_BYTES // 2]:
                    self._paused.remove(link)
                    self._selector.register(link.channel, selectors.EVENT_READ, link)
        except BaseException as error:
            log.error("the reader thread has failed", error=repr(error))
            os._exit(1)

    def _attach(self, links: socket.socket) -> None:
        packet, descriptors, _, _ = socket.recv_fds(links, 4096, 1)
        if not packet:
            os._exit(0)
        attach = decode_attach(packet)
        link = LinkSocket(ServedLink(attach.link, attach.worker), socket.socket(fileno=descriptors[0]))
        self._inbox.put((link, time.monotonic(), 0, [attach]))
        self._selector.register(link.channel, selectors.EVENT_READ, link)

    def _read(self, channel: socket.socket, link: LinkSocket) -> None:
        try:
            data = channel.recv(RECEIVE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            if not link.link.number:
                # The process ends at once, even during a step: nobody would read the answers, and it has no state to
                # save. Leaving it to the engine's thread would wait for a step that may hang.
                os._exit(0)
            self._selector.unregister(channel)
            self._inbox.put((link, time.monotonic(), 0, [None]))
            return
        link.read_bytes += len(data)
        link.link.receive_data(data)
        self._inbox.put((link, time.monotonic(), len(data), link.link.events_received()))
        if link.link.number and link.unread_bytes > MAX_UNREAD_BYTES:
            self._selector.unregister(channel)
            self._paused.append(link)


def main(argv: list[str] | None = None) -> None:
    """Serve until the parent closes its socket."""
    *further, requests, answers = (socket.socket(fileno=int(each)) for each in (sys.argv[1:] if argv is None else argv))
    end_with_parent()
    inbox: Inbox = SimpleQueue()
    parent = LinkSocket(ServedLink(), answers)
    reader = Reader(requests, parent, further[0] if further else None, inbox)
    threading.Thread(target=reader.run, name="reader", daemon=True).start()
    try:
        _serve(parent, inbox, shared=bool(further))
    except BaseException:
        # Exit here and not by returning: closing the sockets on the way out would make the reader thread end the
        # process with status 0, as if it had been asked to, and the parent would not see a crash.
        traceback.print_exc()
        os._exit(1)


def _serve(parent: LinkSocket, inbox: Inbox, *, shared: bool) -> None:
    events: Sequence[Any] = ()
    while not events:
        _, _, _, events = inbox.get()
    first, *early = events
    assert isinstance(first, Configure), "the first message configures"
    _configure_log(first)
    try:
        plugin = find(first.engine)
        engine = plugin.create(first.asr, first.qwen)
        engine.warm_up()
    except (EngineUnusable, ConfigError) as error:
        parent.send(EngineFailed(str(error)))
        return
    except Exception as error:
        log.exception("the engine cannot be created", engine=first.engine)
        parent.send(EngineFailed(f"the engine {first.engine} cannot be created ({described(error)})"))
        return
    room = first.asr.max_backlog_mb * MB // max(1, first.asr.processes) if shared else 0
    inference = Inference(engine, None if plugin.words else _aligner(first), max_bytes=room or float("inf"))
    # The objects that exist now stay for good. Without `freeze`, each full collection would traverse all of them again,
    # for up to 0.2 s, during which every answer waits.
    gc.collect()
    gc.freeze()
    links = ServedLinks(inference, parent.link, max_bytes=room, languages=plugin.languages)
    for each in early:
        links.receive(parent.link, each, time.monotonic())
    try:
        EngineLoop(parent, inbox, links).run()
    except Exception as error:
        parent.send(EngineCrashed(described(error)))
        raise


class EngineLoop:
    """The loop of the engine's thread: collect events, choose a step, perform it, write the answers."""

    def __init__(self, parent: LinkSocket, inbox: Inbox, links: ServedLinks) -> None:
        self._parent, self._inbox, self._links = parent, inbox, links
        self._sockets: dict[ServedLink, LinkSocket] = {}
        """The sockets of the workers that are connected to this engine server."""

    def run(self) -> None:
        """Serve until the process ends."""
        links, work = self._links, None
        while True:
            # With nothing to do, wait for an event; otherwise collect what has arrived during the last step.
            for event in self.drain(wait=work is None):
                self._receive(*event)
            now = time.monotonic()
            work = links.choose(now)
            links.report_load(now)
            self._write_parent()
            if work is not None:
                links.perform(work, time.monotonic())

    def drain(self, *, wait: bool) -> Iterator[Event]:
        """Yield the events that have arrived. `wait`: wait for the first one, or until a load report is due."""
        self.write()
        begun_s = time.monotonic()
        while wait:
            waiting = self._parent.link.outgoing or any(link.outgoing for link in self._sockets)
            timeout_s = RETRY_S if waiting else REPORT_S if self._sockets else None
            with suppress(Empty):
                yield self._inbox.get(timeout=timeout_s)
                wait = False
            self.write()
            wait = wait and not (self._sockets and time.monotonic() - begun_s >= REPORT_S)
        while not self._inbox.empty():
            yield self._inbox.get()

    def write(self) -> None:
        """Write to all links what their sockets accept, and shut down those of workers that were cut off.

        The parent comes last, so that it never knows of an answer (by `Usage` or `Answered`) that is not yet on its way
        to the worker.
        """
        for link, each in self._sockets.items():
            with suppress(OSError):  # the reader thread sees the end of this link
                if link.outgoing:
                    each.write(len(link.outgoing))
                if link.closed:
                    each.channel.shutdown(socket.SHUT_RDWR)
        self._write_parent()

    def _write_parent(self) -> None:
        """Write to the parent. If it is gone, end this process."""
        try:
            self._parent.write()
        except OSError:
            os._exit(0)

    def _receive(
        self, source: LinkSocket, now: float, size: int, happenings: Sequence[ToEngine | ProtocolError | Attach | None]
    ) -> None:
        source.processed_bytes += size
        for happening in happenings:
            match happening:
                case Attach():
                    self._sockets[source.link] = source
                    self._links.attach(source.link, now)
                case None:
                    self._links.remove(source.link)
                    del self._sockets[source.link]
                    source.channel.close()
                case _:
                    self._links.receive(source.link, happening, now)


def _aligner(settings: Configure) -> Aligner | None:
    """Create the aligner. Without a working one it returns None, and calls go on without word timestamps."""
    try:
        match select_words(settings.asr, settings.engine).aligner:
            case "qwen":
                aligner = qwen.create_aligner(settings.asr, settings.qwen)
            case "whisper":
                aligner = whisper.create_aligner(settings.asr)
            case _:
                return None
        aligner.warm_up()
        return aligner
    except EngineUnusable as error:
        log.error("no times of words", reason=str(error))
    except Exception as error:  # probably too little memory; the recognition model is loaded and works without it
        log.error("no times of words", reason=first_line(error), exc_info=error)
    return None


def _configure_log(settings: Configure) -> None:
    processors: list[Any] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    if settings.log_format == "json":
        processors.append(structlog.processors.JSONRenderer())
    else:
        processors.append(ConsoleRenderer())
    level = logging.getLevelNamesMapping()[settings.log_level.upper()]
    structlog.configure(
        processors=processors,
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
    )
    sys.excepthook = lambda kind, error, trace: log.critical("uncaught exception", exc_info=(kind, error, trace))


if __name__ == "__main__":
    main()
