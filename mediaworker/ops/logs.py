"""One line per event, for a person at a terminal or for a collector; what must not be read is masked in every line.

All log lines of the process come through here: structlog's own, and those of libraries that use the standard module.
Level, format and secrets may change while the worker runs (`configure` again): loggers that exist follow.
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
from config.console import ConsoleRenderer
from config.settings import Log

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
_METHODS = LEVELS | {"warn": logging.WARNING, "exception": logging.ERROR}
LIBRARIES = logging.WARNING
"""uvicorn and websockets print whole handshakes below it, keys included."""
SHORTEST = 4
"""A secret shorter than that is masked where it is known to stand, not wherever its letters occur."""
_DIGITS = ("digit", "digits", "dtmf")
_WHOSE = re.compile(r"([0-9a-f-]{36})/([^/]+)/[0-9]+(?:/|$)")
"""`<call>/<leg>/<number>`: how utterances are named."""

log = structlog.get_logger()


class _Output:
    """Where all lines go; one per process."""

    def __init__(self) -> None:
        self.level = logging.INFO
        self.secrets: re.Pattern[str] | None = None
        self.render: Processor = structlog.processors.JSONRenderer()

    def gate(self, logger: Any, method: str, event: EventDict) -> EventDict:
        if _METHODS.get(method, logging.CRITICAL) < self.level:
            raise structlog.DropEvent
        return event

    def finish(self, logger: Any, method: str, event: EventDict) -> str:
        """The line, masked as a whole: keys, values and tracebacks alike."""
        line = str(self.render(logger, method, event))
        if self.secrets is not None:
            line = self.secrets.sub("***", line)
        return mask_credentials(line)


_output = _Output()
_seen: set[str] = set()

calls: dict[str, str] = {}
"""What peers call the open calls (Call-ID, CallSid) → our id. Kept by the registry: a line that knows one has both."""


def configure(settings: Log, secrets: Iterable[str] = ()) -> None:
    """Everything goes to stderr, so that stdout stays the command's own. `call_id` and `leg` are fields."""
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
        # Debug passes here and is stopped by the gate, whose level may change: loggers are made once.
        wrapper_class=structlog.make_filtering_bound_logger(logging.DEBUG),
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=True,
    )
    _redirect_libraries(shared)


def configure_worker(settings: Settings) -> None:
    """As the settings say; their secrets are masked, and those of before: a line may still carry one."""
    _seen.update(secrets_of(settings))
    configure(settings.log, _seen)


def whose(logger: Any, method: str, event: EventDict) -> EventDict:
    """An utterance's name tells its call and leg, a peer's name of a call ours: every line about one carries them."""
    name = event.get("utterance_id")
    if isinstance(name, str) and (found := _WHOSE.match(name)):
        event.setdefault("call_id", found[1])
        event.setdefault("leg", found[2])
    external = event.get("external_id")
    if isinstance(external, str) and external in calls:
        event.setdefault("call_id", calls[external])
    return event


def hide_digits(logger: Any, method: str, event: EventDict) -> EventDict:
    """What people key in is card numbers and PINs."""
    for name in _DIGITS:
        if name in event:
            event[name] = "*"
    return event


def _pattern(secrets: Iterable[str]) -> re.Pattern[str] | None:
    """Any of the secrets, as it stands or as a line of JSON, a repr, a URL or basic authentication would spell it."""
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
