"""The inference process: `python -m asr.server.process REQUESTS ANSWERS`, descriptors of its ends of two socket pairs.

A thread reads requests; the main thread owns engine and scheduler, does one bounded step at a time, and writes. A media
process that stands still does not hold the engine up: answers wait until it reads them. The process ends when the
requests do: its parent has ended it, or has died. An engine that hangs in a library holds that thread up too, so the
kernel is asked to end the process with its parent as well.
"""

from __future__ import annotations

import gc
import logging
import os
import select
import socket
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any

import structlog

from asr.engines.aligner import Aligner
from asr.engines.interface import EngineUnusable, described, first_line
from asr.engines.plugin import find
from asr.engines.selection import create_aligner
from asr.messages import (
    Configure,
    EngineCrashed,
    EngineFailed,
    FromEngine,
    Ping,
    Pong,
    ToEngine,
    Working,
    decode_to_engine,
)
from asr.server.inference import Inference
from config import ConfigError
from config.child_process import end_with_parent
from config.console import ConsoleRenderer
from config.framing import Frames, encode

RECEIVE_BYTES = 256 * 1024
MAX_WAITING_BYTES = 16 * 1024 * 1024
"""Of answers that the media process has not read; with more, the engine waits."""
RETRY_S = 0.01
"""How often answers that wait are tried again while there is nothing else to do."""
Inbox = SimpleQueue[tuple[float, ToEngine]]
"""Messages, each with the time at which it came: what comes during a step has waited for the rest of it."""
log = structlog.get_logger("asr.server.process")


class Answers:
    """To the media process, by its socket, which is made non-blocking."""

    def __init__(self, channel: socket.socket) -> None:
        channel.setblocking(False)
        self._channel = channel
        self._waiting = bytearray()

    @property
    def waiting(self) -> bool:
        """Whether the media process has not read all."""
        return bool(self._waiting)

    def send(self, message: FromEngine, *, last: bool = False) -> None:
        """It is written when the media process has read what came before; `last`: wait for that."""
        self._waiting += encode(message)
        self.write(0 if last else MAX_WAITING_BYTES)

    def write(self, most_left: int = MAX_WAITING_BYTES) -> None:
        """As much as can be written, and until no more than `most_left` bytes are left. Ends this process when nobody
        will read them."""
        try:
            while self._waiting:
                try:
                    del self._waiting[: self._channel.send(self._waiting)]
                except BlockingIOError:
                    if len(self._waiting) <= most_left:
                        return
                    select.select([], [self._channel], [])
        except OSError:
            os._exit(0)


def main(argv: list[str] | None = None) -> None:
    """Serve until the socket closes."""
    arguments = sys.argv[1:] if argv is None else argv
    end_with_parent()
    with socket.socket(fileno=int(arguments[0])) as requests, socket.socket(fileno=int(arguments[1])) as channel:
        requests.setblocking(True)
        answers = Answers(channel)
        inbox: Inbox = SimpleQueue()
        threading.Thread(target=_read, args=(requests, inbox), name="reader", daemon=True).start()
        try:
            _serve(answers, inbox)
        except BaseException:
            # Here and now: once a socket is closed the reader thread ends the process as if it had been asked to.
            traceback.print_exc()
            os._exit(1)


def _read(channel: socket.socket, inbox: Inbox) -> None:
    frames = Frames()
    try:
        while data := channel.recv(RECEIVE_BYTES):
            for body in frames.feed(data):
                inbox.put((time.monotonic(), decode_to_engine(body)))
    except BaseException as error:
        log.error("unreadable", error=repr(error))
        os._exit(1)
    # At once, whatever the engine is doing: nobody is left to hear it, and there is nothing to save.
    os._exit(0)


def _serve(answers: Answers, inbox: Inbox) -> None:
    _, first = inbox.get()
    assert isinstance(first, Configure), "the first message configures"
    _configure_log(first)
    try:
        plugin = find(first.engine)
        engine = plugin.create(first.asr, first.qwen)
        engine.warm_up()
    except (EngineUnusable, ConfigError) as error:
        answers.send(EngineFailed(str(error)), last=True)
        return
    except Exception as error:
        log.exception("the engine cannot be created", engine=first.engine)
        answers.send(EngineFailed(f"the engine {first.engine} cannot be created ({described(error)})"), last=True)
        return
    inference = Inference(engine, None if plugin.words else _aligner(first))
    # What there is now stays. Else a full collection would look at it again and again, for up to 0.2 s, in which every
    # answer waits.
    gc.collect()
    gc.freeze()
    answers.send(inference.ready())
    try:
        _infer(answers, inbox, inference)
    except Exception as error:
        answers.send(EngineCrashed(described(error)), last=True)
        raise


def _infer(answers: Answers, inbox: Inbox, inference: Inference) -> None:
    """Until the process ends."""
    touched: tuple[str, ...] = ()
    work = None
    while True:
        # With nothing to do, wait for a message; else take what has come between two steps.
        for arrived_s, message in _drain(inbox, answers, wait=work is None):
            if isinstance(message, Ping):
                answers.send(Pong())
            else:
                inference.receive(message, arrived_s)
        work = inference.choose(time.monotonic())
        touches = (*inference.begun, *work.utterance_ids) if work is not None else ()
        if touches != touched:
            touched = touches
            answers.send(Working(touched))
        if work is None:
            continue
        for answer in inference.perform(work, time.monotonic()):
            answers.send(answer)


def _aligner(settings: Configure) -> Aligner | None:
    """None without one that works: calls go on, without times of words."""
    try:
        aligner = create_aligner(settings.asr, settings.qwen)
        if aligner is not None:
            aligner.warm_up()
        return aligner
    except EngineUnusable as error:
        log.error("no times of words", reason=str(error))
    except Exception as error:  # no room for it, most likely: the recogniser has been loaded and works
        log.error("no times of words", reason=first_line(error), exc_info=error)
    return None


def _drain(inbox: Inbox, answers: Answers, *, wait: bool) -> Iterator[tuple[float, ToEngine]]:
    """Messages that have come; `wait`: at least one."""
    answers.write()
    while wait:
        with suppress(Empty):
            yield inbox.get(timeout=RETRY_S if answers.waiting else None)
            wait = False
        answers.write()
    while not inbox.empty():
        yield inbox.get()


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
