"""Failed finals and deaths of the inference process: when the engine counts as failed, and when it is tried again."""

from __future__ import annotations

from asr import messages
from asr.client.engine_health import (
    AWAY_S,
    BACKOFF_MAX_S,
    FAILED_AFTER,
    FAILURES,
    GOOD_LIFE_S,
    HOLD_S,
    RECONNECT_MAX_S,
    FinalOutcomes,
    ProcessRestarts,
    Reconnects,
)
from asr.client.link import EngineLink


def test_some_failures_in_a_row_are_trouble_for_a_while() -> None:
    outcomes = FinalOutcomes()
    for number in range(FAILURES):
        assert outcomes.trouble(float(number)) is None
        outcomes.record("no memory", float(number))
    last_s = FAILURES - 1.0
    assert outcomes.trouble(last_s) == f"the last {FAILURES} utterances were not recognised: no memory"
    assert outcomes.trouble(last_s + HOLD_S - 0.01) is not None and outcomes.trouble(last_s + HOLD_S) is None
    outcomes.record(None, last_s)
    assert outcomes.trouble(last_s) is None
    outcomes.record("again", last_s)
    assert outcomes.trouble(last_s) is None, "the count has begun anew"


def ended(
    *, ready_s: float | None = None, answered: bool = False, hung: bool = False, unusable: bool = False
) -> EngineLink:
    link = EngineLink(messages.Ping(), hang_s=1.0, start_s=1.0)
    link.ready_s, link.answered = ready_s, answered
    link.hung, link.unusable = "it hung" if hung else None, "no weights" if unusable else None
    return link


def die(policy: ProcessRestarts, *, answered: bool = False, lived_s: float = 0.0, blamed: bool = False) -> float:
    policy.on_death(ended(ready_s=100.0 if lived_s else None, answered=answered), 100.0 + lived_s, blamed=blamed)
    return policy.deaths


def test_deaths_in_a_row() -> None:
    policy = ProcessRestarts()
    assert policy.backoff_s == 0.0 and not policy.failed
    assert die(policy) == 1.0 and policy.backoff_s == 0.0, "a caller is waiting"
    assert die(policy) == 2.0 and policy.backoff_s == 0.5 and not policy.failed
    assert die(policy) == FAILED_AFTER and policy.backoff_s == 1.0 and policy.failed
    assert die(policy) == 4.0 and policy.backoff_s == 2.0
    for _ in range(2000):
        die(policy)
    assert policy.backoff_s == BACKOFF_MAX_S
    policy.on_retirement()
    assert policy.deaths == 0.0 and not policy.failed


def test_an_answer_or_a_good_life_begins_the_count_anew() -> None:
    policy = ProcessRestarts()
    die(policy)
    die(policy)
    assert die(policy, lived_s=GOOD_LIFE_S - 0.1) == 3.0
    assert die(policy, lived_s=GOOD_LIFE_S) == 1.0
    die(policy)
    assert die(policy, answered=True) == 1.0


def test_a_death_over_an_utterance_counts_half_and_a_hopeless_one_for_all() -> None:
    policy = ProcessRestarts()
    assert [die(policy, blamed=True) for _ in range(3)] == [0.5, 1.0, 1.5]
    policy.on_death(ended(unusable=True), 0.0, blamed=False)
    assert policy.deaths == FAILED_AFTER and policy.failed
    policy.on_death(ended(hung=True), 0.0, blamed=False)
    policy.on_death(ended(ready_s=0.0, hung=True), 1.0, blamed=False)
    assert policy.deaths == FAILED_AFTER + 2


def lose(policy: Reconnects, now_s: float, *, ready: bool = False, unusable: bool = False) -> float:
    policy.on_death(ended(ready_s=0.0 if ready else None, unusable=unusable), now_s, blamed=False)
    return policy.backoff_s


def test_a_server_elsewhere_may_be_away_for_a_while() -> None:
    policy = Reconnects()
    assert policy.backoff_s == 0.0 and not policy.failed
    assert [lose(policy, 100.0, ready=True), lose(policy, 100.1), lose(policy, 100.2)] == [0.05, 0.1, 0.2]
    assert not policy.failed
    lose(policy, 100.0 + AWAY_S - 0.1)
    assert not policy.failed
    lose(policy, 100.0 + AWAY_S)
    assert policy.failed == "for 30 s"
    for _ in range(2000):
        lose(policy, 200.0)
    assert policy.backoff_s == RECONNECT_MAX_S
    assert lose(policy, 201.0, ready=True) == 0.05 and not policy.failed, "it has been there"
    lose(policy, 201.0, unusable=True)
    assert policy.failed, "its version does not change by waiting"
    policy.on_retirement()
    assert not policy.failed and policy.backoff_s == 0.0
