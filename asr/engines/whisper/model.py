"""The network on CTranslate2: samples through the encoder, tokens through the decoder, one call at a time.

A call runs in whatever thread makes it, and lets go of the GIL. Several threads may call at once.
"""

from __future__ import annotations

import json
import re
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import ctranslate2
import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from asr.engines.interface import EngineUnusable, first_line
from asr.engines.speech import RATE_HZ
from asr.engines.whisper import answers
from asr.engines.whisper.mel import LogMel
from asr.errors import AsrError

FILES = ("model.bin", "config.json", "tokenizer.json")
REMEMBERED = 8
"""Sounds that are kept, of 1 MB for each 10 s."""
CONTEXT_TOKENS = 223
"""The last tokens of a context that the decoder is shown: half of its memory, as in training."""
_LANGUAGE = re.compile(r"<\|([a-z]{2,3})\|>")
_SPECIAL = ("startoftranscript", "transcribe", "notimestamps", "startofprev", "endoftext")
_OURS = {"jw": "jv", "tl": "fil"}
"""Whisper's codes that are not those of ISO 639 here."""


class NetworkError(AsrError):
    """CTranslate2 could not compute this call."""


@dataclass(frozen=True, slots=True)
class Sound:
    """A piece of audio as the decoder sees it."""

    features: Any
    """`ctranslate2.StorageView` of shape (1, frames / 2, width)."""
    samples: int
    """The length of the audio, at 16 kHz."""
    frames: int


@dataclass(frozen=True, slots=True)
class Decoded:
    """An answer of the decoder."""

    text: str
    loop: bool
    """The answer was cut off at its limit, or says everything twice."""
    nothing: bool
    """The answer does not come from speech."""
    likelihood: float
    """The mean logarithm of its tokens' probabilities."""
    no_speech: float


@dataclass(frozen=True, slots=True)
class Encode:
    """A call of the encoder."""

    samples: NDArray[np.float32]
    frames: int


@dataclass(frozen=True, slots=True)
class Detect:
    """A call that asks which language is spoken."""

    sound: Sound


@dataclass(frozen=True, slots=True)
class Decode:
    """A call of the decoder."""

    sound: Sound
    language: str
    """ISO 639 code."""
    beam: int
    context: str = ""


Call = Encode | Detect | Decode


class WhisperModel:
    """A folder with a Whisper model that was converted for CTranslate2.

    Args:
        folder: `model.bin`, `config.json` and `tokenizer.json`, and the file with the vocabulary.
        device: `cpu` or `cuda`.
        threads: the most calls that compute at once, each in one thread.
    """

    def __init__(self, folder: Path, *, device: str, threads: int) -> None:
        """Raises EngineUnusable."""
        for name in FILES:
            if not (folder / name).is_file():
                raise EngineUnusable(f"{folder} is no Whisper model for CTranslate2: it has no {name}")
        try:
            self._network = ctranslate2.models.Whisper(
                str(folder),
                device=device,
                compute_type="int8" if device == "cpu" else "float16",
                inter_threads=threads,
                intra_threads=1,
            )
            self.tokenizer = _tokenizer((folder / "tokenizer.json").read_text(encoding="utf-8"))
        except Exception as error:  # neither library's errors have a base of their own
            raise EngineUnusable(f"the Whisper model in {folder} cannot be loaded: {first_line(error)}") from error
        self.device, self.dtype = device, str(self._network.compute_type)
        self.multilingual = bool(self._network.is_multilingual)
        vocabulary: dict[str, int] = self.tokenizer.get_vocab()
        ordered = sorted(vocabulary.items(), key=lambda each: each[1])  # a tokenizer's own order changes at each start
        self._tokens = {found[1]: token for name, token in ordered if (found := _LANGUAGE.fullmatch(name))}
        self.languages = {_OURS.get(code, code): code for code in self._tokens} if self.multilingual else {"en": "en"}
        """The codes on the wire → the model's own."""
        self._special = {name: vocabulary.get(f"<|{name}|>", -1) for name in _SPECIAL}
        if lacking := [name for name, token in self._special.items() if token < 0]:
            raise EngineUnusable(f"{folder}/tokenizer.json is not Whisper's: it has no <|{lacking[0]}|>")
        self._mel = LogMel(int(self._network.n_mels))
        self._recent: OrderedDict[tuple[int, int], Sound] = OrderedDict()

    def perform(self, calls: Sequence[Call]) -> list[Any]:
        """The results of calls that `together` has put together: `Sound`, `dict[str, float]` (the probability of each
        language, by its code on the wire) or `Decoded`. Raises NetworkError."""
        try:
            match calls[0]:
                case Encode():
                    return self._encode(calls)  # type: ignore[arg-type]
                case Detect(sound=sound):
                    return [self._detect(sound)]
                case Decode():
                    return self._decode(calls)  # type: ignore[arg-type]
        except (RuntimeError, ValueError) as error:
            raise NetworkError(f"ctranslate2: {first_line(error)}") from error

    def _encode(self, calls: Sequence[Encode]) -> list[Sound]:
        mel = np.stack([self._mel(call.samples, call.frames) for call in calls])
        several = len(calls) > 1
        found = self._network.encode(ctranslate2.StorageView.from_array(np.ascontiguousarray(mel)), to_cpu=several)
        if not several:
            return [Sound(found, len(calls[0].samples), calls[0].frames)]
        rows = np.array(found)
        return [
            Sound(ctranslate2.StorageView.from_array(row[None]), len(call.samples), call.frames)
            for row, call in zip(rows, calls, strict=True)
        ]

    def _detect(self, sound: Sound) -> dict[str, float]:
        found = {name[2:-2]: chance for name, chance in self._network.detect_language(sound.features)[0]}
        return {code: found.get(own, 0.0) for code, own in self.languages.items()}

    def _decode(self, calls: Sequence[Decode]) -> list[Decoded]:
        prompts = [self._prompt(call.language, call.context) for call in calls]
        results = self._network.generate(
            _joined([call.sound.features for call in calls]),
            prompts,
            beam_size=calls[0].beam,
            max_length=max(
                answers.max_length(call.sound.samples, len(prompt)) for call, prompt in zip(calls, prompts, strict=True)
            ),
            return_scores=True,
            return_no_speech_prob=True,
        )
        return [self._decoded(call, result) for call, result in zip(calls, results, strict=True)]

    def _decoded(self, call: Decode, result: Any) -> Decoded:
        tokens = [token for token in result.sequences_ids[0] if token < self._special["endoftext"]]
        most, likelihood, no_speech = answers.longest(call.sound.samples), result.scores[0], result.no_speech_prob
        text = self.tokenizer.decode(tokens[:most]).strip("\ufffd ").strip()
        return Decoded(
            text=text,
            loop=len(tokens) >= most or answers.says_twice(text),
            nothing=answers.says_nothing(
                tokens=len(tokens), samples=call.sound.samples, likelihood=likelihood, no_speech=no_speech
            ),
            likelihood=likelihood,
            no_speech=no_speech,
        )

    def remember(self, samples: NDArray[np.float32], sound: Sound) -> None:
        """Keep the sound of these samples for a while: the words of a final are given times right after it."""
        self._recent[_key(samples)] = sound
        if len(self._recent) > REMEMBERED:
            self._recent.popitem(last=False)

    def recent(self, samples: NDArray[np.float32]) -> Sound | None:
        """The sound of these samples, if `remember` was called with them lately."""
        return self._recent.get(_key(samples))

    def start(self, language: str) -> list[int]:
        """The tokens that tell the decoder what to write; it then writes text without times."""
        if not self.multilingual:
            return [self._special["startoftranscript"]]
        named = self._tokens[self.languages[language]]
        return [self._special["startoftranscript"], named, self._special["transcribe"]]

    def _prompt(self, language: str, context: str) -> list[int]:
        prompt = [*self.start(language), self._special["notimestamps"]]
        if context:
            before = self.tokenizer.encode(f" {context.strip()}", add_special_tokens=False).ids
            prompt = [self._special["startofprev"], *before[-CONTEXT_TOKENS:], *prompt]
        return prompt

    def align(self, sound: Sound, language: str, tokens: Sequence[int]) -> tuple[list[tuple[int, int]], list[float]]:
        """Where the tokens of a text lie in the sound: pairs of a token's place and a step of 20 ms, in their order,
        and the probability of each token. Raises NetworkError."""
        frames = min(sound.frames, -(-sound.samples // 160))
        try:
            found = self._network.align(sound.features, self.start(language), [list(tokens)], [frames])[0]
        except (RuntimeError, ValueError) as error:
            raise NetworkError(f"ctranslate2: {first_line(error)}") from error
        return list(found.alignments), list(found.text_token_probs)


def _tokenizer(content: str) -> Tokenizer:
    """The tokenizer of these contents.

    The file that public projects have for the base model lacks the first of all merges, of a space and a `t`. Its texts
    read as they should, but written by it " the" has two tokens, of which the decoder has never seen the pair.
    """
    found = json.loads(content)
    merges = found["model"]["merges"]
    first = ["\u0120", "t"] if isinstance(merges[0], list) else "\u0120 t"
    if first not in merges[:1]:
        merges.insert(0, first)
    return Tokenizer.from_str(json.dumps(found))


def _key(samples: NDArray[np.float32]) -> tuple[int, int]:
    return len(samples), hash(samples.tobytes())


def together(first: Call, other: Call) -> bool:
    """Whether one call of the network can do both."""
    match first, other:
        case Encode(), Encode():
            return first.frames == other.frames
        case Decode(), Decode():
            # CTranslate2 wants the prompts of all to be equally long.
            same = first.sound.frames == other.sound.frames and first.beam == other.beam
            return same and first.context == other.context
    return False


def _joined(features: Sequence[Any]) -> Any:
    if len(features) == 1:
        return features[0]
    return ctranslate2.StorageView.from_array(np.concatenate([np.array(each) for each in features]))


@cache
def load(folder: Path, device: str, threads: int) -> WhisperModel:
    """The model in this folder, which an engine and an aligner share. Raises EngineUnusable."""
    model = WhisperModel(folder, device=device, threads=threads)
    if device != "cpu":  # libraries of a GPU are first looked for when something is computed
        silence = np.zeros(RATE_HZ, np.float32)
        try:
            model.perform([Encode(silence, answers.window(len(silence)))])
        except NetworkError as error:
            raise EngineUnusable(f"the Whisper model in {folder} does not compute on {device}: {error}") from error
    return model
