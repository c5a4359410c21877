"""Text for logs, errors and terminals: secrets are masked, and text from peers is escaped, so that it cannot control a
terminal or imitate a log line."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from typing import Any, TextIO

import msgspec

from config.sections.section import Secret, Section

_URL = re.compile(r"\b((?:https?|wss?|ftps?|nats|rediss?|postgres(?:ql)?|amqps?)://)[^\s/@?#\"'<>\\]+@", re.IGNORECASE)
_SIP = re.compile(r"\b(sips?:[^\s/@:;?\"'<>\\]*):[^\s/@\"'<>\\]+@", re.IGNORECASE)
_QUERY = re.compile(
    r"([?&](?:access_token|api_key|apikey|auth|key|password|secret|token)=)[^&\s\"'<>#\\]+", re.IGNORECASE
)
_HEADER = re.compile(r"(authorization\W{1,6}(?:bearer|basic|digest)\s+)[^\r\n\"'\\]+", re.IGNORECASE)
_BEARER = re.compile(r"(\bbearer(?:,\s*|\s+))[A-Za-z0-9._~+/=-]{8,}", re.IGNORECASE)


def mask_credentials(text: str) -> str:
    """Replace userinfo of URLs, passwords of SIP URIs, and keys in queries, headers and subprotocols by `***`."""
    if "@" in text:
        text = _SIP.sub(r"\1:***@", _URL.sub(r"\1***@", text))
    if "=" in text:
        text = _QUERY.sub(r"\1***", text)
    lower = text.lower()
    if "authorization" in lower:
        text = _HEADER.sub(r"\1***", text)
    if "bearer" in lower:
        text = _BEARER.sub(r"\1***", text)
    return text


def secrets_of(settings: Section) -> Iterator[str]:
    """The plain value of every secret that is set."""
    for field in msgspec.structs.fields(settings):
        value = getattr(settings, field.name)
        for item in value if isinstance(value, tuple) else (value,):
            if isinstance(item, Section):
                yield from secrets_of(item)
            elif isinstance(item, Secret) and item:
                yield item.reveal()


def masked(value: Any, tree: Any) -> Any:
    """`tree`, which holds the plain values of the settings `value`, with its secrets as `***`."""
    if isinstance(value, Secret):
        return "***" if value else ""
    if isinstance(value, Section):
        return {f.name: masked(getattr(value, f.name), tree[f.name]) for f in msgspec.structs.fields(value)}
    if isinstance(value, tuple):
        return [masked(item, tree[index]) for index, item in enumerate(value)]
    return mask_credentials(tree) if isinstance(tree, str) else tree


def printable(text: str, keep: str = "") -> str:
    """The text with control characters, line breaks, directional marks and lone surrogates escaped (`\\x1b`)."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in keep else c.encode("unicode_escape").decode() for c in text)


def printable_json(text: str) -> str:
    """The same JSON with unprintable characters in strings escaped as in JSON (`\\u001b`)."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in text)


def coloured(stream: TextIO) -> bool:
    """Whether to write colours: the stream is a terminal with colours, and NO_COLOR is unset (https://no-color.org)."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
