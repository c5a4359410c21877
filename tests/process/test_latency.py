"""The parts of a final's latency in a real worker."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.engine.listener import LISTENER, LISTENER_PATH
from lab.media.speech import SPEECH
from lab.patience import until
from lab.worker.peers import Worker, command, worker
from mediaworker.tracing.latency import PARTS


def test_a_real_call_shows_where_its_time_went(tmp_path: Path) -> None:
    def total(running: Worker, name: str, part: str = "") -> float:
        label = f'{{part="{part}"}}' if part else ""
        return next(
            float(line.rpartition(" ")[2])
            for line in running.get("/metrics").splitlines()
            if line.startswith(f"mediaworker_{name}{label} ")
        )

    with worker(tmp_path, LISTENER_PATH, **LISTENER) as running:
        done = command("call", f"sip:x@127.0.0.1:{running.sip_port}", "--play", str(SPEECH / "tt-weasels.wav"))
        assert done.returncode == 0, done.stderr
        (call,) = running.wait_ended(1)
        finals = [event for event in running.events(call["call_id"]) if event["type"] == "transcript.final"]
        assert finals and {final["reason"] for final in finals} == {"endpoint"}
        for part in PARTS:
            assert total(running, "final_latency_part_seconds_count", part) == len(finals), part
        sums = {part: total(running, "final_latency_part_seconds_sum", part) for part in PARTS}
        published = sum(sums[part] for part in PARTS if part not in ("commit", "fan_out"))
        assert published == pytest.approx(total(running, "final_latency_seconds_sum"), abs=0.03 * len(finals))
        assert published == pytest.approx(sum(final["latency_ms"] for final in finals) / 1000, abs=0.03 * len(finals))
        # The configured silence, in whole windows, and what the machine adds.
        assert 0.479 <= sums["endpoint"] / len(finals) <= published / len(finals)
        assert total(running, "leg_jitter_seconds_count") == 1
        until(lambda: min(total(running, f"{name}_seconds_count") for name in ("vad_lag", "loop_stall")) > 30)
