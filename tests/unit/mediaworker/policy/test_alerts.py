"""Rules, and the alerts that they raise."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from config import ConfigError
from lab.events.finals import final
from lab.patience import eventually
from mediaworker.events import schema as events
from mediaworker.policy.alerts.call import CallAlerts
from mediaworker.policy.alerts.rules import RulesError, parse
from mediaworker.policy.alerts.watch import AlertWatch

RULES = """
[[rules]]
name = "cancel"
severity = "critical"
role = "customer"
phrases = ["cancel my contract", "speak to a manager"]

[[rules]]
name = "guarantee"
pattern = 'guarantee\\w*'
cooldown_s = 60

[[rules]]
name = "dead-air"
silence_s = 10

[[rules]]
name = "agent-quiet"
role = "agent"
silence_s = 20
severity = "info"

[[rules]]
name = "talks-over"
role = "agent"
overtalk_s = 2
"""


def started() -> events.CallStarted:
    legs = [events.LegInfo(name, role, "", "", "PCMU") for name, role in (("in", "customer"), ("out", "agent"))]
    return events.CallStarted("twilio", "inbound", "1", "2", "", legs, {})


def call(text: str = RULES, copies: Collection[str] = ()) -> CallAlerts:
    """`copies`: legs on which another leg is heard."""
    rules = parse(text)
    alerts = CallAlerts(lambda: rules, lambda leg: leg in copies)
    assert alerts.on_event(0, started()) == []
    return alerts


def start(alerts: CallAlerts, leg: str, at_ms: int) -> list[events.Alert]:
    return alerts.on_event(at_ms, events.SpeechStarted(leg, f"{leg}/1", at_ms))


def end(alerts: CallAlerts, leg: str, at_ms: int) -> list[events.Alert]:
    return alerts.on_event(at_ms, events.SpeechEnded(leg, f"{leg}/1", at_ms))


def names(alerts: list[events.Alert]) -> list[str]:
    return [alert.rule for alert in alerts]


def test_words_of_a_role_raise_an_alert_with_what_matched() -> None:
    alerts = call()
    said = final("Please, CANCEL my contract.", leg="in", start_ms=100, end_ms=900)
    assert alerts.on_event(900, said) == [
        events.Alert("cancel", "in", "u1", said.text, 100, 900, "critical", match="CANCEL my contract")
    ]
    assert alerts.on_event(900, final("we cancel", leg="in")) == []
    agent = events.TranscriptFinal(
        **{name: getattr(said, name) for name in said.__struct_fields__} | {"role": "agent", "leg": "out"}
    )
    assert alerts.on_event(900, agent) == []


SPOTTING = """
[[rules]]
name = "five"
phrases = ["press five", "Drücken Sie 5", "按五", "the first 25 percent", "call 911", "one thousand two hundred euros"]

[[rules]]
name = "contract"
phrases = ["cancel my contract", "解约"]

[[rules]]
name = "promise"
pattern = 'promise.{0,40}refund'
"""


@pytest.mark.parametrize(
    ("text", "language", "match"),
    [
        ("Press 5.", "en", "Press 5"), ("please press five now", "en", "press five"), ("press 5", "", "press 5"),
        ("Drücken Sie bitte nicht; drücken Sie fünf", "de", "drücken Sie fünf"), ("请按5", "zh", "按5"),
        ("the 1st twenty-five percent", "en", "1st twenty-five percent"), ("call 9-1-1", "en", "call 9-1-1"),
        ("Call nine one one!", "en", "Call nine one one"), ("it is 1,200 euros", "en", "1,200 euros"),
        ("press ５", "en", "press ５"), ("press 55", "en", ""), ("press fifty", "en", ""), ("press the 5", "en", ""),
        ("call 9115", "en", ""), ("drücken Sie fünf", "en", ""), ("press cinq", "fr", ""), ("", "en", ""),
    ],
)  # fmt: skip
def test_numbers_are_equal_whichever_way_they_are_written(text: str, language: str, match: str) -> None:
    rule = parse(SPOTTING).spotting[0]
    place = rule.find(text, language)
    assert (text[slice(*place)] if place is not None else "").removeprefix("the ") == match


@given(st.text(), st.sampled_from(["en", "de", "zh", "xx", ""]))
def test_any_text_is_searched_for_numbers(text: str, language: str) -> None:
    for rule in parse(SPOTTING).spotting:
        place = rule.find(text, language)
        assert place is None or 0 <= place[0] < place[1] <= len(text)


def talk(*said: tuple[str, str, int]) -> list[events.Alert]:
    """The alerts of finals: leg, text and start, each a second long."""
    alerts = call(SPOTTING)
    return [
        alert
        for number, (leg, text, start_ms) in enumerate(said)
        for alert in alerts.on_event(
            start_ms + 1000, final(text, number, leg=leg, start_ms=start_ms, end_ms=start_ms + 1000)
        )
    ]


def test_a_phrase_over_a_pause_is_found_in_the_turn() -> None:
    assert talk(("in", "I want to cancel", 0), ("in", "my contract, please.", 1800)) == [
        events.Alert(
            "contract",
            "in",
            "u1",
            "I want to cancel my contract, please.",
            0,
            2800,
            "warning",
            match="cancel my contract",
        )
    ]


@pytest.mark.parametrize(
    ("said", "match"),
    [
        ([("in", "Well, I want to", 0), ("in", "Cancel my", 1500), ("in", "", 3000), ("in", "contract.", 4500)],
         "Cancel my contract"),
        ([("in", "cancel", 0), ("out", "Mm-hmm.", 1200), ("in", "my contract", 2500)], "cancel my contract"),
        ([("in", "please press", 0), ("in", "5 now", 1500)], "press 5"),
        ([("in", "I promise you", 0), ("in", "that there is a full refund", 1500)],
         "promise you that there is a full refund"),
        ([("in", "我要解", 0), ("in", "约", 1500)], "解约"),
        ([("in", "cancel", 0), ("out", "Sorry, what do you want?", 1200), ("in", "my contract", 2500)], ""),
        ([("in", "cancel", 0), ("in", "my contract", 9000)], ""),
        ([("in", "cancel", 0), ("out", "my contract", 1500)], ""),
        ([("in", "cancel", 0), ("in", "not", 1500), ("in", "my contract", 3000)], ""),
    ],
)  # fmt: skip
def test_a_turn_ends_with_a_long_pause_or_with_somebody_elses(said: list[tuple[str, str, int]], match: str) -> None:
    assert [alert.match for alert in talk(*said)] == ([match] if match else [])


def test_a_phrase_is_found_once_in_a_turn() -> None:
    found = talk(("in", "cancel my", 0), ("in", "contract", 1500), ("in", "cancel", 3000), ("in", "my contract", 4500))
    assert [(alert.utterance_id, alert.start_ms, alert.text) for alert in found] == [
        ("u1", 0, "cancel my contract"), ("u3", 3000, "cancel my contract"),
    ]  # fmt: skip


def test_of_a_long_turn_the_latest_finals_are_remembered() -> None:
    said = [("in", "words " * 50, 1500 * at) for at in range(30)]
    found = talk(*said, ("in", "cancel", 45_000), ("in", "my contract", 46_500))
    assert [alert.text for alert in found] == ["cancel my contract"]


def test_a_rule_keeps_quiet_for_its_cooldown() -> None:
    alerts = call()
    assert names(alerts.on_event(0, final("guaranteed!", end_ms=1000))) == ["guarantee"]
    assert names(alerts.on_event(0, final("guaranteed!", end_ms=60_000))) == []
    assert names(alerts.on_event(0, final("guaranteed!", end_ms=61_000))) == ["guarantee"]


def test_the_other_leg_may_be_earlier() -> None:
    alerts = call("[[rules]]\nname = 'x'\nphrases = ['hello']")
    assert names(alerts.on_event(0, final("hello", end_ms=10_000))) == ["x"]
    assert names(alerts.on_event(0, final("hello", end_ms=9_800, leg="out"))) == ["x"]


def test_silence_is_told_once_a_stretch_and_not_on_hold() -> None:
    alerts = call()
    assert alerts.check(9_900) == []
    assert alerts.check(10_000) == [events.Alert("dead-air", "", "", "", 0, 10_000, "warning")]
    assert alerts.check(15_000) == []
    assert names(alerts.check(20_000)) == ["agent-quiet"]
    start(alerts, "in", 21_000)
    assert alerts.check(40_000) == []  # the customer speaks; the agent's silence has been told
    end(alerts, "in", 41_000)
    alerts.on_event(45_000, events.CallHeld())
    assert alerts.check(90_000) == []
    alerts.on_event(100_000, events.CallResumed())
    assert alerts.check(109_000) == []
    found = alerts.check(110_000)
    assert names(found) == ["dead-air"] and found[0].start_ms == 100_000
    start(alerts, "out", 111_000)
    end(alerts, "out", 112_000)
    assert names(alerts.check(132_000)) == ["dead-air", "agent-quiet"]


def test_talking_over_is_his_who_began_later() -> None:
    alerts = call()
    start(alerts, "in", 1000)
    start(alerts, "out", 2000)
    assert alerts.check(3900) == []
    assert alerts.check(4000) == [events.Alert("talks-over", "out", "", "", 2000, 4000, "warning")]
    assert alerts.check(5000) == []
    assert end(alerts, "in", 6000) == []
    end(alerts, "out", 6500)
    start(alerts, "out", 7000)
    start(alerts, "in", 8000)
    assert alerts.check(12_000) == []  # the customer talks over the agent: another rule's business
    end(alerts, "in", 12_500)
    start(alerts, "in", 13_000)
    end(alerts, "out", 14_000)
    start(alerts, "out", 14_500)
    assert names(end(alerts, "in", 17_000)) == ["talks-over"]  # noticed at its end, between two looks


def test_a_role_that_changes_and_a_leg_that_comes_count_from_then() -> None:
    alerts = call()
    alerts.on_event(15_000, events.LegUpdated("third", "agent", "", "", "PCMU"))
    alerts.on_event(15_000, events.LegUpdated("out", "unknown", "", "", "PCMU"))
    start(alerts, "in", 15_000)
    assert alerts.check(34_000) == []
    assert [(alert.rule, alert.leg) for alert in alerts.check(35_000)] == [("agent-quiet", "third")]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[[rules]]\nname = 'x'", "exactly one"),
        ("[[rules]]\nname = 'x'\nphrases = ['a']\nsilence_s = 3", "exactly one"),
        ("[[rules]]\nphrases = ['a']", "rule 1: .*name"),
        ("[[rules]]\nname = 'x'\npattern = '('", "rule `x`: not a regular expression"),
        ("[[rules]]\nname = 'x'\nphrases = ['!']", "needs a word"),
        ("[[rules]]\nname = 'x'\nsilence_s = -1", r"\(`x`\): .*silence_s"),
        ("[[rules]]\nname = 'x'\ncolour = 'red'\nsilence_s = 1", "colour"),
        ("[[rules]]\nname = 'x'\nsilence_s = 1\n[[rules]]\nname = 'x'\nsilence_s = 2", "two rules"),
        ("[[rules]]\nname = 'x'\nrole = 'boss'\nsilence_s = 1", "role"),
        ("rules = 3", "list"), ("[rule]", "unknown key"), ("[[rules", "not TOML"),
    ],
)  # fmt: skip
def test_a_wrong_file_says_which_rule_and_why(text: str, why: str) -> None:
    with pytest.raises(RulesError, match=why):
        parse(text)


@given(st.text(max_size=200) | st.text(max_size=50).map(lambda text: f"[[rules]]\nname = 'a'\n{text}"))
def test_any_file_is_rules_or_a_reason(text: str) -> None:
    try:
        assert len(parse(text)) >= 0
    except RulesError as error:
        assert str(error)


class Call:
    ending = False
    checked = 0

    def check_alerts(self) -> None:
        self.checked += 1


async def until(true: Callable[[], object]) -> None:
    await eventually(true, 10)


async def test_the_file_is_read_again_when_it_changes_and_a_wrong_one_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mediaworker.policy.alerts.watch.PERIOD_S", 0.02)
    path = tmp_path / "alerts.toml"
    path.write_text(RULES)
    live = Call()
    watch = AlertWatch(str(path), lambda: [live])
    assert len(watch.rules) == 5
    watch.start()
    with capture_logs() as logs:
        await until(lambda: live.checked)
        path.write_text("[[rules]]\nname = 'x'")
        await until(lambda: not watch.ok)
        assert len(watch.rules) == 5
        replaced = tmp_path / "new"
        replaced.write_text("[[rules]]\nname = 'x'\nphrases = ['hello']")
        os.replace(replaced, path)
        await until(lambda: watch.ok)
        assert len(watch.rules) == 1 and not watch.rules.timed
        path.unlink()
        await until(lambda: not watch.ok)
        assert len(watch.rules) == 1
        path.write_bytes(b"\xff")
        await until(lambda: sum("not read" in each["event"] for each in logs) == 3)
        assert not watch.ok and len(watch.rules) == 1
        await watch.stop()


def test_a_file_that_cannot_be_used_at_the_start_is_a_wrong_configuration(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"alerts\.file"):
        AlertWatch(str(tmp_path / "none.toml"), tuple)
    (tmp_path / "bad.toml").write_text("[[rules]]\nname = 'x'")
    with pytest.raises(ConfigError, match="exactly one"):
        AlertWatch(str(tmp_path / "bad.toml"), tuple)


def test_crosstalk_is_no_overtalk_and_ends_no_silence() -> None:
    copies = {"out"}
    alerts = call(copies=copies)
    start(alerts, "in", 1000)
    start(alerts, "out", 1200)
    assert alerts.check(9000) == [] and end(alerts, "in", 9000) == []
    assert alerts.on_event(9300, events.SpeechEnded("out", "out/1", 9200, "in")) == []
    copies.clear()
    assert [alert.rule for alert in alerts.check(19_100)] == ["dead-air"]
    assert [alert.rule for alert in alerts.check(20_100)] == ["agent-quiet"], "the agent has not spoken yet"
