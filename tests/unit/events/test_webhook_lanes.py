"""Webhooks of events: each lane sends in order and knows how far everything is done."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from config import ConfigError
from config.load import parse
from mediaworker.webhooks import events as module
from mediaworker.webhooks.lanes import FeedPlace, Lanes, OutgoingMessage
from tests.support.receiver import SECRET


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
            place.add(row)
            lanes.add(OutgoingMessage(f"evt_{row}", f"c{call}", "", str, 0.0, row=row), 0.0)
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
        assert len(place) == len(undone)
        assert len({item.lane for item in out}) == len(out), "one of a call at a time"
    for call in range(4):
        mine = [item.row for item in sent if item.lane == f"c{call}"]
        assert mine == sorted(mine)


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
