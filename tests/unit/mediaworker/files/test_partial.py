"""What `mediaworker transcribe` knows of a file after a kill: all that was written, whatever the last line is."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from mediaworker.events.schema import Word
from mediaworker.files.options import Options
from mediaworker.files.partial import Heading, PartialFile
from mediaworker.files.segments import FileSegment

HEADING = Heading("/films/one.mkv", 1000, 123456789, "tiny", Options(language="en"))
SEGMENTS = [
    FileSegment(0, 0, 0, 900, "one\ntwo", "en"),
    FileSegment(2, 1, 950, 2000, "drei — ünf", "de", [Word("drei", 950, 1200, 0.5)], True),
    FileSegment(1, 0, 1000, 3000, ""),
]


def written(path: Path, segments: list[FileSegment] = SEGMENTS) -> bytes:
    with closing(PartialFile(path, HEADING)) as partial:
        for segment in segments:
            partial.add(segment)
    return path.read_bytes()


def known(path: Path, heading: Heading = HEADING) -> list[FileSegment]:
    with closing(PartialFile(path, heading)) as partial:
        return list(partial.known.values())


def test_cut_off_anywhere_what_is_known_is_what_came_first(tmp_path: Path) -> None:
    path = tmp_path / "partial"
    whole = written(path)
    counts = []
    for cut in range(len(whole) + 1):
        path.write_bytes(whole[:cut])
        found = known(path)
        assert found == SEGMENTS[: len(found)]
        counts.append(len(found))
        # And it goes on from there.
        written(path, SEGMENTS[len(found) :])
        assert path.read_bytes() == whole
    assert counts == sorted(counts) and set(counts) == {0, 1, 2, 3}


def test_to_read_it_changes_nothing_of_what_is_whole(tmp_path: Path) -> None:
    """A kill while it is read costs nothing: it is never written anew."""
    path = tmp_path / "partial"
    whole = written(path)
    before = os.stat(path)
    assert known(path) == SEGMENTS
    assert path.read_bytes() == whole and os.stat(path).st_ino == before.st_ino


@pytest.mark.parametrize(
    "other",
    [
        replace(HEADING, bytes=1001), replace(HEADING, mtime_ns=0), replace(HEADING, engine="moonshine"),
        replace(HEADING, options=Options(language="de")),
    ],
)  # fmt: skip
def test_of_another_file_or_asked_for_otherwise_nothing_counts(tmp_path: Path, other: Heading) -> None:
    path = tmp_path / "partial"
    written(path)
    assert known(path, other) == [] and not path.exists()


def test_what_failed_is_asked_for_again(tmp_path: Path) -> None:
    path = tmp_path / "partial"
    failed = FileSegment(3, 0, 4000, 5000, "", error="the engine died")
    written(path, [*SEGMENTS, failed])
    assert known(path) == SEGMENTS
    again = replace(failed, text="four", error=None)
    written(path, [again])
    assert known(path) == [*SEGMENTS, again]


@given(st.data())
def test_mutated_it_is_read_as_far_as_it_is_right(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.getbasetemp() / "mutated"
    path.unlink(missing_ok=True)
    whole = bytearray(written(path))
    at = data.draw(st.integers(0, len(whole) - 1))
    whole[at : at + data.draw(st.integers(0, 40))] = data.draw(st.binary(max_size=40))
    path.write_bytes(whole)
    before = bytes(whole[:at]).count(b"\n") - 1
    assert known(path)[: max(0, before)] == SEGMENTS[: max(0, before)]
