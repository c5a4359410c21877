"""Checkpoints of the published shapes with random numbers, in both layouts: each one is written, and then loaded by a
process of its own, as the engine does at its start."""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from asr.engines.qwen.model.loader import load
from benchmarks.engine.run import MODEL
from benchmarks.engine.weights import build
from tools.gpu.options import Options, options, process_peak_mb
from tools.gpu.parts import ROOT
from tools.reference.checkpoints import write

GB = 1_000_000_000
NEEDED_GB = {"tiny": 0.1, "0.6B": 4.0, "1.7B": 10.0}
"""Of disk, for both layouts."""
SHARDS = "2GB"
LOADING_S = 60.0


def written(model: Any, layout: str, folder: Path) -> None:
    if layout == "official":
        write(model, MODEL, folder, next(model.parameters()).dtype)
        return
    model.save_pretrained(folder, max_shard_size=SHARDS)
    for path in MODEL.iterdir():
        if path.suffix != ".safetensors" and not (folder / path.name).exists():
            shutil.copy(path, folder)


def total(model: Any) -> float:
    """The same for two models with the same numbers, wherever they are."""
    weights = (parameter.detach().abs().sum(dtype=torch.float64) for _, parameter in model.named_parameters())
    return sum(float(each) for each in weights)


def loaded(folder: Path, device: str, dtype: str) -> dict[str, Any]:
    """Load it, and say how long that took and how much memory it needed. For a process of its own."""
    before_mb = process_peak_mb()
    start_s = time.perf_counter()
    model = load(folder, device=device, dtype=getattr(torch, dtype)).model
    if device != "cpu":
        torch.cuda.synchronize()
    took_s = time.perf_counter() - start_s
    figures = {"load_s": round(took_s, 2), "host_before_mb": before_mb, "host_peak_mb": process_peak_mb()}
    gpu_mb = round(torch.cuda.max_memory_allocated() / 2**20) if device != "cpu" else None
    return figures | {"gpu_peak_mb": gpu_mb, "total": total(model)}


def measure(given: Options, weights: str, layout: str, model: Any, folder: Path) -> None:
    start_s = time.perf_counter()
    written(model, layout, folder)
    dtype = str(next(model.parameters()).dtype).removeprefix("torch.")
    files = sorted(folder.glob("*.safetensors"))
    row: dict[str, Any] = {"weights": weights, "layout": layout, "dtype": dtype, "files": len(files)}
    row |= {"gb": round(sum(file.stat().st_size for file in files) / GB, 3)}
    row |= {"write_s": round(time.perf_counter() - start_s, 2)}
    command = [sys.executable, "-m", "tools.gpu.checkpoints", "--load", str(folder), given.device, dtype]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, timeout=LOADING_S)
    if done.returncode:
        given.figures["rows"].append(row | {"same_numbers": None, "error": f"exit status {done.returncode}"})
        return
    found = json.loads(done.stdout.splitlines()[-1])
    expected = total(model)
    row |= {"same_numbers": abs(found.pop("total") - expected) <= 1e-9 * expected}
    given.figures["rows"].append(row | found | {"error": None})


def main() -> int:
    given = options()
    given.figures = {"rows": [], "left_out": []}
    dtype = torch.float32 if given.rehearse else torch.bfloat16
    for weights in ("tiny",) if given.rehearse else ("0.6B", "1.7B"):
        model = None
        for layout in ("transformers", "official"):
            with tempfile.TemporaryDirectory(prefix="mediaworker-gpu-") as folder:
                free_gb = shutil.disk_usage(folder).free / GB
                if given.over or free_gb < NEEDED_GB[weights]:
                    why = "the time was over" if given.over else f"{free_gb:.0f} GB are free in {folder}"
                    given.figures["left_out"].append(f"{weights}, layout of {layout}: {why}")
                    given.keep()
                    continue
                if model is None:
                    model = build(weights, MODEL, device=given.device, dtype=dtype).model
                measure(given, weights, layout, model, Path(folder) / "checkpoint")
                given.keep()
    return 0 if all(row["same_numbers"] for row in given.figures["rows"]) and given.figures["rows"] else 1


def load_main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--load", nargs=3, required=True, metavar=("FOLDER", "DEVICE", "DTYPE"))
    folder, device, dtype = parser.parse_args().load
    print(json.dumps(loaded(Path(folder), device, dtype)))
    return 0


if __name__ == "__main__":
    raise SystemExit(load_main() if "--load" in sys.argv else main())
