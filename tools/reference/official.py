"""Runs in the environment of the official package: questions from a folder, its answers into that folder.

    python official.py FOLDER

Its own classes answer, as published. The exceptions, and nothing else: `generate()` is told which tokens end an answer,
for the numbers that are written into it are those of the published vocabulary; and a question may ask for further
answers under `switches`, each of which takes away one cause of a difference.
"""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from qwen_asr import Qwen3ASRModel, Qwen3ForcedAligner
from qwen_asr.inference import qwen3_forced_aligner
from qwen_asr.inference.utils import SUPPORTED_LANGUAGES, parse_asr_output
from torch.nn.functional import pad
from torch.nn.utils import rnn

HALF_SECOND = 8000


class Official:
    def __init__(self, folder: Path, ends: list[int]) -> None:
        self.package = Qwen3ASRModel.from_pretrained(str(folder), dtype=torch.float32)
        self.thinker = self.package.model.thinker
        self.tokens: list[int] = []
        self.asked: dict[str, Any] = {}
        self.changes: dict[str, Any] = {}
        generate = functools.partial(self.package.model.generate, eos_token_id=ends, pad_token_id=ends[-1])

        def noted(**inputs: Any) -> Any:
            inputs |= self.changes
            inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
            self.asked = inputs
            answer = generate(**inputs)
            said = answer.sequences[0, inputs["input_ids"].shape[1] :].tolist()
            self.tokens = said[: next((at for at, token in enumerate(said) if token in ends), len(said))]
            return answer

        self.package.model.generate = noted

    def ask(self, case: dict[str, Any], samples: np.ndarray, switches: list[str]) -> dict[str, Any]:
        self.package.max_new_tokens = case["budget"]
        self.changes = {}
        if "short" in switches:
            samples = np.pad(samples, (0, max(0, HALF_SECOND - len(samples))))
        if "placeholder" in switches:
            self.changes["suppress_tokens"] = [case["placeholder"]]
        if "prompt" in switches:
            self.changes["input_ids"] = torch.tensor([case["prompt"]])
        language = case["language"] or None
        with changed(self.thinker, switches):
            if "loud" in switches:  # what transcribe() does after it has normalised the audio
                parsed = parse_asr_output(
                    self.package._infer_asr([case["context"]], [samples], [language])[0], language
                )
                heard = SimpleNamespace(language=parsed[0], text=parsed[1])
            else:
                heard = self.package.transcribe((samples, 16000), context=case["context"], language=language)[0]
        return {"tokens": self.tokens, "text": heard.text, "language": heard.language}

    @torch.no_grad()
    def seen(self, switches: list[str]) -> dict[str, Any]:
        """What went into the model for the last question, and what the encoder made of it."""
        mel, mask = self.asked["input_features"], self.asked["feature_attention_mask"]
        with changed(self.thinker, switches):
            embeddings = self.thinker.get_audio_features(mel, mask)
        return {"mel": mel[0, :, : int(mask.sum())].numpy(), "embeddings": embeddings.numpy()}

    def stream(self, case: dict[str, Any], samples: np.ndarray, *, chunk_s: float, unfixed: int) -> list[Any]:
        """The package's streaming recipe, which it offers for vLLM only, with this model in vLLM's place."""
        heard: list[list[int]] = []

        def generate(inputs: list[Any], **_: Any) -> list[Any]:
            (asked,) = inputs
            ready = processor(text=[asked["prompt"]], audio=asked["multi_modal_data"]["audio"], return_tensors="pt")
            self.package.model.generate(**ready, max_new_tokens=case["budget"])
            heard.append(self.tokens)
            text = processor.tokenizer.decode(self.tokens, skip_special_tokens=True)
            return [SimpleNamespace(outputs=[SimpleNamespace(text=text)])]

        processor, self.changes = self.package.processor, {}
        recipe = Qwen3ASRModel("vllm", SimpleNamespace(generate=generate), processor)
        state = recipe.init_streaming_state(case["context"], case["language"] or None, unfixed, 5, chunk_s)
        out: list[Any] = []
        with changed(self.thinker, ["window", "tail"]):
            for low in range(0, len(samples), state.chunk_size_samples):
                chunk = samples[low : low + state.chunk_size_samples]
                recipe.streaming_transcribe(chunk, state)
                if len(chunk) < state.chunk_size_samples:
                    recipe.finish_streaming_transcribe(state)
                out.append({"end": low + len(chunk), "text": state.text, "tokens": heard[-1]})
        return out


class Aligner:
    """The package's own, as published; it needs to be told nothing."""

    def __init__(self, folder: Path) -> None:
        self.package = Qwen3ForcedAligner.from_pretrained(str(folder), dtype=torch.float32)
        self.thinker = self.package.model.thinker
        self.chances: list[np.ndarray] = []
        self.thinker.register_forward_hook(self._noted, with_kwargs=True)

    def _noted(self, _: Any, args: tuple[Any, ...], inputs: dict[str, Any], said: Any) -> None:
        places = inputs["input_ids"] == self.package.timestamp_token_id
        self.chances = [row[at].softmax(dim=-1).numpy() for row, at in zip(said.logits, places, strict=True)]

    def ask(self, lines: list[dict[str, Any]], sounds: Any, switches: list[str]) -> tuple[Any, list[np.ndarray]]:
        """For each of the lines, asked in one call: words with start and end in seconds, and chances of the classes."""
        heard = [sounds[line["sound"]] for line in lines]
        if "short" in switches:
            heard = [np.pad(each, (0, max(0, HALF_SECOND - len(each)))) for each in heard]
        with changed(self.thinker, switches), apart(self.package.processor, switches), unscaled(switches):
            said = self.package.align(
                [(each, 16000) for each in heard],
                [line["text"] for line in lines],
                [line["language"] for line in lines],
            )
        return [[(item.text, item.start_time, item.end_time) for item in each] for each in said], self.chances


@contextmanager
def apart(processor: Any, switches: list[str]) -> Iterator[None]:
    """With `batch`, frames are made of each recording by itself, and filled up only then."""
    make = processor.feature_extractor.__class__.__call__

    def each_alone(extractor: Any, sounds: list[np.ndarray], **options: Any) -> Any:
        made = [make(extractor, [each], **options) for each in sounds]
        longest = max(each["attention_mask"].shape[-1] for each in made)
        for name in ("input_features", "attention_mask"):
            made[0][name] = torch.cat([pad(each[name], (0, longest - each[name].shape[-1])) for each in made])
        return made[0]

    if "batch" in switches:
        processor.feature_extractor.__class__.__call__ = each_alone
    try:
        yield
    finally:
        processor.feature_extractor.__class__.__call__ = make


@contextmanager
def unscaled(switches: list[str]) -> Iterator[None]:
    """With `loud`, the aligner's sounds are left as loud as they are."""
    normalise = qwen3_forced_aligner.normalize_audios
    if "loud" in switches:
        qwen3_forced_aligner.normalize_audios = lambda sounds: [samples for samples, _ in sounds]
    try:
        yield
    finally:
        qwen3_forced_aligner.normalize_audios = normalise


@contextmanager
def changed(thinker: Any, switches: list[str]) -> Iterator[None]:
    """The encoder without some of its ways."""
    tower, fill = thinker.audio_tower, rnn.pad_sequence

    def masked(_: Any, args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        return args, keywords | {"attention_mask": tower._prepare_attention_mask(args[0], args[1])}

    def filled(parts: list[torch.Tensor], **options: Any) -> torch.Tensor:
        """Frames to a whole chunk, and the marks of what is sound to as many tokens."""
        whole = torch.zeros((100, parts[0].shape[1]) if parts[0].dim() == 2 else 13, dtype=parts[0].dtype)
        return fill([*parts, whole], **options)[:-1]

    # With that mask passed which the encoder knows how to make, and outside of flash attention never does.
    layers = tower.layers if "window" in switches else ()
    hooks = [layer.register_forward_pre_hook(masked, with_kwargs=True) for layer in layers]
    rnn.pad_sequence = filled if "tail" in switches else fill
    try:
        yield
    finally:
        rnn.pad_sequence = fill
        for hook in hooks:
            hook.remove()


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    asked = json.loads((folder / "questions.json").read_text(encoding="utf-8"))
    sounds = np.load(folder / "sounds.npz")
    models = {name: Official(folder / name, asked["ends"]) for name in asked["models"]}
    answers: dict[str, Any] = {}
    arrays: dict[str, np.ndarray] = {}
    for case in asked["cases"]:
        official, name = models[case["model"]], case["name"]
        samples = sounds[case["sound"]][: case["samples"]]
        answer = official.ask(case, samples, [])
        switches = case["switches"] + (["placeholder"] if case["placeholder"] in answer["tokens"] else [])
        answer |= {"prompt": official.asked["input_ids"][0].tolist(), "switches": switches}
        if case["final"]:
            arrays |= {f"{name}/{key}": array for key, array in official.seen([]).items()}
        if switches:
            answer["without"] = official.ask(case, samples, switches)
            answer["without"]["prompt"] = official.asked["input_ids"][0].tolist()
            if case["final"]:
                arrays |= {f"{name}/{key}/without": array for key, array in official.seen(switches).items()}
        answers[name] = answer
    streams = []
    for case in asked["streams"]:
        samples = sounds[case["sound"]]
        for chunk_s in case["chunks_s"]:
            for unfixed in (2, 10**6):
                heard = models[case["model"]].stream(case, samples, chunk_s=chunk_s, unfixed=unfixed)
                streams.append({"name": case["name"], "chunk_s": chunk_s, "rolls_back": unfixed == 2, "heard": heard})
    aligners = {name: Aligner(folder / place) for name, place in asked["aligners"].items()}
    times: dict[str, Any] = {}
    for question in asked["times"]:
        aligner, name = aligners[question["model"]], question["name"]
        times[name] = {}
        for kind, switches in question["ways"].items():
            times[name][kind], chances = aligner.ask(question["lines"], sounds, switches)
            arrays |= {f"{name}/{kind}/{number}": each for number, each in enumerate(chances)}
    settings = models[asked["models"][0]].thinker.generation_config
    said = {
        "answers": answers,
        "streams": streams,
        "times": times,
        "parsed": [parse_asr_output(raw, language or None) for raw, language in asked["raw"]],
        "languages": SUPPORTED_LANGUAGES,
        "decoding": {key: getattr(settings, key) for key in ("do_sample", "num_beams", "repetition_penalty")},
    }
    np.savez(folder / "arrays.npz", **arrays)
    (folder / "answers.json").write_text(json.dumps(said), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
