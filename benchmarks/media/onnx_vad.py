"""The VAD of the usual design, for both baselines: the published ONNX model, run for each leg by itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from audio.vad.weights import silero_path


def session() -> Any:
    """One model for all legs."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(str(silero_path()), options, providers=["CPUExecutionProvider"])


class OnnxVad:
    """A leg's."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._samples = np.zeros(0, np.float32)
        self._state = np.zeros((2, 1, 128), np.float32)
        self._context = np.zeros((1, 32), np.float32)

    def receive(self, samples: NDArray[np.int16]) -> None:
        """8 kHz samples, in order."""
        self._samples = np.concatenate([self._samples, samples.astype(np.float32) / 32768])
        while len(self._samples) >= 256:
            window, self._samples = self._samples[None, :256], self._samples[256:]
            feed = {
                "input": np.concatenate([self._context, window], 1),
                "state": self._state,
                "sr": np.array(8000, np.int64),
            }
            _, self._state = self._model.run(None, feed)
            self._context = window[:, -32:]
