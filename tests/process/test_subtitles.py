"""SubRip and WebVTT of what was said, checked by FFmpeg's reading of them."""

from __future__ import annotations

import html
import json
import re
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings

from lab.media.subtitles import (
    CALL,
    LINES,
    LONG,
    Packet,
    written,
)
from lab.patience import seconds
from mediaworker.transcripts.formats import SpokenLine, srt, vtt


def read_back(path: Path) -> list[Packet]:
    command = ["ffprobe", "-v", "error", "-show_packets", "-show_data", "-of", "json", str(path)]
    done = subprocess.run(command, capture_output=True, check=True, timeout=seconds(60))
    assert done.stderr == b""
    return [
        Packet(packet["pts"], packet["duration"], _bytes(packet["data"]).decode())
        for packet in json.loads(done.stdout)["packets"]
    ]


def _bytes(dump: str) -> bytes:
    """`00000000: 4865 6c6c 6f2e   Hello.`, sixteen bytes a line."""
    return b"".join(bytes.fromhex(row[10:50]) for row in dump.strip("\n").split("\n"))


@pytest.mark.parametrize("kind", ["srt", "vtt"])
def test_ffmpeg_reads_the_same(tmp_path: Path, kind: str) -> None:
    text = (srt if kind == "srt" else vtt)(CALL)
    path = tmp_path / f"call.{kind}"
    path.write_text(text, encoding="utf-8")
    found = read_back(path)
    assert found == written(text) and len(found) == 5
    texts = [html.unescape(re.sub("<v [^>]*>|Ann: ", "", packet.text)) for packet in found[1:3]]
    assert " ".join(texts).split() == LONG.split()


@settings(max_examples=12)
@given(LINES.filter(lambda lines: any(line.text.strip() for line in lines)))
def test_ffmpeg_reads_any_text_the_same(tmp_path_factory: pytest.TempPathFactory, lines: list[SpokenLine]) -> None:
    path = tmp_path_factory.mktemp("any")
    for kind, text in (("srt", srt(lines)), ("vtt", vtt(lines))):
        (path / f"any.{kind}").write_text(text, encoding="utf-8")
        # FFmpeg shows twins, two people who say the same at once, only once.
        found = read_back(path / f"any.{kind}")
        assert list(dict.fromkeys(found)) == list(dict.fromkeys(written(text)))
