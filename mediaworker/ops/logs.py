"""The log: one line per event, for a terminal or for a log collector, with secrets masked in every line.

All log lines of the process pass this module: those of structlog, and those of libraries that use `logging`. Level,
format and secrets may change while the worker runs (by another `configure`), and existing loggers follow.
"""

from __future__ import annotations

import base64
import json
import logging
import re
import sys
import threading
from collections.abc import Iterable
from types import TracebackType
from typing import Any
from urllib.parse import quote, quote_plus

import structlog
from structlog.typing import EventDict, Processor

from config import Settings, mask_credentials, secrets_of
from config.log.console import ConsoleRenderer
from config.settings import Log

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
_METHODS = LEVELS | {"warn": logging.WARNING, "exception": logging.ERROR}
LIBRARIES = logging.WARNING
"""The lowest level of library lines: below it uvicorn and websockets log whole handshakes, keys included."""
SHORTEST = 4
"""The length from which a secret is masked wherever it occurs. A shorter one is masked in known places only."""
_DIGITS = ("digit", "digits", "dtmf")
_WHOSE = re.compile(r"([0-9a-f-]{36})/([^/]+)/[0-9]+(?:/|$)")
"""The name of an utterance: `<call>/<leg>/<number>`."""

log = structlog.get_logger()


class _Output:
    """The output of all lines, and its settings; there is one per process."""

    def __init__(self) -> None:
        self.level = logging.INFO
        self.secrets: re.Pattern[str] | None = None
        self.render: Processor = structlog.processors.JSONRenderer()

    def gate(self, logger: Any, method: str, event: EventDict) -> EventDict:
        if _METHODS.get(method, logging.CRITICAL) < self.level:
            raise structlog.DropEvent
        return event

    def finish(self, logger: Any, method: str, event: EventDict) -> str:
        """The rendered line, masked as a whole: keys, values and tracebacks alike."""
        line = str(self.render(logger, method, event))
        if self.secrets is not None:
            line = self.secrets.sub("***", line)
        return mask_credentials(line)


_output = _Output()
_seen: set[str] = set()

calls: dict[str, str] = {}
"""The peer's name of each open call (Call-ID, CallSid) → our id. The registry maintains it, so that a line with the
peer's name gets our id as well."""


def configure(settings: Log, secrets: Iterable[str] = ()) -> None:
    """Set level, format and secrets of the log. All lines go to stderr, so that stdout belongs to the command."""
    first = not structlog.is_configured()
    _output.level = LEVELS[settings.level]
    _output.secrets = _pattern(secrets)
    _output.render = structlog.processors.JSONRenderer() if settings.format == "json" else ConsoleRenderer()
    if not first:
        return
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        whose,
        hide_digits,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
        structlog.processors.format_exc_info,
    ]
    structlog.configure(
        processors=[_output.gate, *shared, _output.finish],
        # Loggers are created once, so the level that may change is checked by `gate`; here debug always passes.
        wrapper_class=structlog.make_filtering_bound_logger(logging.DEBUG),
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=True,
    )
    _redirect_libraries(shared)


def configure_worker(settings: Settings) -> None:
    """Configure the log by the settings. Secrets of earlier settings stay masked, since a line may still have one."""
    _seen.update(secrets_of(settings))
    configure(settings.log, _seen)


def whose(logger: Any, method: str, event: EventDict) -> EventDict:
    """Add `call_id` and `leg` to a line that has an utterance's name, and `call_id` to one with the peer's name."""
    name = event.get("utterance_id")
    if isinstance(name, str) and (found := _WHOSE.match(name)):
        event.setdefault("call_id", found[1])
        event.setdefault("leg", found[2])
    external = event.get("external_id")
    if isinstance(external, str) and external in calls:
        event.setdefault("call_id", calls[external])
    return event


def hide_digits(logger: Any, method: str, event: EventDict) -> EventDict:
    """Mask digits that callers keyed in, which may be card numbers and PINs."""
    for name in _DIGITS:
        if name in event:
            event[name] = "*"
    return event


def _pattern(secrets: Iterable[str]) -> re.Pattern[str] | None:
    """A pattern for each secret as it is, and as JSON, a repr, a URL or basic authentication would encode it."""
    spellings: set[str] = set()
    for secret in secrets:
        if len(secret) >= SHORTEST:
            plain = {secret, quote(secret, safe=""), quote_plus(secret, safe="")}
            inner = plain | {repr(text)[1:-1] for text in plain}
            spellings |= inner | {json.dumps(text)[1:-1] for text in inner} | {repr(text)[1:-1] for text in inner}
            spellings.add(base64.b64encode(secret.encode(errors="replace")).decode().rstrip("="))
    # The longest first: one secret may begin with another.
    ordered = sorted(spellings, key=lambda spelling: (-len(spelling), spelling))
    return re.compile("|".join(map(re.escape, ordered))) if ordered else None


def _redirect_libraries(shared: list[Processor]) -> None:
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[structlog.stdlib.add_logger_name, structlog.stdlib.ExtraAdder(), *shared],
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, _output.finish],
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    logging.root.handlers = [handler]
    logging.root.setLevel(LIBRARIES)
    logging.captureWarnings(True)
    sys.excepthook = _uncaught
    threading.excepthook = lambda args: _uncaught(args.exc_type, args.exc_value or args.exc_type(), args.exc_traceback)


def _uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, trace)
        return
    log.critical("uncaught exception", exc_info=(kind, error, trace))
