"""Who loses a slot: the rule, looked up once a step, against the rule asked anew for each slot."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from asr.engines.qwen.allocation import Victims


def owner(name: str, *, live: bool, asked: bool) -> Any:
    return SimpleNamespace(utterance=SimpleNamespace(id=name, live=live), now=object() if asked else None)


def rule(owners: list[Any], working: set[str], *, live: bool, only: bool) -> str | None:
    files = [each for each in owners if not each.utterance.live]
    calls = [each for each in owners if each.utterance.live and each.utterance.id not in working]
    spare = [each for each in calls if each.now is None]
    if live:
        candidates = spare if len(files) == 1 and spare and not only else [*files, *calls]
    elif files or only:
        candidates = [each for each in files if each.now is None and each.utterance.id not in working]
    else:
        candidates = spare
    return candidates[0].utterance.id if candidates else None


@given(
    st.lists(st.tuples(st.booleans(), st.booleans(), st.booleans()), min_size=1, max_size=12),
    st.lists(st.booleans(), max_size=8),
)
def test_victims_are_those_of_the_rule(kinds: list[tuple[bool, bool, bool]], wanted: list[bool]) -> None:
    owners = [owner(f"o{at}", live=live, asked=asked) for at, (live, asked, _) in enumerate(kinds)]
    working = {f"o{at}" for at, (_, _, busy) in enumerate(kinds) if busy} | {f"n{at}" for at in range(len(wanted))}
    victims = Victims(list(owners), working, only=len(kinds) == 1)
    for at, live in enumerate(wanted):
        expected = rule(owners, working, live=live, only=len(kinds) == 1)
        assert victims.pop(live=live) == expected
        if expected is None:
            continue
        newcomer = owner(f"n{at}", live=live, asked=False)
        owners = [each for each in owners if each.utterance.id != expected] + [newcomer]
        if not live:
            victims.add_file(newcomer.utterance.id)
