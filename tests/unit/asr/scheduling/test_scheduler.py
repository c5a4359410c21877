"""The lanes: what is served next, what is replaced, what is shed. No clock, no engine."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from asr.scheduling.request import LIVE, Lane, Request
from asr.scheduling.scheduler import Scheduler


def ask(
    name: str, revision: int, lane: Lane, deadline_s: float = 0.0, *, stream: str = "", synchronous: bool = False
) -> Request:
    return Request(
        utterance_id=name,
        revision=revision,
        lane=lane,
        final=lane is Lane.FINAL,
        end=0,
        deadline_s=deadline_s,
        stream=stream,
        synchronous=synchronous,
    )


def order(scheduler: Scheduler, now_s: float = 0.0) -> list[tuple[str, int]]:
    """Serve everything, one at a time."""
    served = []
    while taken := scheduler.take(now_s=now_s):
        assert scheduler.finish(taken[0])
        served.append((taken[0].utterance_id, taken[0].revision))
    return served


def test_lanes_then_deadlines_then_arrival() -> None:
    scheduler = Scheduler()
    for request in (
        ask("batch", 1, Lane.BATCH),
        ask("words", 1, Lane.WORDS, 0.0),
        ask("perhaps", 1, Lane.SPECULATIVE, 1.0),
        ask("refresh", 1, Lane.PARTIAL, 0.0),
        ask("first", 1, Lane.FIRST_PARTIAL, 9.0),
        ask("late", 1, Lane.FINAL, 5.0),
        ask("soon", 1, Lane.FINAL, 4.0),
        ask("soon too", 1, Lane.FINAL, 4.0),
    ):
        assert scheduler.submit(request)
    expected = ["soon", "soon too", "late", "first", "refresh", "perhaps", "words", "batch"]
    assert [name for name, _ in order(scheduler)] == expected
    assert len(scheduler) == 0


def test_a_speculative_final_goes_before_partials_from_its_deadline_on() -> None:
    scheduler = Scheduler()
    for request in (
        ask("refresh", 1, Lane.PARTIAL, 0.0),
        ask("first", 1, Lane.FIRST_PARTIAL, 0.0),
        ask("later", 1, Lane.SPECULATIVE, 3.0),
        ask("due", 1, Lane.SPECULATIVE, 2.0),
        ask("over", 1, Lane.FINAL, 9.0),
    ):
        scheduler.submit(request)
    assert scheduler.final_due(1.9)
    assert [each.utterance_id for each in scheduler.take(3, now_s=1.9)] == ["over", "first", "refresh"]
    assert not scheduler.final_due(1.9) and scheduler.final_due(2.0)
    for name in ("first", "refresh"):
        scheduler.submit(ask(name, 2, Lane.PARTIAL, 0.0))
    assert [name for name, _ in order(scheduler, now_s=2.0)] == ["due", "first", "refresh", "later"]


def test_what_is_withdrawn_is_not_served_and_the_utterance_goes_on() -> None:
    scheduler = Scheduler()
    scheduler.submit(ask("waits", 1, Lane.SPECULATIVE))
    scheduler.submit(ask("served", 1, Lane.SPECULATIVE))
    scheduler.submit(ask("other", 1, Lane.SPECULATIVE))
    (served,) = [each for each in scheduler.take(2) if each.utterance_id == "served"]
    for name in ("waits", "served", "nobody"):
        scheduler.withdraw(name)
    scheduler.put_back(served)
    assert not scheduler.finish(served)
    assert not scheduler.pending("waits") and not scheduler.submit(ask("waits", 1, Lane.PARTIAL))
    assert scheduler.submit(ask("waits", 2, Lane.PARTIAL))


def test_newer_partial_replaces_the_queued_one_and_keeps_its_place() -> None:
    scheduler = Scheduler()
    scheduler.submit(ask("a", 1, Lane.PARTIAL, 1.0))
    scheduler.submit(ask("b", 1, Lane.PARTIAL, 2.0))
    scheduler.submit(ask("a", 2, Lane.PARTIAL, 3.0))
    assert order(scheduler) == [("a", 2), ("b", 1)]


def test_a_final_replaces_the_partial_of_its_utterance() -> None:
    scheduler = Scheduler()
    scheduler.submit(ask("a", 1, Lane.PARTIAL, 1.0))
    scheduler.submit(ask("a", 2, Lane.FINAL, 7.0))
    assert order(scheduler) == [("a", 2)]


def test_answer_dies_when_superseded_while_served() -> None:
    scheduler = Scheduler()
    scheduler.submit(ask("a", 1, Lane.PARTIAL))
    (taken,) = scheduler.take()
    scheduler.submit(ask("a", 2, Lane.FINAL))
    scheduler.put_back(taken)  # nothing: it is stale
    assert not scheduler.finish(taken)
    assert order(scheduler) == [("a", 2)]


def test_answer_dies_when_the_utterance_is_forgotten_while_served() -> None:
    scheduler = Scheduler()
    scheduler.submit(ask("a", 1, Lane.FINAL))
    (taken,) = scheduler.take()
    scheduler.forget("a")
    assert not scheduler.finish(taken)
    assert len(scheduler) == 0


def test_older_revision_is_refused() -> None:
    scheduler = Scheduler()
    assert scheduler.submit(ask("a", 5, Lane.FINAL))
    assert not scheduler.submit(ask("a", 5, Lane.FINAL))
    assert not scheduler.submit(ask("a", 4, Lane.PARTIAL))
    assert order(scheduler) == [("a", 5)]


def test_a_forgotten_id_may_start_again_from_one() -> None:
    scheduler = Scheduler()
    scheduler.submit(ask("a", 9, Lane.FINAL))
    scheduler.forget("a")
    assert scheduler.submit(ask("a", 1, Lane.FINAL))
    assert order(scheduler) == [("a", 1)]


def test_what_is_put_back_keeps_its_place() -> None:
    scheduler = Scheduler()
    scheduler.submit(ask("a", 1, Lane.FINAL, 1.0))
    scheduler.submit(ask("b", 1, Lane.FINAL, 2.0))
    (taken,) = scheduler.take()
    scheduler.put_back(taken)
    assert scheduler.pending("a")
    assert order(scheduler) == [("a", 1), ("b", 1)]


def test_a_final_gets_in_between_two_steps_of_a_batch_request() -> None:
    scheduler = Scheduler()
    scheduler.submit(ask("film", 1, Lane.BATCH, stream="job"))
    (film,) = scheduler.take()
    scheduler.submit(ask("call", 1, Lane.FINAL))
    scheduler.put_back(film)
    assert order(scheduler) == [("call", 1), ("film", 1)]


def test_not_runnable_is_passed_over_and_stays() -> None:
    scheduler = Scheduler()
    for name in "abc":
        scheduler.submit(ask(name, 1, Lane.FINAL, ord(name)))
    assert [r.utterance_id for r in scheduler.take(2, runnable=lambda r: r.utterance_id != "a")] == ["b", "c"]
    assert order(scheduler) == [("a", 1)]


def test_one_packed_step_takes_from_several_lanes() -> None:
    scheduler = Scheduler()
    scheduler.submit(ask("batch", 1, Lane.BATCH))
    scheduler.submit(ask("partial", 1, Lane.PARTIAL))
    scheduler.submit(ask("final", 1, Lane.FINAL))
    assert [r.utterance_id for r in scheduler.take(8)] == ["final", "partial", "batch"]
    assert scheduler.take(8) == []


def test_batch_takes_turns_between_jobs() -> None:
    scheduler = Scheduler()
    for index in range(3):
        scheduler.submit(ask(f"long {index}", 1, Lane.BATCH, stream="long"))
    scheduler.submit(ask("short 0", 1, Lane.BATCH, stream="short"))
    scheduler.submit(ask("http 0", 1, Lane.BATCH, stream="http", synchronous=True))
    assert [name for name, _ in order(scheduler)] == ["http 0", "long 0", "short 0", "long 1", "long 2"]


def test_one_step_takes_several_of_a_job_when_there_is_room() -> None:
    scheduler = Scheduler()
    for index in range(4):
        scheduler.submit(ask(f"long {index}", 1, Lane.BATCH, stream="long"))
    scheduler.submit(ask("short 0", 1, Lane.BATCH, stream="short"))
    for index in range(2):
        scheduler.submit(ask(f"http {index}", 1, Lane.BATCH, stream="http", synchronous=True))
    taken = [request.utterance_id for request in scheduler.take(6)]
    assert taken == ["http 0", "http 1", "long 0", "short 0", "long 1", "long 2"]
    assert [name for name, _ in order(scheduler)] == ["long 3"]


def test_what_cannot_run_now_does_not_hold_up_what_is_behind_it_in_its_job() -> None:
    scheduler = Scheduler()
    for name in ("stuck", "free"):
        scheduler.submit(ask(name, 1, Lane.BATCH, stream="job"))
    (taken,) = scheduler.take(4, runnable=lambda request: request.utterance_id != "stuck")
    assert taken.utterance_id == "free"
    assert [request.utterance_id for request in scheduler.take(4)] == ["stuck"]


def test_an_unfinished_batch_request_goes_on_before_the_next_of_its_job() -> None:
    scheduler = Scheduler()
    scheduler.submit(ask("one", 1, Lane.BATCH, stream="job"))
    scheduler.submit(ask("two", 1, Lane.BATCH, stream="job"))
    (taken,) = scheduler.take()
    scheduler.put_back(taken)
    assert [name for name, _ in order(scheduler)] == ["one", "two"]


def test_overload_sheds_refreshes_first_and_the_oldest_of_them() -> None:
    scheduler = Scheduler(max_partials=3)
    scheduler.submit(ask("first", 1, Lane.FIRST_PARTIAL))
    for index in range(4):
        scheduler.submit(ask(f"refresh {index}", 1, Lane.PARTIAL, 10.0 - index))
    for index in range(10):
        scheduler.submit(ask(f"final {index}", 1, Lane.FINAL, index))
    served = [name for name, _ in order(scheduler)]
    assert served == [f"final {index}" for index in range(10)] + ["first", "refresh 3", "refresh 2"]
    assert scheduler.shed_partials == 2


def test_a_file_that_is_asked_about_again_keeps_its_place() -> None:
    """Its slot may be what those behind it wait for."""
    scheduler = Scheduler()
    for name in ("one", "two"):
        scheduler.submit(ask(name, 1, Lane.BATCH, stream="job"))
    scheduler.submit(ask("one", 2, Lane.BATCH, stream="job"))
    (taken,) = scheduler.take()
    assert (taken.utterance_id, taken.revision) == ("one", 2)
    scheduler.submit(ask("one", 3, Lane.BATCH, stream="job"))  # while it is served
    scheduler.put_back(taken)
    assert order(scheduler) == [("one", 3), ("two", 1)]


def test_what_nobody_waits_for_does_not_pile_up() -> None:
    """In lanes that are never served, because of those above."""
    scheduler = Scheduler(max_partials=2)
    for revision in range(1000):
        scheduler.submit(ask("call", revision, LIVE[revision % 3], float(revision)))
        scheduler.submit(ask(f"shed {revision}", 1, Lane.PARTIAL, float(revision)))
        scheduler.submit(ask(f"over {revision}", 1, LIVE[revision % 3], float(revision)))
        scheduler.submit(ask(f"file {revision}", 1, Lane.BATCH, stream=f"job {revision}"))
        scheduler.forget(f"over {revision}")
        scheduler.forget(f"file {revision}")
    assert len(scheduler) <= 3
    assert sum(len(queue.heap) for queues in scheduler._queues.values() for queue in queues.values()) <= 2 * len(
        scheduler
    )
    assert not any(scheduler._turns)


NAMES = st.sampled_from([f"u{index}" for index in range(6)])
OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("submit"), NAMES, st.integers(0, 8), st.sampled_from(list(Lane)), st.integers(0, 5)),
        st.tuples(st.just("take"), st.integers(1, 3), st.integers(0, 5)),
        st.tuples(st.just("put_back")),
        st.tuples(st.just("finish")),
        st.tuples(st.sampled_from(["forget", "withdraw"]), NAMES),
    ),
    max_size=60,
)


@given(OPERATIONS)
def test_any_history_against_a_plain_model(operations: list[tuple]) -> None:
    """The model: a dict of the newest request per utterance; partials are few enough not to be shed."""
    scheduler = Scheduler(max_partials=100)
    model: dict[str, Request] = {}
    newest: dict[str, int] = {}
    hands: list[Request] = []
    for operation in operations:
        match operation:
            case "submit", name, revision, lane, deadline_s:
                request = ask(name, revision, lane, float(deadline_s), stream=name[-1])
                fresh = revision > newest.get(name, -1)
                assert scheduler.submit(request) == fresh
                if fresh:
                    newest[name] = revision
                    old = model.get(name)
                    if old is not None and old.lane is lane:
                        request = replace(request, deadline_s=min(request.deadline_s, old.deadline_s))
                    model[name] = request
            case "take", limit, now_s:
                in_hand = {id(request) for request in hands}
                waiting = [request for request in model.values() if id(request) not in in_hand]
                taken = scheduler.take(limit, now_s=float(now_s))
                assert len(taken) == min(limit, len(waiting))

                def urgency(request: Request, now_s: int = now_s) -> tuple[Lane, bool, float]:
                    due = request.lane is Lane.SPECULATIVE and request.deadline_s <= now_s
                    lane = Lane.FINAL if due else request.lane
                    return lane, due, request.deadline_s if request.lane in LIVE else 0.0

                best = sorted(waiting, key=urgency)
                assert [r.lane for r in taken] == [r.lane for r in best[: len(taken)]]
                for got, expected in zip(taken, best, strict=False):
                    assert got == model[got.utterance_id]
                    if got.lane in LIVE:
                        assert got.deadline_s == expected.deadline_s
                    model[got.utterance_id] = got
                hands += taken
            case ("put_back",) if hands:
                scheduler.put_back(hands.pop())
            case ("finish",) if hands:
                request = hands.pop(0)
                current = model.get(request.utterance_id) is request
                assert scheduler.finish(request) == current
                if current:
                    del model[request.utterance_id]
            case "forget" | "withdraw" as kind, name:
                (scheduler.forget if kind == "forget" else scheduler.withdraw)(name)
                model.pop(name, None)
                if kind == "forget":
                    newest.pop(name, None)
        assert len(scheduler) == len(model)
        assert all(scheduler.pending(name) for name in model)


def test_workers_that_share_the_engine_take_turns() -> None:
    scheduler = Scheduler()
    for index in range(6):
        scheduler.submit(replace(ask(f"many {index}", 1, Lane.FINAL, float(index)), source="1"))
    for index in range(2):
        scheduler.submit(replace(ask(f"few {index}", 1, Lane.FINAL, 100.0 + index), source="2"))
    scheduler.submit(replace(ask("partial", 1, Lane.FIRST_PARTIAL, 0.0), source="3"))
    together = [request.utterance_id for request in scheduler.take(3)]
    assert together == ["many 0", "few 0", "many 1"]
    assert [name for name, _ in order(scheduler)] == ["few 1", "many 2", "many 3", "many 4", "many 5", "partial"]
    assert not any(scheduler._queues.values())


def test_overload_takes_partials_of_the_worker_that_has_most_of_them() -> None:
    scheduler = Scheduler(max_partials=6)
    for index in range(2):
        scheduler.submit(replace(ask(f"few {index}", 1, Lane.PARTIAL, float(index)), source="2"))
    for index in range(20):
        lane = Lane.PARTIAL if index < 10 else Lane.FIRST_PARTIAL
        scheduler.submit(replace(ask(f"many {index}", 1, lane, float(index)), source="1"))
    served = {name for name, _ in order(scheduler)}
    assert served == {"few 0", "few 1", "many 16", "many 17", "many 18", "many 19"}
    assert scheduler.shed_partials == 16
