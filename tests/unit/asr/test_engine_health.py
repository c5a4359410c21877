"""Failed finals and deaths of the inference process: when the engine counts as failed, and when it is tried again."""

from __future__ import annotations

from asr.client.engine_health import (
    BACKOFF_MAX_S,
    FAILED_AFTER,
    FAILURES,
    GOOD_LIFE_S,
    HOLD_S,
    FinalOutcomes,
    RestartPolicy,
)


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


def die(policy: RestartPolicy, *, answered: bool = False, lived_s: float = 0.0, blamed: bool = False) -> float:
    policy.on_death(answered=answered, lived_s=lived_s, blamed=blamed, hopeless=False)
    return policy.deaths


def test_deaths_in_a_row() -> None:
    policy = RestartPolicy()
    assert policy.backoff_s == 0.0 and not policy.failed
    assert die(policy) == 1.0 and policy.backoff_s == 0.0, "a caller is waiting"
    assert die(policy) == 2.0 and policy.backoff_s == 0.5 and not policy.failed
    assert die(policy) == FAILED_AFTER and policy.backoff_s == 1.0 and policy.failed
    assert die(policy) == 4.0 and policy.backoff_s == 2.0
    for _ in range(20):
        die(policy)
    assert policy.backoff_s == BACKOFF_MAX_S
    policy.on_retirement()
    assert policy.deaths == 0.0 and not policy.failed


def test_an_answer_or_a_good_life_begins_the_count_anew() -> None:
    policy = RestartPolicy()
    die(policy)
    die(policy)
    assert die(policy, lived_s=GOOD_LIFE_S - 0.1) == 3.0
    assert die(policy, lived_s=GOOD_LIFE_S) == 1.0
    die(policy)
    assert die(policy, answered=True) == 1.0


def test_a_death_over_an_utterance_counts_half_and_a_hopeless_one_for_all() -> None:
    policy = RestartPolicy()
    assert [die(policy, blamed=True) for _ in range(3)] == [0.5, 1.0, 1.5]
    policy.on_death(answered=False, lived_s=0.0, blamed=False, hopeless=True)
    assert policy.deaths == FAILED_AFTER and policy.failed
    for _ in range(2):
        policy.on_death(answered=False, lived_s=0.0, blamed=False, hopeless=True)
    assert policy.deaths == FAILED_AFTER + 2
