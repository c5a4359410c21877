"""Hundreds of calls that end in every way a call can end leave nothing behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.chaos.waves import Holdings, Waves, check_stories
from lab.worker.peers import worker

CALLS = 300
WARM = 60
RSS_PER_CALL = 20_000
RSS_SLACK = 18_000_000
"""Memory moves in steps: pages of the store's cache, PJSIP's pools, the allocator's arenas, the events kept for those
who resume: 17.5 MB in the first 300 calls and 0.6 MB in each 300 after them. `make soak` looks at the slope over
thousands of calls."""


@pytest.mark.timeout(240)
async def test_calls_leave_nothing_behind(tmp_path: Path) -> None:
    with worker(tmp_path, **Waves.environ()) as running:
        waves = Waves(running, tmp_path)
        before = await waves.first_call()
        await waves.run(WARM, slow=False)
        warm = Holdings.of(running)
        await waves.run(CALLS)
        # What is still open then is PJSIP's: dialogs whose peer is gone, for 32 s after the last retransmission.
        after = await waves.settled(before, 90)
        assert after.rss - warm.rss <= RSS_SLACK + RSS_PER_CALL * CALLS
        assert running.metric("mediaworker_sip_media_timeouts_total") > 0
        assert running.metric("mediaworker_sip_cancelled_total") > 0
    reasons = check_stories(running)
    assert reasons["hangup"] > CALLS / 3 and reasons["media_timeout"] > 0, reasons
