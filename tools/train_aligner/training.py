"""The recognizer's loop, over times."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import Qwen3ASRProcessor
from transformers.models.qwen3_asr import Qwen3ASRForTokenClassification

from tools.train_aligner.evaluation import errors, held_out
from tools.train_aligner.examples import Batch, Stream
from tools.train_aligner.losses import Heads, losses
from tools.train_aligner.model import build, start
from tools.train_tiny.training import Loop, Plan, Training, log

PLAN = Plan(
    steps=3600,
    warmup_steps=100,
    decay_share=0.7,
    alignment=0.5,
    checkpoint_every_s=120,
    evaluate_every=500,
)


class Run(Loop):
    PARTS = ("times", "saying", "edges", "clock", "counter", "before", "places")

    def __init__(self, plan: Plan, processor: Qwen3ASRProcessor, checkpoint: Path) -> None:
        self.processor = processor
        model, average = build(processor.tokenizer, plan.seed), build(processor.tokenizer, plan.seed).eval()
        start(model)
        average.load_state_dict(model.state_dict())
        super().__init__(plan, model, average, Heads(model.config.text_config.hidden_size), checkpoint)

    def stream(self) -> Stream:
        return Stream(self.processor, self.plan.seed, self.step, self.plan.batch)

    def losses(self, batch: Batch) -> tuple[torch.Tensor, ...]:
        return losses(self.model, self._heads, batch)

    def evaluate(self) -> None:
        for name in ("digits, clean µ-law", "words, any line", "11 to 16 digits, clean µ-law"):
            log(f"step {self.step} held out: {name}: {errors(self.average, self.processor, held_out(name, 40))}")


def averaged(checkpoint: Path, processor: Qwen3ASRProcessor) -> tuple[Qwen3ASRForTokenClassification, Training]:
    state = torch.load(checkpoint, weights_only=True)
    model = build(processor.tokenizer, 0).eval()
    model.load_state_dict(state["average"])
    return model, Training(state["step"], state["batch"], state["seed"], state["spent_s"])
