"""The base of every section of the settings: kinds of values, reload classes, secrets and checks."""

from __future__ import annotations

from typing import Annotated, Literal, TypeVar

import msgspec
from msgspec import Meta

Port = Annotated[int, Meta(ge=0, le=65535)]
Seconds = Annotated[float, Meta(ge=0)]
Millis = Annotated[int, Meta(ge=0)]
Probability = Annotated[float, Meta(ge=0, le=1)]
Positive = Annotated[int, Meta(ge=1)]
Name = Annotated[str, Meta(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9._-]+$")]
Scope = Literal["events", "admin", "batch", "stream", "metrics"]
Role = Literal["agent", "customer", "unknown"]

T = TypeVar("T")
Reloadable = Annotated[T, Meta(extra={"reload": "always"})]
"""A key, or a section with all its keys, that takes effect while the worker runs. Settings of calls apply to calls that
begin afterwards."""
ReloadableItems = Annotated[T, Meta(extra={"reload": "items"})]
"""A list whose items may change while their names stay the same."""
Switch = Annotated[T, Meta(extra={"reload": "switch"})]
"""Reloadable, except for the change from empty to set and back. That change means another protocol on the port, for
which clients must be reconfigured anyway, or an engine in another place."""
Switched = Annotated[T, Meta(extra={"reload": "switched"})]
"""Reloadable, except that it waits for the next start if the `Switch` of its section does."""


class Secret(str):
    """A string that `repr`, `str`, `print` and every format show as `***`.

    `reveal` returns the value. Operations on the text itself (`+`, `encode`, `==`) use the value as well.
    """

    __slots__ = ()

    def reveal(self) -> str:
        """The plain value, for code that must send or compare it."""
        return str.__str__(self)

    def __repr__(self) -> str:
        return "'***'" if self else "''"

    def __str__(self) -> str:
        return "***" if self else ""

    def __format__(self, spec: str) -> str:
        return format(str(self), spec)


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of every section: immutable, and an unknown key is an error."""

    def check(self, key: str) -> None:
        """Check conditions between the section's fields. `key` is the section's path. Raises ConfigError."""
