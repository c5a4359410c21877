"""Every link of every page leads to a file and its heading, and the table of contents has every page."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from lab.house import ROOT

FOLDERS = ("config", "audio", "sip", "asr", "mediaworker", "benchmarks", "tools", "lab", "tests", "examples", "deploy")
DOCS = ROOT / "docs"
LINK = re.compile(r"\]\(([^()\s]+)\)")
FENCE = re.compile(r"^```.*?^```$", re.M | re.S)
PLACE = re.compile(rf"`((?:{'|'.join(FOLDERS)})/[\w./*-]+)`")
OTHERS = ("deploy/kubernetes/secrets/", "audio/basic", "audio/wav")
"""What a command makes, and types of media."""
NAMED = re.compile(r"\bdocs/[\w/-]+\.(?:md|yaml|json|webp)\b")

UNTRIED = re.compile(
    r"(?i)\bnot tried\b|\b(?:was|were|been|is) not run\b|\bnot run:|\(not run\)|\bnot yet (?:been )?tried\b"
)


def pages() -> list[Path]:
    inner = [path for folder in ("docs", *FOLDERS) for path in (ROOT / folder).rglob("*.md")]
    return sorted({*ROOT.glob("*.md"), *(path for path in inner if "node_modules" not in path.parts)})


def links(page: Path) -> Iterator[tuple[Path, str]]:
    """(file, heading) of each link of a page that leads into this repository; the heading may be empty."""
    for link in LINK.findall(FENCE.sub("", page.read_text(encoding="utf-8"))):
        if not re.match(r"[a-z]+:", link):
            file, _, heading = link.partition("#")
            yield (page.parent / file).resolve() if file else page, heading


@cache
def headings(page: Path) -> frozenset[str]:
    """The headings of a page as GitHub names them in addresses; the second of two equal ones ends with `-1`."""
    found: list[str] = []
    for line in re.findall(r"^#{1,6} (.+)$", FENCE.sub("", page.read_text(encoding="utf-8")), re.M):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", line)
        found.append(re.sub(r"[^\w\- ]", "", text.strip().lower()).replace(" ", "-"))
    again = [f"{name}-{found[:at].count(name)}" for at, name in enumerate(found) if name in found[:at]]
    return frozenset([*found, *again])


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    lost = [f"{file.name}#{heading}" for file, heading in links(page) if not file.exists()]
    lost += [
        f"{file.name}#{heading}"
        for file, heading in links(page)
        if heading and file.suffix == ".md" and file.exists() and heading not in headings(file)
    ]
    assert lost == []


def test_pages_that_code_and_settings_name_exist() -> None:
    """A message that says where to read on must not send its reader to a page that has moved."""
    files = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.suffix in READ]
    named = {
        (str(path.relative_to(ROOT)), name)
        for path in [*files, ROOT / "Makefile", ROOT / "Dockerfile", *pages()]
        if not {"node_modules", "__pycache__"} & set(path.parts)
        for name in NAMED.findall(path.read_text(encoding="utf-8", errors="replace"))
    }
    assert len(named) > 40
    assert sorted((file, name) for file, name in named if not (ROOT / name).exists()) == []


READ = {".py", ".js", ".html", ".json", ".toml", ".yaml", ".cfg", ".sh", ".service", ".c"}
"""The kinds of files whose comments and messages name pages. Patches of PJSIP are not held to it, for a changed byte of
one builds PJSIP anew."""


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_files_that_a_page_names_exist(page: Path) -> None:
    """A test or a file of the repository that a reader is sent to; one with `*` names at least one."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    named = {name for name in PLACE.findall(text) if not name.startswith(OTHERS)}
    assert [name for name in sorted(named) if not any(ROOT.glob(name.rstrip("/")))] == []


def test_every_page_is_in_the_table_of_contents() -> None:
    listed = {file for file, _ in links(DOCS / "README.md")}
    missing = {path for path in DOCS.rglob("*.md")} - listed - {DOCS / "README.md"}
    assert sorted(str(path.relative_to(DOCS)) for path in missing) == []


def test_what_was_not_tried_stands_on_one_page() -> None:
    """A remark on the page of something else is never looked at again, and outlives what it says."""
    for path in {*pages()} - {DOCS / "measurements/tested-with.md", ROOT / "CHANGELOG.md"}:
        found = UNTRIED.findall(path.read_text(encoding="utf-8"))
        assert found == [], f"{path.relative_to(ROOT)}: {found} belongs to docs/measurements/tested-with.md"


def test_a_page_begins_with_its_one_title() -> None:
    for path in DOCS.rglob("*.md"):
        text = FENCE.sub("", path.read_text(encoding="utf-8"))
        assert text.startswith("# ") and len(re.findall(r"^# ", text, re.M)) == 1, path.name
