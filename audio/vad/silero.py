"""Silero VAD 6.2, 8 kHz branch, as a batched numpy forward pass over the published weights.

The network: a window of 256 samples after the 32 before it, reflected by 32 on the right → a Fourier transform of
128 samples every 64 (four frames) → magnitudes → four convolutions of width 3 → one LSTM cell → one probability.

One call serves all phone calls; a phone call's state (hidden, cell, context) stays with the caller. Inside, a layer is
(features, batch): neighbouring frames are neighbouring rows, so a convolution is a product with a slice, and everything
between two products runs over one flat block of memory instead of row by row. Run the process with one BLAS thread
(`OPENBLAS_NUM_THREADS=1` before numpy is imported): these products are too small to share.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from audio.vad.weights import WeightsError, read_branch, silero_path

WINDOW = 256
"""The samples per window at 8 kHz: 32 ms."""
CONTEXT = 32
"""The samples before the window that the network also gets."""
HIDDEN = 128
"""The width of the hidden state and of the cell state."""
MAX_BATCH = 128

_FRAME, _HOP, _FRAMES, _BINS = 128, 64, 4, 65
_FIRST, _SECOND, _THIRD = 128, 64, 64  # features per frame of the convolutions
_ROWS = _FRAMES * (_FRAME + _BINS) + (1 + 1 + 2) * HIDDEN + 1
_FLOOR_ROWS = 32  # of zeros: small enough to stay in the innermost cache
Floats = NDArray[np.float32]


class SileroVad:
    """The network: `forward(samples, hidden, cell) → probabilities`. It holds weights and scratch memory only."""

    def __init__(self, path: Path | None = None) -> None:
        """Read the weights from `path`, by default from the installed package. Raises `WeightsError`."""
        path = path or silero_path()
        tensors = read_branch(path, "else_branch")
        try:
            self._load_encoder(tensors)
            self._load_decoder(tensors)
        except (KeyError, ValueError) as error:
            raise WeightsError(f"{path} does not hold the 8 kHz network expected: {error}") from error
        self._input = np.zeros((MAX_BATCH, CONTEXT + WINDOW), np.float32)
        # One block of scratch memory, partitioned again when the batch size changes; a batch touches only its part.
        self._memory = np.zeros(MAX_BATCH * _ROWS, np.float32)
        self._zeros = np.zeros(MAX_BATCH * _FLOOR_ROWS, np.float32)
        self._resize(1)

    def _load_encoder(self, tensors: dict[str, Floats]) -> None:
        # A real signal's bins 0 and 64 have no imaginary part. Rows: real parts of bins 0-64, imaginary ones of 1-63.
        basis = tensors["stft.forward_basis_buffer"].reshape(2 * _BINS, _FRAME)
        self._basis = np.concatenate([basis[:_BINS], basis[_BINS + 1 : -1]])
        # The last frame extends 32 samples beyond the end. Those are reflections of samples in it, so fold them in.
        self._basis_last = self._basis[:, : _FRAME - CONTEXT].copy()
        self._basis_last[:, -1 - CONTEXT : -1] += self._basis[:, _FRAME - CONTEXT :][:, ::-1]

        def convolution(index: int, out: int, into: int, taps: slice, frames: int) -> tuple[Floats, Floats]:
            """The weights (out, tap · in), and the bias repeated for `frames` frames."""
            weight = tensors[f"encoder.{index}.reparam_conv.weight"].reshape(out, into, 3).transpose(0, 2, 1)[:, taps]
            bias = tensors[f"encoder.{index}.reparam_conv.bias"]
            return np.ascontiguousarray(weight.reshape(out, -1)), np.tile(bias, frames)[:, None]

        # Frames outside the four are zero, so products at the edge omit that tap. The second and the third layer use
        # every other frame; of the fourth layer's three taps only the middle one has a frame.
        self._first, self._first_bias = convolution(0, _FIRST, _BINS, slice(3), _FRAMES)
        self._second, self._second_bias = convolution(1, _SECOND, _FIRST, slice(3), 2)
        self._third, self._third_bias = convolution(2, _THIRD, _SECOND, slice(1, 3), 1)
        self._fourth, self._fourth_bias = convolution(3, HIDDEN, _THIRD, slice(1, 2), 1)

    def _load_decoder(self, tensors: dict[str, Floats]) -> None:
        # The file's gates are input, forget, cell, output; here the three sigmoids come first, side by side.
        # sigmoid(x) = tanh(x / 2) / 2 + 1/2, so one tanh serves all four. The last column is the bias.
        order = np.r_[: 2 * HIDDEN, 3 * HIDDEN : 4 * HIDDEN, 2 * HIDDEN : 3 * HIDDEN]
        scale = np.repeat(np.array([0.5, 0.5, 0.5, 1.0], np.float32), HIDDEN)
        bias = tensors["decoder.rnn.bias_ih"] + tensors["decoder.rnn.bias_hh"]
        joint = (tensors["decoder.rnn.weight_ih"], tensors["decoder.rnn.weight_hh"], bias[:, None])
        self._lstm = np.concatenate(joint, axis=1)[order] * scale[:, None]
        self._head = np.ascontiguousarray(tensors["decoder.decoder.2.weight"].reshape(HIDDEN))
        self._head_bias = np.float32(tensors["decoder.decoder.2.bias"].reshape(()))

    def input(self, batch: int) -> Floats:
        """Scratch of shape (batch, 32 + 256) to fill with context and window, samples in [-1, 1), and pass on."""
        return self._input[:batch]

    def _resize(self, batch: int) -> None:
        assert 0 < batch <= MAX_BATCH, batch
        used = 0

        def cut(rows: int) -> Floats:
            nonlocal used
            used += rows * batch
            return self._memory[used - rows * batch : used].reshape(rows, batch)

        self._batch = batch
        # Layers reuse the memory of earlier ones: then weights and layers together just fit into a core's cache.
        wide = cut(_FRAMES * _FRAME)
        self._spectrum, self._layer1, self._gates = wide.reshape(_FRAMES, _FRAME, batch), wide, wide
        self._frames = narrow = cut(_FRAMES * _BINS)
        self._layer2, self._layer3 = narrow[: 2 * _SECOND], narrow[2 * _SECOND : 2 * _SECOND + _THIRD]
        self._cell, self._output, self._joint = cut(HIDDEN), cut(HIDDEN), cut(2 * HIDDEN + 1)
        self._joint[-1] = 1.0
        self._floor = self._zeros[: _FLOOR_ROWS * batch]

    def forward(self, samples: Floats, hidden: Floats, cell: Floats) -> Floats:
        """Process one window of each of `batch` ≤ 128 independent streams.

        `samples`: (batch, 288), `hidden` and `cell`: (batch, 128), the last two updated in place; float32.
        Returns speech probabilities, shape (batch,), in a fresh array.
        """
        if len(samples) != self._batch:
            self._resize(len(samples))
        self._encode(samples.T, self._joint[:HIDDEN])
        self._joint[HIDDEN : 2 * HIDDEN] = hidden.T
        self._cell[:] = cell.T
        self._recur(self._output)
        cell[:] = self._cell.T
        hidden[:] = self._output.T
        self._clip(self._output)
        logits = self._head @ self._output
        probabilities: Floats = 1.0 / (1.0 + np.exp(-(logits + self._head_bias)))
        return probabilities

    def follow(self, samples: Floats, hidden: Floats, cell: Floats) -> Floats:
        """Process up to 128 consecutive windows of one stream; all layers but the recurrent cell process them at once.

        `samples`: (windows, 288), each with the 32 samples before it; `hidden` and `cell`: (128,), updated in place;
        float32. Returns speech probabilities, shape (windows,), in a fresh array.
        """
        count = len(samples)
        if count != self._batch:
            self._resize(count)
        encoded = self._joint[:HIDDEN]
        self._encode(samples.T, encoded)
        inputs, recurrent = self._lstm[:, :HIDDEN], self._lstm[:, HIDDEN : 2 * HIDDEN]
        # One row per window: the part of its gates that depends on the input.
        input_gates = encoded.T @ inputs.T + self._lstm[:, -1]
        outputs = np.empty((count, HIDDEN), np.float32)
        for gates, output in zip(input_gates, outputs, strict=True):
            gates += recurrent @ hidden
            self._turn(gates, hidden, cell)
            output[:] = hidden
        logits = np.maximum(outputs, 0.0) @ self._head
        probabilities: Floats = 1.0 / (1.0 + np.exp(-(logits + self._head_bias)))
        return probabilities

    def _encode(self, samples: Floats, out: Floats) -> None:
        """(288, batch) → (128, batch)."""
        spectrum, frames = self._spectrum, self._frames
        for frame in range(_FRAMES - 1):
            np.matmul(self._basis, samples[frame * _HOP : frame * _HOP + _FRAME], out=spectrum[frame])
        np.matmul(self._basis_last, samples[(_FRAMES - 1) * _HOP :], out=spectrum[-1])
        np.multiply(spectrum, spectrum, out=spectrum)
        power = spectrum[:, :_BINS]
        power[:, 1:-1] += spectrum[:, _BINS:]
        np.sqrt(power, out=frames.reshape(power.shape))

        layer1, layer2 = self._layer1, self._layer2
        np.matmul(self._first[:, _BINS:], frames[: 2 * _BINS], out=layer1[:_FIRST])
        np.matmul(self._first, frames[: 3 * _BINS], out=layer1[_FIRST : 2 * _FIRST])
        np.matmul(self._first, frames[_BINS:], out=layer1[2 * _FIRST : 3 * _FIRST])
        np.matmul(self._first[:, : 2 * _BINS], frames[2 * _BINS :], out=layer1[3 * _FIRST :])
        self._rectify(layer1, self._first_bias)
        np.matmul(self._second[:, _FIRST:], layer1[: 2 * _FIRST], out=layer2[:_SECOND])
        np.matmul(self._second, layer1[_FIRST:], out=layer2[_SECOND:])
        self._rectify(layer2, self._second_bias)
        np.matmul(self._third, layer2, out=self._layer3)
        self._rectify(self._layer3, self._third_bias)
        np.matmul(self._fourth, self._layer3, out=out)
        self._rectify(out, self._fourth_bias)

    def _recur(self, hidden: Floats) -> None:
        """One LSTM step from `_joint` (input, hidden, 1) and `_cell`; writes `_cell` and `hidden`, (128, batch)."""
        gates, cell = self._gates, self._cell
        np.matmul(self._lstm, self._joint, out=gates)
        self._turn(gates, hidden, cell)

    def _turn(self, gates: Floats, hidden: Floats, cell: Floats) -> None:
        """Update the cell from the gates: `gates` (512, …) is overwritten, `hidden` and `cell` (128, …) are updated."""
        np.tanh(gates, out=gates)
        sigmoids = gates[: 3 * HIDDEN]
        sigmoids *= 0.5
        sigmoids += 0.5
        input_gate, forget_gate, output_gate, candidate = gates.reshape(4, *cell.shape)
        cell *= forget_gate
        candidate *= input_gate
        cell += candidate
        np.tanh(cell, out=hidden)
        hidden *= output_gate

    def _rectify(self, layer: Floats, bias: Floats) -> None:
        layer += bias
        self._clip(layer)

    def _clip(self, layer: Floats) -> None:
        # With an array of zeros numpy uses its vector path, with a scalar it does not: five times faster.
        blocks = layer.reshape(-1, len(self._floor))
        np.maximum(blocks, self._floor, out=blocks)
