"""CPU time of one 32 ms VAD window: the numpy forward and onnxruntime on the same published weights, by batch size."""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import statistics
import time
from collections.abc import Callable

import numpy as np
import onnxruntime

from audio.vad.silero import SileroVad
from audio.vad.weights import silero_path

ROUNDS = 60


def main() -> None:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(silero_path()), options, providers=["CPUExecutionProvider"])
    vad = SileroVad()
    noise = np.random.default_rng(0)
    print("batch   onnxruntime   numpy   ratio   (µs of CPU per window, median of interleaved rounds)")
    for batch in (1, 8, 32, 128):
        samples = (noise.standard_normal((batch, 288)) * 0.05).astype(np.float32)
        hidden, cell = np.zeros((2, batch, 128), np.float32)
        feed = {"input": samples, "state": np.zeros((2, batch, 128), np.float32), "sr": np.array(8000, np.int64)}

        def ours(samples: np.ndarray = samples, hidden: np.ndarray = hidden, cell: np.ndarray = cell) -> None:
            vad.input(len(samples))[:] = samples
            vad.forward(vad.input(len(samples)), hidden, cell)

        def theirs(feed: dict = feed) -> None:
            session.run(None, feed)

        pairs = [(spent(theirs) / batch, spent(ours) / batch) for _ in range(ROUNDS)]
        usual, mine = (statistics.median(pair[i] for pair in pairs[5:]) for i in (0, 1))
        ratio = statistics.median(a / b for a, b in pairs[5:])
        print(f"{batch:5}   {1e6 * usual:11.1f}   {1e6 * mine:5.1f}   {ratio:5.2f}")


def spent(work: Callable[[], None]) -> float:
    before = time.thread_time()
    work()
    return time.thread_time() - before


if __name__ == "__main__":
    main()
