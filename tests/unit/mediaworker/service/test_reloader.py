"""A changed configuration: all of it takes effect, or nothing does."""

from __future__ import annotations

import time
from typing import Any

import pytest

from config import ConfigError, Settings
from config.load import parse
from mediaworker.policy.redaction.call import Policy
from mediaworker.service import reload as module
from mediaworker.service.reload import Part, ReloadCounters, Reloader, check


class Desk:
    def __init__(self, monkeypatch: pytest.MonkeyPatch, host: str = "127.0.0.1", **old: Any) -> None:
        self.logged: list[Settings] = []
        monkeypatch.setattr(module.logs, "configure_worker", self.logged.append)
        self.counters, self.fault = ReloadCounters(), ConfigError("", None, "")
        self.used: list[tuple[str, Settings]] = []
        parts = (
            Part(lambda settings: self.used.append(("all", settings)), check=Policy),
            Part(lambda settings: self.used.append(("calls", settings)), ("max_calls", "routes")),
            Part(lambda settings: self.used.append(("twilio", settings)), ("twilio",), check=self.check),
        )
        self.new: Any = {}
        self.reloader = Reloader(parse(old), parts, self.counters, {"http": host, "media": host}, self.read)

    def check(self, settings: Settings) -> None:
        if self.fault.key:
            raise self.fault

    def read(self) -> Settings:
        if isinstance(self.new, Exception):
            raise self.new
        return parse(self.new)

    @property
    def told(self) -> tuple[int, int, bool]:
        return self.counters.done, self.counters.refused, self.counters.last_ok


def test_what_may_change_is_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk(monkeypatch)
    assert desk.told == (0, 0, True) and desk.counters.last_s == 0.0
    desk.new = {"max_calls": 5, "log": {"level": "debug"}}
    before_s = time.time()
    assert desk.reloader.reload() is True
    (everything, settings), (calls, _) = desk.used
    assert (everything, calls) == ("all", "calls"), "a part whose settings are as they were is left alone"
    assert settings.max_calls == 5 and settings.log.level == "debug" and settings == desk.reloader.settings
    assert desk.told == (1, 0, True) and before_s <= desk.counters.last_s <= time.time()
    assert [each.log.level for each in desk.logged] == ["debug"]


@pytest.mark.parametrize(
    "new",
    [
        ConfigError("sip.port", 0, "wrong"),
        {"privacy": {"mask_after_phrases": ["..."]}},
        {"audiosocket": {"allow": ["not an address"]}},
    ],
)
def test_nothing_changes_when_anything_is_wrong(monkeypatch: pytest.MonkeyPatch, new: Any) -> None:
    desk = Desk(monkeypatch)
    desk.new = new
    assert desk.reloader.reload() is False
    assert desk.told == (0, 1, False) and desk.used == [] and desk.logged == [] and desk.counters.last_s == 0.0
    desk.new = {}
    assert desk.reloader.reload() and desk.told == (1, 1, True)


def test_a_part_may_refuse_its_new_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk(monkeypatch)
    desk.fault = ConfigError("twilio.then", "<", "no TwiML")
    assert not desk.reloader.reload() and desk.used == []


@pytest.mark.parametrize(
    ("keys", "changed", "uses"),
    [
        ((), (), True),
        (("sip.users",), ("sip.users",), True),
        (("sip.users",), ("sip.allow",), False),
        (("sip",), ("sip.allow",), True),
        (("sip",), ("siprec.ignore_mixed",), False),
        (("jobs", "webhooks"), ("webhooks",), True),
        (("retention",), (), False),
    ],
)
def test_a_part_takes_over_what_it_uses(keys: tuple[str, ...], changed: tuple[str, ...], uses: bool) -> None:
    assert Part(lambda settings: None, keys).uses(changed) is uses


def test_the_last_key_stays_while_a_port_is_open_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = {"api_keys": [{"name": "a", "key": "aaaaaaaa", "scopes": ["events"]}]}
    desk = Desk(monkeypatch, host="0.0.0.0", auth=keys)
    desk.new = {"max_calls": 5}
    assert not desk.reloader.reload() and desk.used == []
    desk.new = {"max_calls": 5, "auth": keys}
    assert desk.reloader.reload()


def test_what_waits_for_the_next_start_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    desk = Desk(monkeypatch)
    desk.new = {"sip": {"port": 5070}, "auth": {"api_keys": [{"name": "a", "key": "aaaaaaaa", "scopes": ["events"]}]}}
    assert desk.reloader.reload()
    said = capsys.readouterr().out
    assert "these keys need a restart" in said
    assert all(key in said for key in ("sip.port", "http.host", "media.host")), "keys open a port, but not a bound one"
    assert desk.reloader.settings.sip.port == 5060
    desk.new = {"auth": desk.new["auth"], "http": {"host": "127.0.0.1"}, "media": {"host": "127.0.0.1"}}
    desk.reloader.reload()
    assert "media.host" in capsys.readouterr().out, "it is another setting than the one that is in force"


@pytest.mark.parametrize(
    ("wrong", "key"),
    [
        ({"twilio": {"then": "<Dial>"}}, "twilio.then"),
        ({"twilio": {"public_url": "https://"}}, "twilio.public_url"),
        ({"twilio": {"stream_url": "wss://host:0/x"}}, "twilio.stream_url"),
        ({"twilio": {"stream_url": "wss://[::1/x"}}, "twilio.stream_url"),
        ({"jobs": {"webhook_secret": "short"}}, "jobs.webhook_secret"),
        ({"jobs": {"webhook_allow": ["x"]}}, "jobs.webhook_allow"),
        ({"webhooks": [{"name": "a", "url": "ftp://x", "secret": "x" * 24}]}, "webhooks"),
        ({"alerts": {"file": "/no/such/file.toml"}}, "alerts.file"),
        ({"asr": {"engine": "no-such-engine"}}, "asr.engine"),
        ({"http": {"tls_cert": "/no/such.pem"}}, "http.tls_cert"),
        ({"media": {"tls_cert": "/no/such.pem"}}, "media.tls_cert"),
        ({"sip": {"tls_cert": "/no/such.pem"}}, "sip.tls_cert"),
        ({"audiosocket": {"allow": ["x"]}}, "audiosocket.allow"),
        ({"privacy": {"patterns": [{"name": "a", "pattern": "("}]}}, "privacy.patterns"),
    ],
)
def test_each_part_is_checked_without_being_made(wrong: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError) as refused:
        check(parse(wrong))
    assert str(refused.value).startswith(key)


def test_the_default_configuration_is_right_where_an_engine_can_run() -> None:
    check(parse({"asr": {"engine": "moonshine"}}))
