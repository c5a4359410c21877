"""How much of what has come may wait for its session."""

from __future__ import annotations

import pytest

from mediaworker.ingress.runner import WAITING_BYTES, WAITING_BYTES_ALWAYS, WAITING_BYTES_OF_ALL, Throttle


@pytest.mark.parametrize(
    ("own", "of_all", "full"),
    [
        (0, 0, False),
        (WAITING_BYTES, WAITING_BYTES, False),
        (WAITING_BYTES + 1, WAITING_BYTES + 1, True),
        (WAITING_BYTES_ALWAYS, WAITING_BYTES_OF_ALL + 1, False),
        (WAITING_BYTES_ALWAYS + 1, WAITING_BYTES_OF_ALL, False),
        (WAITING_BYTES_ALWAYS + 1, WAITING_BYTES_OF_ALL + 1, True),
    ],
)
def test_a_connection_is_read_while_there_is_room_for_it(own: int, of_all: int, full: bool) -> None:
    """However much of the others waits, each goes on with a little."""
    throttle = Throttle()
    throttle.waiting_bytes = of_all
    assert throttle.is_full(own) == full
