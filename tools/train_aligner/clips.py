"""The recorded clips of `tests/data/aligned`: held-out voices, and the times of their words.

python -m tools.train_aligner.clips tests/data/aligned
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

from audio.codecs.g711 import ulaw_encode
from tools.train_tiny.channel import resample
from tools.train_tiny.espeak import RATE_HZ as ESPEAK_HZ
from tools.train_tiny.espeak import Speaker, say

RATE_HZ = 8000
MARGIN = np.zeros(RATE_HZ * 4 // 10, np.float32)

CLIPS = {
    "number": (Speaker("en-us+f2", 165), ("four seven one two", "nine oh five three")),
    "twins": (Speaker("en+m3", 160), ("three three", "eight eight eight one")),
    "account": (Speaker("en-gb-scotland+max", 150), ("account number", "six two zero")),
    "yes": (Speaker("en-us-nyc+Andy", 140), ("yes",)),
    "day": (Speaker("en-029+f5", 170), ("monday morning", "thank you goodbye")),
    "long": (Speaker("en+steph", 190), ("one two three four five six seven eight nine zero", "oh seven")),
}
"""Groups of words, and 0.4 s of silence before, between and behind them."""


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    times = {}
    for name, (speaker, groups) in CLIPS.items():
        samples, at, words = [MARGIN], MARGIN.size, []
        for group in groups:
            speech = say(group.split(), speaker)
            for word, span in zip(group.split(), speech.spans, strict=True):
                begin_ms, end_ms = (round(1000 * (at / RATE_HZ + sample / ESPEAK_HZ)) for sample in span)
                words.append({"word": word, "begin_ms": begin_ms, "end_ms": end_ms})
            sound = resample(speech.samples, ESPEAK_HZ, RATE_HZ)
            samples += [0.3 * sound / np.abs(sound).max(), MARGIN]
            at += sound.size + MARGIN.size
        pcm = np.rint(np.concatenate(samples) * 32767).astype(np.int16)
        (folder / f"{name}.ulaw").write_bytes(bytes(ulaw_encode(pcm)))
        times[name] = words
    text = ",\n".join(
        f'  "{name}": [\n' + ",\n".join(f"    {json.dumps(word)}" for word in words) + "\n  ]"
        for name, words in times.items()
    )
    (folder / "words.json").write_text(f"{{\n{text}\n}}\n", encoding="utf-8")


main(Path(sys.argv[1]))
