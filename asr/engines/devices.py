"""The number of inference processes, and the device and the share of the cores of each. Nothing is loaded: only the
inference process knows whether torch can use a GPU."""

from __future__ import annotations

import contextlib
import math
import os
import re
from pathlib import Path

import msgspec

from config.settings import Asr

GPU_NODES = (Path("/dev/nvidiactl"), Path("/dev/kfd"), Path("/dev/dxg"))
"""The device files of the drivers of NVIDIA and AMD, and of Windows below WSL."""
NVIDIA = re.compile(r"nvidia[0-9]+")
"""The name of the device file of one GPU, beside `nvidiactl`."""
CPU_MAX = Path("/sys/fs/cgroup/cpu.max")
"""The container's CPU limit: microseconds of CPU time in each period, or `max`, and the length of the period (cgroup
v2)."""
CGROUP = Path("/sys/fs/cgroup")
"""The folder with the limits of the container's memory (cgroup v2)."""
CORES_PER_PROCESS = 4
SMALL = ("moonshine", "whisper", "mixed")
"""The engines that recognise utterances one by one, each in one thread."""


def has_gpu() -> bool:
    """True when a driver shows a GPU."""
    return any(node.exists() for node in GPU_NODES)


def gpus() -> int:
    """The number of GPUs that this process may use; 1 where only a driver shows one, 0 without any."""
    if not has_gpu():
        return 0
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([name for name in visible.split(",") if name.strip() not in ("", "-1")])
    return max(1, sum(1 for node in GPU_NODES[0].parent.iterdir() if NVIDIA.fullmatch(node.name)))


def cores() -> int:
    """The number of cores that this process may use at once."""
    found = len(os.sched_getaffinity(0))
    with contextlib.suppress(OSError, ValueError, ZeroDivisionError):
        quota, period = CPU_MAX.read_text().split()
        if quota != "max":
            found = min(found, math.ceil(int(quota) / int(period)))
    return max(1, found)


def cpu_flags() -> set[str]:
    """The capabilities of the processor, as /proc/cpuinfo names them."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            name, _, flags = line.partition(":")
            if name.strip() in ("flags", "Features"):
                return set(flags.split())
    return set()


def free_memory_bytes() -> int:
    """The memory that is available on this machine, or below the limit of its container."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    free = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    with contextlib.suppress(OSError, ValueError):  # no limit: the file says `max`
        limit, used = (int((CGROUP / name).read_text()) for name in ("memory.max", "memory.current"))
        free = min(free, max(0, limit - used))
    return free


def usual_threads() -> int:
    """All cores but one, which is the media process's."""
    return max(1, cores() - 1)


def shares(settings: Asr, engine: str) -> list[Asr]:
    """The settings of each inference process: one device, and its share of the threads.

    A batch amortises the weights of Qwen3-ASR, so one process a device is best; Moonshine and Whisper recognise
    utterances one by one, and of several processes one can be lost without the others.
    """
    found = gpus() if engine == "qwen" else 0
    devices = settings.devices or tuple(f"auto:{number}" for number in range(found)) or ("auto",)
    usual = max(1, cores() // CORES_PER_PROCESS) if engine in SMALL else len(devices)
    count = settings.processes or usual
    threads = max(1, (settings.threads or usual_threads()) // count)
    return [
        msgspec.structs.replace(settings, devices=(devices[number % len(devices)],), processes=count, threads=threads)
        for number in range(count)
    ]
