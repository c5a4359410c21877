"""The usual ways to use the same model: everything anew for each answer, and the streaming transcriber of its package.

Both stand behind the same scheduler and the same clean-up as the engine, so that only the recognition differs. Imports
onnxruntime: loaded only when the engine is measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from asr.engines.interface import Answer, Capabilities
from asr.engines.moonshine import answers
from asr.engines.moonshine.model import END, RATE_HZ, Model
from asr.samples import Wideband
from asr.scheduling.request import Request
from asr.utterance import Utterance
from benchmarks.engine.spent import Meter, Spent


class Refeed:
    """All that has been heard is encoded and decoded token by token, for each partial and each final."""

    name = "re-feed"
    capabilities = Capabilities()

    def __init__(self, model: Model) -> None:
        self.meter = Meter()
        self._model = model
        self._open: dict[str, tuple[Utterance, bytearray]] = {}

    def open(self, utterance: Utterance) -> None:
        self._open[utterance.id] = (utterance, bytearray())

    def append(self, utterance_id: str, audio: bytes) -> None:
        self._open[utterance_id][1].extend(audio)

    def close(self, utterance_id: str) -> None:
        del self._open[utterance_id]

    def runnable(self, request: Request) -> bool:
        return True

    def step(self, requests: Sequence[Request]) -> list[Answer]:
        (request,) = requests
        self.meter.spent = {request.utterance_id: Spent()}
        utterance, data = self._open[request.utterance_id]
        samples = Wideband(utterance.format).feed(bytes(data[: request.end]))
        audio, limit, tokens = self._model.encode(samples), answers.longest(len(samples)), list[int]()
        logits, cache = self._model.begin(audio, ())
        while (token := int(logits[-1].argmax())) != END and len(tokens) < limit:
            tokens.append(token)
            logits, cache = self._model.advance(audio, [token], cache)
        return [Answer(request, self._model.tokens.text(tokens), "en")]

    def warm_up(self) -> None:
        self._model.begin(self._model.encode(np.zeros(RATE_HZ, np.float32)), ())


class Package:
    """The package's `Transcriber`, a stream for each utterance.

    It has a VAD and cuts lines by itself, and computes the line that is not complete anew whenever it is asked. It is
    asked when an answer is wanted, and not every half a second by itself. It gets its samples at 16 kHz, and is told
    not to give them back, which would cost more than all the rest.
    """

    capabilities = Capabilities()

    def __init__(self, folder: Path) -> None:
        """Raises ImportError when what the package needs is not installed."""
        moonshine_voice = import_module("moonshine_voice")
        self.name = f"moonshine-voice {version('moonshine-voice')}"
        self.meter = Meter()
        self._force = moonshine_voice.Transcriber.MOONSHINE_FLAG_FORCE_UPDATE
        self._transcriber = moonshine_voice.Transcriber(
            str(folder), moonshine_voice.ModelArch.TINY, update_interval=1e9, options={"return_audio_data": "false"}
        )
        self._open: dict[str, tuple[Wideband, Any]] = {}

    def open(self, utterance: Utterance) -> None:
        stream = self._transcriber.create_stream()
        stream.start()
        self._open[utterance.id] = (Wideband(utterance.format), stream)

    def append(self, utterance_id: str, audio: bytes) -> None:
        wideband, stream = self._open[utterance_id]
        stream.add_audio(wideband.feed(audio).tolist(), RATE_HZ)

    def close(self, utterance_id: str) -> None:
        self._open.pop(utterance_id)[1].close()

    def runnable(self, request: Request) -> bool:
        return True

    def step(self, requests: Sequence[Request]) -> list[Answer]:
        (request,) = requests
        self.meter.spent = {request.utterance_id: Spent()}
        transcript = self._open[request.utterance_id][1].update_transcription(self._force)
        return [Answer(request, " ".join(line.text.strip() for line in transcript.lines), "en")]

    def warm_up(self) -> None:
        self.open(Utterance("warm-up", "PCMU"))
        self.append("warm-up", bytes(8000))
        self._open["warm-up"][1].update_transcription(self._force)
        self.close("warm-up")
