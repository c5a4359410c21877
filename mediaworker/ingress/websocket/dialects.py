"""The dialects for clients that send audio and receive text: the built-in ones, and those of installed packages.

A package offers its dialect, a subclass of `StreamSession`, in the entry point group `mediaworker.dialects`;
CONTRIBUTING.md shows a complete one.
"""

from __future__ import annotations

from collections.abc import Collection
from importlib.metadata import EntryPoint, entry_points

from config import ConfigError
from mediaworker.ingress.websocket.asr import AsrSession
from mediaworker.ingress.websocket.session import StreamSession
from mediaworker.ingress.websocket.transcribe import TranscribeSession

GROUP = "mediaworker.dialects"
BUILT_IN: tuple[type[StreamSession], ...] = (AsrSession, TranscribeSession)


def dialects(taken: Collection[str] = ()) -> dict[str, type[StreamSession]]:
    """The installed dialects, by path. Raises ConfigError for one that cannot be used, or whose path is in use."""
    found = {each.path: each for each in BUILT_IN}
    for point in entry_points(group=GROUP):
        dialect = _load(point)
        if dialect.path in found or dialect.path in taken:
            raise ConfigError(GROUP, point.value, f"the path {dialect.path} is taken")
        found[dialect.path] = dialect
    return found


def _load(point: EntryPoint) -> type[StreamSession]:
    try:
        dialect = point.load()
    except Exception as error:  # a third party's module may raise anything
        why = f"the dialect cannot be imported ({type(error).__name__}: {error})"
        raise ConfigError(GROUP, point.value, why) from error
    if not (isinstance(dialect, type) and issubclass(dialect, StreamSession)):
        raise ConfigError(GROUP, point.value, "the dialect is no subclass of StreamSession")
    if not getattr(dialect, "path", "").startswith("/"):
        raise ConfigError(GROUP, point.value, "the dialect has no path that begins with a slash")
    return dialect
