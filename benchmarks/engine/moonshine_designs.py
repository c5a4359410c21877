"""Moonshine and the usual ways to use it, measured side by side with the same arrivals.

Imports onnxruntime: loaded only when the engine is measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from asr.engines.interface import Answer
from asr.engines.moonshine.engine import MoonshineEngine
from asr.engines.moonshine.model import Model
from asr.engines.shown import plain
from asr.inference.inference import Inference
from asr.messages import Append, FinalRequest, Heard, Open
from asr.scheduling.request import Request
from asr.utterance import Utterance
from benchmarks.engine.arrivals import Clock, Run, changed, lanes, per
from benchmarks.engine.moonshine_usual import Package, Refeed
from benchmarks.engine.plan import CODES_PER_MS
from benchmarks.engine.spent import Meter, Metered, Spent
from benchmarks.engine.talk import requests, talk

SEED = 1
ENGINE = "engine"
PARTIALS = ("first_partial", "partial")


class MeteredEngine(MoonshineEngine):
    """The engine as it is. Those who share a step share its time alike."""

    def __init__(self, model: Model, threads: int) -> None:
        super().__init__(model, threads)
        self.meter = Meter()

    def step(self, requests: Sequence[Request]) -> list[Answer]:
        self.meter.spent = {request.utterance_id: Spent() for request in requests}
        return super().step(requests)


class Designs:
    """See the module."""

    def __init__(self, folder: Path, *, threads: int, refeed: bool, package: bool) -> None:
        """`refeed`, `package`: which of the usual designs are measured as well."""
        model = Model(folder)
        self._reference = Inference(MoonshineEngine(model, 1))
        self._known: dict[bytes, str] = {}
        designs: list[Metered] = [MeteredEngine(model, threads)]
        if refeed:
            designs.append(Refeed(model))
        if package:
            designs.append(Package(folder))
        for design in designs:
            design.warm_up()
        self._designs = {ENGINE if design is designs[0] else design.name: design for design in designs}

    def measure(
        self, calls: int, seconds: float, audio: Sequence[bytes], *, partial_ms: int, cpu_clock: bool
    ) -> list[dict[str, Any]]:
        """A row for each design, all with the same arrivals. `audio`: clips in µ-law."""
        coming = requests(talk(audio, people=calls, seconds=seconds, seed=SEED), partial_ms=partial_ms, seconds=seconds)
        rows: list[dict[str, Any]] = []
        for name, design in self._designs.items():
            run = Run(design, coming, iter(()), seconds, Clock(cpu=cpu_clock))
            run.run()
            clock = "cpu" if cpu_clock else "real"
            row = {"design": name, "calls": calls, "seconds": seconds, "partial_ms": partial_ms, "clock": clock}
            rows.append(row | self._figures(run))
        for row in rows:
            row["ratio"] = round(row["cpu_s_per_audio_s"] / rows[0]["cpu_s_per_audio_s"], 2)
        return rows

    def _figures(self, run: Run) -> dict[str, Any]:
        tally = run.tally
        found = lanes(tally)
        asked, replaced = (sum(found[lane][of] for lane in PARTIALS) for of in ("asked", "replaced"))
        audio_s = sum(map(len, tally.audio.values())) / CODES_PER_MS / 1000
        # As a reader would say it: a comma that goes is no word that was taken back.
        shown = [[" ".join(map(plain, text.split())) for text in tally.shown[name]] for name in tally.finals]
        equal = sum(tally.shown[name][-1] == self._whole(tally.audio[name]) for name in tally.finals)
        return {
            "lanes": {name: found[name] for name in ("final", *PARTIALS)},
            "partials_answered": per(asked - replaced, asked),
            "audio_s": round(audio_s, 2),
            "cpu_s_per_audio_s": per(sum(tally.cpu_s.values()), audio_s),
            "cpu_ms_per_partial": per(1000 * tally.cpu_s["partial"], tally.answers["partial"]),
            "cpu_ms_per_final": per(1000 * tally.cpu_s["final"], tally.answers["final"]),
            "busy_s": round(run.clock.busy_s, 2),
            "virtual_s": round(run.clock.now, 2),
            "finals": len(tally.finals),
            "finals_equal": per(equal, len(tally.finals)),
            "partials_changed": per(sum(map(changed, shown)), sum(len(texts) - 1 for texts in shown)),
        }

    def _whole(self, codes: bytes) -> str:
        """What the engine says of an utterance of which it is asked nothing before."""
        if codes not in self._known:
            name, inference = f"whole/{len(self._known)}", self._reference
            inference.receive(Open(Utterance(name, "PCMU", live=False)), 0.0)
            inference.receive(Append(name, 0, codes), 0.0)
            inference.receive(FinalRequest(name, 1, len(codes), commit=True), 0.0)
            while (work := inference.choose()) is not None:
                for message in inference.perform(work):
                    if isinstance(message, Heard):
                        self._known[codes] = message.hypothesis.text
        return self._known[codes]
