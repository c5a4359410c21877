"""Scheduler, slots and engine together: random calls and files through `Inference`, the rules checked at each step.

The rules, and who checks them: `engine_world`.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from asr.engines.qwen import session
from asr.engines.qwen.device.memory import Shape
from lab.engine.world import NAMES, POSITIONS, STREAMS, World, longest


@pytest.fixture(autouse=True)
def short_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "longest", longest)


# -- one at a time -----------------------------------------------------------------------------------------------------


def world(*, slots: int, batch: int = 4, batch_tokens: int = 24) -> World:
    return World(Shape(slots=slots, positions=POSITIONS, page=POSITIONS, batch=batch, batch_tokens=batch_tokens))


def say(made: World, number: int, size: int, *, live: bool, stream: int = 0) -> None:
    """All of an utterance, and the request for its final."""
    made.apply("open", number, live, stream)
    made.apply("append", number, size)
    made.apply("final", number, True)


def test_a_final_goes_before_partials_that_have_the_slots() -> None:
    made = world(slots=2)
    for number in (1, 2):
        made.apply("open", number, True)
        made.apply("append", number, 8000)
        made.apply("partial", number)
    made.apply("step")
    say(made, 3, 800, live=True)
    made.apply("step")
    assert "u3" in made.packed.worked
    made.end()


def test_a_call_takes_the_slot_of_a_file_before_that_of_a_call() -> None:
    made = world(slots=3)
    pause(made, 1)
    say(made, 2, 8000, live=False, stream=1)
    say(made, 3, 8000, live=False, stream=2)
    made.apply("step")
    say(made, 4, 800, live=True)
    made.apply("step")  # the files are in it too
    owners = set(made.engine.kv_cache._owners)
    assert {"u1", "u4"} < owners and len(owners) == 3
    made.end()


def test_calls_leave_the_last_slot_to_files_while_one_has_its_own_to_spare() -> None:
    made = world(slots=2)
    pause(made, 1)
    pause(made, 2)
    say(made, 3, 8000, live=False)
    made.apply("step")
    assert "u3" in made.engine.kv_cache._owners, "of a call that nothing is asked about"
    say(made, 4, 16000, live=True)
    made.apply("step")
    assert set(made.engine.kv_cache._owners) == {"u3", "u4"}
    say(made, 5, 800, live=True)
    made.apply("step")
    assert set(made.engine.kv_cache._owners) == {"u4", "u5"}, "calls that are at work need both"
    made.end()


def pause(made: World, number: int) -> None:
    """A call that has been heard and may go on."""
    made.apply("open", number, True)
    made.apply("append", number, 8000)
    made.apply("partial", number)
    while made.known[f"u{number}"].asked is not None:
        made.apply("step")


@pytest.mark.parametrize("misfit", [False, True])
def test_a_file_that_nothing_is_asked_about_keeps_no_slot_from_another(misfit: bool) -> None:
    made = world(slots=1)
    made.apply("open", 1, False, 1, misfit)
    made.apply("append", 1, 4000)
    made.apply("partial", 1)
    made.apply("lull", False)
    say(made, 2, 4000, live=False)
    made.apply("lull", False)
    assert made.finals == 1 and made.failures == misfit
    made.end()


def test_short_files_do_not_keep_another_from_the_encoder() -> None:
    """Two jobs of short files, each of which needs it at each second step."""
    made = world(slots=3, batch_tokens=64)
    for number in range(1, 41):
        say(made, number, 80, live=False, stream=1 + number % 2)
    say(made, 0, 4000, live=False)
    made.apply("step", 20)
    assert "u0" not in made.known and len(made.known) > 10
    made.end()


def test_a_draft_of_a_file_is_verified_in_bounded_steps() -> None:
    made = world(slots=1, batch_tokens=8)
    say(made, 1, 28000, live=False)
    while (now := made.engine._sessions["u1"].now) is None or len(now.tokens) < 11:
        made.apply("step")
    say(made, 2, 800, live=True)  # has its slot
    made.apply("step")
    assert len(made.engine._sessions["u1"].drafted) == 11
    made.end()
    assert made.finals == 2


# -- long walks --------------------------------------------------------------------------------------------------------

SHAPES = {
    "a slot": (Shape(slots=1, positions=POSITIONS, page=POSITIONS, batch=4, batch_tokens=8), 256),
    "fewer slots": (Shape(slots=2, positions=POSITIONS, page=POSITIONS, batch=4, batch_tokens=24), 256),
    "more slots": (Shape(slots=5, positions=POSITIONS, page=POSITIONS, batch=2, batch_tokens=8), 256),
    "pages": (Shape(slots=2, positions=POSITIONS, page=16, batch=4, batch_tokens=24), 256),
    "more pages": (Shape(slots=3, positions=POSITIONS, page=32, batch=2, batch_tokens=16), 256),
    "shedding": (Shape(slots=4, positions=POSITIONS, page=POSITIONS, batch=4, batch_tokens=16), 1),
}
OPERATIONS = 1000


def draw(rng: random.Random, known: set[str], live: float) -> tuple[Any, ...]:
    """Any operation, now and then on an utterance that is over; `live`: of so many a person waits for the words."""
    number = rng.choice([number for number in range(NAMES) if f"u{number}" in known or rng.random() < 0.1] or [0])
    kinds = ("open", "append", "partial", "final", "withdraw", "late", "close", "step")
    match rng.choices(kinds, (12, 22, 12, 9, 2, 1, 2, 42))[0]:
        case "open":
            number = rng.choice([number for number in range(NAMES) if f"u{number}" not in known] or [0])
            return "open", number, rng.random() < live, rng.randrange(len(STREAMS)), rng.random() < 0.04
        case "append":
            return "append", number, rng.choice((80, 800, 4000, 12000))
        case "partial":
            return "partial", number, rng.choice((0, 0, 0, 500))
        case "final":
            return "final", number, rng.random() < 0.7, rng.choice((0, 0, 0, 1300))
        case "step":
            return "step", rng.choice((1, 1, 2, 4))
        case other:
            return other, number


@pytest.mark.parametrize("shape", SHAPES)
def test_a_long_walk(shape: str) -> None:
    seed = list(SHAPES).index(shape)
    rng, (limits, max_partials) = random.Random(seed), SHAPES[shape]
    made = World(limits, max_partials, texts=10)
    try:
        while len(made.log) < OPERATIONS:
            if len(made.log) % 250 == 249:
                made.apply("lull", rng.random() < 0.5)
            busy = len(made.log) // 250 % 2
            made.apply(*draw(rng, set(made.known), 0.8 if busy else 0.35))
        made.end()
    except Exception as error:
        last = "\n".join(map(str, made.log[-60:]))
        error.add_note(f"{shape}, seed {seed}, after {len(made.log)} operations, the last of them:\n{last}")
        raise
    assert len(made.log) >= OPERATIONS and made.compared == 10 and made.finals > 30
    assert (made.dropped > 5) == (max_partials < NAMES)


class Calls(RuleBasedStateMachine):
    """The same operations, for a history that hypothesis can make short."""

    NUMBERS = st.integers(0, 7)

    @initialize(shape=st.sampled_from(sorted(SHAPES)))
    def start(self, shape: str) -> None:
        self.world, self.whole = World(*SHAPES[shape]), True

    def apply(self, *operation: Any) -> None:
        self.whole = False
        self.world.apply(*operation)
        self.whole = True

    @rule(number=NUMBERS, live=st.booleans(), stream=st.integers(0, len(STREAMS) - 1), size=st.integers(0, 20_000))
    def open(self, number: int, live: bool, stream: int, size: int) -> None:
        self.apply("open", number, live, stream, size % 16 == 15)
        self.apply("append", number, size)

    @rule(number=NUMBERS, size=st.integers(0, 12_000))
    def append(self, number: int, size: int) -> None:
        self.apply("append", number, size)

    @rule(number=NUMBERS, back=st.sampled_from((0, 500)))
    def partial(self, number: int, back: int) -> None:
        self.apply("partial", number, back)

    @rule(number=NUMBERS, commit=st.booleans(), back=st.sampled_from((0, 1300)))
    def final(self, number: int, commit: bool, back: int) -> None:
        self.apply("final", number, commit, back)

    @rule(number=NUMBERS)
    def withdraw(self, number: int) -> None:
        self.apply("withdraw", number)

    @rule(number=NUMBERS)
    def late(self, number: int) -> None:
        self.apply("late", number)

    @rule(number=NUMBERS)
    def close(self, number: int) -> None:
        self.apply("close", number)

    @rule(times=st.integers(1, 4))
    def step(self, times: int) -> None:
        self.apply("step", times)

    def teardown(self) -> None:
        if getattr(self, "whole", False):  # else it has failed already
            self.world.end()


def test_any_short_history() -> None:
    run_state_machine_as_test(Calls, settings=settings(stateful_step_count=40))
