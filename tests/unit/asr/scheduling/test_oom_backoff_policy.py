"""What a step that needs more memory than there is leads to, and that all is as it was a while later."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asr.scheduling.oom_backoff import STEPS_BEFORE_GROWTH, OomBackoff
from asr.scheduling.request import LIVE, Lane, Request


def request(name: str, lane: Lane) -> Request:
    return Request(name, 1, lane, lane is Lane.FINAL, 0, 0.0)


FINALS = [request(f"final-{n}", Lane.FINAL) for n in range(4)]
PARTIALS = [request("first", Lane.FIRST_PARTIAL), request("refresh", Lane.PARTIAL)]
FILE = request("file", Lane.BATCH)


@pytest.mark.parametrize(
    ("requests", "shed", "give_up", "limit", "files"),
    [
        ([*FINALS, *PARTIALS, FILE], (), None, 8, False),
        ([*FINALS, *PARTIALS], tuple(PARTIALS), None, 8, True),
        (FINALS, (), None, 2, True),
        (FINALS[:1], (), FINALS[0], 8, True),
        ([PARTIALS[0], PARTIALS[1]], (PARTIALS[1],), None, 1, True),
        (PARTIALS[:1], (PARTIALS[0],), None, 8, True),
        ([FILE, request("file 2", Lane.BATCH)], (), None, 1, True),
        ([FILE], (), FILE, 8, True),
    ],
)
def test_what_goes_first(
    requests: list[Request], shed: tuple[Request, ...], give_up: Request | None, limit: int, files: bool
) -> None:
    backoff = OomBackoff(8)
    relief = backoff.on_exhausted(requests)
    assert (relief.shed, relief.give_up) == (shed, give_up)
    assert (backoff.limit, backoff.files, backoff.exhausted) == (limit, files, 1)


@given(st.integers(1, 64), st.lists(st.sampled_from([*LIVE, Lane.BATCH]), min_size=1, max_size=64), st.integers(1, 64))
def test_it_always_comes_to_an_end_and_back(most: int, lanes: list[Lane], fits: int) -> None:
    """Steps of more than `fits` fail. Every final gets through, and all is as it was a while later."""
    backoff = OomBackoff(most)
    waiting = sorted((request(str(n), lane) for n, lane in enumerate(lanes)), key=lambda each: each.lane)
    done: list[Request] = []
    for _ in range(4 * len(lanes) + 16):
        live = [each for each in waiting if each.lane in LIVE][: backoff.limit]
        files = [each for each in waiting if each.lane is Lane.BATCH] if backoff.files or not live else []
        step = [*live, *files][: backoff.limit]
        if not step:
            break
        if len(step) > fits:
            relief = backoff.on_exhausted(step)
            assert all(each.lane in (Lane.FIRST_PARTIAL, Lane.PARTIAL) for each in relief.shed)
            assert relief.give_up is None
            waiting = [each for each in waiting if each not in relief.shed]
        else:
            backoff.on_success()
            done += step
            waiting = [each for each in waiting if each not in step]
    assert not waiting
    never_shed = {str(n) for n, lane in enumerate(lanes) if lane in (Lane.FINAL, Lane.BATCH)}
    assert never_shed <= {each.utterance_id for each in done}
    for _ in range(STEPS_BEFORE_GROWTH * 9):
        backoff.on_success()
    assert backoff.files and backoff.limit == most


def test_a_larger_step_is_tried_after_some_that_went_well() -> None:
    backoff = OomBackoff(8)
    backoff.on_exhausted(FINALS)
    backoff.on_exhausted([*FINALS, FILE])
    assert (backoff.limit, backoff.files) == (2, False)
    grown = []
    for _ in range(3 * STEPS_BEFORE_GROWTH):
        backoff.on_success()
        grown.append((backoff.limit, backoff.files))
    expected = [(2, False)] * (STEPS_BEFORE_GROWTH - 1) + [(4, False)] * STEPS_BEFORE_GROWTH
    expected += [(8, False)] * STEPS_BEFORE_GROWTH + [(8, True)]
    assert grown == expected
    for _ in range(STEPS_BEFORE_GROWTH - 1):
        backoff.on_success()
    backoff.on_exhausted(FINALS)
    backoff.on_success()
    assert backoff.limit == 2, "a failure begins the count anew"
