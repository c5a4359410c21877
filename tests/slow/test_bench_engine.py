"""`mediaworker bench engine`: the arrivals it plays, what it counts, and the command itself."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from asr import messages
from asr.engines.qwen.device.memory import Shape
from asr.engines.qwen.model.loader import load
from asr.scheduling.request import Lane, Request
from asr.utterance import Utterance
from benchmarks.engine import run as engine
from benchmarks.engine.arrivals import Clock, Run, changed, figures, percentile
from benchmarks.engine.meter import MeteredEngine
from benchmarks.engine.native import UNFIXED_TOKENS, Refeed, Rollback
from benchmarks.engine.plan import arrivals, cut, pieces, plan, utterances
from benchmarks.engine.predict import Options, predict
from lab.engine.qwen_models import TINY, generate, loaded_tiny, prompts
from lab.house import ROOT
from lab.worker.qwen import DIGITS
from mediaworker.cli.main import main

CUSTOMER, AGENT, LONG = ((DIGITS / f"{name}.ulaw").read_bytes() for name in ("customer", "agent", "long"))
CLIPS = [CUSTOMER, AGENT]


# -- arrivals ----------------------------------------------------------------------------------------------------------


def test_a_clip_is_cut_at_its_pauses() -> None:
    assert [len(utterances(clip)) for clip in (CUSTOMER, AGENT, LONG)] == [2, 2, 1]
    assert utterances(b"\xff" * 8000) == utterances(b"") == []
    ((start, end),) = utterances(LONG)
    endless = utterances(5 * LONG[start:end])
    assert len(endless) == 2 and endless[0] == (0, 240_000), "30 s are the most"
    (start, end), _ = utterances(CUSTOMER)
    piece = cut(CUSTOMER, (start, end), 60)
    assert len(piece) == end - start + (60 + 160) * 8 and CUSTOMER[start:end] in piece
    assert cut(LONG, (0, len(LONG)), 60) == b"\xff" * 480 + LONG + b"\xff" * 1280


def test_a_seed_decides_who_speaks_when() -> None:
    spoken = plan(CLIPS, calls=3, seconds=10, seed=1)
    assert spoken == plan(CLIPS, calls=3, seconds=10, seed=1) != plan(CLIPS, calls=3, seconds=10, seed=2)
    assert max(each.start_s for each in spoken) < 10
    more = plan(CLIPS, calls=4, seconds=10, seed=1)
    assert [each for each in more if not each.id.startswith("leg-3/")] == spoken
    for leg in range(3):
        mine = [each for each in spoken if each.id.startswith(f"leg-{leg}/")]
        assert len(mine) > 1
        assert all(one.end_s + 0.5 <= two.start_s for one, two in zip(mine, mine[1:], strict=False))


def test_pieces_are_joined_into_long_utterances_that_no_pause_ends() -> None:
    for join in (2, 8):
        for each in plan([LONG, AGENT], calls=3, seconds=30, seed=1, join=join):
            assert len(utterances(each.codes)) == 1 and len(each.codes) <= 240_000
    assert max(len(each.codes) for each in plan([LONG], calls=3, seconds=30, seed=1, join=2)) > 14 * 8000


def test_nobody_in_the_clips_is_an_error() -> None:
    with pytest.raises(ValueError, match="nobody speaks"):
        plan([b"\xff" * 8000], calls=1, seconds=1, seed=1)


def test_audio_comes_as_it_is_spoken_and_the_final_last() -> None:
    spoken = plan(CLIPS, calls=3, seconds=6, seed=1)
    coming = arrivals(spoken, partial_ms=500)
    assert [each.time_s for each in coming] == sorted(each.time_s for each in coming)
    for each in spoken:
        mine = [(one.time_s, one.message) for one in coming if _about(one.message) == each.id]
        assert isinstance(mine[0][1], messages.Open)
        heard, revision, asked = b"", 0, []
        for time_s, message in mine[1:]:
            if isinstance(message, messages.Append):
                assert message.start == len(heard)
                heard += message.audio
            else:
                assert isinstance(message, messages.PartialRequest | messages.FinalRequest)
                assert message.end == len(heard) and message.revision == revision + 1
                assert time_s == pytest.approx(each.start_s + len(heard) / 8000)
                revision = message.revision
                asked.append(len(heard) // 8)
        last = mine[-1][1]
        assert isinstance(last, messages.FinalRequest) and last.commit and heard == each.codes
        said = [at_ms - each.lead_ms for at_ms in asked[:-1]]
        assert said == [250, 375, 500, *range(625, 30_000, 500)][: len(said)] and len(said) > 1


def test_each_leg_gives_a_context_of_its_own_with_all_its_utterances() -> None:
    coming = arrivals(plan(CLIPS, calls=3, seconds=12, seed=1), partial_ms=500, context=400)
    found = [each.message.utterance for each in coming if isinstance(each.message, messages.Open)]
    contexts = {(each.id.partition("/")[0], each.context) for each in found}
    assert len(found) > len(contexts) == 3 == len({context for _, context in contexts})
    assert {len(context.split()) for _, context in contexts} == {400}


def _about(message: messages.ToEngine) -> str:
    if isinstance(message, messages.Open):
        return message.utterance.id
    assert not isinstance(message, messages.Configure | messages.Ping)
    return message.utterance_id


# -- counting ----------------------------------------------------------------------------------------------------------


def test_a_partial_has_changed_when_a_later_text_does_not_begin_with_its_words() -> None:
    assert changed(["", "one", "one two", "one two three"]) == 0
    assert changed(["one", "one to", "one two", "one two"]) == 1
    assert changed(["one to", "one to", "one two"]) == 2
    assert changed(["one two", "one two three", ""]) == 2
    assert changed(["only a final"]) == 0


def test_percentiles_are_values_that_occurred() -> None:
    values = [float(value) for value in range(100, 0, -1)]
    assert [percentile(values, percent) for percent in (50, 95, 99)] == [50, 95, 99]
    assert percentile([7.0], 99) == 7.0 and percentile([], 50) is None


class Slow(Clock):
    """Everything that is done takes as long: too long for four legs."""

    def timed(self, work: Callable[[], None]) -> float:
        work()
        self.now += 0.03
        return 0.03


def test_in_overload_every_request_is_counted_and_every_step_accounted_for() -> None:
    """Steps so slow that partials are replaced; what is charged to requests is what the model did."""
    made = MeteredEngine(load(TINY), Shape(slots=4, batch=4))
    spoken = plan(CLIPS, calls=4, seconds=3, seed=1)
    coming = arrivals(spoken, partial_ms=500)
    run = Run(made, coming, pieces(CLIPS), 3, Slow())
    run.run()
    model = loaded_tiny()
    row = figures(run, lambda codes: _whole(model, codes))
    asked = [
        each.message for each in coming if isinstance(each.message, messages.PartialRequest | messages.FinalRequest)
    ]
    lanes = row["lanes"]
    assert all(lane["count"] == lane["asked"] for lane in lanes.values())
    live = [lanes[name] for name in ("final", "first_partial", "partial")]
    assert sum(lane["asked"] for lane in live) == len(asked)
    assert lanes["final"]["asked"] == len(spoken) and lanes["final"]["replaced"] == 0
    replaced = sum(lane["replaced"] for lane in live)
    partials = sum(lane["asked"] for lane in live[1:])
    assert 0 < replaced <= partials and row["partials_answered"] == round(1 - replaced / partials, 4)
    assert row["finals"] == len(spoken) and row["finals_equal"] == row["batch_finals_equal"] == 1.0
    assert row["rows_per_forward"] > 1
    spent = run.tally.spent.values()
    assert sum(each.windows for each in spent) == made.encoder.attended_windows
    assert sum(each.chunks for each in spent) == made.encoder.convolved_chunks
    assert sum(each.frames for each in spent) == made.encoder.attended_tokens
    assert sum(each.tokens for each in spent) == made.packed.positions
    assert sum(each.forwards for each in spent) == made.meter.rows
    assert made.meter.forwards == made.packed.forwards


def _whole(model: Any, codes: bytes) -> str:
    reader = prompts(model)
    prompt = reader.build()
    return reader.read(generate(model.model, codes, prompt, 200), prompt)[1]


# -- baselines ---------------------------------------------------------------------------------------------------------


def _recognised(design: Refeed, codes: bytes, step: int) -> list[tuple[str, int, int, int]]:
    """Raw answer, forwards, windows and chunks for partials every `step` codes and a final."""
    found = []
    design.open(Utterance("u", "PCMU"))
    at = 0
    for revision, end in enumerate([*range(step, len(codes), step), len(codes)]):
        design.append("u", codes[at:end])
        at = end
        final = end == len(codes)
        design.step([Request("u", revision, Lane.FINAL if final else Lane.PARTIAL, final, end, 0.0)])
        spent = design.meter.spent["u"]
        found.append((design._open["u"].raw, spent.forwards, spent.windows, spent.chunks))
    design.close("u")
    return found


def test_refeeding_is_the_librarys_answer_and_costs_what_it_costs() -> None:
    model, codes = load(TINY), LONG[: 9 * 8000]
    design, reader = Refeed(model), prompts(model)
    prompt = reader.build()
    for number, (raw, forwards, windows, chunks) in enumerate(_recognised(design, codes, 12000), 1):
        tokens = generate(model.model, codes[: number * 12000], prompt, 200)
        assert raw == model.tokenizer.decode(tokens)
        assert forwards == len(tokens) + 1
        assert (windows, chunks) == (1 + (number == 6), (3 * number + 1) // 2)
    assert design.whole(codes) == reader.read(tokens, prompt)[1]


def test_rolling_back_forces_all_but_the_last_five_tokens() -> None:
    model = load(TINY)
    rolled, refed = (_recognised(design(model), LONG[:40000], 5000) for design in (Rollback, Refeed))
    assert [each[0] for each in rolled[:2]] == [each[0] for each in refed[:2]]
    forced = 0
    for (before, *_), (raw, forwards, *_), (_, plain, *_) in zip(rolled[1:-1], rolled[2:], refed[2:], strict=True):
        kept = model.tokenizer(before, add_special_tokens=False)["input_ids"][:-UNFIXED_TOKENS]
        assert raw.startswith(model.tokenizer.decode(kept))
        assert forwards == len(model.tokenizer(raw, add_special_tokens=False)["input_ids"]) - len(kept) + 1
        forced += len(kept)
        assert forwards <= plain
    assert forced > 15


# -- the command -------------------------------------------------------------------------------------------------------


def test_the_command_measures_every_design(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "figures.json"
    customer = str(DIGITS / "customer.ulaw")
    assert main(["bench", "engine", "--calls", "2", "--seconds", "1", "--audio", customer, "--json", str(out)]) == 0
    assert "finals equal" in capsys.readouterr().out
    figures = json.loads(out.read_text())
    runs = figures.pop("runs")
    assert figures == runs[0]
    assert [run["design"] for run in runs] == ["engine", "engine, batch 1", "re-feed", "rollback"]
    spoken = plan([CUSTOMER], calls=2, seconds=1, seed=1)
    for run in runs:
        lanes = run["lanes"]
        assert run["calls"] == 2 and list(lanes) == ["final", "first_partial", "partial", "batch"]
        assert all(lane["count"] == lane["asked"] > 0 for lane in lanes.values())
        assert all(0 < lane["p50_ms"] <= lane["p95_ms"] <= lane["p99_ms"] for lane in lanes.values())
        assert lanes["final"]["count"] == run["finals"] == len(spoken) and run["batch_finals_equal"] == 1.0
        assert run["audio_s"] == pytest.approx(sum(len(each.codes) for each in spoken) / 8000, abs=0.01)
        for kind in ("partial", "final"):
            for what in ("forwards", "tokens", "windows", "chunks"):
                assert run[f"{what}_per_{kind}"] > 0
        assert run["cpu_s_per_audio_s"] > 0 and run["ratio"] > 0 and 0 <= run["partials_changed"] <= 1
        assert run["rows_per_forward"] == 1 if run["design"] != "engine" else run["rows_per_forward"] >= 1
    by_design = {run["design"]: run for run in runs}
    assert all(by_design[design]["finals_equal"] == 1.0 for design in ("engine", "engine, batch 1", "re-feed"))
    assert by_design["engine"]["forwards_per_final"] < by_design["re-feed"]["forwards_per_final"]
    assert by_design["engine"]["ratio"] == by_design["re-feed"]["ratio"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "tests/data/digits has no clips, only a checkout has: --audio FILE… gives recorded speech"),
        (["--audio", "nowhere.wav"], "--audio: nowhere.wav: No such file or directory"),
        (["--audio", str(DIGITS / "long.ulaw")], "is not there, only a checkout has it: --model FOLDER-OR-NAME"),
        (["--audio", str(DIGITS / "long.ulaw"), "--model", "Some/Model"], "--model FOLDER-OR-NAME says which"),
    ],
)
def test_without_a_model_or_clips_it_says_what_is_missing(
    arguments: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(engine, "MODEL", tmp_path / "models" / "tiny")
    monkeypatch.setattr(engine, "CLIPS", tmp_path / "tests" / "data" / "digits")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    assert main(["bench", "engine", *arguments]) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1


def test_other_benchmarks_and_the_help_do_not_load_the_engine() -> None:
    code = (
        "import sys, benchmarks.command, benchmarks.media.run, benchmarks.engine.run\n"
        "print('torch' in sys.modules, 'transformers' in sys.modules)"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True, cwd=ROOT).split() == ["False", "False"]


@pytest.mark.parametrize("load", [{"utterance_s": 2.0}, {"utterance_s": 25.0}, {"context": 400}], ids=str)
def test_a_step_costs_what_its_positions_cost(load: dict[str, Any]) -> None:
    """Short and long utterances and long contexts: what is computed once is never computed again."""
    plain, other = (
        predict(Options("h200", "0.6B", files=1, seconds=1.0, start=8, bound=8, **each), TINY)["runs"][0]
        for each in ({"utterance_s": 5.0}, load)
    )
    cost_ms = [each["step_ms"] / each["positions_per_forward"] for each in (plain, other)]
    assert other["partials_answered"] == 1.0 and cost_ms[1] < 2 * cost_ms[0]
