"""Settings of a file and of the environment, and what an error says."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from config import ConfigError, Secret, describe, load
from config.load import parse

ACCOUNT = {"registrar": "sip:pbx.example", "user": "alice"}
KEY = {"name": "ui", "key": "abcdefgh-1234", "scopes": ["events"]}


def test_defaults_are_the_contracts() -> None:
    settings = load(environ={})
    assert (settings.http.port, settings.media.port, settings.sip.port) == (8080, 8081, 5060)
    assert (settings.rtp.port_min, settings.rtp.port_max, settings.rtp.jitter_ms) == (10000, 19999, 60)
    assert settings.asr.engine == "auto" and settings.asr.partial_ms == 500
    profile = settings.endpointing.assist
    assert (profile.enter, profile.exit, profile.min_speech_ms, profile.min_silence_ms) == (0.5, 0.35, 120, 500)
    assert (profile.pre_roll_ms, profile.speculate_ms, profile.max_utterance_s) == (300, 160, 30)


def test_file_then_environment(tmp_path: Path) -> None:
    file = tmp_path / "worker.toml"
    file.write_text('data_dir = "a"\n[sip]\nport = 5070\nmax_calls = 3\n[[routes]]\nsource = "sip"\nprofile = "bot"\n')
    settings = load(file, {"MEDIAWORKER_SIP__PORT": "5080", "MEDIAWORKER_SIP__ALLOW": '["10.0.0.0/8"]'})
    assert settings.data_dir == "a"
    assert (settings.sip.port, settings.sip.max_calls, settings.sip.allow) == (5080, 3, ("10.0.0.0/8",))
    assert settings.routes[0].profile == "bot"


@pytest.mark.parametrize("text", ["12345", "true", "2026-11-21", '"quoted"', "plain words", "[1]"])
def test_text_keys_take_text_as_it_is(text: str) -> None:
    environ = {"MEDIAWORKER_TWILIO__AUTH_TOKEN": text, "MEDIAWORKER_TWILIO__PUBLIC_URL": "https://a"}
    assert load(environ=environ).twilio.auth_token == text.strip('"')


USER = {"user": "phone", "password": "wonderland"}


def registrar(uri: str, *, backups: Sequence[str] = (), proxy: str = "", **sip: str) -> dict[str, Any]:
    return {"sip": {**sip, "accounts": [{"registrar": uri, "user": "a", "backups": backups, "proxy": proxy}]}}


CORPUS = [
    ({"qwen": {"experimental": ["int8", "fp8"]}}, "qwen.experimental", ["int8", "take one of them"]),
    ({"asr": {"processes": 65}}, "asr.processes", ["65", "64"]),
    ({"sip": {"port": 99999}}, "sip.port", ["99999", "65535"]),
    ({"sip": {"port": "x"}}, "sip.port", ["'x'", "int"]),
    ({"sip": {"prot": 1}}, "sip.prot", ["unknown key", "port"]),
    ({"spi": {}}, "spi", ["unknown key", "sip"]),
    ({"asr": {"engine": ""}}, "asr.engine", ["''"]),
    ({"asr": {"engine": 1}}, "asr.engine", ["1"]),
    ({"asr": {"threads": -1}}, "asr.threads", ["-1", "0"]),
    ({"qwen": 3}, "qwen", ["3"]),
    ({"rtp": {"port_min": 20000, "port_max": 10000}}, "rtp.port_max", ["10000", "20000"]),
    ({"endpointing": {"files": {"exit": 0.9}}}, "endpointing.files.exit", ["0.9", "0.5"]),
    ({"endpointing": {"bot": {"exit": 0.9}}}, "endpointing.bot.exit", ["0.9", "0.5"]),
    ({"endpointing": {"bot": {"speculate_ms": 900}}}, "endpointing.bot.speculate_ms", ["900", "320"]),
    ({"endpointing": {"assist": {"enter": 1.5}}}, "endpointing.assist.enter", ["1.5", "1"]),
    ({"auth": {"api_keys": [{**KEY, "scopes": ["root"]}]}}, "auth.api_keys[0].scopes", ["'root'", "'admin'"]),
    ({"auth": {"api_keys": [{**KEY, "key": "a b c d e f g"}]}}, "auth.api_keys[0].key", ["8"]),
    ({"auth": {"api_keys": [{"name": "x", "scopes": []}]}}, "auth.api_keys[0].key", ["required"]),
    ({"auth": {"api_keys": [KEY, KEY]}}, "auth.api_keys", ["'ui'"]),
    ({"routes": [{"roles": {"a": "agent", "main": "boss"}}]}, "routes[0].roles[main]", ["'boss'", "'agent'"]),
    ({"routes": [{"names": {"main": 5}}]}, "routes[0].names[main]", ["5"]),
    ({"data_dir": ""}, "data_dir", ["''", "empty"]),
    ({"retention": {"max_bytes": -1}}, "retention.max_bytes", ["-1", "0"]),
    ({"shutdown_s": float("inf")}, "shutdown_s", ["inf", "finite"]),
    ({"sip": {"transports": []}}, "sip.transports", ["[]", "empty"]),
    ({"sip": {"codecs": []}}, "sip.codecs", ["[]", "empty"]),
    ({"sip": {"allow": ["10.0.0.0/8", "pbx"]}}, "sip.allow[1]", ["'pbx'", "network"]),
    ({"sip": {"public_address": "no address"}}, "sip.public_address", ["'no address'"]),
    ({"sip": {"public_address": "2001:db8::1"}}, "sip.public_address", ["'2001:db8::1'", "IPv4"]),
    ({"sip": {"public_address6": "192.0.2.1"}}, "sip.public_address6", ["'192.0.2.1'", "IPv6"]),
    ({"sip": {"host": "::"}}, "sip.host", ["'::'", "IPv4"]),
    ({"sip": {"host6": "0.0.0.0"}}, "sip.host6", ["'0.0.0.0'", "IPv6"]),
    ({"sip": {"host6": "::ffff:192.0.2.1"}}, "sip.host6", ["'::ffff:192.0.2.1'", "IPv6"]),
    ({"sip": {"host6": "fe80::1%eth0"}}, "sip.host6", ["'fe80::1%eth0'", "IPv6"]),
    ({"http": {"host": "0.0.0.0"}}, "http.host", ["'0.0.0.0'", "auth.api_keys", "empty"]),
    ({"media": {"host": "::"}}, "media.host", ["'::'", "auth.api_keys", "twilio.auth_token", "empty"]),
    ({"http": {"host": "0.0.0.0"}, "twilio": {"auth_token": "t", "public_url": "https://a"}}, "http.host", ["keys"]),
    ({"sip": {"host": ""}}, "sip.host", ["''", "empty", "sip.host6"]),
    ({"auth": {"api_keys": [KEY, {**KEY, "name": "b"}]}}, "auth.api_keys[1].key", ["'***'", "same key"]),
    ({"sip": {"codecs": ["G729"]}}, "sip.codecs[0]", ["'G729'", "'PCMU'"]),
    ({"sip": {"accounts": [{"user": "a"}]}}, "sip.accounts[0].registrar", ["required"]),
    ({"sip": {"accounts": [ACCOUNT, {**ACCOUNT, "one_worker": True}]}}, "sip.accounts[1].one_worker", ["cluster.nats"]),
    (registrar("sips:a;transport=udp"), "sip.accounts[0].registrar", ["'sips:a;transport=udp'", "expected sip:HOST"]),
    (registrar("sip:a", backups=["tel:a"]), "sip.accounts[0].backups", ["'tel:a'", "expected sip:HOST"]),
    (registrar("sip:a", proxy="sip:a b"), "sip.accounts[0].proxy", ["'sip:a b'", "expected sip:HOST"]),
    (registrar("sip:[2001:db8::1]"), "sip.accounts[0].registrar", ["without sip.host6"]),
    (registrar("192.0.2.1", host="", host6="::"), "sip.accounts[0].registrar", ["without sip.host"]),
    ({"twilio": {"auth_token": "t"}}, "twilio.public_url", ["required"]),
    ({"twilio": {"stream_url": "https://x"}}, "twilio.stream_url", ["wss://"]),
    ({"twilio": {"public_url": "wss://x"}}, "twilio.public_url", ["must start with https://"]),
    ({"sip": {"users": [USER, USER]}}, "sip.users[1].user", ["'phone'", "is there twice"]),
    ({"sip": {"challenge": "everybody"}}, "sip.users", ["required", "everybody"]),
    ({"sip": {"tls_clients": "verified"}}, "sip.tls_ca", ["required", "verified"]),
    ({"sip": {"tls_key": "key.pem"}}, "sip.tls_cert", ["required with sip.tls_key"]),
    ({"http": {"tls_key": "key.pem"}}, "http.tls_cert", ["required with http.tls_key"]),
    ({"http": {"cors_origins": ["*", "https://a/b"]}}, "http.cors_origins[1]", ["'https://a/b'", "https://host"]),
    ({"rtp": {"port_min": 10000, "port_max": 10000}}, "rtp.port_max", ["must be above rtp.port_min (10000)"]),
    ({"endpointing": {"bot": {"min_silence_ms": 100}}}, "endpointing.bot.speculate_ms", ["above", "(100)"]),
]


@pytest.mark.parametrize(("tree", "key", "said"), CORPUS, ids=[key for _, key, _ in CORPUS])
def test_an_error_is_one_line_with_key_value_and_what_is_allowed(tree: dict, key: str, said: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(tree)
    assert caught.value.key.startswith(key)
    line = str(caught.value)
    assert "\n" not in line
    for part in [key, *said]:
        assert part in line


def test_secrets_never_print() -> None:
    tree = {
        "twilio": {"auth_token": "s3cret-token", "public_url": "https://a"},
        "auth": {"api_keys": [{**KEY, "key": "s3cret-key-1"}]},
        "sip": {"accounts": [{"registrar": "sip:pbx", "user": "u", "password": "s3cret-pass"}]},
    }
    settings = parse(tree)
    assert settings.auth.api_keys[0].key == "s3cret-key-1"
    assert "s3cret" not in describe(settings) and "s3cret" not in repr(settings)
    for wrong in ({"twilio": {"auth_token": ["s3cret"]}}, {"auth": {"api_keys": [{**KEY, "key": "s3cret!"}]}}):
        with pytest.raises(ConfigError) as caught:
            parse(wrong)
        assert "s3cret" not in str(caught.value)


def test_description_reads_back() -> None:
    settings = load(environ={"MEDIAWORKER_SIP__PORT": "5071", "MEDIAWORKER_ASR__LANGUAGE": "de"})
    assert parse(tomllib.loads(describe(settings))) == settings


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)

sections = st.sampled_from(["http", "media", "rtp", "sip", "twilio", "asr", "auth", "events", "log", "routes", "x"])


@given(st.dictionaries(sections, st.dictionaries(st.sampled_from(["port", "host", "accounts", "api_keys"]), values)))
def test_any_tree_is_settings_or_a_config_error(tree: dict) -> None:
    try:
        parse(tree)
    except ConfigError as error:
        assert "\n" not in str(error)


@given(st.text(alphabet=st.characters(blacklist_categories=["Cs"], blacklist_characters="\0"), max_size=30))
def test_any_environment_value_is_settings_or_a_config_error(text: str) -> None:
    for name in ("SIP__PORT", "SIP__ALLOW", "DATA_DIR", "ROUTES", "ASR__ENGINE__X", "", "__"):
        try:
            load(environ={f"MEDIAWORKER_{name}": text})
        except ConfigError:
            pass


def test_a_secret_is_masked_wherever_it_is_printed() -> None:
    secret = Secret("x")
    assert {repr(secret), f"{secret!r}", ascii(secret)} == {"'***'"}
    assert {f"{secret}", f"{secret!s}", str(secret), f"{secret:3}", format(secret)} == {"***"}
    assert "%s" % secret == "{}".format(secret) == "{:s}".format(secret) == "***"  # noqa: UP031, UP032
    assert secret == "x" and secret.encode() == b"x" and f"{Secret('')}" == ""
    assert secret.reveal() == "x" and type(secret.reveal()) is str


def test_the_key_of_watch_is_no_setting() -> None:
    assert load(environ={"MEDIAWORKER_KEY": "some-key-123", "MEDIAWORKER_HTTP__PORT": "81"}).http.port == 81


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.toml.*cannot read the file: No such file"):
        load(tmp_path / "none.toml", {})
    with pytest.raises(ConfigError, match=r"none\.toml.*cannot read the file: No such file"):
        load(environ={"MEDIAWORKER_CONFIG": str(tmp_path / "none.toml")})
    (tmp_path / "wrong.toml").write_text("[sip\n")
    with pytest.raises(ConfigError, match=r"wrong\.toml.*not TOML"):
        load(tmp_path / "wrong.toml", {})
    (tmp_path / "latin.toml").write_bytes(b'data_dir = "\xe9"')
    with pytest.raises(ConfigError, match=r"latin\.toml.*not TOML"):
        load(tmp_path / "latin.toml", {})


def test_the_file_of_the_folder_is_read_when_it_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert load(environ={}).sip.port == 5060
    (tmp_path / "mediaworker.toml").write_text("[sip]\nport = 5070\n")
    (tmp_path / "other.toml").write_text("[sip]\nport = 5071\n")
    assert load(environ={}).sip.port == 5070
    assert load(environ={"MEDIAWORKER_CONFIG": "other.toml", "MEDIAWORKER_CACHE": "/x"}).sip.port == 5071


def test_the_environment_cannot_put_a_section_where_a_value_is(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text("sip = 3\n")
    with pytest.raises(ConfigError, match="MEDIAWORKER_SIP__PORT.*`sip` is not a section"):
        load(tmp_path / "a.toml", {"MEDIAWORKER_SIP__PORT": "1"})
    assert load(environ={"MEDIAWORKER_SIP__CODECS": "PCMU, PCMA"} | {"MEDIAWORKER_SIP__CODECS": '["PCMA"]'}).sip.codecs


def test_a_secret_is_not_shown_where_something_else_stands() -> None:
    for tree in ({"twilio": {"auth_token": 12345}}, {"auth": {"api_keys": "abcdefgh"}}, {"webhooks": ["secret-x"]}):
        with pytest.raises(ConfigError) as caught:
            parse(tree)
        assert not {"12345", "abcdefgh", "secret-x"} & set(str(caught.value).replace("'", " ").split())
    with pytest.raises(ConfigError, match="99999"):
        parse({"sip": {"port": 99999}})


def test_a_description_has_a_section_for_each_table() -> None:
    tree = {"sip": {"accounts": [{"registrar": "sip:a", "user": "1"}, {"registrar": "sip:b", "user": "2"}]}}
    text = describe(parse(tree))
    assert text.count("[[sip.accounts]]") == 2 and not text.startswith("\n") and text.endswith("\n")
    assert [each["user"] for each in tomllib.loads(text)["sip"]["accounts"]] == ["1", "2"]


def test_a_value_of_the_environment_that_is_no_toml_is_shown_as_it_is() -> None:
    with pytest.raises(ConfigError, match="'soon'"):
        load(environ={"MEDIAWORKER_ASR__PARTIAL_MS": "soon"})
    with pytest.raises(ConfigError, match=r"`str`"):
        load(environ={"MEDIAWORKER_SIP__CODECS": "[1]"})


def test_values_at_their_limits_are_taken() -> None:
    settings = parse({
        "endpointing": {"bot": {"enter": 0.5, "exit": 0.5, "min_silence_ms": 160, "speculate_ms": 160}},
        "rtp": {"port_min": 10000, "port_max": 10001},
        "retention": {"max_bytes": 0},
        "http": {"cors_origins": ["*", "https://a.example:8443"], "tls_cert": "a.pem"},
        "sip": {"users": [USER, {**USER, "user": "b"}], "challenge": "everybody", "tls_cert": "a", "tls_key": "b"},
    })  # fmt: skip
    assert settings.endpointing.bot.exit == 0.5 and settings.rtp.port_max == 10001 and len(settings.sip.users) == 2
    assert settings.retention.max_bytes == 0, "no call is erased for its size"


def test_a_reason_begins_small_and_loses_nothing() -> None:
    with pytest.raises(ConfigError, match=r"expected `int` <= 65535"):
        parse({"sip": {"port": 65536}})
    with pytest.raises(ConfigError, match=r"expected one of 'PCMU', 'PCMA', 'G722', 'OPUS'"):
        parse({"sip": {"codecs": ["PCMU", "G729"]}})
