"""The loader of the configuration: one TOML file and the environment become settings, or a one-line error."""

from __future__ import annotations

import math
import os
import re
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args, get_type_hints

import msgspec

from config.errors import ConfigError
from config.listen import http_host, media_host, needs_certificates, needs_credentials
from config.log.text import mask_credentials, masked
from config.removed import replace_removed
from config.sections.key_names import FEW, either, meant
from config.sections.section import Secret, Section
from config.settings import Settings

PREFIX = "MEDIAWORKER_"
DEFAULT_FILE = "mediaworker.toml"
NOT_SETTINGS = frozenset(PREFIX + name for name in ("CONFIG", "CACHE", "KEY"))
"""Variables that are no settings: the file's path, the folder for builds, and the key for `mediaworker watch`."""
_PATH = re.compile(r" - at `(?:key in )?\$\.?([^`]*)`$")
_UNKNOWN = re.compile(r"unknown field `([^`]+)`")
_MISSING = re.compile(r"missing required field `([^`]+)`")


def load(file: str | Path | None = None, environ: Mapping[str, str] | None = None) -> Settings:
    """The effective settings. Without `file`, `./mediaworker.toml` is read if it exists.

    A removed setting that is still accepted is named on standard error.

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
    for sentence in replace_removed(tree):
        sys.stderr.write(f"mediaworker: {sentence}\n")  # it is too early for the log
    try:
        return parse(tree)
    except ConfigError as error:
        name = PREFIX + error.key.upper().replace(".", "__")
        if name not in environ:
            raise
        raise ConfigError(error.key, error.value, f"{error.reason} (given as {name})", shown=error.shown) from None


def parse(tree: Mapping[str, Any]) -> Settings:
    """Validate a tree of plain values, as the TOML parser returns it. Raises ConfigError."""
    try:
        settings = msgspec.convert(tree, Settings, dec_hook=_decode)
    except msgspec.ValidationError as error:
        raise _explain(tree, str(error)) from None
    return checked(settings)


def checked(settings: Settings) -> Settings:
    """The settings, after the checks that involve more than one field. Raises ConfigError.

    Each section checks itself; conditions across sections are checked here.
    """
    _check_section("", settings)
    if missing := needs_credentials(http_host(settings), media_host(settings), settings):
        key, reason = missing
        raise ConfigError(key, http_host(settings) if key == "http.host" else media_host(settings), reason)
    if missing := needs_certificates(settings):
        raise ConfigError(missing[0], None, missing[1])
    return settings


def describe(settings: Settings) -> str:
    """The settings as TOML that `load` can read, with secrets masked."""
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
    """The value of a TOML literal, or else the text itself. For a text setting, unquoted text is never a literal."""
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
    """Turn msgspec's message into an error with key, value and the allowed values."""
    path = ""
    if found := _PATH.search(message):
        path, message = found[1], message[: found.start()]
    if unknown := _UNKNOWN.search(message):
        return ConfigError(_join(path, unknown[1]), None, f"unknown key; {_instead(path, unknown[1])}")
    if missing := _MISSING.search(message):
        return ConfigError(_join(path, missing[1]), None, "is required")
    if path.endswith("[...]"):
        path = _entry(tree, path)
    reason = message[:1].lower() + message[1:]
    if "enum value" in message and (allowed := _choices(path)):
        reason = f"expected one of {allowed}"
    value = _lookup(tree, path) if path else None
    return ConfigError(path or "configuration", value, reason, shown=_shown(path, value))


def _instead(path: str, key: str) -> str:
    """The hint for an unknown key: the keys that were probably meant, or else the allowed ones."""
    section = _section(path)
    allowed = [field.name for field in msgspec.structs.fields(section)] if section else []
    if found := meant(Settings, path, key, allowed):
        return f"did you mean {either(found)}?"
    if len(allowed) <= FEW:
        return f"allowed here: {', '.join(allowed)}"
    return f"docs/reference/configuration.md lists the keys of {f'[{path}]' if path else 'the configuration'}"


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
    """The path with the offending key of a table, which msgspec does not name: the first with a forbidden value."""
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
    """The value for an error message, masked if the key is, or contains, a secret."""
    return "'***'" if _holds_secret(_resolve(key)) else mask_credentials(repr(value))


def _holds_secret(kind: Any) -> bool:
    if isinstance(kind, type) and issubclass(kind, Section):
        return any(_holds_secret(hint) for hint in get_type_hints(kind).values())
    return kind is Secret or any(_holds_secret(argument) for argument in get_args(kind))


def _decode(kind: type, value: object) -> object:
    if kind is Secret and isinstance(value, str):
        return Secret(value)
    raise TypeError(f"Expected `str`, got `{type(value).__name__}`")


def _check_section(path: str, node: Any) -> None:
    """Check that every number is finite, then call each section's own check.

    TOML allows `inf`, which timers refuse and JSON cannot represent.
    """
    if isinstance(node, Section):
        for field in msgspec.structs.fields(node):
            _check_section(f"{path}.{field.name}" if path else field.name, getattr(node, field.name))
        node.check(path)
    elif isinstance(node, tuple):
        for index, each in enumerate(node):
            _check_section(f"{path}[{index}]", each)
    elif isinstance(node, float) and not math.isfinite(node):
        raise ConfigError(path, node, "expected a finite number")


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
    # Strings, numbers and booleans of JSON are valid TOML.
    return msgspec.json.encode(value).decode()
