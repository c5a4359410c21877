"""Suggestions for a misspelt name: the key, option or command that the user probably meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from typing import get_type_hints

from config.sections.section import Section

FEW = 12
"""Up to this number all allowed names are shown; of more, only those that resemble the wrong one."""
ALIKE = 0.65
_MOST = 6


def similar(word: str, known: Iterable[str]) -> list[str]:
    """The names that resemble `word`, the likeliest first, at most three.

    Only one is returned if it differs in nothing but case or the kind of separator.
    """
    plain = {_plain(name): name for name in known}
    if (found := plain.get(_plain(word))) is not None:
        return [found]
    return [plain[name] for name in difflib.get_close_matches(_plain(word), plain, 3, ALIKE)]


def keys(kind: type[Section], prefix: str = "") -> Iterator[str]:
    """Every key of the configuration as `section.key`, and every section, but not the keys within lists of tables."""
    for name, hint in get_type_hints(kind).items():
        yield prefix + name
        if isinstance(hint, type) and issubclass(hint, Section):
            yield from keys(hint, f"{prefix}{name}.")


def meant(whole: type[Section], path: str, name: str, siblings: Iterable[str]) -> list[str]:
    """The keys of the configuration `whole` that the user may have meant by `name` in the section `path`.

    They are similar keys of that section, or keys with this name in other sections.
    """
    known = list(keys(whole))
    full = f"{path}.{name}" if path else name
    elsewhere = [key for key in known if _plain(key) in (_plain(full), _plain(name))]
    elsewhere += [key for key in known if key not in elsewhere and _plain(key.rpartition(".")[2]) == _plain(name)]
    if not path and elsewhere:
        return elsewhere[:_MOST]
    here = similar(name, siblings)
    return [f"{path}.{each}" if path else each for each in here] or elsewhere[:_MOST] or similar(full, known)


def either(names: Iterable[str]) -> str:
    """The names as a list in words: `a`, `a or b`, `a, b or c`."""
    *others, last = names
    return f"{', '.join(others)} or {last}" if others else last


def _plain(name: str) -> str:
    return name.lstrip("-").replace("-", "_").replace(".", "_").casefold()
