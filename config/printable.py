"""Foreign text on its way to a terminal: what could steer it, or pass for a line of ours, is escaped."""

from __future__ import annotations

import json


def printable(text: str, keep: str = "") -> str:
    """Control characters, line breaks, marks of direction and lone surrogates as Python escapes them (`\\x1b`)."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in keep else c.encode("unicode_escape").decode() for c in text)


def printable_json(text: str) -> str:
    """The same JSON, its strings escaped as JSON does it (`\\u001b`)."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in text)
