"""What every section of the settings is made of: the kinds of values, and what a wrong one is answered with."""

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
"""A key, or a section with all its keys, that takes effect while the worker runs. What concerns calls holds for those
that begin afterwards."""
ReloadableItems = Annotated[T, Meta(extra={"reload": "items"})]
"""A list whose items may change while their names stay the same."""
Switch = Annotated[T, Meta(extra={"reload": "switch"})]
"""Reloadable, but for the change from empty to set and back: that is another protocol on the port, of which clients
have to be told anyway, or an engine in another place."""
Switched = Annotated[T, Meta(extra={"reload": "switched"})]
"""Reloadable, and waits with the `Switch` of its section."""


class Secret(str):
    """A string that prints as `***`, by `repr`, `str`, `print` and in any format. `reveal` shows it, and so does what
    takes it for the text that it is (`+`, `encode`, `==`)."""

    __slots__ = ()

    def reveal(self) -> str:
        """The value, as whoever asks for it has to be told."""
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
        """What no single field can say about itself. `key` is where this section stands. Raises ConfigError."""
