"""What the comparison with the official package rests on, as far as it can be seen without that package."""

from __future__ import annotations

import re
import runpy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from asr.engines.qwen.model.loader import load, load_aligner, renamed
from asr.engines.qwen.session import longest
from lab.engine.aligner_models import random_aligner
from lab.engine.qwen_models import TINY, random_model
from tools.reference import checkpoints, environment, times, words
from tools.reference.cases import DIGITS, Case, cases, cut_at_pauses
from tools.reference.deviations import SWITCHES, agreement, switches
from tools.reference.ours import Timed


def test_a_model_in_the_official_layout_is_the_same_model(tmp_path: Path) -> None:
    model = random_model()
    checkpoints.write(model, TINY, tmp_path / "official")
    mine, again = model.state_dict(), load(tmp_path / "official").model.state_dict()
    assert mine.keys() == again.keys()
    assert all(torch.equal(mine[name], again[name]) for name in mine)
    assert all(renamed(checkpoints.old(name)) == name for name in mine if name != "lm_head.weight")


def test_an_aligner_in_the_official_layout_is_the_same_model(tmp_path: Path) -> None:
    model = random_aligner()
    checkpoints.write(model, TINY, tmp_path / "official")
    mine, again = model.state_dict(), load_aligner(tmp_path / "official").model.state_dict()
    assert mine.keys() == again.keys()
    assert all(torch.equal(mine[name], again[name]) for name in mine)


def test_questions_have_names_and_every_cause_has_questions() -> None:
    asked = cases()
    assert len({case.name for case in asked}) == len(asked)
    shown = {tuple(switches(case)) for case in asked}
    assert () in shown and {name for names in shown for name in names} == set(SWITCHES)


def test_questions_of_times_have_names_and_every_cause_has_questions_alone_and_together() -> None:
    asked = list(times.questions())
    assert len({question.name for question in asked}) == len(asked)
    alone = {name for each in asked if len(each.lines) == 1 for name in each.switches()}
    together = {name for each in asked if len(each.lines) > 1 for name in each.switches()}
    assert alone == set(SWITCHES) - {"prompt"} and together == alone | {"batch"}
    assert all("whole" in each.ways() for each in asked if any(line.sound.seconds > 8 for line in each.lines))


def timed(chances: list[list[float]], *spans: list[int]) -> Timed:
    return Timed(["word"] * len(spans), list(spans), np.array(chances, np.float32))


def test_only_a_tie_excuses_another_class() -> None:
    question = next(each for each in times.questions() if len(each.lines) == 1)
    mine = timed([[0.6, 0.2, 0.2], [0.1, 0.45001, 0.44999]], [0, 80])

    def compared(theirs: Timed) -> tuple[list[str], list[str]]:
        row = times.Row(question, 1)
        times.check(row, [mine], [theirs])
        return row.reasons, row.wrong

    assert compared(mine) == ([], [])
    assert compared(timed([[0.6, 0.2, 0.2], [0.1, 0.44999, 0.45001]], [0, 160])) == (["tie"], [])
    for theirs in (
        timed([[0.6, 0.2, 0.2], [0.1, 0.44999, 0.45001]], [0, 80]),  # times that do not follow from the classes
        timed([[0.6, 0.2, 0.2], [0.1, 0.4498, 0.4502]], [0, 160]),  # not a tie
        timed([[0.6, 0.2, 0.2], [0.1, 0.46, 0.44]], [0, 80]),
        timed([[0.6, 0.2, 0.2], [0.1, 0.45001, 0.44999]], [80, 80]),
        replace(mine, tokens=["words"]),
    ):
        reasons, wrong = compared(theirs)
        assert wrong, reasons


@pytest.mark.parametrize("file", ["customer", "agent", "long"])
def test_pieces_between_pauses_are_the_whole(file: str) -> None:
    codes = (DIGITS / f"{file}.ulaw").read_bytes()
    pieces = cut_at_pauses(codes)
    assert b"".join(pieces) == codes and len(pieces) == (1 if file == "long" else 2)


def babble(count: int) -> list[int]:
    return [number * 7 % 101 for number in range(count)]


def some(model: str) -> Case:
    return next(case for case in cases() if case.talk.model == model and 1 <= case.seconds <= 3)


def test_only_a_known_end_makes_answers_agree() -> None:
    case, tiny = some("random"), some("tiny")
    limit = longest(case.seconds)
    assert agreement(case, babble(20), babble(20)) == "equal"
    assert agreement(case, babble(20), babble(21)) is None
    assert agreement(case, babble(limit), babble(limit + 9)) == "limit"
    assert agreement(case, [*babble(5), *[3] * 16], [*babble(5), *[3] * 40]) == "loop"
    assert agreement(case, [*babble(5), 3], [*babble(5), *[3] * 40]) == "loop", "said once"
    assert agreement(case, babble(case.budget + 3), babble(case.budget)) == "equal"
    assert agreement(tiny, babble(70), babble(64)) is None, "the model that reads is asked to its end"
    changed = [*babble(10), 500, *babble(limit)[11:]]
    assert agreement(case, changed, babble(limit + 9)) is None
    assert agreement(replace(case, end=case.end * 2), babble(limit), babble(limit + 9)) is None


@pytest.mark.parametrize(
    ("theirs", "ours", "rule"),
    [
        (("English", "one two"), ("en", "one two"), "equal"),
        (("English", "one two"), ("en", "one too"), None),
        (("English", "one two"), ("de", "one two"), None),
        (("English", "one  two"), ("en", "one two"), "spaces"),
        (("English", "one  two"), ("en", "onetwo"), None),
        (("", ""), ("en", ""), "silent"),
        (("German", ""), ("en", ""), None),
        (("English", "one"), ("en", ""), None),
        (("English", "one<asr_text>two"), ("en", "onetwo"), "leaked"),
        (("English", "one<asr_text>two"), ("en", "two"), None),
        (("English", "10"), ("en", "1" + "0" * 30), "number"),
        (("English", "10"), ("en", "1" + "0" * 80), None),
        (("English", "10"), ("en", "1one"), None),
    ],
)
def test_only_a_known_reason_makes_words_agree(
    theirs: tuple[str, str], ours: tuple[str, str], rule: str | None
) -> None:
    assert words.rule(theirs, ours) == rule


def test_every_package_of_the_reference_has_its_version_and_its_hashes() -> None:
    lock = environment.LOCK.read_text(encoding="utf-8")
    pinned = re.findall(r"^([\w.-]+)==(\S+) \\\n    --hash=sha256:", lock, re.MULTILINE)
    assert dict(pinned)["qwen-asr"] == "0.0.6" and dict(pinned)["transformers"] == "4.57.6"
    lines = [line for line in lock.splitlines() if line[:1].isalpha()]
    assert len(lines) == len(pinned) and "://" not in lock
    assert not {"torch", "gradio", "flask"} & dict(pinned).keys()


def test_without_the_package_there_is_a_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null")
    with pytest.raises(SystemExit, match="^2$"):
        runpy.run_module("tools.reference")
    assert re.fullmatch(r"reference: the environment cannot be made: .+\n", capsys.readouterr().err)
