"""The usual designs, on the library's own classes and its own `generate()`: one request after the other.

They stand behind the same scheduler and the same clean-up as the engine, so that only the recognition differs.
Imports torch: loaded only when the engine is measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from asr.engines.interface import Answer, Capabilities
from asr.engines.qwen.model.loader import LoadedModel
from asr.engines.qwen.model.prompt import Prompt, Prompts, audio_tokens
from asr.engines.qwen.session import longest
from asr.engines.qwen.sound import MODEL_HZ
from asr.samples import decode
from asr.scheduling.request import Request
from asr.text import parse_output
from asr.utterance import BYTES_PER_S, Utterance
from audio.resample import Upsampler
from benchmarks.engine.spent import Meter, Spent

UNFIXED_CHUNKS = 2
UNFIXED_TOKENS = 5
"""Defaults of the official package."""
BROKEN = "\ufffd"
"""Stands for a character of which a token is missing."""


@dataclass(slots=True)
class _Heard:
    """An open utterance: its samples at 16 kHz, and what a recipe remembers of it."""

    utterance: Utterance
    prompt: Prompt
    upsampler: Upsampler = field(default_factory=Upsampler)
    samples: NDArray[np.float32] = field(default_factory=lambda: np.zeros(0, np.float32))
    answers: int = 0
    raw: str = ""
    """The last answer as the model wrote it."""


class Refeed:
    """Everything heard so far is given to `generate()` for every answer."""

    name = "re-feed"

    def __init__(self, loaded: LoadedModel) -> None:
        self.capabilities = Capabilities()
        self.meter = Meter()
        self.prompts = Prompts(loaded.tokenizer, ends=loaded.ends)
        self._loaded, self._open, self._spent = loaded, dict[str, _Heard](), Spent()
        # What is counted is seen where it happens, not worked out from lengths.
        tower = loaded.model.model.audio_tower
        loaded.model.model.language_model.register_forward_pre_hook(self._forward, with_kwargs=True)
        tower.conv2d1.register_forward_pre_hook(self._convolution)
        tower.layers[0].register_forward_pre_hook(self._layer)

    def _forward(self, module: Any, args: Any, kwargs: Any) -> None:
        self._spent.forwards += 1
        self._spent.tokens += kwargs["inputs_embeds"].shape[1]

    def _convolution(self, module: Any, args: Any) -> None:
        self._spent.chunks += len(args[0])

    def _layer(self, module: Any, args: Any) -> None:
        hidden, bounds = args
        self._spent.frames += len(hidden)
        self._spent.windows += len(bounds) - 1

    # -- as an engine -----------------------------------------------------------------------------------------------

    def open(self, utterance: Utterance) -> None:
        prompt = self.prompts.build(context=utterance.context, language=utterance.language)
        self._open[utterance.id] = _Heard(utterance, prompt)

    def append(self, utterance_id: str, audio: bytes) -> None:
        known = self._open[utterance_id]
        assert known.utterance.format == "PCMU"
        known.samples = np.concatenate([known.samples, known.upsampler.feed(decode("PCMU", audio))])

    def close(self, utterance_id: str) -> None:
        del self._open[utterance_id]

    def runnable(self, request: Request) -> bool:
        return True

    def step(self, requests: Sequence[Request]) -> list[Answer]:
        (request,) = requests
        known = self._open[request.utterance_id]
        self._spent = Spent()
        known.raw = self._decode(known, request)
        known.answers += 1
        self.meter.spent = {request.utterance_id: self._spent}
        self.meter.forwards += self._spent.forwards
        self.meter.rows += self._spent.forwards
        language, text = parse_output(known.raw, known.prompt.language)
        return [Answer(request, text, language)]

    def warm_up(self) -> None:
        self.recognize(np.zeros(MODEL_HZ, np.float32), self.prompts.build())

    # -- recognition ------------------------------------------------------------------------------------------------

    def _decode(self, known: _Heard, request: Request) -> str:
        end = request.end * MODEL_HZ // BYTES_PER_S[known.utterance.format]
        return self.recognize(known.samples[:end], known.prompt)

    def whole(self, codes: bytes) -> str:
        """What `generate()` says of a whole utterance in µ-law: the reference for every design."""
        raw = self.recognize(Upsampler().feed(decode("PCMU", codes)), self.prompts.build())
        return parse_output(raw, "")[1]

    def recognize(self, samples: NDArray[np.float32], prompt: Prompt, prefix: Sequence[int] = ()) -> str:
        """The model's own words behind `prefix`, greedily, without the end."""
        return str(self._loaded.tokenizer.decode(self.generate(samples, prompt, prefix), skip_special_tokens=False))

    @torch.inference_mode()
    def generate(
        self, samples: NDArray[np.float32], prompt: Prompt, prefix: Sequence[int], processors: Sequence[Any] = ()
    ) -> list[int]:
        """The same as ids. `processors`: of the library, which say what may be said."""
        loaded, never = self._loaded, self.prompts.never
        weight = loaded.model.get_input_embeddings().weight
        features = loaded.extractor(
            [samples], sampling_rate=MODEL_HZ, padding="longest", return_tensors="pt", return_attention_mask=True
        )
        frames = int(features["attention_mask"].sum())
        ids = torch.tensor(
            [[*prompt.head, *[never] * audio_tokens(frames), *prompt.tail, *prefix]], device=weight.device
        )
        out: list[int] = loaded.model.generate(
            input_ids=ids, attention_mask=torch.ones_like(ids),
            input_features=features["input_features"].to(weight.device, weight.dtype),
            input_features_mask=features["attention_mask"].to(weight.device),
            max_new_tokens=longest(len(samples) / MODEL_HZ), do_sample=False, eos_token_id=list(loaded.ends),
            pad_token_id=loaded.ends[1], suppress_tokens=[never], logits_processor=list(processors),
        )[0, ids.shape[1] :].tolist()  # fmt: skip
        stops = [at for at, token in enumerate(out) if token in loaded.ends]
        return out[: stops[0]] if stops else out


class Rollback(Refeed):
    """The streaming recipe of the official package (qwen-asr 0.0.6): all audio is encoded again, the answer before
    without its last 5 tokens is forced, and the model writes what follows. The first two answers force nothing.

    There an answer is made for every 2 s of audio, and so the first two end 4 s after the beginning; here they are made
    when our partials are asked for, so rolling back begins after about a second.
    """

    name = "rollback"

    def _decode(self, known: _Heard, request: Request) -> str:
        end = request.end * MODEL_HZ // BYTES_PER_S[known.utterance.format]
        prefix = self._prefix(known.raw, final=request.final) if known.answers >= UNFIXED_CHUNKS else ""
        forced = self._ids(prefix)
        return prefix + self.recognize(known.samples[:end], known.prompt, forced)

    def _prefix(self, raw: str, *, final: bool) -> str:
        """What is kept of the answer before: whole characters, and of a final's at least one token, as there."""
        ids = self._ids(raw)
        stop = max(int(final), len(ids) - UNFIXED_TOKENS)
        while stop > 0:
            text = str(self._loaded.tokenizer.decode(ids[:stop], skip_special_tokens=False))
            if final or BROKEN not in text:
                return text
            stop -= 1
        return ""

    def _ids(self, text: str) -> list[int]:
        ids: list[int] = self._loaded.tokenizer(text, add_special_tokens=False)["input_ids"] if text else []
        return ids
