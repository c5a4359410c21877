"""The table on the terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import groupby

from tools.reference import times
from tools.reference.compare import CAUSES, Row, Stream, counts


def show(
    rows: Sequence[Row],
    streams: Sequence[Stream],
    parsed: Sequence[str | None],
    timed: Sequence[times.Row],
    wrong: Sequence[str],
    seconds: float,
) -> None:
    print(f"{'who, what, how asked':44}{'asked':>6}{'tokens':>8}{'mel':>9}{'encoder':>9}  result")
    for talk, group in groupby(rows, key=lambda row: row.case.talk):
        several = list(group)
        mel, encoder = max(row.mel for row in several), max(row.encoder for row in several)
        tokens = sum(row.tokens for row in several)
        print(f"{talk.name:44}{len(several):6}{tokens:8}{mel:9.1e}{encoder:9.1e}  {_results(several)}")
    print("\nthe package's streaming recipe, with the encoder's mask")
    for each in streams:
        way = "as published" if each.rolls_back else "without a beginning"
        whose = "those without a beginning" if each.rolls_back else "the engine's"
        print(f"{each.name:24} every {each.chunk_s:3} s, {way:20}{each.same:3} of {each.count:2} are {whose}")
    print(f"\n{'times of words':44}{'asked':>6}{'words':>8}{'chances':>9}  result")
    for title, alike in groupby(timed, key=lambda row: row.question.group):
        some = list(alike)
        count, chances = sum(row.words for row in some), max(row.chances for row in some)
        print(f"{title:44}{len(some):6}{count:8}{chances:9.1e}  {_results(some)}")
    found = counts(rows) + counts(timed) + Counter(rule for rule in parsed if rule and rule != "equal")
    print(f"\n{len(parsed)} raw answers into language and text\n\nwhere they differ, and why")
    for name, count in found.most_common():
        cause, check = CAUSES[name]
        print(f"  {name} ({count}): {cause}. Checked: {check}.")
    for each in wrong:
        print(f"DIFFERENT: {each}")
    print(
        f"reference: {len(rows)} questions: {_summary(rows)}; {sum(row.tokens for row in rows)} tokens compared;"
        f" {len(timed)} of times: {_summary(timed)}; {sum(row.words for row in timed)} words; in {seconds:.0f} s"
    )


def _results(rows: Sequence[Row] | Sequence[times.Row]) -> str:
    results = Counter(row.result for row in rows)
    return ", ".join(f"{count} {name}" for name, count in results.items()) if len(results) > 1 else rows[0].result


def _summary(rows: Sequence[Row] | Sequence[times.Row]) -> str:
    plain, bad = sum(row.result == "equal" for row in rows), sum(bool(row.wrong) for row in rows)
    return f"{plain} equal, {len(rows) - plain - bad} explained, {bad} different"
