"""What of a changed configuration takes effect while the worker runs, and what waits for its next start."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from config.sections.section import Section
from config.settings import Settings


@dataclass(frozen=True, slots=True)
class Reload:
    """`settings` is what is in force after it; both lists name keys, never values."""

    settings: Settings
    changed: tuple[str, ...]
    waiting: tuple[str, ...]
    """Changed in the file, and in force from the next start on."""


def merge(old: Settings, new: Settings) -> Reload:
    """What becomes of the settings in force when the file says `new`."""
    changed: list[str] = []
    waiting: list[str] = []
    settings = _merge("", old, new, False, changed, waiting)
    return Reload(settings, tuple(changed), tuple(waiting))


def _merge(path: str, old: Any, new: Any, at_once: bool, changed: list[str], waiting: list[str]) -> Any:
    if isinstance(old, Section):
        kinds = {field.name: _kind(field.type) for field in msgspec.structs.fields(old)}
        pairs = {name: (getattr(old, name), getattr(new, name)) for name in kinds}
        reloadable = {"always"}
        if not any(kind == "switch" and bool(pairs[name][0]) != bool(pairs[name][1]) for name, kind in kinds.items()):
            reloadable |= {"switch", "switched"}
        values = {}
        for name, (before, after) in pairs.items():
            now = at_once or kinds[name] in reloadable or (kinds[name] == "items" and _names(before) == _names(after))
            values[name] = _merge(f"{path}.{name}" if path else name, before, after, now, changed, waiting)
        return type(old)(**values)
    if old == new:
        return old
    (changed if at_once else waiting).append(path)
    return new if at_once else old


def _kind(hint: Any) -> str:
    """What `config.sections.section` says of a field's reload; empty: it waits for the next start."""
    for meta in getattr(hint, "__metadata__", ()):
        if isinstance(meta, msgspec.Meta) and meta.extra:
            return str(meta.extra["reload"])
    return ""


def _names(items: Any) -> list[str]:
    return [item.name for item in items]
