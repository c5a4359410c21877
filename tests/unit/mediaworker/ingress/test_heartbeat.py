"""When a peer is gone, by what moves between heartbeats."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mediaworker.ingress.runner import STILL_BEATS, PeerHeartbeat

BEAT = st.tuples(st.booleans(), st.booleans(), st.integers(0, 3))


@given(st.lists(BEAT, max_size=40))
def test_a_peer_is_gone_after_so_many_beats_in_a_row_on_which_nothing_moved(
    story: list[tuple[bool, bool, int]],
) -> None:
    heartbeat, still, before = PeerHeartbeat(20.0, lambda: None), 0, 0
    for heard, held_back, unread in story:
        heartbeat.alive = heard
        still = 0 if heard or held_back or unread < before else still + 1
        assert heartbeat.is_peer_gone(unread, held_back=held_back) == (still >= STILL_BEATS)
        before = unread


def test_what_was_heard_counts_for_one_beat_only() -> None:
    heartbeat = PeerHeartbeat(20.0, lambda: None)
    heartbeat.alive = True
    assert [heartbeat.is_peer_gone(0, held_back=False) for _ in range(STILL_BEATS + 1)] == [False] * STILL_BEATS + [
        True
    ]
