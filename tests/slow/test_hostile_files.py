"""The hostile files are what they say to another FFmpeg than the one that the worker reads them with."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from lab.media.hostile import corpus
from lab.patience import seconds

COUNT_FRAMES = ["-select_streams", "a:0", "-count_frames", "-show_entries", "stream=nb_read_frames"]


def frames(path: Path) -> int:
    """Of sound, that ffprobe decodes."""
    command = ["ffprobe", "-v", "error", "-of", "json", *COUNT_FRAMES, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds(10))
    streams = json.loads(done.stdout or "{}").get("streams", []) if done.returncode == 0 else []
    count = streams[0].get("nb_read_frames", "0") if streams else "0"
    return 0 if count == "N/A" else int(count)


def test_ffprobe_agrees(tmp_path: Path) -> None:
    """An older FFmpeg, so this is no property of one version."""
    wrong = {}
    for file in corpus(tmp_path):
        # It follows what a playlist names, and has no limit of memory here. Those that were cut are many.
        if not (file.bomb or file.follows or file.name.startswith("cut-")):
            file.make(tmp_path / file.name)
            if (not frames(tmp_path / file.name)) != (file.expected == "refused"):
                wrong[file.name] = frames(tmp_path / file.name)
    assert wrong == {}
