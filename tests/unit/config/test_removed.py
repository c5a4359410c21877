"""Settings of 0.1.0 that are gone are accepted with a warning."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from config import ConfigError, load
from config.removed import WITHOUT_EFFECT, replace_removed

OLD = """
[audiosocket]
max_connections = 9
[http]
max_per_peer = 3
[qwen]
device = "cuda:1"
threads = 3
quantise = "int8"
window_s = 2.0
partials = "exact"
[[sip.accounts]]
registrar = "sip:pbx.example.com"
user = "100"
password = "secret"
realm = "asterisk"
[[webhooks]]
name = "crm"
url = "https://example.com/a"
secret = "0123456789abcdef0123456789abcdef"
parallel = 2
"""


def test_a_configuration_of_the_last_release_starts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "mediaworker.toml"
    file.write_text(OLD)
    settings = load(file, {"MEDIAWORKER_SIP__LOG_LEVEL": "4"})
    assert settings.asr.devices == ("cuda:1",)
    assert settings.asr.threads == 3
    assert settings.qwen.experimental == ("int8", "short_windows")
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 10
    assert "mediaworker: qwen.device has become asr.devices, and the next release refuses it" in told
    assert "mediaworker: webhooks.parallel has no effect any more, and the next release refuses it" in told


def test_a_successor_that_is_set_stays(tmp_path: Path) -> None:
    file = tmp_path / "mediaworker.toml"
    file.write_text(
        '[asr]\ndevices = ["cpu"]\n[qwen]\ndevice = "cuda"\nquantise = "none"\nwindow_s = 2\nexperimental = []\n'
    )
    settings = load(file, {})
    assert settings.asr.devices == ("cpu",)
    assert settings.qwen.experimental == ()


def test_a_default_that_is_written_out_stays_the_default(tmp_path: Path) -> None:
    file = tmp_path / "mediaworker.toml"
    file.write_text('[qwen]\ndevice = "auto"\nquantise = "none"\nwindow_s = 8.0\nthreads = 8\n')
    settings = load(file, {})
    assert (settings.asr.devices, settings.qwen.experimental, settings.asr.threads) == ((), (), 8)


def test_a_value_that_its_successor_does_not_take_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "mediaworker.toml"
    file.write_text('[qwen]\nthreads = "many"\n')
    with pytest.raises(ConfigError, match=r"asr\.threads"):
        load(file, {})


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5), lambda inner: st.lists(inner, max_size=3)
)
sections = st.sampled_from(["asr", "qwen", "sip", "http", "files"])
keys = st.sampled_from(
    [*(key.split(".")[-1] for key in WITHOUT_EFFECT), "device", "threads", "quantise", "accounts", "realm"]
)


@given(st.dictionaries(sections, plain | st.dictionaries(keys, plain, max_size=4), max_size=5))
def test_any_tree_is_taken(tree: dict) -> None:
    for sentence in replace_removed(tree):
        assert sentence.endswith("the next release refuses it")
    assert replace_removed(tree) == []
