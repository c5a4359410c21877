"""`mediaworker models check`: does the model that is here say what the library makes of it, and the right words?

Each prompt is transcribed by the engine and by the library's own greedy `generate()` on the whole of the audio, which
must agree token for token; where two tokens tie either is right. Heavy: the model is loaded into this process.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Sequence
from typing import Any

import torch
from transformers.models.qwen3_asr import Qwen3ASRFeatureExtractor

from asr.engines import weights
from asr.engines.interface import EngineUnusable
from asr.engines.qwen.device.memory import Shape
from asr.engines.qwen.device.placement import place
from asr.engines.qwen.engine import QwenEngine
from asr.engines.qwen.model.loader import LoadedModel, load
from asr.engines.qwen.model.prompt import Prompt, Prompts
from asr.engines.qwen.session import longest
from asr.repetition import is_loop
from asr.samples import Wideband
from asr.scheduling.request import Lane, Request
from asr.utterance import Utterance
from benchmarks.word_errors.align import align
from benchmarks.word_errors.normalise import words
from benchmarks.word_errors.prompts import SpokenPrompt as Spoken
from config.settings import Asr, Qwen

FINE, WRONG, NOTHING = 0, 1, 2
BAD_WORDS = 0.15
"""Share of the words that may be wrong."""
TIES = {torch.float32: 3e-4, torch.float16: 0.05, torch.bfloat16: 0.25}
"""Of logits: two tokens as near to each other fall either way, with the order in which a processor adds."""


def check(name: str, spoken: Sequence[Spoken], asr: Asr, settings: Qwen) -> int:
    """-> exit status. Raises EngineUnusable."""
    folder = weights.find(name)
    if folder is None:
        raise EngineUnusable(weights.missing(name))
    device, dtype = place(asr, settings, folder)
    start_s = time.perf_counter()
    loaded = load(folder, device=device, dtype=dtype)
    print(f"{folder}: loaded in {time.perf_counter() - start_s:.1f} s, {device}, {dtype}, peak {_peak_mb(device)} MB")
    prompts = Prompts(loaded.tokenizer, ends=loaded.ends)
    prompt = prompts.build()
    library = Library(loaded, prompt)
    expected = [library.generate(each.audio) for each in spoken]
    # The engine takes the model over, so a tie at the first token that differs is looked for with one loaded anew.
    engine = QwenEngine(loaded, Shape(slots=1, batch=1))
    engine.warm_up()
    said, wrong, different = 0, 0, []
    print(f"{'prompt':<20} {'words':>5} {'wrong':>5} {'tokens':>6} {'same':>5} {'s':>6} {'peak MB':>8}  text")
    for number, (each, theirs) in enumerate(zip(spoken, expected, strict=True)):
        start_s = time.perf_counter()
        text, mine = _engine(engine, each.audio, number)
        took_s = time.perf_counter() - start_s
        same = mine == theirs or (is_loop(mine) and mine == theirs[: len(mine)])  # the engine ends a loop
        counted = align(words(each.said), words(text))
        said, wrong = said + counted.words, wrong + counted.errors
        if not same:
            different.append((each, mine, theirs))
        print(
            f"{each.name:<20} {counted.words:>5} {counted.errors:>5} {len(mine):>6} {'yes' if same else 'no':>5} "
            f"{took_s:>6.2f} {_peak_mb(device):>8}  {text[:80]!r}"
        )
    if different:
        del engine, loaded
        library = Library(load(folder, device=device, dtype=dtype), prompt)
        different = [each for each in different if not library.ties(each[0].audio, each[1], each[2], TIES[dtype])]
    for each, mine, theirs in different:
        print(f"{each.name}: the engine says {mine}, and generate() {theirs}")
    share = wrong / said if said else 1.0
    print(
        f"{wrong} of {said} words wrong ({share:.0%}); {len(different)} of {len(spoken)} answers differ from generate()"
    )
    return WRONG if different or share > BAD_WORDS else FINE


def _engine(engine: QwenEngine, audio: bytes, number: int) -> tuple[str, list[int]]:
    utterance = Utterance(f"prompt-{number}", "PCMU")
    engine.open(utterance)
    engine.append(utterance.id, audio)
    request = Request(utterance.id, 1, Lane.FINAL, True, len(audio), 0.0)
    answers: list[Any] = []
    while not answers:
        answers = engine.step([request])
    tokens = engine.last_tokens(utterance.id)
    engine.close(utterance.id)
    return answers[0].text, tokens


class Library:
    """What `transformers` itself says."""

    def __init__(self, loaded: LoadedModel, prompt: Prompt) -> None:
        self._model, self._prompt, self._ends = loaded.model, prompt, loaded.ends
        self._pad = int(loaded.model.config.audio_token_id)
        self._extractor = loaded.extractor
        assert isinstance(self._extractor, Qwen3ASRFeatureExtractor)

    def _inputs(self, audio: bytes, begun: Sequence[int] = ()) -> dict[str, Any]:
        model = self._model
        extract: Any = self._extractor
        features = extract(
            [Wideband("PCMU").feed(audio)], sampling_rate=16000, padding="longest", return_tensors="pt",
            return_attention_mask=True,
        )  # fmt: skip
        mel = features["input_features"].to(model.device, model.dtype)
        mask = features["attention_mask"].to(model.device)
        count = len(model.model.get_audio_features(mel, mask, return_dict=True).pooler_output)
        prompt = self._prompt
        ids = torch.tensor([[*prompt.head, *[self._pad] * count, *prompt.tail, *begun]], device=model.device)
        return {
            "input_ids": ids, "attention_mask": torch.ones_like(ids), "input_features": mel,
            "input_features_mask": mask,
        }  # fmt: skip

    @torch.inference_mode()
    def generate(self, audio: bytes) -> list[int]:
        """Tokens of the answer without its end."""
        inputs = self._inputs(audio)
        out = self._model.generate(
            **inputs, max_new_tokens=longest(len(audio) / 8000), do_sample=False, eos_token_id=list(self._ends),
            pad_token_id=self._ends[1], suppress_tokens=[self._pad],
        )[0, inputs["input_ids"].shape[1] :].tolist()  # fmt: skip
        stops = [out.index(end) for end in self._ends if end in out]
        tokens: list[int] = out[: min(stops)] if stops else out
        return tokens

    @torch.inference_mode()
    def ties(self, audio: bytes, mine: list[int], theirs: list[int], limit: float) -> bool:
        """Whether the first two tokens that differ are equally likely."""
        pairs = enumerate(zip(mine, theirs, strict=False))
        at = next((at for at, pair in pairs if pair[0] != pair[1]), min(len(mine), len(theirs)))
        logits = self._model(**self._inputs(audio, theirs[:at])).logits[0, -1].float()
        ends = logits[list(self._ends)].max()
        one, other = (logits[each[at]] if at < len(each) else ends for each in (mine, theirs))
        return abs(float(one - other)) <= limit


def _peak_mb(device: str) -> int:
    """Of the GPU, or of this process."""
    if device != "cpu":
        return int(torch.cuda.max_memory_allocated(torch.device(device)) // 2**20)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
