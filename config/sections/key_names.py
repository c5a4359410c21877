"""What somebody has probably meant who has written a name that nothing has: a key, an option, a command."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from typing import get_type_hints

from config.sections.section import Section

FEW = 12
"""So many names are all shown; of more, only those that resemble the wrong one."""
ALIKE = 0.65
_MOST = 6


def similar(word: str, known: Iterable[str]) -> list[str]:
    """The names that resemble `word`, the likeliest first: at most three; one alone when nothing but case or the kind
    of separator differs."""
    plain = {_plain(name): name for name in known}
    if (found := plain.get(_plain(word))) is not None:
        return [found]
    return [plain[name] for name in difflib.get_close_matches(_plain(word), plain, 3, ALIKE)]


def keys(kind: type[Section], prefix: str = "") -> Iterator[str]:
    """Every key of the configuration as `section.key`, and every section; not what stands in lists of tables."""
    for name, hint in get_type_hints(kind).items():
        yield prefix + name
        if isinstance(hint, type) and issubclass(hint, Section):
            yield from keys(hint, f"{prefix}{name}.")


def meant(whole: type[Section], path: str, name: str, siblings: Iterable[str]) -> list[str]:
    """The keys of the configuration `whole` that `name` in the section `path` may stand for: one that resembles it
    there, or one of that name elsewhere."""
    known = list(keys(whole))
    full = f"{path}.{name}" if path else name
    elsewhere = [key for key in known if _plain(key) in (_plain(full), _plain(name))]
    elsewhere += [key for key in known if key not in elsewhere and _plain(key.rpartition(".")[2]) == _plain(name)]
    if not path and elsewhere:
        return elsewhere[:_MOST]
    here = similar(name, siblings)
    return [f"{path}.{each}" if path else each for each in here] or elsewhere[:_MOST] or similar(full, known)


def either(names: Iterable[str]) -> str:
    """`a`, `a or b`, `a, b or c`."""
    *others, last = names
    return f"{', '.join(others)} or {last}" if others else last


def _plain(name: str) -> str:
    return name.lstrip("-").replace("-", "_").replace(".", "_").casefold()
