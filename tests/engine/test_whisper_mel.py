"""The spectrogram that Whisper hears, against the one of transformers."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from transformers import WhisperFeatureExtractor

from asr.engines.speech import RATE_HZ
from asr.engines.whisper import answers
from asr.engines.whisper.mel import HOP, LogMel
from asr.samples import Wideband
from audio.codecs.g711 import ulaw_encode
from lab.media import nonspeech
from lab.media.speech import speech


def heard(codes: bytes) -> NDArray[np.float32]:
    return Wideband("PCMU").feed(codes)


SOUNDS = {
    "prompt": heard(bytes(ulaw_encode(speech("conf-onlyperson")))),
    "half a second": heard(bytes(ulaw_encode(speech("conf-onlyperson"))))[4000:12000],
    "shortest": heard(bytes(ulaw_encode(speech("conf-onlyperson"))))[8000:14401],
    "tone": heard(nonspeech.codes(nonspeech.tone((440, 480), (2.0, 0.0), 2.0))),
    "silence": np.zeros(RATE_HZ, np.float32),
    "wideband noise": (0.1 * np.random.default_rng(1).standard_normal(7 * RATE_HZ)).astype(np.float32),
    "27 seconds": (0.2 * np.random.default_rng(2).standard_normal(27 * RATE_HZ)).astype(np.float32),
    "30 seconds": (0.2 * np.random.default_rng(3).standard_normal(30 * RATE_HZ)).astype(np.float32),
}


@pytest.mark.parametrize("bins", [80, 128])
@pytest.mark.parametrize("name", SOUNDS)
def test_the_spectrogram_is_that_of_the_reference(name: str, bins: int) -> None:
    samples = SOUNDS[name]
    for frames in {answers.window(len(samples)), answers.LONGEST_FRAMES}:
        extractor = WhisperFeatureExtractor(feature_size=bins, chunk_length=30)
        extractor.n_samples, extractor.nb_max_frames = frames * HOP, frames
        expected = extractor(samples, sampling_rate=RATE_HZ, return_tensors="np").input_features[0]
        found = LogMel(bins)(samples, frames)
        assert found.shape == expected.shape == (bins, frames) and found.dtype == np.float32
        # Where the audio fills the window, the reference mirrors it at its end; here silence follows.
        last = frames - 1 if len(samples) + HOP > frames * HOP else frames
        np.testing.assert_allclose(found[:, :last], expected[:, :last], atol=1e-3)


@pytest.mark.parametrize("samples", [0, 400, answers.SHORTEST_FRAMES * HOP + 1])
def test_too_little_and_too_much_is_refused(samples: int) -> None:
    with pytest.raises(AssertionError):
        LogMel(80)(np.zeros(samples, np.float32), answers.SHORTEST_FRAMES)
