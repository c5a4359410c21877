"""What the demo plays."""

from __future__ import annotations

import wave
from pathlib import Path

import numpy as np

from tools import prompts
from tools.demo import STREAM


def test_one_speaks_while_the_other_is_silent(tmp_path: Path) -> None:
    sound = {}
    for speaker, path in prompts.tracks(STREAM, tmp_path).items():
        with wave.open(str(path)) as file:
            sound[speaker] = np.frombuffer(file.readframes(file.getnframes()), np.int16)
    assert sound.keys() == prompts.words(STREAM).keys() == {"inbound", "outbound"}
    assert len(sound["inbound"]) == len(sound["outbound"])
    assert not np.any((sound["inbound"] != 0) & (sound["outbound"] != 0)) and all(map(np.any, sound.values()))
