"""The inference process: `python -m asr.server.process REQUESTS ANSWERS`, descriptors of its ends of two socket pairs.

A thread reads requests; the main thread owns engine and scheduler, does one bounded step at a time, and writes. The
process ends when the requests do: its parent has ended it, or has died. An engine that hangs in a library holds that
thread up too, so the kernel is asked to end the process with its parent as well.
"""

from __future__ import annotations

import gc
import logging
import os
import socket
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from queue import SimpleQueue
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
Inbox = SimpleQueue[tuple[float, ToEngine]]
"""Messages, each with the time at which it came: what comes during a step has waited for the rest of it."""
log = structlog.get_logger("asr.server.process")


def main(argv: list[str] | None = None) -> None:
    """Serve until the socket closes."""
    arguments = sys.argv[1:] if argv is None else argv
    end_with_parent()
    with socket.socket(fileno=int(arguments[0])) as requests, socket.socket(fileno=int(arguments[1])) as answers:
        requests.setblocking(True)
        answers.setblocking(True)
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


def _serve(channel: socket.socket, inbox: Inbox) -> None:
    _, first = inbox.get()
    assert isinstance(first, Configure), "the first message configures"
    _configure_log(first)
    try:
        plugin = find(first.engine)
        engine = plugin.create(first.asr, first.qwen)
        engine.warm_up()
    except (EngineUnusable, ConfigError) as error:
        _send(channel, EngineFailed(str(error)))
        return
    except Exception as error:
        log.exception("the engine cannot be created", engine=first.engine)
        _send(channel, EngineFailed(f"the engine {first.engine} cannot be created ({described(error)})"))
        return
    inference = Inference(engine, None if plugin.words else _aligner(first))
    # What there is now stays. Else a full collection would look at it again and again, for up to 0.2 s, in which every
    # answer waits.
    gc.collect()
    gc.freeze()
    _send(channel, inference.ready())
    try:
        _infer(channel, inbox, inference)
    except Exception as error:
        _send(channel, EngineCrashed(described(error)))
        raise


def _infer(channel: socket.socket, inbox: Inbox, inference: Inference) -> None:
    """Until the process ends."""
    touched: tuple[str, ...] = ()
    work = None
    while True:
        # With nothing to do, wait for a message; else take what has come between two steps.
        for arrived_s, message in _drain(inbox, wait=work is None):
            if isinstance(message, Ping):
                _send(channel, Pong())
            else:
                inference.receive(message, arrived_s)
        work = inference.choose(time.monotonic())
        touches = (*inference.begun, *work.utterance_ids) if work is not None else ()
        if touches != touched:
            touched = touches
            _send(channel, Working(touched))
        if work is None:
            continue
        for answer in inference.perform(work, time.monotonic()):
            _send(channel, answer)


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


def _drain(inbox: Inbox, *, wait: bool) -> Iterator[tuple[float, ToEngine]]:
    if wait:
        yield inbox.get()
    while not inbox.empty():
        yield inbox.get()


def _send(channel: socket.socket, message: FromEngine) -> None:
    try:
        channel.sendall(encode(message))
    except OSError:
        os._exit(0)


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
