"""The settings of the recognition engine, and of Qwen3-ASR in particular."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from config.errors import ConfigError
from config.sections.checks import check_tcp, check_unique, check_url
from config.sections.section import Name, Positive, Reloadable, Seconds, Secret, Section, Switch

LANGUAGES = ("en", "es", "fr", "de", "it", "pt", "nl", "pl", "ru", "tr", "zh", "ja")
"""Twelve languages of many telephone users, in which Whisper base is of use."""


class Asr(Section, frozen=True, kw_only=True):
    engine: Name = "auto"
    """`auto` takes Qwen3-ASR if the weights of `asr.model` are on this machine. Otherwise it takes `mixed`, which is
    Moonshine for English and Whisper for all other languages, or the one of the two that is installed; it never
    downloads anything. `qwen`, `mixed`, `moonshine`, `whisper`, `openai` (a server, see `asr.url`) or the name of an
    engine from another package (docs/how-to/engines.md) selects that one, and the worker does not start if it cannot
    run here."""
    model: Reloadable[str] = "Qwen/Qwen3-ASR-0.6B"
    """Qwen3-ASR loads this model: a name on the Hugging Face hub whose files were fetched by `mediaworker models pull`,
    or a folder."""
    partials_model: Reloadable[str] = ""
    """Qwen3-ASR uses this second, smaller model for partials, and `asr.model` only for finals and files. Both are
    loaded, each with its own `qwen.slots`."""
    language: Reloadable[str] = ""
    """This ISO 639-1 code is forced on every call that has no language of its own; if it is empty, the engine detects
    the language. The worker does not start with a language that its engine does not know. Moonshine knows only
    English."""
    languages: Reloadable[tuple[str, ...]] = LANGUAGES
    """If nothing names the language of a call or file, `mixed` and `whisper` choose among these ISO 639-1 codes. Fewer
    languages are told apart more surely; with a single one nothing is detected."""
    whisper_model: Reloadable[str] = "base"
    """`mixed` and `whisper` load this Whisper model: `base`, which the setup brings, or a folder with a larger one that
    was converted for CTranslate2."""
    attention: Reloadable[Literal["auto", "flash", "varlen", "sdpa"]] = "auto"
    """This setting has no effect any more: on a GPU Qwen3-ASR computes its attention with kernels of its own. A value
    other than `auto` causes a warning, and the next release refuses it."""
    partial_ms: Reloadable[Annotated[int, Meta(ge=100, le=10000)]] = 500
    """While somebody speaks, the partial is refreshed every this many milliseconds."""
    withhold_crosstalk: bool = True
    """In a call of several legs, an utterance that is the sound of another leg, such as what a headset leaks, has an
    empty final that names that leg, where the words are."""
    idle_s: Seconds = 300.0
    """The inference process ends after this many seconds without a call or a job, unless it is preloaded."""
    preload: Literal["auto"] | bool = "auto"
    """The inference process starts together with the worker and stays, so that no call waits for the model; the worker
    is ready only when the model is loaded. `auto` does this for Qwen3-ASR on a GPU, where loading takes up to a minute,
    and in an engine server."""
    devices: tuple[str, ...] = ()
    """Qwen3-ASR computes on these devices: `cpu`, `cuda` or `cuda:1`. If there are none, it takes every GPU of this
    machine, or the CPU. Whisper takes the first of them, or a GPU if CTranslate2 can use one."""
    processes: Annotated[int, Meta(ge=0, le=64)] = 0
    """This many inference processes share the calls, on the devices in turn. When one of them dies, the others go on
    with its utterances at once. 0 means one for each device; Moonshine, which computes on the CPU, has one for every
    four cores."""
    threads: Reloadable[Annotated[int, Meta(ge=0, le=256)]] = 0
    """On the CPU the inference processes compute with this many threads, all together. With Moonshine, each recognises
    one utterance at a time. 0 means one less than the number of cores, or than the CPU limit of the container."""
    max_backlog_mb: Positive = 256
    """Audio of utterances that have no final yet takes at most this many MB of memory; beyond that, partials stop and
    audio is kept on disk."""
    max_spill_mb: Annotated[int, Meta(ge=0)] = 2048
    """Audio waiting on disk takes at most this many MB, in an unnamed file in `data_dir`; beyond that, utterances end
    with `failed`."""
    servers: Switch[tuple[str, ...]] = ()
    """Engine servers on these addresses recognise instead of this machine: `tcp://engines.example:9095`. A name may
    have several addresses, and is resolved again every 10 seconds. `asr.engine` and, for `qwen`, `asr.model` say which
    servers are taken; the other keys of this section that concern an engine are the server's own
    (docs/how-to/engine-servers.md)."""
    server_timeout_s: Reloadable[Annotated[float, Meta(ge=1, le=60)]] = 5.0
    """An engine server that gives no sign of life for this many seconds has its utterances taken over by others."""
    listen: str = ""
    """An engine server, `mediaworker engine`, listens on this address: `tcp://0.0.0.0:9095`. On an address other than
    loopback it needs the certificates of `[cluster]`."""
    url: Reloadable[str] = ""
    """The engine `openai` sends utterances to this server: `https://asr.example.com/v1`, without
    `/audio/transcriptions`. `asr.model` is the model's name there."""
    url_route: Reloadable[Literal["auto", "transcriptions", "chat"]] = "auto"
    """Utterances are sent to `/audio/transcriptions`, which every such server has, or to `/chat/completions`, which for
    Qwen3-ASR at vLLM tells the language and takes priorities; `auto` recognises that one."""
    url_key: Reloadable[Secret] = Secret("")
    """The server gets this API key, as `Authorization: Bearer`."""
    url_parallel: Reloadable[Annotated[int, Meta(ge=1, le=1000)]] = 16
    """At most this many requests are under way to the server, half of them for files."""
    url_timeout_s: Reloadable[Annotated[float, Meta(ge=1, le=600)]] = 30.0
    """The server has this many seconds for an answer. A request that fails is repeated once; a busy server is asked
    again for twice as long, for files twenty times."""
    url_partials: Reloadable[bool] = False
    """The server is asked for partials as well, each with everything that was said since the utterance began.
    `asr.partial_ms` must be at least 1000 then."""
    hang_s: Annotated[float, Meta(gt=0)] = 20.0
    """The inference process is replaced when it has work and does not answer for this many seconds."""
    start_timeout_s: Annotated[float, Meta(gt=0)] = 120.0
    """An engine that has not loaded its model after this many seconds has failed to start and is tried again."""
    word_timestamps: bool = False
    """Each final of a call is followed by the times of its words (`transcript.words`), in the languages that
    `asr.aligner` knows or, if the engine times words itself, in those of the engine. Files have them on request, with
    the engines `mixed` and `whisper` whatever this setting says."""
    words_wait_s: Seconds = 5.0
    """After the last final, the end of a call waits up to this many seconds for outstanding times of words."""
    aligner: str = "auto"
    """This model times the words if the engine does not. `auto` takes Qwen3-ForcedAligner-0.6B if its weights are on
    this machine, and otherwise `whisper`, which is the model of `asr.whisper_model`; the name of another model of that
    kind, or its folder, selects that one. Qwen's takes as much memory as the smaller recogniser."""

    def check(self, key: str) -> None:
        for name, address in (
            *((f"{key}.servers[{index}]", each) for index, each in enumerate(self.servers)),
            *([(f"{key}.listen", self.listen)] if self.listen else []),
        ):
            check_tcp(name, address)
        if self.url:
            check_url(f"{key}.url", self.url)
            if self.engine != "openai":
                raise ConfigError(f"{key}.url", self.url, f"is used with {key}.engine = 'openai' alone")
        if self.url_partials and self.partial_ms < 1000:
            raise ConfigError(f"{key}.partial_ms", self.partial_ms, f"must be at least 1000 with {key}.url_partials")
        check_unique(f"{key}.servers[]", self.servers, "this server is named twice")
        check_unique(f"{key}.languages[]", self.languages, "this language is named twice")
        if not self.languages:
            raise ConfigError(f"{key}.languages", [], "names no language; use {key}.language to force one")


class Qwen(Section, frozen=True, kw_only=True):
    """The engine Qwen3-ASR: where it runs, and how much it does at once."""

    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """The model computes in this precision; `auto` means bfloat16 on a GPU, or float16 on one without it, and on a
    CPU that has instructions for it; elsewhere, and for small models on any CPU, float32."""
    graphs: bool = True
    """A GPU replays recorded sequences of kernels (CUDA graphs) instead of launching each kernel, at the cost of some
    memory and seconds of warm-up."""
    slots: Annotated[int, Meta(ge=0, le=4096)] = 0
    """Keys and values are kept for this many utterances of full length (1,024 positions), or for more shorter ones;
    those of files are dropped first and computed again when needed. 0 means as many as fit into half of a GPU's free
    memory, or into a sixteenth of the machine's, up to 32."""
    batch: Annotated[int, Meta(ge=0, le=1024)] = 0
    """One step serves at most this many requests. 0 means one for each slot, up to 32, or, on a GPU with more than 32
    slots, half the number of slots up to 128."""
    batch_tokens: Annotated[int, Meta(ge=16, le=8192)] = 128
    """Files take at most this many positions of one step, which bounds how long a live request waits."""
    experimental: tuple[Literal["int8", "fp8", "short_windows"], ...] = ()
    """Faster ways to compute, of which nobody has counted the word errors with published weights. `int8` and `fp8`
    store linear layers in 8 bits, half the memory of 16: `int8` on a CPU or any NVIDIA GPU, `fp8` on a GPU from Ada or
    Hopper on. `short_windows` encodes audio in windows of 2 s instead of 8."""

    @property
    def quantise(self) -> Literal["none", "int8", "fp8"]:
        return "int8" if "int8" in self.experimental else "fp8" if "fp8" in self.experimental else "none"

    def check(self, key: str) -> None:
        if {"int8", "fp8"} <= set(self.experimental):
            raise ConfigError(f"{key}.experimental", list(self.experimental), "has int8 and fp8; take one of them")
