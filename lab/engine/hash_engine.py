"""An engine whose answer is a hash of what it has heard, and the two sides of a recognizer without a process."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from hashlib import sha1

from asr import messages
from asr.client.outstanding import OutstandingWork
from asr.client.recognizer import Hypothesis, Utterance
from asr.client.spill import Spill
from asr.engines.aligner import AlignRequest
from asr.engines.interface import Answer, Capabilities, EngineError
from asr.inference.inference import Inference
from asr.scheduling.request import Request
from asr.utterance import TimedWord
from config.process import framing


class HashEngine:
    """Three requests a step, 100 bytes of each; chokes on audio that holds a 0xEE."""

    name = "hash"
    capabilities = Capabilities(batch=3)

    def __init__(self) -> None:
        self.audio: dict[str, bytearray] = {}
        self.heard: dict[str, int] = {}

    def open(self, utterance: Utterance) -> None:
        self.audio[utterance.id], self.heard[utterance.id] = bytearray(), 0

    def append(self, utterance_id: str, audio: bytes) -> None:
        self.audio[utterance_id] += audio

    def close(self, utterance_id: str) -> None:
        del self.audio[utterance_id], self.heard[utterance_id]

    def runnable(self, request: Request) -> bool:
        return True

    def step(self, requests: Sequence[Request]) -> list[Answer]:
        assert 0 < len(requests) <= 3 and len({r.utterance_id for r in requests}) == len(requests)
        answers = []
        for request in requests:
            name = request.utterance_id
            self.heard[name] = max(self.heard[name], min(request.end, self.heard[name] + 100))
            if 0xEE in self.audio[name][: self.heard[name]]:
                raise EngineError(name, "cannot stand it")
            if self.heard[name] >= request.end:
                answers.append(Answer(request, text_of(bytes(self.audio[name][: request.end])), "en"))
        return answers

    def warm_up(self) -> None: ...


def text_of(audio: bytes) -> str:
    return f"{len(audio)} {sha1(audio).hexdigest()[:8]}"


class HashAligner:
    """One word, of what it heard and read; chokes on audio that holds a 0xDD."""

    languages = ("en", "zh")
    longest_s, together_s = 180.0, 30.0

    def __init__(self) -> None:
        self.steps: list[list[AlignRequest]] = []

    def align(self, spoken: Sequence[AlignRequest]) -> list[tuple[TimedWord, ...]]:
        self.steps.append(list(spoken))
        if any(0xDD in each.audio for each in spoken):
            raise ValueError("cannot stand it")
        return [words_of(each.audio, each.text) for each in spoken]

    def warm_up(self) -> None: ...


def words_of(audio: bytes, text: str) -> tuple[TimedWord, ...]:
    return (TimedWord(sha1(audio + text.encode()).hexdigest()[:8], 0, len(audio), 1.0),)


class Pair:
    """Outstanding work and, on the other side, an inference that can die at any moment."""

    def __init__(
        self,
        max_bytes: int = 1 << 20,
        max_spill: int = 1 << 20,
        folder: str = tempfile.gettempdir(),
        engine: type[HashEngine] = HashEngine,
    ) -> None:
        self.engine = engine
        self.spill = Spill(folder, max_bytes=max_spill, block_bytes=64)
        self.outstanding = OutstandingWork(max_bytes=max_bytes, spill=self.spill)
        self.queue = self.outstanding.add_queue()
        self.start()
        self.got: dict[str, list[Hypothesis]] = {}

    def start(self) -> None:
        self.inference = Inference(self.engine())
        self.outstanding.on_queue_ready(self.queue)

    def open(self, name: str, *, live: bool = True) -> None:
        self.got.setdefault(name, [])
        self.outstanding.open(Utterance(name, "PCMU", live=live), self.got[name].append)

    def send(self, count: int = 1 << 30) -> None:
        while count and (message := self.queue.next_message()) is not None:
            body = framing.encode(message)[4:]
            self.inference.receive(messages.decode_to_engine(body), 0.0)
            count -= 1

    def work(self, count: int = 1 << 30, *, die: bool = False) -> None:
        while count and (work := self.inference.choose()) is not None:
            self.queue.working = (*self.inference.begun, *work.utterance_ids)
            if die and count == 1:
                self.die()
                return
            for message in self.inference.perform(work):
                self.receive(message)
            count -= 1
        self.queue.working = ()

    def receive(self, message: messages.FromEngine) -> None:
        match message:
            case messages.Heard():
                self.outstanding.on_hypothesis(self.queue, message.hypothesis)
            case messages.Words():
                self.outstanding.on_alignment(self.queue, message.alignment)
        self.deliver()

    def deliver(self) -> None:
        for callback, answer in self.outstanding.take_deliveries():
            callback(answer)

    def die(self) -> None:
        self.outstanding.on_queue_death(self.queue, "it died")
        self.deliver()
        self.start()

    def finals(self, name: str) -> list[Hypothesis]:
        return [hypothesis for hypothesis in self.got[name] if hypothesis.final]
