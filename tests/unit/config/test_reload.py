"""A reload: which settings may change while calls run."""

from __future__ import annotations

from config import Settings
from config.load import parse
from config.reload import merge


def test_what_may_change_changes_and_the_rest_is_named() -> None:
    old = parse({"sip": {"port": 5060, "allow": ["10.0.0.1"]}, "log": {"level": "info"}, "max_calls": 5})
    new = parse(
        {
            "sip": {"port": 5070, "allow": ["10.0.0.2"]},
            "log": {"level": "debug", "sip_trace": True},
            "max_calls": 6,
            "data_dir": "elsewhere",
            "routes": [{"profile": "bot"}],
        }
    )
    merged = merge(old, new)
    assert set(merged.changed) == {"sip.allow", "log.level", "log.sip_trace", "max_calls", "routes"}
    assert set(merged.waiting) == {"sip.port", "data_dir"}
    assert (merged.settings.sip.port, merged.settings.sip.allow) == (5060, ("10.0.0.2",))
    assert (merged.settings.log.level, merged.settings.data_dir) == ("debug", "data")
    assert merge(old, old) == merge(merged.settings, merged.settings).__class__(old, (), ())


def test_a_port_does_not_change_its_protocol_while_it_is_open() -> None:
    plain, tls = Settings(), parse({"http": {"tls_cert": "a.pem", "tls_key": "k.pem"}, "media": {"host": "::1"}})
    merged = merge(plain, tls)
    assert merged.settings == plain and set(merged.waiting) == {"http.tls_cert", "http.tls_key", "media.host"}
    moved = parse({"http": {"tls_cert": "b.pem", "tls_key": "k.pem"}, "media": {"host": "::1"}})
    assert merge(tls, moved).changed == ("http.tls_cert",)
