"""Which GPU, driver and libraries there are."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

from tools.gpu.options import options
from tools.gpu.parts import ROOT

PACKAGES = ("torch", "transformers", "tokenizers", "safetensors", "numpy", "triton")
QUERY = ("name", "driver_version", "memory.total", "memory.free", "compute_cap", "power.limit", "mig.mode.current")


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _output(*command: str) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=15, cwd=ROOT)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _driver() -> list[dict[str, str]]:
    """What nvidia-smi says of each GPU; nothing where there is no nvidia-smi."""
    found = _output("nvidia-smi", f"--query-gpu={','.join(QUERY)}", "--format=csv,noheader")
    return [dict(zip(QUERY, line.split(", "), strict=False)) for line in (found or "").splitlines()]


def _torch() -> dict[str, Any]:
    cuda = torch.cuda.is_available()
    figures: dict[str, Any] = {"cuda_of_torch": torch.version.cuda, "cuda_available": cuda, "gpus": []}
    for index in range(torch.cuda.device_count() if cuda else 0):
        seen = torch.cuda.get_device_properties(index)
        free, total = torch.cuda.mem_get_info(index)
        figures["gpus"].append(
            {
                "name": seen.name, "capability": f"{seen.major}.{seen.minor}",
                "multiprocessors": seen.multi_processor_count, "memory_mb": total // 2**20, "free_mb": free // 2**20,
            }
        )  # fmt: skip
    if cuda:
        figures["architectures"] = torch.cuda.get_arch_list()
        figures["cudnn"] = torch.backends.cudnn.version()
        figures["bfloat16"] = torch.cuda.is_bf16_supported(False)
    return figures


def main() -> int:
    given = options()
    given.figures = {
        "python": platform.python_version(),
        "system": f"{platform.system()} on {platform.machine()}, {' '.join(platform.libc_ver())}",
        "processors": len(os.sched_getaffinity(0)),
        "packages": {name: _version(name) for name in PACKAGES},
        "driver": _driver(),
        **_torch(),
    }
    given.keep()
    if not given.rehearse and not given.figures["cuda_available"]:
        raise SystemExit("torch sees no GPU here")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
