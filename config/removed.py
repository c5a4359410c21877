"""Removed settings of 0.1.0. This release accepts them with a warning; the next one refuses them as unknown."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

WITHOUT_EFFECT = (
    "audiosocket.max_connections", "audiosocket.silent_s", "files.cpu_s", "files.decoder_timeout_s",
    "files.heartbeat_s", "files.memory_mb", "http.max_per_peer", "media.max_per_peer", "qwen.max_kv_positions",
    "qwen.partials", "sip.accounts.realm", "sip.log_level", "siprec.max_streams", "webhooks.parallel",
)  # fmt: skip

RENAMED = {
    "qwen.device": "asr.devices", "qwen.threads": "asr.threads",
    "qwen.quantise": "qwen.experimental", "qwen.window_s": "qwen.experimental",
}  # fmt: skip
DEFAULTS = {"qwen.device": ("auto",), "qwen.threads": (), "qwen.quantise": ("none",), "qwen.window_s": (0, 8)}
"""The values of renamed settings that their successors' defaults stand for; audio is encoded in windows of 8 s."""


def replace_removed(tree: dict[str, Any]) -> list[str]:
    """Remove these settings from a tree of plain values, and move the values of renamed ones to their successors.

    A successor that is set keeps its value. Returns a sentence about each setting that was found.
    """
    found = [f"{key} has no effect any more" for key in WITHOUT_EFFECT if list(_pop(tree, key))]
    experimental: list[Any] = []
    for key, successor in RENAMED.items():
        for value in _pop(tree, key):
            found.append(f"{key} has become {successor}")
            if value in DEFAULTS[key]:
                continue
            if successor == "qwen.experimental":
                experimental.append("short_windows" if key == "qwen.window_s" else value)
            else:
                _set(tree, successor, [value] if key == "qwen.device" else value)
    if experimental:
        _set(tree, "qwen.experimental", experimental)
    return [f"{sentence}, and the next release refuses it" for sentence in found]


def _pop(node: Any, key: str) -> Iterator[Any]:
    """Remove `key` from a table, or from each table of an array, and yield its values."""
    name, _, rest = key.partition(".")
    for table in node if isinstance(node, list) else [node]:
        if isinstance(table, dict) and name in table:
            if rest:
                yield from _pop(table[name], rest)
            else:
                yield table.pop(name)


def _set(tree: dict[str, Any], key: str, value: Any) -> None:
    section, name = key.split(".")
    values = tree.setdefault(section, {})
    if isinstance(values, dict):
        values.setdefault(name, value)
