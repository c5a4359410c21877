"""What a receiver asks for when it takes nothing now."""

from __future__ import annotations

from email.utils import formatdate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mediaworker.webhooks.post import JITTER, MAX_AFTER_S, WAITS_S, retry_after_s, wait_s

NOW_S = 1_795_000_000.0


@pytest.mark.parametrize(
    ("header", "pause_s"),
    [
        ("20", 20.0),
        ("0", 0.0),
        ("86400", MAX_AFTER_S),
        ("9" * 400, None),
        (formatdate(NOW_S + 90, usegmt=True), 90.0),
        (formatdate(NOW_S - 90, usegmt=True), 0.0),
        ("Sun, 06 Nov 1994 08:49:37 -0000", 0.0),
        *((wrong, None) for wrong in ("", "-5", "1.5", "soon", "٢٠", "20 s", "Sun, 99 Nov 1994 08:49:37 GMT")),
    ],
)
def test_a_pause_is_seconds_or_a_date(header: str, pause_s: float | None) -> None:
    assert retry_after_s(header, NOW_S) == pause_s


@given(
    st.text(max_size=40)
    | st.from_regex(r"[A-Z][a-z]{2}, \d{1,9} [A-Z][a-z]{2} \d{1,9} \d+:\d+:\d+ \S{0,5}", fullmatch=True)
)
def test_whatever_it_says_is_a_pause_or_none(header: str) -> None:
    pause_s = retry_after_s(header, NOW_S)
    assert pause_s is None or 0.0 <= pause_s <= MAX_AFTER_S


@pytest.mark.parametrize("tries", [1, 2, 50])
def test_the_receivers_pause_counts_in_place_of_ours(tries: int) -> None:
    ours = WAITS_S[min(tries, len(WAITS_S)) - 1]
    assert ours <= wait_s(tries) <= ours * (1 + JITTER)
    assert 20.0 <= wait_s(tries, 20.0) <= 20.0 * (1 + JITTER)
    assert 1.0 <= wait_s(tries, 0.0) <= 1.0 + JITTER, "but it is never asked in a loop"
