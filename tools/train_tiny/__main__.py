from __future__ import annotations

import argparse
from pathlib import Path

import torch

from tools.train_tiny import tokenizer
from tools.train_tiny.export import export
from tools.train_tiny.training import Plan, Run


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.train_tiny", description="Train models/qwen3-asr-tiny")
    parser.add_argument("--work", type=Path, required=True, help="folder of the checkpoint; a restart goes on from it")
    parser.add_argument("--steps", type=int, default=Plan().steps, help="in all; 0 trains no further")
    parser.add_argument("--seed", type=int, default=Plan().seed)
    parser.add_argument("--out", type=Path, help="folder to write the model and its card to, at the end")
    parser.add_argument("--count", type=int, default=300, help="utterances in each set of the card's figures")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    arguments.work.mkdir(parents=True, exist_ok=True)
    processor = tokenizer.save(arguments.work / "tokenizer")
    checkpoint = arguments.work / "checkpoint.pt"
    plan = Plan(seed=arguments.seed, steps=arguments.steps)
    if arguments.steps:
        Run(plan, processor, checkpoint).train()
    if arguments.out:
        export(checkpoint, arguments.out, arguments.count)


main()
