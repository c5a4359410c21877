"""Read the configuration from one TOML file and the environment, or say in one line what is wrong with it."""

from __future__ import annotations

import ipaddress
import math
import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, get_args, get_type_hints

import msgspec

from config.listen import http_host, media_host, needs_credentials
from config.redact import mask_credentials, masked
from config.settings import Secret, Section, Settings

PREFIX = "MEDIAWORKER_"
DEFAULT_FILE = "mediaworker.toml"
NOT_SETTINGS = frozenset(PREFIX + name for name in ("CONFIG", "CACHE", "KEY"))
"""Where the file is, where builds are kept, and the key of `mediaworker watch`."""
_PATH = re.compile(r" - at `(?:key in )?\$\.?([^`]*)`$")
_UNKNOWN = re.compile(r"unknown field `([^`]+)`")
_ORIGIN = re.compile(r"https?://[^\s/?#@*]+")
_KEY = re.compile(r"[A-Za-z0-9._~-]{8,}")
_MISSING = re.compile(r"missing required field `([^`]+)`")


class ConfigError(Exception):
    """The user's mistake in the configuration: `key`, the `value` given (None when there is none), and the `reason`."""

    def __init__(self, key: str, value: object, reason: str) -> None:
        self.key, self.value, self.reason = key, value, reason
        shown = "" if value is None else f" = {_shown(key, value)}"
        super().__init__(f"{key}{shown}: {reason}")


def load(file: str | Path | None = None, environ: Mapping[str, str] | None = None) -> Settings:
    """The effective settings. Without `file`, `./mediaworker.toml` is read when it is there.

    Raises:
        ConfigError: unreadable file, unknown key, value of the wrong type or out of range, contradictory keys.
    """
    environ = os.environ if environ is None else environ
    path = Path(file) if file is not None else Path(environ.get(PREFIX + "CONFIG", DEFAULT_FILE))
    tree: dict[str, Any] = {}
    if file is not None or PREFIX + "CONFIG" in environ or path.exists():
        tree = _read(path)
    for name, text in sorted(environ.items()):
        if name.startswith(PREFIX) and name not in NOT_SETTINGS:
            _overlay(tree, name, text)
    return parse(tree)


def parse(tree: Mapping[str, Any]) -> Settings:
    """Validate a tree of plain values, as TOML gives it. Raises ConfigError."""
    try:
        settings = msgspec.convert(tree, Settings, dec_hook=_decode)
    except msgspec.ValidationError as error:
        raise _explain(tree, str(error)) from None
    _check(settings)
    return settings


def describe(settings: Settings) -> str:
    """The settings as TOML that `load` would read again, secrets masked."""
    tree = msgspec.to_builtins(settings, enc_hook=str)
    lines: list[str] = []
    _print(lines, "", masked(settings, tree))
    return "\n".join(lines).lstrip("\n") + "\n"


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(str(path), None, f"cannot read the file: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(str(path), None, f"not TOML: {error}") from None


def _overlay(tree: dict[str, Any], name: str, text: str) -> None:
    *sections, key = name[len(PREFIX) :].lower().split("__")
    node = tree
    for section in sections:
        child = node.setdefault(section, {})
        if not isinstance(child, dict):
            raise ConfigError(name, None, f"`{section}` is not a section")
        node = child
    node[key] = _literal(text, _kind([*sections, key]))


def _literal(text: str, kind: Any) -> Any:
    """A TOML literal, or the bare string. A key that holds text takes the text as it is unless it is quoted."""
    if kind in (str, Secret) and not text.startswith(("'", '"')):
        return text
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _kind(path: list[str]) -> Any:
    kind: Any = Settings
    for name in path:
        hints = get_type_hints(kind) if isinstance(kind, type) and issubclass(kind, Section) else {}
        kind = hints.get(name)
    return kind


def _explain(tree: Mapping[str, Any], message: str) -> ConfigError:
    """Turn msgspec's message into key, value and what is allowed."""
    path = ""
    if found := _PATH.search(message):
        path, message = found[1], message[: found.start()]
    if unknown := _UNKNOWN.search(message):
        section = _section(path)
        allowed = ", ".join(field.name for field in msgspec.structs.fields(section)) if section else ""
        return ConfigError(_join(path, unknown[1]), None, f"unknown key; allowed here: {allowed}")
    if missing := _MISSING.search(message):
        return ConfigError(_join(path, missing[1]), None, "is required")
    if path.endswith("[...]"):
        path = _entry(tree, path)
    reason = message[:1].lower() + message[1:]
    if "enum value" in message and (allowed := _choices(path)):
        reason = f"expected one of {allowed}"
    return ConfigError(path or "configuration", _lookup(tree, path) if path else None, reason)


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def _steps(path: str) -> list[str]:
    return re.findall(r"[^.\[\]]+|\[[^\]]*\]", path)


def _section(path: str) -> type[Section] | None:
    kind = _resolve(path)
    return kind if isinstance(kind, type) and issubclass(kind, Section) else None


def _resolve(path: str) -> Any:
    kind: Any = Settings
    for step in _steps(path):
        if step.startswith("["):
            arguments = get_args(kind)
            kind = (arguments[-1] if arguments[-1] is not Ellipsis else arguments[0]) if arguments else None
        elif isinstance(kind, type) and issubclass(kind, Section):
            kind = get_type_hints(kind, include_extras=False).get(step)
        else:
            return None
    return kind


def _entry(tree: Mapping[str, Any], path: str) -> str:
    """msgspec does not say which key of a table it means: the first one whose value is not allowed."""
    table, allowed = _lookup(tree, path.removesuffix("[...]")), get_args(_resolve(path))
    for key, value in table.items() if isinstance(table, dict) else ():
        if value not in allowed if allowed else not isinstance(value, str):
            return path.replace("[...]", f"[{key}]")
    return path


def _choices(path: str) -> str:
    return ", ".join(map(repr, get_args(_resolve(path))))


def _lookup(tree: Any, path: str) -> Any:
    node: Any = tree
    for step in _steps(path):
        try:
            name = step.strip("[]")
            node = node[int(name)] if isinstance(node, list) else node[name]
        except (KeyError, IndexError, ValueError, TypeError):
            return None
    return node


def _shown(key: str, value: object) -> str:
    """A value that is, or should have been something that holds, a secret is not shown."""
    return "'***'" if _holds_secret(_resolve(key)) else mask_credentials(repr(value))


def _holds_secret(kind: Any) -> bool:
    if isinstance(kind, type) and issubclass(kind, Section):
        return any(_holds_secret(hint) for hint in get_type_hints(kind).values())
    return kind is Secret or any(_holds_secret(argument) for argument in get_args(kind))


def _decode(kind: type, value: object) -> object:
    if kind is Secret and isinstance(value, str):
        return Secret(value)
    raise TypeError(f"Expected `str`, got `{type(value).__name__}`")


def _check(settings: Settings) -> None:
    """What no single field can say about itself."""
    _check_numbers("", settings)
    sip = settings.sip
    for index, origin in enumerate(settings.http.cors_origins):
        if origin != "*" and not _ORIGIN.fullmatch(origin):
            raise ConfigError(f"http.cors_origins[{index}]", origin, "expected https://host[:port], or *")
    for key, text in (
        ("data_dir", settings.data_dir),
        ("sip.transports", sip.transports),
        ("sip.codecs", sip.codecs),
    ):
        if not text:
            raise ConfigError(key, text if isinstance(text, str) else [], "must not be empty")
    for index, network in enumerate(sip.allow):
        try:
            ipaddress.ip_network(network, strict=False)
        except ValueError:
            raise ConfigError(f"sip.allow[{index}]", network, "expected an IP address or a network") from None
    for name in ("host", "host6", "public_address", "public_address6"):
        _check_address(f"sip.{name}", getattr(sip, name), 6 if name.endswith("6") else 4)
    if sip.enabled and not (sip.host or sip.host6):
        raise ConfigError("sip.host", "", "must not be empty without sip.host6")
    rtp = settings.rtp
    if rtp.port_max <= rtp.port_min:
        raise ConfigError("rtp.port_max", rtp.port_max, f"must be above rtp.port_min ({rtp.port_min})")
    for name in ("bot", "assist", "dictation"):
        profile = getattr(settings.endpointing, name)
        key = f"endpointing.{name}"
        if profile.exit > profile.enter:
            raise ConfigError(f"{key}.exit", profile.exit, f"must not be above {key}.enter ({profile.enter})")
        if profile.speculate_ms > profile.min_silence_ms:
            limit = f"must not be above {key}.min_silence_ms ({profile.min_silence_ms})"
            raise ConfigError(f"{key}.speculate_ms", profile.speculate_ms, limit)
    for index, entry in enumerate(settings.auth.api_keys):
        if not _KEY.fullmatch(entry.key):
            raise ConfigError(f"auth.api_keys[{index}].key", entry.key, "expected at least 8 of A-Z a-z 0-9 . _ ~ -")
    names = [key.name for key in settings.auth.api_keys]
    for index, name in enumerate(names):
        if name in names[:index]:
            raise ConfigError(f"auth.api_keys[{index}].name", name, "two keys have this name")
    secrets = [str.__str__(entry.key) for entry in settings.auth.api_keys]
    for index, secret in enumerate(secrets):
        if secret in secrets[:index]:
            raise ConfigError(f"auth.api_keys[{index}].key", secret, "another name has the same key")
    for key, url, schemes in (
        ("twilio.public_url", settings.twilio.public_url, ("https://", "http://")),
        ("twilio.stream_url", settings.twilio.stream_url, ("wss://", "ws://")),
    ):
        if url and not url.startswith(schemes):
            raise ConfigError(key, url, f"must start with {' or '.join(schemes)}")
    for section in ("http", "media", "sip"):
        listener = getattr(settings, section)
        if listener.tls_key and not listener.tls_cert:
            raise ConfigError(f"{section}.tls_cert", "", f"is required with {section}.tls_key")
    if missing := needs_credentials(http_host(settings), media_host(settings), settings):
        key, reason = missing
        raise ConfigError(key, http_host(settings) if key == "http.host" else media_host(settings), reason)
    users = [entry.user for entry in settings.sip.users]
    for index, name in enumerate(users):
        if name in users[:index]:
            raise ConfigError(f"sip.users[{index}].user", name, "is there twice")
    if settings.sip.challenge == "everybody" and not users:
        raise ConfigError("sip.users", [], "are required with sip.challenge = everybody: nobody could call")
    if settings.sip.tls_clients == "verified" and not settings.sip.tls_ca:
        raise ConfigError("sip.tls_ca", "", "is required with sip.tls_clients = verified: the system's are anybody's")
    if settings.twilio.auth_token and not settings.twilio.public_url:
        raise ConfigError("twilio.public_url", "", "is required with twilio.auth_token: signatures are made over it")


def _check_address(key: str, text: str, version: Literal[4, 6]) -> None:
    """IPv4 addresses in the spelling of IPv6 are the other socket's, and a scope does not fit into SDP."""
    if not text:
        return
    try:
        address = ipaddress.ip_address(text)
        fits = address.version == version and "%" not in text and getattr(address, "ipv4_mapped", None) is None
    except ValueError:
        fits = False
    if not fits:
        raise ConfigError(key, text, f"expected an IPv{version} address")


def _check_numbers(prefix: str, node: Any) -> None:
    """TOML has `inf`, which no timer takes and JSON cannot print."""
    if isinstance(node, Section):
        for field in msgspec.structs.fields(node):
            _check_numbers(f"{prefix}.{field.name}" if prefix else field.name, getattr(node, field.name))
    elif isinstance(node, float) and not math.isfinite(node):
        raise ConfigError(prefix, node, "expected a finite number")


def _print(lines: list[str], prefix: str, node: dict[str, Any]) -> None:
    for key, value in node.items():
        if not _is_table(value):
            lines.append(f"{key} = {_toml(value)}")
    for key, value in node.items():
        if isinstance(value, dict):
            lines += ["", f"[{prefix}{key}]"]
            _print(lines, f"{prefix}{key}.", value)
        elif _is_table(value):
            for item in value:
                lines += ["", f"[[{prefix}{key}]]"]
                _print(lines, f"{prefix}{key}.", item)


def _is_table(value: Any) -> bool:
    return isinstance(value, dict) or (isinstance(value, list) and bool(value) and isinstance(value[0], dict))


def _toml(value: Any) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    # JSON's strings, numbers and booleans are TOML's.
    return msgspec.json.encode(value).decode()
