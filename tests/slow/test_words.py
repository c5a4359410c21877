"""`make words`: a short run of the whole of it."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from benchmarks.words.__main__ import main


def test_a_call_is_measured_from_end_to_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two prompts through one SIP call to a worker that the command starts."""
    report, page = tmp_path / "words.json", tmp_path / "words.md"
    arguments = ["--prompts", "tt-weasels,vm-goodbye", "--conditions", "loss-1", "--calls", "1"]
    on_term = signal.getsignal(signal.SIGTERM)
    try:
        assert main([*arguments, "--json", str(report), "--markdown", str(page), "--verbose"]) == 0
    finally:
        signal.signal(signal.SIGTERM, on_term)
    out = capsys.readouterr().out
    wide, narrow, call = json.loads(report.read_text())
    assert [row["path"] for row in (wide, narrow, call)] == ["offline", "offline", "SIP, PCMU"]
    for row in (wide, narrow, call):
        assert row["prompts"] == 2 and row["words"] == 7 and row["offline_errors"] <= 2
    assert call["condition"] == "1 % lost" and call["failed_finals"] == 0
    # A machine that stands still makes sound come too late, and the report says so.
    late = any(each["late_ms"] > 40 for each in call["scored"])
    assert late or (call["live_errors"] <= 2 and call["added_words"] == 0), out
    assert 0 < call["first_partial_ms"][0] and 0 < call["final_ms"][0] and 0 < call["inference_ms"] < call["worker_ms"]
    names = {name for each in call["scored"] for name in each["name"].split("+")}
    assert names == {"tt-weasels", "vm-goodbye"}
    assert page.read_text().count("\n") == 5 and "SIP, PCMU" in out
