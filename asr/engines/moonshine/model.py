"""The network: samples through the encoder, tokens through the decoder, one call at a time.

Moonshine (Jeffries et al., 2024, arXiv:2410.15608) is a transformer from raw samples to text: convolutions make some 42
vectors of a second of audio, the encoder attends over all of them, and the decoder writes one token after the other.
The weights are those of the package `moonshine-voice`, of which nothing else is used: its two networks run in
onnxruntime.

All utterances share the two sessions: `InferenceSession.run` may be called by several threads at once, and lets go of
the GIL. A session computes with one thread, so that the threads of the engine are all there are.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from asr.errors import AsrError

RATE_HZ = 16000
BEGIN, END = 1, 2
_SPACE = "\u2581"
"""SentencePiece's sign for a space before a word."""

_HEADS, _HEAD_SIZE = 8, 36
_NOTHING = np.zeros((1, _HEADS, 0, _HEAD_SIZE), np.float32)

Cache = dict[str, NDArray[np.float32]]
"""Keys and values of the decoder, by the names of its inputs: those of its own tokens, and those of the audio."""


class ModelError(AsrError):
    """onnxruntime could not compute this call."""


@dataclass(frozen=True, slots=True)
class Encoded:
    """A piece of audio as the decoder sees it."""

    vectors: NDArray[np.float32]
    """(1, some 42 a second, 288)."""
    mask: NDArray[np.int64]
    """(1, samples), all ones."""


class Tokens:
    """The pieces of `tokenizer.bin`.

    The file is a sequence of strings in UTF-8, one per token in the order of their numbers, each after its length: one
    byte below 128, or two, the lower seven bits with the highest bit set and then the rest.
    """

    def __init__(self, data: bytes) -> None:
        """Raises ValueError when the file breaks off."""
        self._pieces: list[bytes] = []
        at = 0
        while at < len(data):
            length = data[at]
            at += 1
            if length >= 128:
                if at == len(data):
                    raise ValueError("the vocabulary breaks off in a length")
                length += 128 * (data[at] - 1)
                at += 1
            if at + length > len(data):
                raise ValueError("the vocabulary breaks off in a token")
            self._pieces.append(data[at : at + length])
            at += length

    def __len__(self) -> int:
        return len(self._pieces)

    def text(self, tokens: Iterable[int]) -> str:
        """The text of an answer. Its bytes may end in the middle of a character, which becomes U+FFFD."""
        joined = b"".join(self._pieces[token] for token in tokens)
        return joined.decode("utf-8", "replace").replace(_SPACE, " ").strip()

    def first_words(self, tokens: Sequence[int], count: int) -> int:
        """The number of tokens that make the first `count` words."""
        begun = 0
        for at, token in enumerate(tokens):
            begun += self._pieces[token].startswith(_SPACE.encode()) or at == 0
            if begun > count:
                return at
        return len(tokens)

    def whole_words(self, tokens: Sequence[int], count: int) -> int:
        """The number of words that end within the first `count` tokens."""
        begins = [at == 0 or self._pieces[token].startswith(_SPACE.encode()) for at, token in enumerate(tokens)]
        return sum(begins[:count]) - (0 < count < len(tokens) and not begins[count])


class Model:
    """The two networks and the vocabulary.

    Args:
        folder: of the two networks and the vocabulary, as `plugin.assets` finds it.
    """

    def __init__(self, folder: Path) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 3
        self._encoder = _session(folder / "encoder_model.ort", options)
        self._decoder = _session(folder / "decoder_model_merged.ort", options)
        self.tokens = Tokens((folder / "tokenizer.bin").read_bytes())
        self._past = [each.name for each in self._decoder.get_inputs() if each.name.startswith("past")]
        self._of_speech = [name for name in self._past if ".decoder." in name]
        self._begins = ["logits", *map(_present, self._past)]
        self._goes_on = ["logits", *map(_present, self._of_speech)]
        self._first: Cache = dict.fromkeys(self._past, _NOTHING)

    def encode(self, samples: NDArray[np.float32]) -> Encoded:
        """float32 in [-1, 1) of shape (n,) at 16 kHz; `answers.SHORTEST_S` or more. Raises ModelError."""
        mask = np.ones((1, len(samples)), np.int64)
        (vectors,) = _run(self._encoder, {"input_values": samples[None], "attention_mask": mask}, None)
        return Encoded(vectors, mask)

    def begin(self, audio: Encoded, tokens: Sequence[int]) -> tuple[NDArray[np.float32], Cache]:
        """Read the `tokens` from the beginning: logits of shape (1 + len(tokens), vocabulary), where row i is about
        the token after the first i, and the decoder's keys and values. Raises ModelError."""
        logits, *present = self._decode([BEGIN, *tokens], audio, self._first, self._begins)
        return logits[0], dict(zip(self._past, present, strict=True))

    def advance(self, audio: Encoded, tokens: Sequence[int], cache: Cache) -> tuple[NDArray[np.float32], Cache]:
        """Read more tokens: logits of shape (len(tokens), vocabulary), where row i is about the token after the first
        i + 1. Raises ModelError."""
        logits, *present = self._decode(tokens, audio, cache, self._goes_on)
        # The keys and values of the audio stay: this branch of the network returns them empty.
        return logits[0], cache | dict(zip(self._of_speech, present, strict=True))

    def keep(self, cache: Cache, count: int) -> Cache:
        """The cache after the first `count` tokens."""
        return cache | {name: cache[name][:, :, : 1 + count] for name in self._of_speech}

    def _decode(self, tokens: Sequence[int], audio: Encoded, cache: Cache, outputs: Sequence[str]) -> list[Any]:
        feed = {
            "input_ids": np.array([tokens], np.int64),
            "encoder_hidden_states": audio.vectors,
            "encoder_attention_mask": audio.mask,
            "use_cache_branch": np.array([cache is not self._first]),
            **cache,
        }
        return _run(self._decoder, feed, outputs)


def _session(path: Path, options: onnxruntime.SessionOptions) -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(os.fspath(path), options, providers=["CPUExecutionProvider"])


def _present(past: str) -> str:
    """The output that becomes this input of the next call."""
    return past.replace("past_key_values", "present", 1)


def _run(session: onnxruntime.InferenceSession, feed: dict[str, Any], outputs: Sequence[str] | None) -> list[Any]:
    try:
        found: list[Any] = session.run(outputs, feed)
    except MemoryError:
        raise
    except Exception as error:  # onnxruntime's errors have no common base of their own
        raise ModelError(f"onnxruntime: {error}") from error
    return found
