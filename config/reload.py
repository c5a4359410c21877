"""What of a changed configuration takes effect while the worker runs, and what waits for its next start."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from config.sections.section import Section
from config.settings import Settings

RELOADABLE = (
    "routes",
    "auth",
    "log",
    "retention",
    "privacy",
    "endpointing",
    "twilio",
    "stream",
    "siprec",
    "asterisk",
    "audiosocket.allow",
    "audiosocket.send_audio",
    "sip.allow",
    "sip.users",
    "http.tls_cert",
    "http.tls_key",
    "media.tls_cert",
    "media.tls_key",
    "asr.language",
    "asr.partial_ms",
    "asr.model",
    "asr.partials_model",
    "asr.attention",
    "asr.threads",
    "qwen",
    "shutdown_s",
    "max_calls",
    "events.max_subscribers",
    "files",
    "jobs.parallel",
    "jobs.parallel_per_key",
    "jobs.max_queued_per_key",
    "jobs.keep_days",
)
"""Keys, or sections with all their keys. What concerns calls holds for those that begin afterwards."""


@dataclass(frozen=True, slots=True)
class Reload:
    """`settings` is what is in force after it; both lists name keys, never values."""

    settings: Settings
    changed: tuple[str, ...]
    waiting: tuple[str, ...]
    """Changed in the file, and in force from the next start on."""


def merge(old: Settings, new: Settings) -> Reload:
    """What becomes of the settings in force when the file says `new`."""
    changed: list[str] = []
    waiting: list[str] = []
    settings = _merge("", old, new, changed, waiting)
    return Reload(settings, tuple(changed), tuple(waiting))


def _merge(path: str, old: Any, new: Any, changed: list[str], waiting: list[str]) -> Any:
    if isinstance(old, Section):
        fields = msgspec.structs.fields(old)
        prefix = f"{path}." if path else ""
        values = {
            field.name: _merge(
                prefix + field.name, getattr(old, field.name), getattr(new, field.name), changed, waiting
            )
            for field in fields
        }
        if path in ("http", "media") and bool(old.tls_cert) != bool(new.tls_cert):  # type: ignore[attr-defined]
            # Another protocol on the port: clients have to be told anyway.
            values |= {"tls_cert": old.tls_cert, "tls_key": old.tls_key}  # type: ignore[attr-defined]
            moved = [key for key in changed if key in (f"{path}.tls_cert", f"{path}.tls_key")]
            waiting.extend(moved)
            changed[:] = [key for key in changed if key not in moved]
        return type(old)(**values)
    if old == new:
        return old
    if any(path == key or path.startswith(f"{key}.") for key in RELOADABLE):
        changed.append(path)
        return new
    waiting.append(path)
    return old
