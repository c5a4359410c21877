"""Messages in, messages out: what the inference process does when its engine refuses, fails or runs out of memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from asr import messages
from asr.engines.interface import Answer, Capabilities, Collect, EngineError, EngineExhausted
from asr.inference.inference import PASSED_OVER, Inference
from asr.messages import FromEngine
from asr.scheduling.request import Request
from asr.utterance import Utterance
from audio.codecs.g711 import ulaw_encode
from lab.media.speech import speech

CODES = bytes(ulaw_encode(speech("demo-congrats")))[:8000]


class Engine:
    """Says how much it has heard, unless `fault` raises."""

    name = "counting"

    def __init__(self, capabilities: Capabilities | None = None) -> None:
        self.capabilities = capabilities or Capabilities(batch=4)
        self.heard: dict[str, int] = {}
        self.steps: list[list[str]] = []
        self.fault: Callable[[Sequence[Request]], None] = lambda requests: None

    def open(self, utterance: Utterance) -> None:
        self.heard[utterance.id] = 0

    def append(self, utterance_id: str, audio: bytes) -> None:
        self.heard[utterance_id] += len(audio)

    def close(self, utterance_id: str) -> None:
        del self.heard[utterance_id]

    def runnable(self, request: Request) -> bool:
        return True

    def step(self, requests: Sequence[Request]) -> list[Answer]:
        self.steps.append([request.utterance_id for request in requests])
        self.fault(requests)
        return [Answer(request, f"{self.heard[request.utterance_id]} bytes", "en") for request in requests]

    def warm_up(self) -> None: ...


class Pipelined(Engine):
    """What it has launched is computed when it is collected."""

    def launch(self, requests: Sequence[Request]) -> Collect:
        return lambda: self.step(requests)


def opened(inference: Inference, *names: str, live: bool = True) -> None:
    for name in names:
        inference.receive(messages.Open(Utterance(name, "PCMU", live=live)), 0.0)
        inference.receive(messages.Append(name, 0, CODES), 0.0)


def done(inference: Inference, now: float = 10.0) -> list[FromEngine]:
    found: list[FromEngine] = []
    while (work := inference.choose(now)) is not None:
        found += inference.perform(work, now)
    return found


def heard(found: list[FromEngine]) -> dict[str, tuple[str, str | None]]:
    answers = [message.hypothesis for message in found if isinstance(message, messages.Heard)]
    return {answer.utterance_id: (answer.text, answer.error) for answer in answers}


def test_a_partial_and_a_final() -> None:
    engine = Engine()
    inference = Inference(engine)
    opened(inference, "a")
    inference.receive(messages.PartialRequest("a", 1, 4000), 1.0)
    (partial,) = done(inference, 1.5)
    assert isinstance(partial, messages.Heard)
    assert (partial.hypothesis.revision, partial.hypothesis.final, partial.hypothesis.queue_s) == (1, False, 0.5)
    assert partial.hypothesis.stable_chars == 0, "nothing has been shown before"
    inference.receive(messages.FinalRequest("a", 2, 8000, commit=True), 2.0)
    (final,) = done(inference, 2.0)
    assert isinstance(final, messages.Heard) and final.hypothesis.final and final.hypothesis.text == "8000 bytes"
    assert final.hypothesis.stable_chars == len("8000 bytes") and not engine.heard, "committed and closed"
    inference.receive(messages.Append("a", 8000, CODES), 3.0)
    inference.receive(messages.FinalRequest("a", 3, 8000, commit=True), 3.0)
    inference.receive(messages.Withdraw("a"), 3.0)
    inference.receive(messages.CloseUtterance("a"), 3.0)
    assert done(inference) == [], "what crosses with the end is ignored"


def test_an_engine_that_gives_up_one_utterance_goes_on_with_the_others() -> None:
    engine = Engine()
    inference = Inference(engine)
    opened(inference, "a", "b", "c")
    for name in "abc":
        inference.receive(messages.FinalRequest(name, 1, 8000, commit=True), 0.0)

    def fault(requests: Sequence[Request]) -> None:
        if any(request.utterance_id == "b" for request in requests):
            raise EngineError("b", "cannot go on")

    engine.fault = fault
    found = heard(done(inference))
    assert found == {"a": ("8000 bytes", None), "b": ("", "cannot go on"), "c": ("8000 bytes", None)}
    assert engine.steps == [["a", "b", "c"], ["a", "c"]] and not engine.heard


def test_audio_beyond_what_the_engine_takes() -> None:
    engine = Engine(Capabilities(batch=4, longest_s=0.75))
    inference = Inference(engine)
    opened(inference, "a", "b")
    inference.receive(messages.Append("b", 8000, CODES), 0.0)
    assert engine.heard == {"a": 6000, "b": 6000}
    inference.receive(messages.PartialRequest("a", 1, 8000), 0.0)
    assert done(inference) == [], "no partial of more than it takes"
    inference.receive(messages.FinalRequest("a", 2, 8000, commit=True), 0.0)
    inference.receive(messages.FinalRequest("b", 2, 6000, commit=True), 0.0)
    found = done(inference)
    assert heard(found)["b"] == ("6000 bytes", None)
    text, error = heard(found)["a"]
    assert text == "" and error == (
        "the engine counting takes 0.75 s of audio, and the utterance has 1.00 s: lower "
        "endpointing.<profile>.max_utterance_s"
    )
    refused = {
        each.hypothesis.utterance_id: each.hypothesis.refused for each in found if isinstance(each, messages.Heard)
    }
    assert refused == {"a": True, "b": False}


def test_an_engine_without_partials_is_asked_for_none() -> None:
    inference = Inference(Engine(Capabilities(partials=False)))
    opened(inference, "a")
    inference.receive(messages.PartialRequest("a", 1, 8000), 0.0)
    assert inference.choose(1.0) is None


def test_out_of_memory_is_tried_again_with_less() -> None:
    engine = Engine()
    inference = Inference(engine)
    opened(inference, "a", "b", "c")
    opened(inference, "f", live=False)
    inference.receive(messages.FinalRequest("a", 1, 8000, commit=True), 0.0)
    inference.receive(messages.PartialRequest("b", 1, 8000), 0.0)
    inference.receive(messages.FinalRequest("c", 1, 8000, commit=True), 0.0)
    inference.receive(messages.FinalRequest("f", 1, 8000, commit=True), 0.0)

    def fault(requests: Sequence[Request]) -> None:
        if len(requests) > 1:
            raise EngineExhausted("no room")

    engine.fault = fault
    found = done(inference)
    assert heard(found) == {name: ("8000 bytes", None) for name in "acf"}
    dropped = [message for message in found if isinstance(message, messages.Dropped)]
    assert sum(each.partials for each in dropped) == 1 and sum(each.exhausted for each in dropped) == 3
    assert sorted(engine.steps[0]) == ["a", "b", "c", "f"] and sorted(engine.steps[1]) == ["a", "b", "c"]
    assert sorted(engine.steps[2]) == ["a", "c"] and len(engine.steps) == 6

    def always(requests: Sequence[Request]) -> None:
        raise EngineExhausted("no room")

    engine.fault = always
    opened(inference, "d")
    inference.receive(messages.FinalRequest("d", 1, 8000, commit=True), 0.0)
    assert heard(done(inference)) == {"d": ("", "out of memory: no room")}


def test_a_suspect_shares_no_step() -> None:
    engine = Engine()
    inference = Inference(engine)
    opened(inference, "a", "b")
    inference.receive(messages.Open(Utterance("s", "PCMU"), suspect=True), 0.0)
    inference.receive(messages.Append("s", 0, CODES), 0.0)
    for name in "asb":
        inference.receive(messages.FinalRequest(name, 1, 8000, commit=True), 0.0)
    done(inference)
    assert sorted(map(sorted, engine.steps)) == [["a", "b"], ["s"]]


def test_a_suspect_that_waits_until_the_engine_is_free_does_not_delay_words() -> None:
    inference = Inference(Pipelined(Capabilities(batch=1, pipelined=True)))
    inference.receive(messages.Open(Utterance("said", "PCMU", words=True)), 0.0)
    inference.receive(messages.Append("said", 0, CODES), 0.0)
    inference.receive(messages.Align("said", 1, "hello", "en", len(CODES)), 0.0)
    for number in range(2 * PASSED_OVER):
        opened(inference, str(number))
        inference.receive(messages.PartialRequest(str(number), 1, len(CODES)), 0.0)
    steps: list[tuple[str, ...]] = []
    while (work := inference.choose()) is not None and not work.align:
        inference.perform(work)
        steps += [work.utterance_ids] if work.requests else []
        if len(steps) == 2 and work.requests:
            inference.receive(messages.Open(Utterance("suspect", "PCMU"), suspect=True), 0.0)
            inference.receive(messages.Append("suspect", 0, CODES), 0.0)
            inference.receive(messages.FinalRequest("suspect", 1, len(CODES), commit=True), 0.0)
    assert work is not None and work.utterance_ids == ("said",)
    assert steps[2] == ("suspect",) and len(steps) <= PASSED_OVER


def test_what_is_closed_is_neither_asked_nor_answered() -> None:
    inference = Inference(Engine())
    opened(inference, "a", "b")
    for name in "ab":
        inference.receive(messages.FinalRequest(name, 1, len(CODES), commit=True), 0.0)
    inference.receive(messages.CloseUtterance("a"), 0.0)
    inference.receive(messages.CloseUtterance("a"), 0.0)
    inference.receive(messages.Append("a", len(CODES), b"late"), 0.0)
    inference.receive(messages.PartialRequest("a", 2, len(CODES)), 0.0)
    assert len(inference.scheduler) == 1
    (heard,) = done(inference)
    assert isinstance(heard, messages.Heard) and heard.hypothesis.utterance_id == "b"
    assert not len(inference.scheduler) and inference.engine.heard == {}  # type: ignore[attr-defined]


def test_a_hypothesis_says_how_long_its_request_waited() -> None:
    inference = Inference(Engine())
    opened(inference, "a")
    inference.receive(messages.PartialRequest("a", 1, len(CODES)), 2.0)
    work = inference.choose(5.0)
    assert work is not None
    (heard,) = inference.perform(work, 5.5)
    assert isinstance(heard, messages.Heard) and heard.hypothesis.queue_s == 3.5


def test_a_partial_instead_of_one_that_waits_has_waited_as_long() -> None:
    inference = Inference(Engine())
    opened(inference, "a")
    for revision, asked_s in ((1, 1.0), (2, 1.5), (3, 2.0)):
        inference.receive(messages.PartialRequest("a", revision, len(CODES)), asked_s)
    (heard,) = done(inference, 2.25)
    assert isinstance(heard, messages.Heard) and heard.hypothesis.queue_s == 1.25
    inference.receive(messages.PartialRequest("a", 4, len(CODES)), 3.0)
    inference.receive(messages.FinalRequest("a", 5, len(CODES), commit=True), 3.5)
    (heard,) = done(inference, 4.0)
    assert isinstance(heard, messages.Heard) and heard.hypothesis.queue_s == 0.5, "a final begins to wait by itself"


def test_partials_that_wait_are_as_many_as_eight_steps_take_and_at_least_256() -> None:
    for batch, most in ((4, 256), (100, 800)):
        inference = Inference(Engine(Capabilities(batch=batch)))
        for number in range(most + 1):
            opened(inference, str(number))
            inference.receive(messages.PartialRequest(str(number), 1, 8), 0.0)
        assert (len(inference.scheduler), inference.scheduler.shed_partials) == (most, 1)


def test_a_suspect_file_has_its_turn_beside_calls_that_never_pause() -> None:
    """A step of calls is always under way at a pipelined engine: it waits once, for the suspect to be alone."""
    engine = Pipelined(Capabilities(batch=4, pipelined=True))
    inference = Inference(engine)
    opened(inference, "a", "b")
    inference.receive(messages.Open(Utterance("file", "PCMU", live=False), suspect=True), 0.0)
    inference.receive(messages.Append("file", 0, CODES), 0.0)
    inference.receive(messages.FinalRequest("file", 1, len(CODES), commit=True), 0.0)
    for revision in range(1, 4 * PASSED_OVER):
        inference.receive(messages.PartialRequest("ab"[revision % 2], revision, len(CODES)), 10.0)
        work = inference.choose(10.0)
        assert work is not None
        inference.perform(work, 10.0)
    assert [step for step in engine.steps if "file" in step] == [["file"]]
