"""Qwen3-ForcedAligner: one forward over audio and words says for each word the class of its start and of its end.

The model reads `<|audio_start|>`, the audio, `<|audio_end|>`, and each word followed by two `<timestamp>`; what it says
at these is a time in steps of 80 ms. The audio goes the way of the recogniser's: the same resampling, mel and encoder.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from asr.engines import weights
from asr.engines.aligner import AlignRequest
from asr.engines.interface import EngineUnusable
from asr.engines.qwen.aligner.words import PlacedWord, monotone, split, usable
from asr.engines.qwen.device.execution import Execution, for_device
from asr.engines.qwen.device.placement import place
from asr.engines.qwen.encoder import Audio, Encoder
from asr.engines.qwen.model.fused import fuse_audio
from asr.engines.qwen.model.loader import TIMESTAMP, LoadedAligner, load_aligner
from asr.engines.qwen.model.mel import FrontEnd
from asr.engines.qwen.model.prompt import AUDIO_END, AUDIO_PAD, AUDIO_START
from asr.engines.qwen.sound import FramePages, Sound, compute_views
from asr.utterance import TimedWord
from config.settings import Asr, Qwen

LONGEST_S, LONGEST_CPU_S = 180.0, 30.0
"""The official package takes 180 s. A core takes 11 s for 30 s of audio with the published dimensions and answers
nothing meanwhile: with more it would look as if it hung."""
TOGETHER_S = 30.0
"""A CPU gains nothing from more than one at a time."""
WARM_UP = AlignRequest("PCMU", bytes(8000), "one two", "en")


class QwenAligner:
    """Implements `asr.engines.aligner.Aligner`."""

    def __init__(self, loaded: LoadedAligner, execution: Execution | None = None) -> None:
        """Takes the model over: nobody else can use it any more. `execution`: other than what suits its device."""
        model = loaded.model
        fuse_audio(model)
        weight = model.get_input_embeddings().weight
        means = execution if execution is not None else for_device(weight.device, graphs=False)
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
        ends = []
        for each in spoken:
            sound = Sound(each.format)
            sound.append(each.audio)
            ends.append((sound, sound.samples))
        views = compute_views(self._front, pages, self._staging, ends)
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
        # Attention looks back only: what fills up the shorter rows at their ends changes nothing before it.
        hidden = self._text(inputs_embeds=pad_sequence(rows, batch_first=True), use_cache=False).last_hidden_state
        times = torch.cat([row[place.to(row.device)] for row, place in zip(hidden, places, strict=True)])
        chances = self._score(times).float().softmax(dim=-1).cpu()
        return list(chances.split([len(place) for place in places]))

    def warm_up(self) -> None:
        self.align([WARM_UP])


def _words(placed: Sequence[PlacedWord], chances: Tensor, class_ms: float) -> tuple[TimedWord, ...]:
    times = monotone((chances.argmax(dim=-1).double() * class_ms).tolist())
    # Of the class that a time has in the end: a repaired one is less certain than the model was of its own.
    classes = (torch.tensor(times) / class_ms).round().long()
    sure = chances.gather(1, classes[:, None])[:, 0].tolist()
    return tuple(
        TimedWord(each.word, times[2 * at], times[2 * at + 1], round(min(sure[2 * at : 2 * at + 2]), 3))
        for at, each in enumerate(placed)
    )


def build(asr: Asr, settings: Qwen) -> QwenAligner:
    """Where and how precisely the recogniser would compute. Raises EngineUnusable."""
    folder = weights.find(asr.aligner)
    if folder is None:
        raise EngineUnusable(weights.missing(asr.aligner))
    device, dtype = place(asr, settings, folder)
    # Texts and recordings have any length, and one forward is all there is: nothing to record.
    means = for_device(torch.device(device), graphs=False)
    return QwenAligner(load_aligner(folder, device=device, dtype=dtype), means)
