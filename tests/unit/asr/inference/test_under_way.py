"""An engine that goes on computing between two steps: what it is at counts as under way, for whom a death proves
something and who may begin beside whom."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from asr import messages
from asr.engines.interface import Answer, Capabilities
from asr.inference.inference import Inference
from asr.messages import FromEngine
from asr.scheduling.request import Request
from asr.utterance import Utterance

CODES = bytes([0xFF]) * 8000


class Background:
    """Has one thread, so to speak: it computes on one utterance at a time, and needs so many calls for an answer. The
    test says when a call ends."""

    name = "background"

    def __init__(self, calls: int = 2, threads: int = 1) -> None:
        self.capabilities = Capabilities(batch=4)
        self.calls, self.threads = calls, threads
        self.open_: set[str] = set()
        self.running: list[str] = []
        """What the threads compute on."""
        self.made: dict[str, int] = {}
        """Utterance → its calls that have ended."""
        self.begun: list[str] = []
        """Whose calls were begun, in this order."""

    def open(self, utterance: Utterance) -> None:
        self.open_.add(utterance.id)

    def append(self, utterance_id: str, audio: bytes) -> None: ...

    def close(self, utterance_id: str) -> None:
        self.open_.remove(utterance_id)

    def runnable(self, request: Request) -> bool:
        return True

    def under_way(self) -> frozenset[str]:
        return frozenset(self.running) & self.open_

    def step(self, requests: Sequence[Request]) -> list[Answer]:
        for request in requests:
            name = request.utterance_id
            busy = name in self.running or len(self.running) == self.threads
            if not busy and self.made.get(name, 0) < self.calls:
                self.running.append(name)
                self.begun.append(name)
        return [
            Answer(request, "heard", "en")
            for request in requests
            if request.utterance_id not in self.running and self.made.get(request.utterance_id, 0) == self.calls
        ]

    def end_call(self) -> None:
        name = self.running.pop(0)
        self.made[name] = self.made.get(name, 0) + 1

    def warm_up(self) -> None: ...


def ask(inference: Inference, name: str, *, suspect: bool = False, live: bool = True, now: float = 0.0) -> None:
    inference.receive(messages.Open(Utterance(name, "PCMU", live=live, stream=name), suspect=suspect), now)
    inference.receive(messages.Append(name, 0, CODES), now)
    inference.receive(messages.FinalRequest(name, 1, len(CODES), commit=True), now)


def step(inference: Inference) -> list[FromEngine]:
    work = inference.choose(10.0)
    return [] if work is None else inference.perform(work, 10.0)


def heard(found: Sequence[FromEngine]) -> list[str]:
    return [message.hypothesis.utterance_id for message in found if isinstance(message, messages.Heard)]


def test_what_is_under_way_may_be_to_blame_between_two_steps() -> None:
    engine = Background()
    inference = Inference(engine)
    ask(inference, "a")
    assert inference.working == frozenset()
    step(inference)
    assert inference.working == {"a"} and inference.begun == frozenset()
    engine.end_call()
    assert inference.working == frozenset()


def test_a_suspect_begins_when_nothing_else_is_under_way_and_nothing_begins_beside_it() -> None:
    engine = Background(threads=2)
    inference = Inference(engine)
    ask(inference, "file", live=False)
    step(inference)
    ask(inference, "suspect", suspect=True)
    ask(inference, "call", now=1.0)
    for _ in range(3):
        assert heard(step(inference)) == []
    assert engine.begun == ["file"], "its death would prove nothing with the file's call under way"
    engine.end_call()
    done: list[str] = []
    together: list[frozenset[str]] = []
    while len(done) < 3:
        done += heard(step(inference))
        together.append(inference.working)
        if engine.running:
            engine.end_call()
    assert not [names for names in together if "suspect" in names and names != {"suspect"}]
    assert sorted(done) == ["call", "file", "suspect"] and step(inference) == []


def test_an_answer_that_is_ready_is_collected_before_a_suspect_begins() -> None:
    engine = Background(calls=1)
    inference = Inference(engine)
    ask(inference, "a")
    step(inference)
    engine.end_call()
    ask(inference, "suspect", suspect=True)
    done: list[str] = []
    while len(done) < 2:
        done += heard(step(inference))
        if engine.running:
            engine.end_call()
    assert sorted(done) == ["a", "suspect"]


@given(
    st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=6),
    st.integers(1, 3),
    st.integers(1, 3),
    st.lists(st.booleans(), max_size=40),
)
def test_each_is_answered_once_and_suspects_are_alone(
    kinds: list[tuple[bool, bool]], calls: int, threads: int, ends: list[bool]
) -> None:
    engine = Background(calls, threads)
    inference = Inference(engine)
    suspects = {f"u{number}" for number, (suspect, _) in enumerate(kinds) if suspect}
    for number, (suspect, live) in enumerate(kinds):
        ask(inference, f"u{number}", suspect=suspect, live=live)
    done: list[str] = []
    for turn in range(len(kinds) * (calls + 1) * 4 + len(ends)):
        done += heard(step(inference))
        under_way = engine.under_way()
        assert not under_way & suspects or len(under_way) == 1, "a suspect is alone"
        if engine.running and (turn >= len(ends) or ends[turn]):
            engine.end_call()
    assert sorted(done) == sorted(f"u{number}" for number in range(len(kinds)))
    assert step(inference) == [] and not engine.open_
