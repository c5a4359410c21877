"""The loop: resumable, one thread, one worker that speaks."""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset
from transformers import Qwen3ASRForConditionalGeneration, Qwen3ASRProcessor

from tools.train_tiny.evaluation import held_out, score
from tools.train_tiny.examples import Batch, Curriculum, Stream
from tools.train_tiny.losses import Heads, losses
from tools.train_tiny.model import build, parameters

AVERAGE = 0.998
"""Of the weights that are evaluated and exported: a running mean over some 500 steps."""


@dataclass(frozen=True, slots=True)
class Plan:
    seed: int = 1
    steps: int = 9000
    batch: int = 16
    peak_rate: float = 2e-3
    warmup_steps: int = 200
    decay_share: float = 0.35
    """The learning rate is held, then falls to a fiftieth over this share of the steps."""
    alignment: float = 0.5
    """Weight of each alignment loss."""
    checkpoint_every_s: float = 240
    evaluate_every: int = 1000

    def rate(self, step: int) -> float:
        left = (self.steps - step) / (self.steps * self.decay_share)
        return self.peak_rate * min(1.0, (step + 1) / self.warmup_steps, max(0.02, left))


class Loop(ABC):
    """Updates a model and keeps its running mean. Subclasses say what is learnt, and how it is judged."""

    PARTS: tuple[str, ...] = ()
    """Names of the losses; the first is what counts."""

    def __init__(self, plan: Plan, model: nn.Module, average: nn.Module, heads: nn.Module, checkpoint: Path) -> None:
        self.plan, self.model, self.average, self._heads, self._checkpoint = plan, model, average, heads, checkpoint
        self.step, self.spent_s = 0, 0.0
        self._trained = [each for part in (model, heads) for each in part.parameters() if each.requires_grad]
        wide = [parameter for parameter in self._trained if parameter.dim() > 1]
        narrow = [parameter for parameter in self._trained if parameter.dim() <= 1]
        self._optimizer = torch.optim.AdamW(
            [{"params": wide, "weight_decay": 0.02}, {"params": narrow, "weight_decay": 0.0}],
            betas=(0.9, 0.98),
            fused=True,
        )
        if checkpoint.exists():
            self._resume()

    @abstractmethod
    def stream(self) -> IterableDataset[Any]:
        """Batches from the present step on."""

    @abstractmethod
    def losses(self, batch: Any) -> tuple[torch.Tensor, ...]:
        """One for each of `PARTS`."""

    @abstractmethod
    def evaluate(self) -> None: ...

    def train(self) -> None:
        plan = self.plan
        log(f"{parameters(self.model)} parameters, from step {self.step} to {plan.steps}")
        batches = iter(DataLoader(self.stream(), batch_size=None, num_workers=1, prefetch_factor=Stream.GROUP))
        saved = time.monotonic()
        # Of the processor: the machine is shared, and the run may be stopped for a while.
        before_s = self.spent_s - time.process_time()
        seen, since = torch.zeros(len(self.PARTS)), self.step
        while self.step < plan.steps:
            seen += self._update(next(batches))
            self.spent_s = before_s + time.process_time()
            if self.step % 50 == 0:
                means = (seen / (self.step - since)).tolist()
                parts = " ".join(f"{name} {mean:.4f}" for name, mean in zip(self.PARTS, means, strict=True))
                log(f"step {self.step} {parts} rate {plan.rate(self.step):.2e} {self.spent_s / self.step:.3f} s a step")
                seen, since = torch.zeros(len(self.PARTS)), self.step
            if self.step % plan.evaluate_every == 0:
                self.evaluate()
            if time.monotonic() - saved > plan.checkpoint_every_s or self.step == plan.steps:
                self.save()
                saved = time.monotonic()

    def _update(self, batch: Any) -> torch.Tensor:
        self.model.train()
        rate = self.plan.rate(self.step)
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        parts = self.losses(batch)
        self._optimizer.zero_grad(set_to_none=True)
        (parts[0] + self.plan.alignment * sum(parts[1:])).backward()
        torch.nn.utils.clip_grad_norm_(self._trained, 1.0)
        self._optimizer.step()
        self.step += 1
        keep = min(AVERAGE, (1 + self.step) / (10 + self.step))
        with torch.no_grad():
            mean, new = list(self.average.parameters()), list(self.model.parameters())
            torch._foreach_lerp_(mean, new, 1 - keep)
        return torch.stack([part.detach() for part in parts])

    def save(self) -> None:
        state = {
            "step": self.step,
            "spent_s": self.spent_s,
            "seed": self.plan.seed,
            "batch": self.plan.batch,
            "model": self.model.state_dict(),
            "average": self.average.state_dict(),
            "heads": self._heads.state_dict(),
            "optimizer": self._optimizer.state_dict(),
        }
        beside = self._checkpoint.with_suffix(".new")
        torch.save(state, beside)
        os.replace(beside, self._checkpoint)

    def _resume(self) -> None:
        state = torch.load(self._checkpoint, weights_only=True)
        self.step, self.spent_s = state["step"], state["spent_s"]
        self.model.load_state_dict(state["model"])
        self.average.load_state_dict(state["average"])
        self._heads.load_state_dict(state["heads"])
        self._optimizer.load_state_dict(state["optimizer"])


class Run(Loop):
    PARTS = ("loss", "saying", "said")

    def __init__(self, plan: Plan, processor: Qwen3ASRProcessor, checkpoint: Path) -> None:
        self.processor = processor
        model, average = build(processor.tokenizer, plan.seed), build(processor.tokenizer, plan.seed).eval()
        super().__init__(plan, model, average, Heads(model.config.text_config.hidden_size), checkpoint)

    def stream(self) -> Stream:
        return Stream(self.processor, self.plan.seed, self.step, self.plan.batch, Curriculum())

    def losses(self, batch: Batch) -> tuple[torch.Tensor, ...]:
        return losses(self.model, self._heads, batch)

    def evaluate(self) -> None:
        for name in ("digits, clean µ-law", "digits, any line", "words, clean µ-law", "no words"):
            got = score(self.average, self.processor, held_out(name, 24 if name == "no words" else 60))
            log(f"step {self.step} held out: {name}: accuracy {got.accuracy:.3f}, exact {got.exact}/{got.sentences}")


def log(line: str) -> None:
    print(time.strftime("%H:%M:%S"), line, flush=True)


@dataclass(frozen=True, slots=True)
class Training:
    """What a checkpoint has behind it."""

    steps: int
    batch: int
    seed: int
    spent_s: float
    """Processor time, without the worker that speaks."""


def averaged(checkpoint: Path, processor: Qwen3ASRProcessor) -> tuple[Qwen3ASRForConditionalGeneration, Training]:
    state = torch.load(checkpoint, weights_only=True)
    model = build(processor.tokenizer, 0).eval()
    model.load_state_dict(state["average"])
    return model, Training(state["step"], state["batch"], state["seed"], state["spent_s"])
