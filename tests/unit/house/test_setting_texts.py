"""Every setting says in a whole sentence of its own what it does: a reader of the reference has looked up that one."""

from __future__ import annotations

import re
import sys
import typing
from collections.abc import Iterator

import msgspec
import pytest

from config.sections.section import Section
from config.settings import Settings
from lab.house import ROOT

sys.path.insert(0, str(ROOT / "tools"))
import events_schema  # noqa: E402
import gen_docs  # noqa: E402

# A text that leans on its neighbour, or has no subject.
LEANING = re.compile(r"(Of|As|And|Also|Beyond|Likewise|It|They|The same|This too|Seconds|How|What|Where|Which|So)\b")


def texts(kind: type[Section] = Settings, path: str = "") -> Iterator[tuple[str, str]]:
    """(key, text) of every setting that is no section."""
    notes, hints = events_schema.field_notes(kind), typing.get_type_hints(kind, include_extras=True)
    for field in msgspec.structs.fields(kind):
        nested = gen_docs._nested(hints[field.name])
        if nested is None:
            yield f"{path}{field.name}", notes.get(field.name, "")
        else:
            yield from texts(nested, f"{path}{field.name}.")


@pytest.mark.parametrize(("key", "text"), list(texts()))
def test_the_text_of_a_setting_stands_alone(key: str, text: str) -> None:
    assert text, f"{key} has no text"
    assert text.endswith((".", ".)")), f"{key}: {text}"
    assert re.match(r"[A-Z0-9`]", text) and len(text.split()) > 4, f"{key}: {text}"
    assert not LEANING.match(text), f"{key}: {text}"


def metric_texts() -> Iterator[tuple[str, str]]:
    """(name, text) of every metric in the reference, which is generated from the worker."""
    for line in (ROOT / "docs" / "reference" / "metrics.md").read_text("utf-8").splitlines():
        if line.startswith("| `mediaworker_"):
            name, _, _, text = re.split(r"(?<!\\)\|", line)[1:5]
            yield name.strip(" `"), text.strip()


def test_the_text_of_a_metric_is_a_sentence_that_begins_with_what_it_does() -> None:
    found = dict(metric_texts())
    assert len(found) > 150
    wrong = {name: text for name, text in found.items() if not re.fullmatch(r"(Counts|Shows|Measures|Is) .+\.", text)}
    assert not wrong
