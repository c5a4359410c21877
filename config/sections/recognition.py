"""The engine, and Qwen3-ASR in particular."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from config.sections.section import Name, Positive, Seconds, Section


class Asr(Section, frozen=True, kw_only=True):
    engine: Name = "auto"
    """`auto` takes Qwen3-ASR when the weights of `asr.model` are on this machine, else Moonshine, and downloads
    nothing. `qwen`, `moonshine` or the name of an engine that another package brings (docs/engines.md) takes that one;
    the worker does not start when its engine cannot run on this machine."""
    model: str = "Qwen/Qwen3-ASR-0.6B"
    """Qwen3-ASR is loaded from this name on the Hugging Face hub, whose files `mediaworker models pull` has brought, or
    from this folder."""
    partials_model: str = ""
    """Qwen3-ASR makes partials with this other, smaller model, and `asr.model` then makes finals and files alone. Both
    are loaded, each with `qwen.slots` of its own."""
    language: str = ""
    """This ISO 639-1 code is forced on every call without a language of its own; empty lets the engine detect it. The
    worker does not start with a language that its engine does not know; Moonshine knows English alone."""
    attention: Literal["auto", "flash", "varlen", "sdpa"] = "auto"
    """Qwen3-ASR attends with this implementation: `sdpa` runs on every device and in any precision, and `auto` means
    it. `varlen` reads keys and values where they are, on GPUs from Ampere on in 16 bits and with torch from 2.13 on;
    `flash` does so with the package FlashAttention-3 or 4, where it is installed."""
    partial_ms: Annotated[int, Meta(ge=100, le=10000)] = 500
    """A partial is refreshed every so many milliseconds of speech."""
    idle_s: Seconds = 300.0
    """The inference process ends after this many seconds without a call or job, unless it is preloaded."""
    preload: Literal["auto"] | bool = "auto"
    """The inference process starts with the worker and stays: no call waits for the model, and the worker is ready only
    when it is. `auto` does so for Qwen3-ASR on a machine with a GPU, where a start takes up to a minute."""
    threads: Annotated[int, Meta(ge=0, le=256)] = 0
    """Moonshine recognises on this many threads, each one utterance at a time. 0 means one for each core of this
    machine, or of its container's CPU limit, but one, which is left to the calls themselves."""
    max_backlog_mb: Positive = 256
    """Audio of utterances without their final takes this many MB of memory; beyond it partial refreshes stop and audio
    goes to disk."""
    max_spill_mb: Annotated[int, Meta(ge=0)] = 2048
    """Audio that waits on disk takes this many MB, in a file without a name in `data_dir`; beyond it utterances end
    with `failed`."""
    hang_s: Annotated[float, Meta(gt=0)] = 20.0
    """An inference process that does not answer for this many seconds while it is needed is replaced."""
    start_timeout_s: Annotated[float, Meta(gt=0)] = 120.0
    """An engine that has not loaded its model after this many seconds counts as failed, and is tried again."""
    word_timestamps: bool = False
    """Each final is followed by the times of its words (`transcript.words`), in the languages that `asr.aligner` knows,
    or in those of the engine when it times words itself."""
    words_wait_s: Seconds = 5.0
    """The end of a call waits this many seconds for times of words that are still to come, once its last final is
    out."""
    aligner: str = "Qwen/Qwen3-ForcedAligner-0.6B"
    """This model, a name or a folder, times words where the engine does not; it takes as much memory again as the
    smaller recogniser."""


class Qwen(Section, frozen=True, kw_only=True):
    """The engine Qwen3-ASR: where it runs, how much at once, how exact."""

    device: str = "auto"
    """Qwen3-ASR runs on this device: `cpu`, `cuda` or `cuda:1`; `auto` takes a GPU when there is one."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """The model computes in this precision; `auto` means float32 on a CPU, bfloat16 on a GPU, and float16 on one that
    is too old for it."""
    quantise: Literal["none", "int8", "fp8"] = "none"
    """`int8` and `fp8` hold linear layers in 8 bits, which is half the memory of 16: `int8` on a CPU or any NVIDIA GPU,
    `fp8` on a GPU from Ada or Hopper on; on a CPU it is only slow. A word here and there may differ
    (docs/performance.md)."""
    graphs: bool = True
    """A GPU runs recorded sequences of kernels (CUDA graphs) instead of starting each, which takes some more memory and
    seconds of warming up."""
    threads: Annotated[int, Meta(ge=1, le=256)] = 1
    """A CPU computes with this many threads."""
    slots: Annotated[int, Meta(ge=0, le=4096)] = 0
    """Keys and values of this many utterances are kept; beyond it they are computed again, those of files first. 0
    means 32 on a CPU, and on a GPU as many as half of its free memory holds, up to 256."""
    batch: Annotated[int, Meta(ge=0, le=1024)] = 0
    """One step serves this many requests; 0 means 32, and on a GPU with more than 32 slots half of them, up to 128."""
    batch_tokens: Annotated[int, Meta(ge=16, le=8192)] = 128
    """Files take this many positions in one step, so that a live request never waits for more."""
    window_s: Annotated[float, Meta(ge=0, le=60)] = 0.0
    """This many whole seconds of audio attend to each other; 1 to 8 were trained, and 0 means as published (8)."""
