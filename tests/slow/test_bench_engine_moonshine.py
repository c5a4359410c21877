"""`mediaworker bench engine --engine moonshine`: the people who talk, what is counted, and the command itself."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from asr import messages
from asr.engines.moonshine import plugin
from asr.engines.moonshine.answers import GUESSED, continuation
from benchmarks.engine import run as engine
from benchmarks.engine import talk as talking
from benchmarks.engine.arrivals import Clock, Run
from benchmarks.engine.moonshine_designs import MeteredEngine, Model
from benchmarks.engine.plan import Arrival, next_partial_ms
from benchmarks.engine.talk import FRAME_MS, WARM_S, quiet, requests, talk
from lab.house import ROOT
from lab.worker.qwen import DIGITS
from mediaworker.cli.main import main

CLIPS = [(DIGITS / f"{name}.ulaw").read_bytes() for name in ("customer", "agent", "long")]
Asked = messages.PartialRequest | messages.FinalRequest


def about(arrivals: list[Arrival], name: str) -> list[Arrival]:
    found = []
    for each in arrivals:
        message = each.message
        if isinstance(message, messages.Open):
            mine = message.utterance.id == name
        else:
            assert isinstance(message, Asked | messages.Append | messages.Withdraw | messages.CloseUtterance)
            mine = message.utterance_id == name
        found += [each] * mine
    return found


def test_people_talk_for_two_to_eight_seconds_and_end_with_a_pause() -> None:
    spoken = talk(CLIPS, people=3, seconds=20, seed=1)
    assert spoken == talk(CLIPS, people=3, seconds=20, seed=1) != talk(CLIPS, people=3, seconds=20, seed=2)
    more = talk(CLIPS, people=4, seconds=20, seed=1)
    assert [each for each in more if not each.id.startswith("leg-3/")] == spoken
    for each in spoken:
        assert 2.0 <= (len(each.codes) / 8 - each.lead_ms - 160) / 1000 <= 8.0
    for person in range(3):
        mine = [each for each in spoken if each.id.startswith(f"leg-{person}/")]
        assert len(mine) > 2
        for one, two in zip(mine, mine[1:], strict=False):
            assert two.start_s == pytest.approx(one.end_s + 0.34), "500 ms of quiet end an utterance, 160 are in it"
    with pytest.raises(ValueError, match="nobody speaks"):
        talk([b"\xff" * 8000], people=1, seconds=1, seed=1)


def test_requests_are_those_of_a_live_call() -> None:
    spoken = talk(CLIPS, people=2, seconds=8, seed=3)
    coming = requests(spoken, partial_ms=500, seconds=8)
    assert [each.time_s for each in coming] == sorted(each.time_s for each in coming)
    pauses = 0
    for each in spoken:
        mine = about(coming, each.id)
        assert isinstance(mine[0].message, messages.Open) and isinstance(mine[-1].message, messages.CloseUtterance)
        withdrawn = [one for one in mine if isinstance(one.message, messages.Withdraw)]
        mine = [one for one in mine if one not in withdrawn]
        heard, revision, due_ms = b"", 0, each.lead_ms + 250
        for arrival in mine[1:-1]:
            message = arrival.message
            if isinstance(message, messages.Append):
                assert message.start == len(heard)
                heard += message.audio
                continue
            assert isinstance(message, Asked) and message.end == len(heard) and message.revision > revision
            assert arrival.time_s == pytest.approx(each.start_s + len(heard) / 8000)
            if isinstance(message, messages.PartialRequest):
                after_pause, at_ms = message.revision == revision + 2, len(heard) // 8
                assert after_pause or due_ms <= at_ms < due_ms + FRAME_MS
                due_ms = next_partial_ms(at_ms, each.lead_ms, 500)
            else:
                assert not message.commit and message.wanted_in_ms == 340
            revision = message.revision
        last = mine[-2]
        assert isinstance(last.message, messages.FinalRequest) and heard == each.codes
        assert last.ready_s == mine[-1].time_s == pytest.approx(each.end_s + 0.34)
        assert last.counts == (WARM_S <= last.time_s < WARM_S + 8)
        inner = [one for one in mine[:-2] if isinstance(one.message, messages.FinalRequest)]
        assert not any(one.counts for one in inner)
        pauses += len(inner)
        assert len(inner) == len(withdrawn)
        assert len(inner) == sum(ms == 160 for _, ms in quiet(each.codes, each.lead_ms))
    assert pauses > 0, "speculative finals of people who went on"
    alone = requests(spoken, partial_ms=0, seconds=8)
    assert not any(isinstance(each.message, messages.PartialRequest) for each in alone)


class Steady(Clock):
    """Each step takes as long, however busy the machine is."""

    def __init__(self, step_s: float) -> None:
        super().__init__()
        self._step_s = step_s

    def timed(self, work: Any) -> float:
        work()
        self.now += self._step_s
        return self._step_s


def test_a_final_that_is_ready_before_its_endpoint_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of 0.5 s are so slow that everything is late."""
    monkeypatch.setattr(talking, "WARM_S", 0.5)
    folder = plugin.assets()
    assert folder is not None
    made = MeteredEngine(Model(folder), 1)
    coming = requests(talk(CLIPS, people=1, seconds=4, seed=1), partial_ms=500, seconds=4)
    for clock, late in ((Steady(0.01), False), (Steady(0.5), True)):
        run = Run(made, coming, iter(()), 4, clock)
        run.run()
        waits_s = [wait for waits in run.tally.waits_s.values() for wait in waits]
        assert waits_s and min(waits_s) >= 0 and (max(waits_s) > 0.5) == late
        assert len(waits_s) == sum(each.counts for each in coming if isinstance(each.message, Asked))
    assert not made._sessions


def test_a_guess_is_what_the_draft_said_nearest_to_here() -> None:
    draft = [5, 6, 7, 5, 8, 9]
    assert continuation(draft, 5, 0) == [6, 7, 5, 8, 9]
    assert continuation(draft, 5, 4) == [8, 9]
    assert continuation(draft, 9, 0) == continuation(draft, 1, 0) == continuation([], 1, 0) == []
    assert len(continuation(list(range(50)), 3, 0)) == GUESSED


def test_the_command_measures_every_design(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(talking, "WARM_S", 0.5)
    out = tmp_path / "figures.json"
    command = ["bench", "engine", "--engine", "moonshine", "--calls", "1", "--seconds", "1", "--json", str(out)]
    assert main([*command, "--audio", *map(str, DIGITS.glob("*.ulaw"))]) == 0
    said = capsys.readouterr()
    figures = json.loads(out.read_text())
    runs = figures.pop("runs")
    assert figures == runs[0]
    lacking = engine.lacks_package()
    designs = ["engine", "re-feed", *([] if lacking else ["moonshine-voice 0.0.73"])]
    assert [run["design"] for run in runs] == designs and all(design in said.out for design in designs)
    assert (f"pip install {' '.join(lacking)}" in said.err) == bool(lacking)
    for run in runs:
        assert run["calls"] == 1 and run["partial_ms"] == 500 and run["finals"] > 0
        assert 0 < run["cpu_s_per_audio_s"] and run["ratio"] > 0 and 0 <= run["partials_answered"] <= 1
    assert runs[0]["finals_equal"] == 1.0, "a final does not depend on partials before it"
    assert main([*command, "--partial-ms", "0", "--no-baseline", "--threads", "2"]) == 0
    (alone,) = json.loads(out.read_text())["runs"]
    assert alone["partials_answered"] is None and alone["cpu_ms_per_partial"] is None


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--engine", "moonshine", "--model", "x"], "--model does not go with --engine moonshine"),
        (["--engine", "moonshine", "--slots", "3"], "--slots does not go with --engine moonshine"),
        (["--engine", "moonshine", "--threads", "2", "--clock", "cpu"], "--clock cpu measures one thread"),
        (["--threads", "2"], "--threads goes with --engine moonshine only"),
        (["--partial-ms", "0", "--random-weights", "tiny"], "--partial-ms may be 0 with --engine moonshine only"),
    ],
)
def test_options_that_do_not_go_together(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "engine", *arguments]) == 2
    assert said in capsys.readouterr().err


def test_without_the_weights_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(plugin, "assets", lambda: None)
    assert main(["bench", "engine", "--engine", "moonshine"]) == 2
    error = capsys.readouterr().err
    assert "pip install --no-deps moonshine-voice" in error and error.count("\n") == 1


def test_measuring_moonshine_loads_no_torch() -> None:
    code = "import sys, benchmarks.engine.moonshine_designs\nprint('torch' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True, cwd=ROOT).strip() == "False"
