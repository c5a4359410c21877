"""A reload: which settings may change while calls run."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec

from config import Settings
from config.load import parse
from config.reload import merge
from config.sections.section import Section
from lab.house import ROOT


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


def test_named_webhooks_change_at_once_and_a_new_one_waits() -> None:
    def hooks(**secrets: str) -> Settings:
        return parse({"webhooks": [{"name": n, "url": "http://h/", "secret": s} for n, s in secrets.items()]})

    old = hooks(crm="a" * 24, bi="b" * 24)
    assert merge(old, hooks(crm="c" * 24, bi="b" * 24)).changed == ("webhooks",)
    for new in (hooks(crm="a" * 24), hooks(bi="b" * 24, crm="a" * 24), hooks(crm="a" * 24, bi="b" * 24, more="c" * 24)):
        assert merge(old, new).waiting == ("webhooks",) and merge(old, new).settings == old


def other(value: Any) -> Any:
    """A value of the same kind that is not this one, where that is simple."""
    match value:
        case bool():
            return not value
        case int() | float():
            return value + 1
    return None


def test_every_number_and_switch_changes_at_once_or_waits_as_the_docs_say() -> None:
    old = Settings()

    def leaves(node: Any, path: str = "") -> Iterator[tuple[str, Any]]:
        for field in msgspec.structs.fields(node):
            value, key = getattr(node, field.name), f"{path}{field.name}"
            if isinstance(value, Section):
                yield from leaves(value, f"{key}.")
            elif (changed := other(value)) is not None:
                yield key, changed

    def replaced(node: Any, steps: list[str], value: Any) -> Any:
        new = value if len(steps) == 1 else replaced(getattr(node, steps[0]), steps[1:], value)
        return msgspec.structs.replace(node, **{steps[0]: new})

    table = (ROOT / "docs/how-to/operations.md").read_text().partition("| takes effect | for |")[2].partition("\n\n")[0]
    documented = {
        key for row in table.splitlines() for key in re.findall(r"`([^`]+)`", row.rpartition("|")[0].rpartition("|")[0])
    }
    seen = set()
    for key, value in leaves(old):
        new = replaced(old, key.split("."), value)
        merged = merge(old, new)
        at_once = key in documented or f"{key.partition('.')[0]}.*" in documented
        assert (merged.changed, merged.waiting) == (((key,), ()) if at_once else ((), (key,))), key
        assert merged.settings == (new if at_once else old)
        seen.add(at_once)
    assert seen == {True, False}


def test_a_certificate_that_is_only_renewed_is_taken_at_once() -> None:
    old = parse({"media": {"tls_cert": "a.pem", "tls_key": "k.pem"}})
    new = parse({"media": {"tls_cert": "b.pem", "tls_key": "l.pem"}})
    assert merge(old, new).settings == new
    gone = merge(old, Settings())
    assert gone.settings == old and set(gone.waiting) == {"media.tls_cert", "media.tls_key"} and gone.changed == ()
