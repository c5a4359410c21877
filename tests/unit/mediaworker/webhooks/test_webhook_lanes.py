"""Webhooks of events: each lane sends in order and knows how far everything is done."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from config import ConfigError
from config.load import parse
from lab.http.receiver import SECRET
from mediaworker.events.feed_place import FeedPlace
from mediaworker.webhooks import events as module
from mediaworker.webhooks.lanes import Lanes, OutgoingMessage


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=40), st.randoms(use_true_random=False))
def test_lanes_send_each_in_order_and_know_how_far_all_is_done(
    steps: list[tuple[int, bool]], chance: random.Random
) -> None:
    lanes, place, sent, out, row = Lanes(), FeedPlace(10, 1000), [], [], 10
    done: set[int] = set()
    rows = [10]
    for call, add in steps:
        if add:
            row += chance.randint(1, 3)
            rows.append(row)
            place.add(row, float(row))
            lanes.add(OutgoingMessage(f"evt_{row}", f"c{call}", "", str, row=row), 0.0)
        else:
            out += list(lanes.ready(0.0, chance.randint(0, 3)))
            if out:
                item = out.pop(chance.randrange(len(out)))
                if chance.random() < 0.5:
                    lanes.again(item, 0.0)
                else:
                    lanes.done(item, 0.0)
                    place.done(item.row)
                    sent.append(item)
                    done.add(item.row)
        undone = [each for each in rows[1:] if each not in done]
        assert place.done_row == (rows[rows.index(undone[0]) - 1] if undone else rows[-1])
        assert len(place) == len(undone) and place.oldest_s == (undone[0] if undone else None)
        assert len({item.lane for item in out}) == len(out), "one of a call at a time"
    for call in range(4):
        mine = [item.row for item in sent if item.lane == f"c{call}"]
        assert mine == sorted(mine)


def test_what_was_never_refused_goes_before_what_was() -> None:
    """However long the others are overdue: a receiver that refuses a thousand calls slowly takes those of now first."""
    lanes = Lanes()
    for number in range(20):
        lanes.add(OutgoingMessage(f"old{number}", f"old{number}", "", str, tries=1 + number % 3), float(number))
    lanes.add(OutgoingMessage("new", "new", "", str), 50.0)
    assert [message.id for message in lanes.ready(40.0, 1)] == ["old0"]
    assert [message.id for message in lanes.ready(60.0, 3)] == ["new", "old1", "old2"]


@pytest.mark.parametrize(
    ("wrong", "key"),
    [
        ({"url": "ftp://x"}, r"webhooks\[0\]\.url"),
        ({"secret": "short"}, r"webhooks\[0\]\.secret"),
        ({"types": ["transcript.partial"]}, r"webhooks\[0\]\.types"),
        ({"types": ["nonsense"]}, r"webhooks\[0\]\.types"),
    ],
)
def test_a_wrong_webhook_is_a_wrong_configuration(wrong: dict[str, Any], key: str) -> None:
    right = {"name": "crm", "url": "https://x.example/", "secret": SECRET}
    module.check(parse({"webhooks": [right]}))
    with pytest.raises(ConfigError, match=key):
        module.check(parse({"webhooks": [right | wrong]}))
    with pytest.raises(ConfigError, match="two webhooks"):
        module.check(parse({"webhooks": [right, right]}))


def message(name: str, lane: str) -> OutgoingMessage:
    return OutgoingMessage(name, lane, "", str)


def test_the_lane_that_is_due_longest_goes_first_and_only_once() -> None:
    lanes = Lanes()
    for due_s, name in ((3.0, "late"), (1.0, "early"), (2.0, "middle"), (9.0, "not yet")):
        lanes.add(message(name, name), due_s)
    lanes.add(message("second", "early"), 0.0)
    assert lanes.next_due_s() == 1.0
    assert [each.id for each in lanes.ready(3.0, 2)] == ["early", "middle"]
    assert lanes.next_due_s() == 3.0, "what is out is not due"
    assert [each.id for each in lanes.ready(3.0, 5)] == ["late"]
    assert not list(lanes.ready(3.0, 5))


def test_a_lane_goes_on_when_its_first_is_done_and_waits_when_it_is_not() -> None:
    lanes = Lanes()
    first, second = message("first", "a"), message("second", "a")
    lanes.add(first, 0.0)
    lanes.add(second, 0.0)
    assert list(lanes.ready(0.0, 5)) == [first]
    lanes.again(first, 7.0)
    assert not list(lanes.ready(6.9, 5)) and lanes.next_due_s() == 7.0
    assert list(lanes.ready(7.0, 5)) == [first]
    lanes.done(first, 8.0)
    assert lanes.next_due_s() == 8.0 and list(lanes.ready(8.0, 5)) == [second]
    lanes.done(second, 9.0)
    assert "a" not in lanes and lanes.next_due_s() is None and not lanes.untried


def test_untried_is_what_has_never_been_sent_or_is_being_sent() -> None:
    lanes = Lanes()
    only = message("only", "a")
    lanes.add(only, 0.0)
    assert lanes.untried
    assert list(lanes.ready(0.0, 1)) == [only]
    only.tries = 1
    assert lanes.untried, "it is out"
    lanes.again(only, 5.0)
    assert not lanes.untried


def test_a_lane_can_be_dropped_as_a_whole() -> None:
    lanes = Lanes()
    both = [message("first", "a"), message("second", "a")]
    for each in both:
        lanes.add(each, 0.0)
    assert lanes.forget("a") == both and "a" not in lanes and lanes.forget("a") == []


def test_a_feed_is_full_at_its_limit_and_never_goes_back() -> None:
    place = FeedPlace(5, 2)
    place.add(6, 0.0)
    assert not place.full
    place.add(9, 0.0)
    assert place.full and len(place) == 2 and place.done_row == 5 and place.read_row == 9
    place.skip_to(3)
    assert place.read_row == 9
    place.skip_to(20)
    place.done(6)
    assert (place.read_row, place.done_row, place.full) == (20, 6, False)
    place.done(9)
    assert place.done_row == 20
    with pytest.raises(AssertionError):
        place.add(20, 0.0)
