"""What somebody has probably meant who wrote a key that is none."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from config import ConfigError
from config.load import load, parse
from config.sections.key_names import keys, similar
from config.settings import Settings


@pytest.mark.parametrize(
    ("tree", "key", "said"),
    [
        ({"sip": {"prot": 1}}, "sip.prot", "did you mean sip.port?"),
        ({"spi": {}}, "spi", "did you mean sip?"),
        ({"HTTP": {"port": 1}}, "HTTP", "did you mean http?"),
        ({"http_port": 1}, "http_port", "did you mean http.port?"),
        ({"port": 1}, "port", "did you mean http.port, media.port, sip.port or audiosocket.port?"),
        ({"http": {"data_dir": ""}}, "http.data_dir", "did you mean data_dir?"),
        ({"sip": {"accounts": [{"registar": ""}]}}, "sip.accounts[0].registar", "sip.accounts[0].registrar?"),
        ({"auth": {"api_key": []}}, "auth.api_key", "did you mean auth.api_keys?"),
        ({"log": {"zzz": 1}}, "log.zzz", "allowed here: "),
        ({"sip": {"zzz": 1}}, "sip.zzz", "docs/reference/configuration.md lists the keys of [sip]"),
    ],
)
def test_an_unknown_key_names_the_one_that_was_meant(tree: dict[str, Any], key: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(tree)
    assert caught.value.key == key and said in str(caught.value) and len(str(caught.value)) < 300


def test_a_value_of_the_environment_names_its_variable() -> None:
    with pytest.raises(ConfigError, match=r"sip.port = 'x': .*\(given as MEDIAWORKER_SIP__PORT\)"):
        load(environ={"MEDIAWORKER_SIP__PORT": "x"})
    with pytest.raises(ConfigError, match=r"http.port\? \(given as MEDIAWORKER_HTTP_PORT\)"):
        load(environ={"MEDIAWORKER_HTTP_PORT": "80"})


@given(st.text())
def test_any_name_is_answered(name: str) -> None:
    assert all(found in set(keys(Settings)) for found in similar(name, keys(Settings)))
    if name not in {key for key in keys(Settings) if "." not in key}:
        with pytest.raises(ConfigError):
            parse({name: 1})
