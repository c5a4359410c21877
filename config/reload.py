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
    "asr.servers",
    "asr.server_timeout_s",
    "asr.url",
    "asr.url_key",
    "asr.url_route",
    "asr.url_parallel",
    "asr.url_timeout_s",
    "asr.url_partials",
    "cluster.tls_cert",
    "cluster.tls_key",
    "cluster.tls_ca",
    "qwen",
    "shutdown_s",
    "max_calls",
    "events.max_subscribers",
    "files",
    "jobs.parallel",
    "jobs.parallel_per_key",
    "jobs.max_queued_per_key",
    "jobs.keep_days",
    "jobs.webhook_secret",
    "jobs.webhook_secret_next",
)
"""Keys, or sections with all their keys. What concerns calls holds for those that begin afterwards."""
NAMED = ("webhooks",)
"""Lists whose items may change while their names stay the same."""
SWITCHES = {
    "http": ("tls_cert", "tls_key"),
    "media": ("tls_cert", "tls_key"),
    "cluster": ("tls_cert", "tls_key", "tls_ca"),
    "asr": ("servers",),
}
"""Keys of a section that wait for the next start if the first of them is set or emptied: that is another protocol on
the port, of which clients have to be told anyway, or an engine in another place."""


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
        switch = SWITCHES.get(path, ())
        if switch and bool(getattr(old, switch[0])) != bool(getattr(new, switch[0])):
            values |= {field: getattr(old, field) for field in switch}
            moved = [key for key in changed if key in [f"{path}.{field}" for field in switch]]
            waiting.extend(moved)
            changed[:] = [key for key in changed if key not in moved]
        return type(old)(**values)
    if old == new:
        return old
    same = path in NAMED and [item.name for item in old] == [item.name for item in new]
    if same or any(path == key or path.startswith(f"{key}.") for key in RELOADABLE):
        changed.append(path)
        return new
    waiting.append(path)
    return old
