"""Results of transcribed files: their names, and what of an interrupted one still counts."""

from __future__ import annotations

import errno
import os
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from mediaworker.cli.transcription import result_marks, result_names
from mediaworker.cli.transcription.result_marks import Mark, NotOurResult
from mediaworker.files.options import Options
from mediaworker.files.partial import Heading, PartialFile
from mediaworker.files.segments import FileSegment


@pytest.mark.parametrize(
    ("files", "told"),
    [
        (["a/x.wav", "b/x.wav", "x.wav", "a/b/x.wav"], ""),
        (["a/x.wav", "a/./x.wav"], ""),
        (["a/x.wav", "a/x.mp3"], "out/a/x.txt"),
        (["/abs/a/x.wav", "/abs/b/x.wav"], "out/x.txt"),
        (["../x.wav", "x.wav"], "out/x.txt"),
        (["a/../../x.wav", "x.wav"], "out/x.txt"),
        (["real/x.wav", "link/x.wav"], "out/link/x.txt"),
        (["a.txt/x.wav", "a.wav"], "must be"),
        (["out/x.txt", "y.wav"], ""),
        (["elsewhere/../out/x.txt", "x.wav"], "would replace"),
    ],
)
def test_a_clash_of_results_is_found_before(
    files: list[str], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "out" / "real").mkdir(parents=True)
    (tmp_path / "out" / "link").symlink_to("real")
    distinct = result_names.distinct(map(Path, files))
    if not told:
        result_names.check(distinct, Path("out"), ["txt"])
        return
    with pytest.raises(result_names.ResultClash, match=told):
        result_names.check(distinct, Path("out"), ["txt", "srt"])


PATHS = st.lists(st.sampled_from(["a", "b.c", "..", ".", "", "x.wav", "/"]), min_size=1, max_size=5).map("/".join)


@given(PATHS, PATHS)
def test_a_result_stays_in_its_folder_and_has_one_name(path: str, other: str) -> None:
    file = Path(path, "x.wav")
    result = result_names.target(Path("/out"), file, "txt")
    assert ".." not in result.parts and Path("/out") in result.parents and result.name == "x.txt"
    assert result == result_names.target(Path("/out"), Path(os.path.normpath(file)), "txt")
    if not file.is_absolute() and ".." not in file.parts:
        assert result == Path("/out", path, "x.txt")


OURS = Mark("/srv/x.wav", 1000, 1_700_000_000_123_456_789)


@pytest.fixture(params=["attribute", "file"])
def marked(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A result, on a file system with extended attributes and on one without."""

    def forbidden(*_: object) -> None:
        raise OSError(errno.ENOTSUP, "no attributes")

    if request.param == "file":
        monkeypatch.setattr(os, "setxattr", forbidden)
        monkeypatch.setattr(os, "getxattr", forbidden)
    result, half = tmp_path / "x.txt", tmp_path / ".x.txt.part"
    half.write_text("good morning")
    result_marks.write(half, result, OURS)
    half.rename(result)
    return result


def test_a_marked_result_is_that_of_its_source(marked: Path) -> None:
    assert result_marks.check(marked, OURS)
    assert result_marks.check(marked, replace(OURS, path="/elsewhere/x.wav")), "which may have been moved"
    assert not result_marks.check(marked, replace(OURS, bytes=1001)), "and may have changed"
    assert not result_marks.check(marked, replace(OURS, mtime_ns=5))
    with pytest.raises(NotOurResult, match=r"x\.txt is the result of /srv/x\.wav: move it away"):
        result_marks.check(marked, Mark("/other/x.wav", 7, 7))
    assert not result_marks.check(marked.with_name("y.txt"), OURS)


def test_what_has_taken_its_place_is_not(marked: Path) -> None:
    text = marked.read_text()
    marked.unlink()
    marked.write_text(text + "!")
    with pytest.raises(NotOurResult, match=r"x\.txt is there, and is no result of this command"):
        result_marks.check(marked, OURS)


@given(data=st.binary(max_size=60))
def test_a_mark_that_cannot_be_read_is_none(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    result = tmp_path_factory.getbasetemp() / "foreign.txt"
    result.write_text("x")
    result.with_name(f".{result.name}.source").write_bytes(data)
    os.setxattr(result, result_marks.ATTRIBUTE, data)
    with pytest.raises(NotOurResult):
        result_marks.check(result, OURS)


HEADING = Heading("/a.wav", 10, 20, "tiny", Options(language="en"))

SEGMENTS = [FileSegment(number, 0, 1000 * number, 1000 * number + 900, f"word {number}") for number in range(5)]


def test_a_partial_that_is_cut_anywhere_knows_a_beginning(tmp_path: Path) -> None:
    path = tmp_path / "partial"
    partial = PartialFile(path, HEADING)
    for segment in SEGMENTS:
        partial.add(segment)
    partial.close()
    whole = path.read_bytes()
    for end in range(len(whole) + 1):
        path.write_bytes(whole[:end])
        with closing(PartialFile(path, HEADING)) as again:
            known = list(again.known.values())
        assert known == SEGMENTS[: len(known)]
        assert len(known) == max(0, whole[:end].count(b"\n") - 1)


@pytest.mark.parametrize(
    "other",
    [
        Heading("/b.wav", 10, 20, "tiny", Options(language="en")),
        Heading("/a.wav", 11, 20, "tiny", Options(language="en")),
        Heading("/a.wav", 10, 21, "tiny", Options(language="en")),
        Heading("/a.wav", 10, 20, "tiny", Options()),
    ],
)
def test_a_partial_of_something_else_does_not_count(other: Heading, tmp_path: Path) -> None:
    path = tmp_path / "partial"
    partial = PartialFile(path, HEADING)
    partial.add(SEGMENTS[0])
    partial.close()
    assert PartialFile(path, other).known == {}
    assert not path.exists()
