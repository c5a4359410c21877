"""`mediaworker bench files`: the command itself, with the real engine, and what its figures must have to do with each
other on any machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from audio.codecs.g711 import ulaw_decode
from benchmarks.engine.plan import arrivals, cut, plan, utterances
from benchmarks.files import speech
from lab.house import ROOT
from mediaworker.cli.main import main

CLIP = ROOT / "tests" / "data" / "digits" / "customer.ulaw"
FILES, MINUTES, CALLS = 2, 5.0, 4
# Long files: one takes the engine for seconds, and what a step or a busy machine takes is little beside it.
SCHEDULES = ["no files", "files in the batch lane", "files under a lock"]


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], str]:
    """The figures and the tables of one run. A process of its own: its memory is one of the figures."""
    out = tmp_path_factory.mktemp("bench") / "figures.json"
    command = [sys.executable, "-m", "mediaworker.cli.main", "bench", "files", "--seconds", "1", "--audio", str(CLIP)]
    command += ["--files", str(FILES), "--minutes", str(MINUTES), "--calls", str(CALLS), "--json", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    figures: dict[str, Any] = json.loads(out.read_text())
    return figures, done.stdout


def test_files_alone(measured: tuple[dict[str, Any], str]) -> None:
    figures, shown = measured
    assert (figures["files"], figures["minutes"], figures["at_once"], figures["rows"]) == (FILES, MINUTES, FILES, 8)
    assert figures["audio_s"] == pytest.approx(60 * FILES * MINUTES, abs=0.1)
    assert figures["stretches"] > 10 * FILES, "it has one every five seconds"
    assert figures["rtfx"] == pytest.approx(figures["files_per_hour"] * MINUTES / 60, rel=0.01)
    assert 0 < figures["first_text_ms"] < figures["first_text_no_engine_ms"], "the model has to be loaded"
    cpu, peak = figures["cpu_s_per_audio_h"], figures["peak_mb"]
    assert list(cpu) == ["media", "readers", "inference", "all"] and all(seconds > 0 for seconds in cpu.values())
    assert cpu["all"] == pytest.approx(sum(cpu.values()) / 2, abs=0.02)
    cores = os.cpu_count() or 1
    assert cpu["all"] / 3600 * figures["audio_s"] < 1.1 * cores * figures["wall_s"] + 0.1, "more than there is"
    assert list(peak) == ["media", "reader", "inference"]
    assert peak["inference"] > max(peak["media"], peak["reader"]), "the model is there, and there alone"
    assert min(peak.values()) > 10
    for word in ("files/hour", "CPU s per hour of audio", "final p50/p95/p99", *SCHEDULES):
        assert word in shown


def test_every_schedule_answers_every_final_of_the_same_calls(measured: tuple[dict[str, Any], str]) -> None:
    rows = measured[0]["runs"]
    assert [row["schedule"] for row in rows] == SCHEDULES
    spoken = plan([CLIP.read_bytes()], calls=CALLS, seconds=1, seed=1)
    asked = len(arrivals(spoken, partial_ms=500))
    assert len(spoken) >= CALLS and asked > 0
    for row in rows:
        assert row["calls"] == CALLS and row["finals"] == len(spoken) and row["partials"] == rows[0]["partials"] > 0
        assert 0 <= row["partials_answered_share"] <= 1
        for what in ("final", "final_after_endpoint", "partial"):
            waits = [row[f"{what}_{rank}_ms"] for rank in ("p50", "p95", "p99", "max")]
            assert waits == sorted(waits) and waits[0] >= 0
        # The endpoint fires 340 ms after the final was asked for: 500 ms of silence, of which it has heard 160.
        assert row["final_after_endpoint_max_ms"] == pytest.approx(max(0, row["final_max_ms"] - 340), abs=0.11)
        assert row["final_p99_ratio"] == pytest.approx(row["final_p99_ms"] / rows[0]["final_p99_ms"], abs=0.01)
    assert rows[0]["files_rtfx"] is None and all(row["files_rtfx"] > 0 for row in rows[1:])


def test_under_the_lock_somebody_waits_for_a_file_and_in_the_lane_nobody_does(
    measured: tuple[dict[str, Any], str],
) -> None:
    """Four people who ask twice a second: whenever a file takes the lock, one of them comes soon after."""
    nobody, lane, lock = measured[0]["runs"]
    worst_s = {row["schedule"]: max(row["final_max_ms"], row["partial_max_ms"]) / 1000 for row in (lane, lock)}
    assert nobody["lock_held_p50_s"] is lane["lock_held_p50_s"] is None
    assert 0 < lock["lock_held_p50_s"] <= lock["lock_held_max_s"]
    assert worst_s["files under a lock"] > 0.5 * lock["lock_held_p50_s"]
    assert worst_s["files in the batch lane"] < lock["lock_held_p50_s"]
    assert lane["partials_answered_share"] >= lock["partials_answered_share"]


def test_a_recording_is_utterances_with_pauses_and_no_two_are_the_same() -> None:
    clip = CLIP.read_bytes()
    pieces = [ulaw_decode(cut(clip, where, speech.LEAD_MS)) for where in utterances(clip)]
    one, again, other = (speech.recording(pieces, 30, seed) for seed in (0, 0, 1))
    assert len(one) == len(other) == 30 * speech.RATE_HZ
    assert np.array_equal(one, again) and not np.array_equal(one, other)
    loud = np.abs(one).reshape(-1, speech.RATE_HZ // 10).max(axis=1) > 300
    starts = int(np.count_nonzero(loud[1:] & ~loud[:-1]))
    assert starts >= 6 and np.count_nonzero(~loud) > 6 * 8, "each is followed by 0.8 s of quiet"
    assert 0 < np.abs(one[-1000:]).max() < 100, "noise, not digital silence"
    shortest = speech.recording(pieces, 0.1, 0)
    assert len(shortest) > min(map(len, pieces)), "one utterance at least"


def test_without_a_model_it_says_what_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "files", "--model", "Some/Model"]) == 2
    error = capsys.readouterr().err
    assert "--model FOLDER-OR-NAME says which" in error and error.count("\n") == 1


def test_nothing_of_files_is_heavy_in_the_media_process() -> None:
    code = (
        "import sys, benchmarks.files.run, benchmarks.files.live, benchmarks.files.alone\n"
        "print('torch' in sys.modules, 'av' in sys.modules)"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True, cwd=ROOT).split() == ["False", "False"]
