"""The guard for callbacks that PJSIP calls from C++, whose frames no exception may cross, and the bridge of its log."""

from __future__ import annotations

import functools
import re
import time
from collections.abc import Callable
from typing import Any, ClassVar, ParamSpec

import pjsua2 as pj
import structlog

from config.log.rate_limit import LogRateLimit
from sip.protocol import trace

log = structlog.get_logger("sip")

_NUMBERS = re.compile(r"[0-9]+")
_SOURCE = re.compile(r"packet from (?:[A-Z]\w+ )?(\[?[0-9a-f.:]+\]?):[0-9]")
_KIND_CHARACTERS = 40
"""The number of characters of an error that identify its kind; the rest is a peer's text."""
_MAX_TEXT = 300

P = ParamSpec("P")

callback_errors = 0
"""The number of uncaught exceptions of our code in callbacks, each of which is a bug."""


_failed = LogRateLimit()


def report(callback: str) -> None:
    """Count the exception that is being handled, and log it at most once a minute per callback."""
    global callback_errors
    callback_errors += 1
    if (held_back := _failed.due(callback, time.monotonic())) is not None:
        log.exception("error in a SIP callback", callback=callback, held_back=held_back)


def guarded(method: Callable[P, None]) -> Callable[P, None]:
    """A callback from C++ that catches all exceptions, which must not cross PJSIP's frames.

    PJSIP continues with the values set before the exception, so a callback that may permit something must refuse first.
    """

    @functools.wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            method(*args, **kwargs)
        except Exception:
            report(method.__name__)

    return call


class StackLog(pj.LogWriter):  # type: ignore[misc]
    once: ClassVar[LogRateLimit] = LogRateLimit()

    def __init__(self, level: int) -> None:
        super().__init__()
        self.level = level
        self.traced = False

    @guarded
    def write(self, entry: Any) -> None:
        if self.traced and entry.level == trace.LEVEL and (fields := trace.parse(entry.msg)) is not None:
            log.info("sip", **fields)
            return
        if entry.level > self.level:
            return
        text = trace.mask_message(entry.msg.rstrip())
        # Most errors are caused by peers, which can cause any number of them and determine the quoted text.
        if entry.level <= 1:
            source = _SOURCE.search(text)
            key = (source[1] if source else "") + _NUMBERS.sub("#", text)[:_KIND_CHARACTERS]
            if self.once.due(key, time.monotonic()) is None:
                return
            # Keep it on one line: a peer's text must not imitate a log line.
            text = "".join(c if c.isprintable() else " " for c in text[:_MAX_TEXT])
        write = (log.error, log.error, log.warning, log.info)[entry.level] if entry.level < 4 else log.debug
        write(text, pjsip_level=entry.level)
