"""The merge of a changed configuration: which settings take effect at once, and which wait for the next start."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from config.sections.section import Section
from config.settings import Settings


@dataclass(frozen=True, slots=True)
class Reload:
    """The result of a merge. `settings` are those in force afterwards; both lists contain keys, never values."""

    settings: Settings
    changed: tuple[str, ...]
    waiting: tuple[str, ...]
    """Keys that have changed in the file, and take effect at the next start."""


def merge(old: Settings, new: Settings) -> Reload:
    """Merge the settings of the file (`new`) into those in force (`old`)."""
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
    """The reload class of a field, as `config.sections.section` defines it; empty if it waits for the next start."""
    for meta in getattr(hint, "__metadata__", ()):
        if isinstance(meta, msgspec.Meta) and meta.extra:
            return str(meta.extra["reload"])
    return ""


def _names(items: Any) -> list[str]:
    return [item.name for item in items]
