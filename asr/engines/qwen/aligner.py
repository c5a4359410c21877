"""Qwen3-ForcedAligner: one forward over audio and words classifies the start and the end of each word.

The model reads `<|audio_start|>`, the audio, `<|audio_end|>`, and each word followed by two `<timestamp>`; its class at
each of these is a time in steps of 80 ms. The audio goes the way of the recogniser's: the same resampling, mel and
encoder.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import structlog
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import Qwen3ASRProcessor

from asr import languages
from asr.engines import weights
from asr.engines.aligner import AlignRequest
from asr.engines.interface import EngineUnusable
from asr.engines.qwen.device.execution import for_device
from asr.engines.qwen.device.placement import place
from asr.engines.qwen.encoder import Audio, Encoder
from asr.engines.qwen.model.fused import fuse_audio
from asr.engines.qwen.model.loader import TIMESTAMP, LoadedAligner, load_aligner
from asr.engines.qwen.model.mel import FrontEnd
from asr.engines.qwen.model.prompt import AUDIO_END, AUDIO_PAD, AUDIO_START
from asr.engines.qwen.sound import FramePages, Sound, compute_views
from asr.engines.selection import qwen_aligner
from asr.utterance import TimedWord
from config.settings import Asr, Qwen

log = structlog.get_logger("asr")
LONGEST_S, LONGEST_CPU_S = 180.0, 30.0
"""The official package takes 180 s. A core takes 11 s for 30 s of audio with the published dimensions and answers
nothing meanwhile: with more the process would seem to hang."""
TOGETHER_S = 30.0
"""A CPU gains nothing from more than one at a time."""
WARM_UP = AlignRequest("PCMU", bytes(8000), "one two", "en")


class QwenAligner:
    """Implements `asr.engines.aligner.Aligner`."""

    def __init__(self, loaded: LoadedAligner) -> None:
        """Take over `loaded`, which nothing else can use any more."""
        model = loaded.model
        fuse_audio(model)
        weight = model.get_input_embeddings().weight
        # Texts and recordings have any length, and one forward is all there is: nothing to record.
        means = for_device(weight.device, graphs=False)
        self.languages = usable()
        cpu = weight.device.type == "cpu"
        self.longest_s = min(LONGEST_CPU_S if cpu else LONGEST_S, model.config.num_labels * loaded.class_ms / 1000)
        self.together_s = 0.0 if cpu else TOGETHER_S
        self._text, self._score = model.model.language_model, model.score
        self._encoder = Encoder(model, means.kernels, means.graphs, means.staging)
        self._front = FrontEnd(loaded.extractor, weight.device, means.staging)
        self._staging, self._device = means.staging, weight.device
        self._tokenizer, self._class_ms = loaded.tokenizer, loaded.class_ms
        self._pad, self._timestamp = model.config.audio_token_id, model.config.timestamp_token_id

    @torch.inference_mode()
    def align(self, spoken: Sequence[AlignRequest]) -> list[tuple[TimedWord, ...]]:
        placed = [split(each.text, each.language) for each in spoken]
        some = [number for number, words in enumerate(placed) if words]
        found: list[tuple[TimedWord, ...]] = [()] * len(spoken)
        if some:
            chances = self._classify(
                self._encode([spoken[number] for number in some]), [placed[number] for number in some]
            )
            for number, each in zip(some, chances, strict=True):
                found[number] = _words(placed[number], each, self._class_ms)
        return found

    def _encode(self, spoken: Sequence[AlignRequest]) -> list[Tensor]:
        """Embeddings of the audio of each, all of them in one pass of the encoder."""
        pages = FramePages(self._encoder.chunk, self._front.bins, self._device, self._staging)
        sounds = [Sound(each.format, each.audio) for each in spoken]
        views = compute_views(self._front, pages, self._staging, [(sound, sound.samples) for sound in sounds])
        encodings = [self._encoder.begin(Audio(), view, exact=True) for view in views]
        self._encoder.run([(encoding, self._encoder.missing(encoding)) for encoding in encodings], pages.frames)
        return [torch.cat(self._encoder.finish(encoding)) for encoding in encodings]

    def _classify(self, embeddings: Sequence[Tensor], placed: Sequence[Sequence[PlacedWord]]) -> list[Tensor]:
        """Probabilities of the classes at each time, (2 * words, classes), start and end by turns."""
        rows, places = [], []
        for audio, words in zip(embeddings, placed, strict=True):
            written = "".join(f"{each.token}{TIMESTAMP}{TIMESTAMP}" for each in words)
            ids = torch.tensor(self._tokenizer(f"{AUDIO_START}{AUDIO_PAD}{AUDIO_END}{written}")["input_ids"])
            assert ids[1] == self._pad, "the audio is the second token"
            embedded = self._text.embed_tokens(ids.to(audio.device))
            rows.append(torch.cat([embedded[:1], audio, embedded[2:]]))
            places.append((ids == self._timestamp).nonzero()[:, 0] + len(audio) - 1)
            assert len(places[-1]) == 2 * len(words), "two times for each word"
        # Attention is causal: what fills up the shorter rows at their ends changes nothing before it.
        hidden = self._text(inputs_embeds=pad_sequence(rows, batch_first=True), use_cache=False).last_hidden_state
        times = torch.cat([row[place.to(row.device)] for row, place in zip(hidden, places, strict=True)])
        chances = self._score(times).float().softmax(dim=-1).cpu()
        return list(chances.split([len(place) for place in places]))

    def warm_up(self) -> None:
        self.align([WARM_UP])


def _words(placed: Sequence[PlacedWord], chances: Tensor, class_ms: float) -> tuple[TimedWord, ...]:
    times = monotone((chances.argmax(dim=-1).double() * class_ms).tolist())
    # A repaired time has the probability of its new class, and so is less certain than the model was of its own.
    classes = (torch.tensor(times) / class_ms).round().long()
    sure = chances.gather(1, classes[:, None])[:, 0].tolist()
    return tuple(
        TimedWord(each.word, times[2 * at], times[2 * at + 1], round(min(sure[2 * at : 2 * at + 2]), 3))
        for at, each in enumerate(placed)
    )


# -- the words of a text -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PlacedWord:
    """A word: what the model reads, and what is shown."""

    token: str
    """Letters and digits only."""
    word: str
    """The text from the first of them to the last, with what stands between: `well-known`, `3.14`, `don’t`."""


def split(text: str, language: str) -> list[PlacedWord]:
    """The words of a final. Spaces end a word and every Han character is one; in Japanese and Korean a package finds
    them (`languages.SPLITTERS`)."""
    library: Any = Qwen3ASRProcessor
    # The method uses nothing of the object.
    return locate(library.split_words_for_alignment(None, text, languages.name(language)), text)


def usable() -> tuple[str, ...]:
    """Codes of the languages in which words are found here: a package may be installed, and not what it needs."""
    found = []
    for code in languages.alignable():
        try:
            split("1", code)
        except ImportError as error:
            log.warning("no times of words", language=code, reason=str(error))
        else:
            found.append(code)
    return tuple(found)


def locate(tokens: list[str], text: str) -> list[PlacedWord]:
    """Find each token in the text, whose letters and digits they are, or those of its plain form (NFKC: `1` for `１`).
    What a splitter has changed otherwise is shown as the splitter gave it."""
    together = "".join(tokens)
    kept = set(together)
    for form in (str, partial(unicodedata.normalize, "NFKC")):
        letters = [(at, each) for at, character in enumerate(text) for each in form(character) if each in kept]
        if "".join(each for _, each in letters) == together:
            break
    else:
        return [PlacedWord(token, token) for token in tokens]
    placed, begun = [], 0
    for token in tokens:
        first, last = letters[begun][0], letters[begun + len(token) - 1][0]
        placed.append(PlacedWord(token, text[first : last + 1]))
        begun += len(token)
    return placed


def monotone(times: list[float]) -> list[int]:
    """Times that never go back: the longest run of rising ones stays, and what lies between two of these is moved.

    One or two go to the nearer neighbour, more are spread evenly; at either end they go to the neighbour there is.
    """
    rising = _longest_rising(times)
    repaired = list(times)
    kept_at = [-1, *rising, len(times)]
    for left, right in zip(kept_at, kept_at[1:], strict=False):
        count = right - left - 1
        for at in range(left + 1, right):
            if left < 0 or right == len(times):
                repaired[at] = times[right] if left < 0 else times[left]
            elif count <= 2:
                repaired[at] = times[left] if at - left <= right - at else times[right]
            else:
                repaired[at] = times[left] + (times[right] - times[left]) / (count + 1) * (at - left)
    return [int(time) for time in repaired]


def _longest_rising(times: list[float]) -> list[int]:
    """Places of the longest part that never falls; of several the one found first."""
    length, before = [1] * len(times), [-1] * len(times)
    for at, time in enumerate(times):
        for earlier in range(at):
            if times[earlier] <= time and length[earlier] >= length[at]:
                length[at], before[at] = length[earlier] + 1, earlier
    places: list[int] = []
    at = length.index(max(length)) if length else -1
    while at >= 0:
        places.append(at)
        at = before[at]
    return places[::-1]


# -- building ----------------------------------------------------------------------------------------------------------


def build(asr: Asr, settings: Qwen) -> QwenAligner:
    """Build the aligner on the device and with the precision of the recogniser. Raises EngineUnusable."""
    model = qwen_aligner(asr)
    folder = weights.find(model)
    if folder is None:
        raise EngineUnusable(weights.missing(model))
    device, dtype = place(asr, settings, folder)
    return QwenAligner(load_aligner(folder, device=device, dtype=dtype))
