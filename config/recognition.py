"""The engine, and Qwen3-ASR in particular."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from config.section import Name, Positive, Seconds, Section


class Asr(Section, frozen=True, kw_only=True):
    engine: Name = "auto"
    """`auto`: Qwen3-ASR when the weights of `model` are on this machine, else Moonshine; nothing is downloaded. `qwen`,
    `moonshine` or the name of an engine that another package brings (docs/engines.md): that one. The worker does not
    start when its engine cannot run on this machine."""
    model: str = "Qwen/Qwen3-ASR-0.6B"
    """qwen: a name on the Hugging Face hub whose files `mediaworker models pull` has brought, or a folder."""
    partials_model: str = ""
    """qwen: another, smaller model for partials; `model` then makes finals and files alone. Both are loaded, each with
    `qwen.slots` of its own."""
    language: str = ""
    """ISO 639-1 code forced on every call without a language of its own; empty: the engine detects. The worker does not
    start with a language that its engine does not know; Moonshine knows English alone."""
    attention: Literal["auto", "flash", "varlen", "sdpa"] = "auto"
    """qwen: `sdpa` runs on every device and in any precision, and `auto` means it. `varlen` reads keys and values where
    they are, on GPUs from Ampere on in 16 bits and with torch from 2.13 on; `flash` does so with the package
    FlashAttention-3 or 4, where it is installed."""
    partial_ms: Annotated[int, Meta(ge=100, le=10000)] = 500
    idle_s: Seconds = 300.0
    """The inference process ends after so long without a call or job, unless it is preloaded."""
    preload: Literal["auto"] | bool = "auto"
    """Start the inference process with the worker and keep it: no call waits for the model, and the worker is ready
    only when it is. `auto`: for Qwen3-ASR on a machine with a GPU, where a start takes up to a minute."""
    threads: Annotated[int, Meta(ge=0, le=256)] = 0
    """moonshine: threads that recognise, each one utterance at a time. 0: one for each core of this machine, or of
    its container's CPU limit, but one, which is left to the calls themselves."""
    max_backlog_mb: Positive = 256
    """Audio of utterances without their final, in memory. Beyond it partial refreshes stop and audio goes to disk."""
    max_spill_mb: Annotated[int, Meta(ge=0)] = 2048
    """Of that audio on disk, in a file without a name in `data_dir`; beyond it utterances end with `failed`."""
    hang_s: Annotated[float, Meta(gt=0)] = 20.0
    """An inference process that does not answer for so long while it is needed is replaced."""
    start_timeout_s: Annotated[float, Meta(gt=0)] = 120.0
    """So long it may take to load its model; then the engine counts as failed, and is tried again."""
    word_timestamps: bool = False
    """Say when each word of a final was said (`transcript.words`), in the languages that `aligner` knows, or in those
    of the engine when it times words itself."""
    words_wait_s: Seconds = 5.0
    """So long the end of a call waits for times that are still to come, once its last final is out."""
    aligner: str = "Qwen/Qwen3-ForcedAligner-0.6B"
    """The model for that: a name or a folder, as `model`. It takes as much memory again as the smaller recogniser."""


class Qwen(Section, frozen=True, kw_only=True):
    """The engine Qwen3-ASR: where it runs, how much at once, how exact."""

    device: str = "auto"
    """`auto`: a GPU when there is one; else `cpu`, `cuda`, `cuda:1`."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """`auto`: float32 on a CPU, bfloat16 on a GPU, and float16 on one that is too old for it."""
    quantise: Literal["none", "int8", "fp8"] = "none"
    """Linear layers in 8 bits: half the memory of 16. `int8`: on a CPU or any NVIDIA GPU. `fp8`: on a GPU, from Ada or
    Hopper on; on a CPU it is only slow. A word here and there may differ (docs/performance.md)."""
    graphs: bool = True
    """On a GPU, recorded sequences of kernels (CUDA graphs) instead of starting each: some more memory and seconds of
    warming up."""
    threads: Annotated[int, Meta(ge=1, le=256)] = 1
    """Of a CPU."""
    slots: Annotated[int, Meta(ge=0, le=4096)] = 0
    """Utterances whose keys and values are kept. Beyond it they are computed again, those of files first. 0: 32 on a
    CPU; on a GPU as many as half of its free memory holds, up to 256."""
    max_kv_positions: Annotated[int, Meta(ge=256, le=8192)] = 1024
    """Of a slot: the context, 13 a second of audio, and the answer; 112 kB each for the 0.6B model in bfloat16."""
    batch: Annotated[int, Meta(ge=0, le=1024)] = 0
    """Requests in one step. 0: 32, and on a GPU with more than 32 slots half of them, up to 128."""
    batch_tokens: Annotated[int, Meta(ge=16, le=8192)] = 128
    """Positions of files in one step: a live request never waits for more."""
    window_s: Annotated[float, Meta(ge=0, le=60)] = 0.0
    """Whole seconds of audio that attend to each other: 1 to 8 were trained. 0: as published (8)."""
    partials: Literal["frozen", "exact"] = "frozen"
    """What a new loudest moment does to audio that has been encoded: nothing until the final, or it is encoded again
    at once. Finals are exact in both cases."""
