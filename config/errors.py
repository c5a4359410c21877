"""The error for a mistake in the configuration."""

from __future__ import annotations

from config.log.text import mask_credentials


class ConfigError(Exception):
    """The user's mistake in the configuration: `key`, the `value` given (None when there is none), and the `reason`."""

    def __init__(self, key: str, value: object, reason: str, *, shown: str | None = None) -> None:
        """`shown` replaces the value in the message; by default that is its repr with credentials masked."""
        self.key, self.value, self.reason, self.shown = key, value, reason, shown
        text = "" if value is None else f" = {mask_credentials(repr(value)) if shown is None else shown}"
        super().__init__(f"{key}{text}: {reason}")
