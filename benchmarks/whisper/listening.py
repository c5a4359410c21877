"""Recognises with an engine as the worker does, and keeps what its networks said on the way."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from asr.engines.moonshine.engine import MoonshineEngine
from asr.engines.speech import SpeechDetector
from asr.engines.whisper import plugin
from asr.engines.whisper.model import Call, Decode, Decoded, Encode, WhisperModel
from asr.samples import Wideband
from asr.utterance import Utterance
from benchmarks.offline import recognize
from config.settings import Asr, Settings

Row = dict[str, Any]
ENGINES = ("whisper", "mixed", "moonshine")
_ids = count()


@dataclass(frozen=True)
class Heard:
    """What came of a piece of audio."""

    text: str
    """Of the final, as it is shown."""
    language: str
    decoded: Decoded | None
    """Whisper's last answer, with the figures that its guards look at; None when it was not asked."""
    moonshine: float | None
    """The mean logarithm of the probabilities of Moonshine's tokens; None when it was not asked."""


def parser(module: str, only: Sequence[str], about: str) -> argparse.ArgumentParser:
    """The options of both measurements. `only`: the parts that may be measured alone, which `about` explains."""
    made = argparse.ArgumentParser(prog=f"python -m {module}")
    made.add_argument("--only", choices=only, help=about)
    made.add_argument("--json", type=Path, metavar="FILE", help="every answer")
    made.add_argument("--table", type=Path, metavar="FILE", help="the tables of such a file, and nothing else")
    return made


def answers(args: argparse.Namespace, measured: Iterable[Row]) -> list[Row]:
    """The rows of the file that `--table` names, or those that are measured now, each kept as soon as it is there."""
    if args.table:
        return [json.loads(line) for line in args.table.read_text().splitlines()]
    rows = []
    with open(args.json or os.devnull, "a", encoding="utf-8") as file:
        for row in measured:
            rows.append(row)
            print(json.dumps(row, ensure_ascii=False), file=file, flush=True)
    return rows


@dataclass
class Listener:
    """The engines with the same networks. A call that was made before is not made again: engines and languages differ
    in few of them."""

    _made: dict[Any, Any] = field(default_factory=dict)
    _decoded: list[Decoded] = field(default_factory=list)
    _likelihoods: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        model = plugin.load_model(replace(Asr(), threads=1))
        self._perform = model.perform
        setattr(model, "perform", self._remembered)  # noqa: B010 - an instance's own
        self._model: WhisperModel = model
        self._detector = SpeechDetector()
        asked = MoonshineEngine.likelihood

        def likelihood(engine: MoonshineEngine, utterance_id: str) -> float:
            self._likelihoods.append(asked(engine, utterance_id))
            return self._likelihoods[-1]

        setattr(MoonshineEngine, "likelihood", likelihood)  # noqa: B010

    def forget(self) -> None:
        """Before the next audio."""
        self._made.clear()

    def speaks(self, codes: bytes) -> bool:
        """Whether voice activity detection finds speech in it."""
        return self._detector.first(Wideband("PCMU").feed(codes)) is not None

    def hear(self, engine: str, codes: bytes, language: str = "", context: str = "") -> Heard:
        """The final about all of this µ-law, past voice activity detection."""
        self._decoded.clear()
        self._likelihoods.clear()
        utterance = Utterance(f"u{next(_ids)}", "PCMU", language, context, live=False)
        with _no_detector():
            found = recognize(Settings(asr=Asr(engine=engine)), utterance, codes)
        last = self._decoded[-1] if self._decoded else None
        return Heard(found.text, found.language, last, self._likelihoods[-1] if self._likelihoods else None)

    def _remembered(self, calls: Sequence[Call]) -> list[Any]:
        (call,) = calls
        match call:
            case Encode(samples, frames):
                key: Any = ("encode", samples.tobytes(), frames)
            case Decode(sound, language, beam, context):
                key = ("decode", id(sound), language, beam, context)
            case _:
                key = ("detect", id(call.sound))
        if key not in self._made:
            (self._made[key],) = self._perform(calls)
        if isinstance(call, Decode):
            self._decoded.append(self._made[key])
        return [self._made[key]]


@contextmanager
def _no_detector() -> Iterator[None]:
    own = SpeechDetector.first
    SpeechDetector.first = lambda detector, samples: 0  # type: ignore[method-assign]
    try:
        yield
    finally:
        SpeechDetector.first = own  # type: ignore[method-assign]
