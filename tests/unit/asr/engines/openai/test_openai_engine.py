"""The engine of a transcription server: what is asked when, again, or not any more. The server is a script."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asr import messages
from asr.engines.interface import EngineError, Request
from asr.engines.openai.engine import BUSY_S, STEP_S, RemoteEngine
from asr.engines.openai.wire import Outcome, Recognised, RequestFailed, RequestSimplified, ServerBusy
from asr.inference.inference import Inference
from asr.scheduling.request import Lane
from asr.utterance import Hypothesis, Utterance

TIMEOUT_S = 30.0


class Server:
    """Keeps what is asked until the test answers it. Its clock goes on while somebody waits."""

    def __init__(self) -> None:
        self.time_s = 0.0
        self.under_way: dict[object, tuple[Utterance, bytes, Lane]] = {}
        self.asked: list[tuple[str, int, Lane]] = []
        self.given_up = 0
        self.answered: list[tuple[object, Outcome]] = []

    def now_s(self) -> float:
        return self.time_s

    def start(self) -> None: ...

    def send(self, mark: object, utterance: Utterance, audio: bytes, lane: Lane) -> Callable[[], object]:
        assert mark not in self.under_way, "the same is asked twice at once"
        self.under_way[mark] = utterance, audio, lane
        self.asked.append((utterance.id, len(audio), lane))
        return lambda: self._give_up(mark)

    def wait(self, timeout_s: float) -> list[tuple[object, Outcome]]:
        found, self.answered = self.answered, []
        if not found:
            self.time_s += timeout_s
        return found

    def answer(self, name: str, outcome: Outcome | None = None) -> None:
        """What it has been asked of this utterance; without an outcome, with how much it has heard."""
        mark = next(mark for mark, (utterance, _, _) in self.under_way.items() if utterance.id == name)
        _, audio, _ = self.under_way.pop(mark)
        self.answered.append((mark, outcome or Recognised(f"{len(audio)} bytes", "en")))

    @property
    def names(self) -> list[str]:
        return [utterance.id for utterance, _, _ in self.under_way.values()]

    def _give_up(self, mark: object) -> None:
        self.given_up += self.under_way.pop(mark, None) is not None


class World:
    """Inference with the engine, and what it has said."""

    def __init__(self, parallel: int = 4, *, partials: bool = True) -> None:
        self.server = Server()
        self.engine = RemoteEngine(self.server, parallel=parallel, timeout_s=TIMEOUT_S, partials=partials)
        self.inference = Inference(self.engine)
        self.revision = 0
        self.received: dict[str, int] = {}
        self.heard: list[Hypothesis] = []

    def say(self, name: str, size: int = 800, *, live: bool = True) -> None:
        if name not in self.received:
            self.received[name] = 0
            self._receive(messages.Open(Utterance(name, "PCMU", live=live)))
        self._receive(messages.Append(name, self.received[name], b"\x01" * size))
        self.received[name] += size

    def ask(self, name: str, *, final: bool = True, commit: bool = True) -> None:
        self.revision += 1
        end = self.received[name]
        self._receive(
            messages.FinalRequest(name, self.revision, end, commit)
            if final
            else messages.PartialRequest(name, self.revision, end)
        )

    def step(self, times: int = 1) -> None:
        for _ in range(times):
            if (work := self.inference.choose(self.server.time_s)) is None:
                self.server.time_s += STEP_S
                continue
            for message in self.inference.perform(work, self.server.time_s):
                if isinstance(message, messages.Heard):
                    self.heard.append(message.hypothesis)

    def _receive(self, message: messages.ToEngine) -> None:
        self.inference.receive(message, self.server.time_s)

    @property
    def said(self) -> list[tuple[str, str, str | None]]:
        return [(each.utterance_id, each.text, each.error) for each in self.heard]


def test_answers_come_in_any_order_while_others_are_under_way() -> None:
    world = World()
    for name in "abc":
        world.say(name)
        world.ask(name)
    world.step(3)
    assert world.server.names == ["a", "b", "c"] and world.heard == []
    world.server.answer("c")
    world.step()
    world.server.answer("a")
    world.server.answer("b")
    world.step()
    assert world.said == [("c", "800 bytes", None), ("a", "800 bytes", None), ("b", "800 bytes", None)]
    assert len(world.server.asked) == 3 and world.inference.choose() is None


def test_what_nobody_wants_any_more_is_given_up() -> None:
    world = World()
    world.say("a")
    world.ask("a", final=False)
    world.step()
    world.say("a")
    world.ask("a", final=False)
    world.step()
    assert world.server.asked == [("a", 800, Lane.FIRST_PARTIAL), ("a", 1600, Lane.FIRST_PARTIAL)]
    assert world.server.given_up == 1 and world.server.names == ["a"]
    world.ask("a", commit=False)
    world.step(50)
    assert world.server.asked[-1] == ("a", 1600, Lane.SPECULATIVE)
    world._receive(messages.Withdraw("a"))
    world.say("b")
    world.ask("b")
    world.step()
    assert world.server.names == ["b"] and world.server.given_up == 3
    world._receive(messages.CloseUtterance("b"))
    assert world.server.names == [] and world.engine._attempts == {}


def test_a_final_takes_the_place_of_a_partial_and_of_a_file() -> None:
    world = World(parallel=2)
    world.say("file", live=False)
    world.ask("file")
    world.say("talk")
    world.ask("talk", final=False)
    world.step()
    assert sorted(world.server.names) == ["file", "talk"]
    world.say("end")
    world.ask("end")
    world.step()
    assert sorted(world.server.names) == ["end", "talk"], "the file was the least urgent"
    world.say("other")
    world.ask("other")
    world.step()
    assert sorted(world.server.names) == ["end", "other"]
    for name in ("end", "other"):
        world.server.answer(name)
    world.step(2)
    assert sorted(world.server.names) == ["file", "talk"], "they are asked again"
    world.server.answer("talk")
    world.server.answer("file")
    world.step()
    assert {error for _, _, error in world.said} == {None} and len(world.heard) == 4


def test_files_have_half_of_the_places() -> None:
    world = World(parallel=4)
    for number in range(4):
        world.say(f"file-{number}", live=False)
        world.ask(f"file-{number}")
    world.step(3)
    assert len(world.server.names) == 2
    world.server.answer(world.server.names[0])
    world.step(2)
    assert len(world.server.names) == 2 and len(world.server.asked) == 3


def test_a_failure_is_tried_once_more_and_then_told() -> None:
    world = World()
    for name in "ab":
        world.say(name)
        world.ask(name)
    world.step()
    for attempt in range(2):
        world.server.answer("a", RequestFailed("the server answered 500: out of memory", again=True))
        world.step(2)
        assert ("a" in world.server.names) == (attempt == 0)
    world.server.answer("b")
    world.step()
    assert world.said == [("a", "", "the server answered 500: out of memory"), ("b", "800 bytes", None)]


def test_what_is_no_use_to_repeat_is_told_at_once_and_answers_beside_it_are_kept() -> None:
    world = World()
    for name in "abc":
        world.say(name)
        world.ask(name)
    world.step()
    world.server.answer("a")
    world.server.answer("b", RequestFailed("the server answered 404: no such model", again=False))
    world.server.answer("c")
    world.step(3)
    assert len(world.server.asked) == 3 and sorted(world.said) == [
        ("a", "800 bytes", None), ("b", "", "the server answered 404: no such model"), ("c", "800 bytes", None),
    ]  # fmt: skip


def test_what_a_server_has_not_understood_is_no_failure() -> None:
    world = World()
    world.say("a")
    world.ask("a")
    for _ in range(4):
        world.step(2)
        world.server.answer("a", RequestSimplified())
    world.step(2)
    world.server.answer("a")
    world.step()
    assert world.said == [("a", "800 bytes", None)]


def test_a_busy_server_is_asked_later_and_for_less_at_once() -> None:
    world = World(parallel=8)
    names = [f"leg-{number}" for number in range(8)]
    for name in names:
        world.say(name)
        world.ask(name)
    world.step()
    assert len(world.server.names) == 8
    for name in names:
        world.server.answer(name, ServerBusy("the server is busy (429)", 2.0, 429))
    world.step()
    begun_s = world.server.time_s
    while not world.server.names:
        world.step()
    assert 2.0 <= world.server.time_s - begun_s < 2.1
    assert len(world.server.names) == 4, "eight were refused together: that is one refusal"
    for _ in range(8):
        for name in world.server.names:
            world.server.answer(name)
        world.step(2)
    assert len(world.heard) == 8 and {error for _, _, error in world.said} == {None}
    assert 4 < world.engine._room <= 8, "it is trusted with more again"


def test_a_server_that_stays_busy_is_asked_less_and_less_often_until_patience_ends() -> None:
    world = World()
    world.say("a")
    world.ask("a")
    world.say("file", live=False)
    world.ask("file")
    asked_s = []
    while not world.heard:
        world.step()
        if world.server.names:
            asked_s.append(world.server.time_s)
            for name in list(world.server.names):
                world.server.answer(name, ServerBusy("the server cannot be reached (ConnectError)"))
    pauses_s = [later - earlier for earlier, later in zip(asked_s, asked_s[1:], strict=False)]
    assert pauses_s[0] == pytest.approx(BUSY_S, abs=0.05) and max(pauses_s) <= 8.1
    assert world.said == [("a", "", "the server cannot be reached (ConnectError), for 60 s")]
    assert 60 <= world.server.time_s < 70
    world.step(1000)
    assert len(world.heard) == 1, "nobody waits for a file"
    while world.server.names == []:
        world.step()
    world.server.answer("file")
    world.step()
    assert world.said[-1] == ("file", "800 bytes", None)


def test_a_request_that_ends_the_server_again_and_again_is_given_up() -> None:
    world = World()
    world.say("a")
    world.ask("a")
    lost = 0
    while not world.heard:
        world.step()
        if world.server.names:
            world.server.answer("a", ServerBusy("the connection to the server was lost", lost=True))
            lost += 1
    assert lost == 12 and world.said == [("a", "", "the connection to the server was lost")]
    assert 60 < world.server.time_s < 70


def test_a_request_that_a_busy_server_turns_away_unread_is_asked_for_a_minute_while_others_are_answered() -> None:
    """HAProxy answers 429 before it has read the body, and the reset that follows overtakes the answer."""
    world = World()
    asked_s = []
    for number in range(600):
        world.say(name := f"other-{number}")
        world.ask(name)
        if number == 0:
            world.say("a")
            world.ask("a")
        for _ in range(10):
            world.step()
            for each in list(world.server.names):
                if each == "a":
                    asked_s.append(world.server.time_s)
                refused = each == "a" and world.server.time_s < 25
                world.server.answer(each, ServerBusy("lost", lost=True) if refused else None)
    assert [text for name, text, _ in world.said if name == "a"] == ["800 bytes"]
    assert 25 < asked_s[-1] < 34 and len(asked_s) < 10


def test_without_partials_nobody_asks_for_one() -> None:
    world = World(partials=False)
    world.say("a")
    world.ask("a", final=False)
    world.step(3)
    assert world.server.asked == [] and world.inference.choose() is None


def test_an_error_of_an_utterance_is_of_one_that_is_asked_for() -> None:
    engine = RemoteEngine(server := Server(), parallel=2, timeout_s=1.0, partials=True)
    for name in "ab":
        engine.open(Utterance(name, "PCMU"))
    requests = [Request(name, 1, Lane.FINAL, True, 0, 0.0, commit=True) for name in "ab"]
    assert engine.step(requests) == []
    server.answer("a", RequestFailed("no", again=False))
    assert engine.step(requests[1:]) == [], "the scheduler has not chosen it: it is told when it has"
    assert server.names == ["b"]
    engine.step(requests)
    server.answer("a", RequestFailed("no", again=False))
    with pytest.raises(EngineError, match="no"):
        engine.step(requests)


NAMES = "abcdef"
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("say"), st.sampled_from(NAMES), st.integers(1, 300)),
        st.tuples(st.sampled_from(["partial", "speculate", "withdraw"]), st.sampled_from(NAMES)),
        st.tuples(st.just("step"), st.integers(1, 5)),
        st.tuples(st.sampled_from(["answer", "busy", "fail", "learn"]), st.integers(0, 5)),
    ),
    max_size=60,
)


@given(STEPS, st.integers(1, 4))
def test_every_final_comes_once_and_has_heard_what_was_asked_for(steps: Sequence[tuple], parallel: int) -> None:
    world = World(parallel)
    for name in NAMES:
        world.say(name, 10, live=name < "e")
    for step in steps:
        match step:
            case "say", name, size:
                world.say(name, size)
            case "partial" | "speculate" as kind, name if name < "e":
                world.ask(name, final=kind == "speculate", commit=False)
            case "withdraw", name if name < "e":
                world._receive(messages.Withdraw(name))
            case "step", times:
                world.step(times)
            case "answer" | "busy" | "fail" | "learn" as kind, number if number < len(world.server.names):
                outcomes = {
                    "busy": ServerBusy("busy", 0.1),
                    "fail": RequestFailed("it failed", True),
                    "learn": RequestSimplified(),
                }
                world.server.answer(world.server.names[number], outcomes.get(kind))
        assert len(world.server.names) <= parallel
    for name in NAMES:
        world.ask(name)
    for _ in range(2000):
        world.step()
        for name in list(world.server.names):
            world.server.answer(name)
    last = {each.utterance_id: each for each in world.heard}
    assert set(last) == set(NAMES) and world.inference.choose() is None
    for name in NAMES:
        committed = [each for each in world.heard if each.utterance_id == name][-1]
        assert committed.final and (committed.error or committed.text == f"{world.received[name]} bytes")
        revisions = [each.revision for each in world.heard if each.utterance_id == name]
        assert revisions == sorted(set(revisions))
    assert world.engine._open == world.engine._attempts == {} == world.server.under_way
