"""The functions that PJSIP calls from C++: exceptions must not travel through its frames, and its log lines become
ours."""

from __future__ import annotations

import functools
import re
import time
from collections.abc import Callable
from typing import Any, ClassVar, ParamSpec

import pjsua2 as pj
import structlog

from config.log_rate_limit import LogRateLimit
from sip.protocol import trace

log = structlog.get_logger("sip")

_NUMBERS = re.compile(r"[0-9]+")
_SOURCE = re.compile(r"packet from (?:[A-Z]\w+ )?(\[?[0-9a-f.:]+\]?):[0-9]")
_KIND_CHARACTERS = 40
"""The first 40 characters of an error say what kind it is; the rest is a peer's own words."""
_MAX_TEXT = 300

P = ParamSpec("P")

callback_errors = 0
"""Exceptions that got out of our own code in a callback; always a bug."""


_failed = LogRateLimit()


def report(callback: str) -> None:
    """Count the exception that is being handled, and log it: once a minute for each callback."""
    global callback_errors
    callback_errors += 1
    if (held_back := _failed.due(callback, time.monotonic())) is not None:
        log.exception("error in a SIP callback", callback=callback, held_back=held_back)


def guarded(method: Callable[P, None]) -> Callable[P, None]:
    """A callback from C++: an exception must not travel through PJSIP's frames.

    PJSIP goes on with what the callback has set by then, so one that may allow something refuses it first.
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
        # Most errors are a peer's, who can make as many as it likes, and quote what it has sent.
        if entry.level <= 1:
            source = _SOURCE.search(text)
            key = (source[1] if source else "") + _NUMBERS.sub("#", text)[:_KIND_CHARACTERS]
            if self.once.due(key, time.monotonic()) is None:
                return
            # On one line: what a peer sends must not look like a line of ours.
            text = "".join(c if c.isprintable() else " " for c in text[:_MAX_TEXT])
        write = (log.error, log.error, log.warning, log.info)[entry.level] if entry.level < 4 else log.debug
        write(text, pjsip_level=entry.level)
