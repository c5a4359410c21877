"""What the pages for newcomers name is there."""

from __future__ import annotations

import re

import pytest

from config.settings import Settings
from lab.house import ROOT

FOLDERS = ("config", "audio", "sip", "asr", "mediaworker", "benchmarks", "tools", "lab", "tests", "examples", "deploy")


LINK = re.compile(r"\]\(([^)#:\s]+)(?:#[\w-]+)?\)")


PAGES = ("README.md", "CONTRIBUTING.md", "docs/topics/architecture.md", "docs/start/first-call.md")


@pytest.mark.parametrize("page", PAGES)
def test_what_a_newcomer_is_pointed_to_exists(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    links = LINK.findall(text)
    named = {name for name in re.findall(r"`((?:[a-z_]+/)+[a-z_.]+)`", text) if name.split("/")[0] in FOLDERS}
    assert len(links) > 3
    assert [link for link in links if not (ROOT / page).parent.joinpath(link).exists()] == []
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []


def test_the_security_policy_names_what_exists() -> None:
    """Files, tests, settings and links: a promise that points nowhere is none."""
    text = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    tests, links = re.findall(r"`(tests/[\w/]+\.py)`", text), re.findall(r"\]\(([\w/.-]+)(?:#[\w-]+)?\)", text)
    assert len(tests) > 6 and len(links) >= 4
    assert [name for name in [*tests, *links] if not (ROOT / name).exists()] == []
    settings = Settings()
    for section, key in re.findall(r"`([a-z]+)\.([a-z_]+)(?: = [^`]+)?`", text):
        assert hasattr(getattr(settings, section), key), f"{section}.{key}"


def test_the_glossary_has_the_words_of_the_code() -> None:
    glossary = (ROOT / "docs/reference/glossary.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([a-z ]+) \| .+ \| `([\w/]+\.py)` `(\w+)` \|$", glossary, re.M)
    assert 15 < len(rows) <= 30 and len(rows) == glossary.count("\n|") - 2, "each row has a file and a name"
    assert len({word for word, _, _ in rows}) == len(rows)
    for word, file, name in rows:
        source = (ROOT / file).read_text(encoding="utf-8")
        assert re.search(rf"^class {name}\b", source, re.M), f"{word}: there is no class {name} in {file}"
