"""Silero VAD 6.2, 8 kHz branch, as a batched numpy forward pass over the published weights.

The network: a window of 256 samples behind the 32 before it, reflected by 32 on the right → a Fourier transform of
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

from audio.weights import WeightsError, read_branch, silero_path

WINDOW = 256
"""Samples per window at 8 kHz: 32 ms."""
CONTEXT = 32
"""Samples before the window that the network also sees."""
HIDDEN = 128
"""Width of the hidden and of the cell state."""
MAX_BATCH = 128

_FRAME, _HOP, _FRAMES, _BINS = 128, 64, 4, 64
_FIRST, _SECOND, _THIRD = 128, 64, 64  # features per frame of the convolutions
_ENCODER_ROWS = _FRAMES * (_FRAME + _BINS + 2 * _FIRST + 1) + 1 + 2 * _SECOND + _THIRD
_DECODER_ROWS = (2 + 4 + 1 + 1) * HIDDEN + 1
Floats = NDArray[np.float32]


class SileroVad:
    """`forward(samples, hidden, cell) → probabilities`; holds the weights and scratch memory, and no call's state."""

    def __init__(self, path: Path | None = None) -> None:
        """Read the weights from `path`, by default from the installed `silero-vad` package. Raises `WeightsError`."""
        path = path or silero_path()
        tensors = read_branch(path, "else_branch")
        try:
            self._load_encoder(tensors)
            self._load_decoder(tensors)
        except (KeyError, ValueError) as error:
            raise WeightsError(f"{path} does not hold the 8 kHz network expected: {error}") from error
        self._input = np.zeros((MAX_BATCH, CONTEXT + WINDOW), np.float32)
        # One block of scratch memory, cut up anew when the batch size changes; only what a batch needs is ever touched.
        self._memory = np.zeros(MAX_BATCH * (_ENCODER_ROWS + _DECODER_ROWS), np.float32)
        self._zeros = np.zeros(MAX_BATCH * _FRAMES * _FIRST, np.float32)
        self._resize(1)

    def _load_encoder(self, tensors: dict[str, Floats]) -> None:
        # A real signal's bins 0 and 64 have no imaginary part. Rows: real parts of bins 0-63; bin 64; imaginary parts
        # of bins 1-63. Bin 64 then travels apart from the rest, so that everything else is 64 wide and aligned.
        basis = tensors["stft.forward_basis_buffer"].reshape(2 * (_BINS + 1), _FRAME)
        self._basis = np.concatenate([basis[: _BINS + 1], basis[_BINS + 2 : 2 * _BINS + 1]])
        # The last frame runs 32 samples past the end; those are reflections of samples it holds already: fold them in.
        self._basis_last = self._basis[:, : _FRAME - CONTEXT].copy()
        self._basis_last[:, -1 - CONTEXT : -1] += self._basis[:, _FRAME - CONTEXT :][:, ::-1]

        def convolution(index: int, out: int, into: int) -> tuple[Floats, Floats]:
            weight = tensors[f"encoder.{index}.reparam_conv.weight"].reshape(out, into, 3)
            return weight.transpose(0, 2, 1), tensors[f"encoder.{index}.reparam_conv.bias"]  # (out, tap, in)

        def flat(weight: Floats) -> Floats:
            return np.ascontiguousarray(weight.reshape(len(weight), -1))

        # Frames outside the four are zero, so a product at the rim leaves that tap out.
        first, bias = convolution(0, _FIRST, _BINS + 1)
        bins = first[:, :, :_BINS]
        self._first_left, self._first, self._first_right = flat(bins[:, 1:]), flat(bins), flat(bins[:, :2])
        # Bin 64's part of the first layer, and its bias as the weight of a constant 1.
        edge = np.zeros((_FRAMES, _FIRST, _FRAMES + 1), np.float32)
        edge[:, :, _FRAMES] = bias
        for frame in range(_FRAMES):
            for tap in range(3):
                if 0 <= frame + tap - 1 < _FRAMES:
                    edge[frame, :, frame + tap - 1] = first[:, tap, _BINS]
        self._edge_first = edge.reshape(_FRAMES * _FIRST, _FRAMES + 1)
        second, bias = convolution(1, _SECOND, _FIRST)
        self._second_left, self._second = flat(second[:, 1:]), flat(second)
        self._second_bias = np.tile(bias, 2)[:, None]
        third, bias = convolution(2, _THIRD, _SECOND)
        self._third, self._third_bias = flat(third[:, 1:]), bias[:, None]
        fourth, bias = convolution(3, HIDDEN, _THIRD)
        self._fourth, self._fourth_bias = flat(fourth[:, 1:2]), bias[:, None]  # one frame in, one out: the centre tap

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
        self._spectrum = cut(_FRAMES * _FRAME).reshape(_FRAMES, _FRAME, batch)
        self._frames = cut(_FRAMES * _BINS)
        self._layer1, self._edge_layer1 = cut(_FRAMES * _FIRST), cut(_FRAMES * _FIRST)
        self._layer2, self._layer3 = cut(2 * _SECOND), cut(_THIRD)
        self._gates, self._cell, self._output = cut(4 * HIDDEN), cut(HIDDEN), cut(HIDDEN)
        self._edge, self._joint = cut(_FRAMES + 1), cut(2 * HIDDEN + 1)
        self._edge[-1] = self._joint[-1] = 1.0
        self._floor = self._zeros[: _FRAMES * _FIRST * batch].reshape(-1, batch)

    def forward(self, samples: Floats, hidden: Floats, cell: Floats) -> Floats:
        """One window of `batch` ≤ 128 independent streams.

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
        np.maximum(self._output, self._floor[:HIDDEN], out=self._output)
        logits = self._head @ self._output
        probabilities: Floats = 1.0 / (1.0 + np.exp(-(logits + self._head_bias)))
        return probabilities

    def _encode(self, samples: Floats, out: Floats) -> None:
        """(288, batch) → (128, batch)."""
        spectrum, frames, edge = self._spectrum, self._frames, self._edge[:_FRAMES]
        for frame in range(_FRAMES - 1):
            np.matmul(self._basis, samples[frame * _HOP : frame * _HOP + _FRAME], out=spectrum[frame])
        np.matmul(self._basis_last, samples[(_FRAMES - 1) * _HOP :], out=spectrum[-1])
        np.multiply(spectrum, spectrum, out=spectrum)
        np.sqrt(spectrum[:, _BINS], out=edge)
        spectrum[:, _BINS] = 0.0
        np.add(spectrum[:, :_BINS], spectrum[:, _BINS:], out=frames.reshape(_FRAMES, _BINS, -1))
        np.sqrt(frames, out=frames)

        layer1, layer2 = self._layer1, self._layer2
        np.matmul(self._first_left, frames[: 2 * _BINS], out=layer1[:_FIRST])
        np.matmul(self._first, frames[: 3 * _BINS], out=layer1[_FIRST : 2 * _FIRST])
        np.matmul(self._first, frames[_BINS:], out=layer1[2 * _FIRST : 3 * _FIRST])
        np.matmul(self._first_right, frames[2 * _BINS :], out=layer1[3 * _FIRST :])
        np.matmul(self._edge_first, self._edge, out=self._edge_layer1)
        self._rectify(layer1, self._edge_layer1)
        np.matmul(self._second_left, layer1[: 2 * _FIRST], out=layer2[:_SECOND])
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
        np.tanh(gates, out=gates)
        sigmoids = gates[: 3 * HIDDEN]
        sigmoids *= 0.5
        sigmoids += 0.5
        opened, kept, shown, candidate = gates.reshape(4, HIDDEN, -1)
        cell *= kept
        candidate *= opened
        cell += candidate
        np.tanh(cell, out=hidden)
        hidden *= shown

    def _rectify(self, layer: Floats, bias: Floats) -> None:
        layer += bias
        # An array of zeros takes numpy's vector path, a scalar does not: five times faster.
        np.maximum(layer, self._floor[: len(layer)], out=layer)
