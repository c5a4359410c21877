"""The try-out engine: PocketSphinx with the English model inside its wheel. Needs no download and no GPU, and is poor.

Deterministic by construction: the state after n frames depends on those n frames alone.
- A decoder hears an utterance in steps of exactly one 10 ms frame counted from its start, because the running cepstral
  mean is updated once per call. What is shorter at the end (10 ms of silence at most) is not heard.
- The cepstral mean and the noise tracker start from the same values for every utterance.
- The search for the best Gaussians of a frame begins with those of the frame before, also across utterances, and ties
  make that visible. So a decoder hears 200 ms of the same noise first, and scores all senones, so that none keeps what
  it knew before.

A final is read like a partial: the best path of the first pass as it stands, *without ending the decoder's utterance*.
So speech may go on after a speculative final without decoding it all again, and a final costs nothing once its audio
has been heard. Ending it would allow rescoring the word lattice (on 14 prompts 50 % WER instead of 57 % at 8 kHz, 15 %
instead of 14 % in wideband) and a second pass (no gain, up to 1.5 s with the GIL held). The lattice of an utterance
that has not ended must not be touched, `nbest` included: it reads a frame index that is not written yet, and crashes.

The cepstral mean starts from the mean of those 14 prompts; the model's own start value costs 20 points and more.
8 kHz becomes 16 kHz by repeating samples: the images fill 4 to 8 kHz, where the model expects something.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pocketsphinx

from asr.engine import Answer, Capabilities, EngineError
from asr.samples import RATE_HZ, decode
from asr.scheduler import Request
from asr.utterance import BYTES_PER_S, Utterance

FRAME_MS = 10
SLICE_FRAMES = 20
"""200 ms of audio, 40 to 80 ms of computing: how long something more urgent may have to wait."""
MODEL_RATE_HZ = 16000
_FRAME_BYTES = MODEL_RATE_HZ * 2 * FRAME_MS // 1000
_CEPSTRAL_MEAN = {
    8000: "57.6,7.5,9.1,5.2,5.8,-4.9,-0.7,-2.3,2.1,0.3,-8.0,-2.3,-0.7",
    16000: "58.0,7.7,11.0,10.7,2.3,6.0,-5.1,5.8,3.7,1.6,-3.1,-2.5,2.2",
}
_SAME_NOISE = np.random.RandomState(7).randint(-3000, 3000, MODEL_RATE_HZ // 5).astype("<i2").tobytes()


@dataclass(slots=True)
class _Spoken:
    utterance: Utterance
    audio: bytearray = field(default_factory=bytearray)
    frames: int = 0
    """Heard by `decoder`."""
    decoder: Any = None

    @property
    def frame_bytes(self) -> int:
        return BYTES_PER_S[self.utterance.format] * FRAME_MS // 1000


class PocketSphinxEngine:
    """A pool of at most `decoders` decoders (92 MB each, made when first needed), each owned by one utterance.

    The first live utterances own one from their first audio to their end: they get partials, and their finals are ready
    at once. Finals of the others wait for a free one. Batch has one decoder at most, and gives it up for live speech if
    it is the last: the work on that utterance starts over.
    """

    name = "pocketsphinx"
    capabilities = Capabilities(speculative=True, languages=("en",))

    def __init__(self, decoders: int) -> None:
        assert decoders > 0
        self._limit = decoders
        self._made = 0
        self._free: list[Any] = []
        self._open: dict[str, _Spoken] = {}

    def warm_up(self) -> None:
        if not self._made:
            self._free.append(self._make())

    def open(self, utterance: Utterance) -> None:
        assert utterance.id not in self._open, f"{utterance.id} is open"
        self._open[utterance.id] = _Spoken(utterance)

    def append(self, utterance_id: str, audio: bytes) -> None:
        self._open[utterance_id].audio += audio

    def close(self, utterance_id: str) -> None:
        self._release(self._open.pop(utterance_id))

    def runnable(self, request: Request) -> bool:
        spoken = self._open[request.utterance_id]
        if spoken.decoder is not None:
            return True
        if not request.final and spoken.utterance.live:
            # A partial is no reason to take a decoder that a waiting final could have: owners get theirs by `ahead`.
            return False
        return self._available(spoken)

    def step(self, requests: Sequence[Request]) -> list[Answer]:
        (request,) = requests
        spoken = self._open[request.utterance_id]
        if spoken.decoder is None:
            self._acquire(spoken)
        target = min(request.end, len(spoken.audio)) // spoken.frame_bytes
        if request.final and spoken.frames > target:
            # It has heard more than this final may know.
            spoken.decoder.end_utt()
            self._start(spoken)
        self._hear(spoken, target)
        if spoken.frames < target:
            return []
        return [Answer(request, _text(spoken.decoder), "en")]

    def ahead(self) -> tuple[str, ...]:
        """If a decoder is free, the first live utterance that has none; else the owner that is furthest behind."""
        behind: dict[str, int] = {}
        for name, spoken in self._open.items():
            unheard = len(spoken.audio) // spoken.frame_bytes - spoken.frames
            if unheard <= 0 or not spoken.utterance.live:
                continue
            if spoken.decoder is not None:
                behind[name] = unheard
            elif self._available(spoken):
                return (name,)
        return (max(behind, key=behind.__getitem__),) if behind else ()

    def feed(self, utterance_ids: tuple[str, ...]) -> None:
        for name in utterance_ids:
            spoken = self._open[name]
            if spoken.decoder is None:
                self._acquire(spoken)
            self._hear(spoken, len(spoken.audio) // spoken.frame_bytes)

    # -- decoders ---------------------------------------------------------------------------------------------------

    def _available(self, spoken: _Spoken) -> bool:
        batch_owner = self._batch_owner()
        if not spoken.utterance.live:
            return batch_owner is None and (bool(self._free) or self._made < self._limit)
        return bool(self._free) or self._made < self._limit or batch_owner is not None

    def _batch_owner(self) -> _Spoken | None:
        for spoken in self._open.values():
            if spoken.decoder is not None and not spoken.utterance.live:
                return spoken
        return None

    def _acquire(self, spoken: _Spoken) -> None:
        if not self._free and self._made < self._limit:
            self._free.append(self._make())
        if not self._free:
            owner = self._batch_owner()
            assert owner is not None, "a step on a request that is not runnable"
            self._release(owner)
        spoken.decoder = self._free.pop()
        self._start(spoken)

    def _make(self) -> Any:
        # One pass: the second one and the lattice rescoring run only when an utterance is ended, which has no use here.
        decoder = pocketsphinx.Decoder(
            loglevel="FATAL", fwdflat=False, bestpath=False, compallsen=True, samprate=MODEL_RATE_HZ
        )
        self._made += 1
        return decoder

    def _release(self, spoken: _Spoken) -> None:
        if spoken.decoder is None:
            return
        spoken.decoder.end_utt()
        self._free.append(spoken.decoder)
        spoken.decoder, spoken.frames = None, 0

    def _start(self, spoken: _Spoken) -> None:
        """Begin at the first sample, with nothing remembered from before."""
        decoder, mean = spoken.decoder, _CEPSTRAL_MEAN[RATE_HZ[spoken.utterance.format]]
        _begin(decoder, mean)
        _process(decoder, _SAME_NOISE)
        decoder.end_utt()
        _begin(decoder, mean)
        spoken.frames = 0

    def _hear(self, spoken: _Spoken, target: int) -> None:
        """Decode frames up to `target`, at most one slice."""
        target = min(target, spoken.frames + SLICE_FRAMES)
        if target <= spoken.frames:
            return
        size = spoken.frame_bytes
        samples = decode(spoken.utterance.format, bytes(spoken.audio[spoken.frames * size : target * size]))
        if RATE_HZ[spoken.utterance.format] < MODEL_RATE_HZ:
            samples = np.repeat(samples, MODEL_RATE_HZ // RATE_HZ[spoken.utterance.format])
        try:
            _process(spoken.decoder, samples.tobytes())
        except RuntimeError as error:
            # The decoder's state is unknown: a new one takes its place.
            spoken.decoder, spoken.frames = None, 0
            self._made -= 1
            raise EngineError(spoken.utterance.id, f"pocketsphinx: {error}") from error
        spoken.frames = target


def _begin(decoder: Any, cepstral_mean: str) -> None:
    with warnings.catch_warnings():
        # "Unnecessary", it says; but nothing else resets the noise tracker, which outlives utterances.
        warnings.simplefilter("ignore", DeprecationWarning)
        decoder.start_stream()
    decoder.set_cmn(cepstral_mean)
    decoder.start_utt()


def _process(decoder: Any, data: bytes) -> None:
    for at in range(0, len(data), _FRAME_BYTES):
        decoder.process_raw(data[at : at + _FRAME_BYTES])


def _text(decoder: Any) -> str:
    hypothesis = decoder.hyp()
    return hypothesis.hypstr if hypothesis else ""
