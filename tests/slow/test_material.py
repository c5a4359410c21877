"""The files of the tests are what they say to the tiny model, and to another FFmpeg than that of the worker."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import numpy as np

from benchmarks.offline import transcribe
from lab.engine.offline import DEFAULT
from lab.media import material
from lab.media.hostile import corpus, recorded, recording
from lab.media.material import CLIPS, RATE_HZ, Samples
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


def heard(samples: Samples) -> str:
    """What the tiny model reads."""
    return transcribe(DEFAULT, "L16", samples.astype("<i2").tobytes())


def test_the_tiny_model_reads_every_clip() -> None:
    clips = material.digit_clips(CLIPS, seed=0)
    assert len({id(clip) for clip in clips}) == CLIPS
    assert [heard(clip.samples) for clip in clips] == [clip.text for clip in clips]


def test_the_tiny_model_reads_every_container(tmp_path: Path) -> None:
    _, table = recording()
    for name, data in recorded().items():
        (tmp_path / name).write_bytes(data)
        command = ["ffmpeg", "-v", "error", "-i", str(tmp_path / name), "-ac", "1", "-ar", str(RATE_HZ)]
        done = subprocess.run([*command, "-f", "s16le", "-"], capture_output=True, check=True)
        samples = np.frombuffer(done.stdout, "<i2")
        for spoken in table:  # as a detector cuts it out
            begin, end = round((spoken.start_s - 0.3) * RATE_HZ), round((spoken.end_s + 0.2) * RATE_HZ)
            assert heard(samples[max(0, begin) : end]) == spoken.text, name
