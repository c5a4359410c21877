"""Which utterances lose their pages when a step needs more than are free. No I/O."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from asr.engines.qwen.session import QwenSession


class Victims:
    """The utterances that may lose their pages in one step, the least recently used first.

    A call gets the pages of a file, or else of another call. A file gets those of an idle file or, when no file has
    any, of an idle call. Idle means that nothing is asked about it. Calls leave the last file its pages as long as a
    call is idle: otherwise files would stand still wherever as many calls are open as there are slots.
    """

    def __init__(
        self, owners: Sequence[QwenSession], files: Sequence[QwenSession], working: Collection[str], *, only: bool
    ) -> None:
        """
        Args:
            owners: sessions that have pages, the least recently used first.
            files: those of `owners` that are files.
            working: utterances that have a request in this step.
            only: there is room for one utterance.
        """
        self._working, self._only = working, only
        self._files = {owner.utterance.id: owner for owner in files}
        self._evicted: set[str] = set()
        # Iterators visit each call once in a step, however many pages are needed.
        self._calls = self._others(owners, idle=False)
        self._idle = self._others(owners, idle=True)
        self._idle_call: str | None = None

    def _others(self, owners: Sequence[QwenSession], *, idle: bool) -> Iterator[str]:
        for owner in owners:
            name = owner.utterance.id
            if owner.utterance.live and name not in self._working and not (idle and owner.now is not None):
                yield name

    def pop(self, *, live: bool) -> str | None:
        """Remove and return the utterance whose pages a call (`live`) or a file gets; None when there is none."""
        victim = self._choose(live=live)
        if victim is not None:
            self._evicted.add(victim)
            self._files.pop(victim, None)
        return victim

    def _choose(self, *, live: bool) -> str | None:
        if not live and (self._files or self._only):
            idle = (name for name, owner in self._files.items() if owner.now is None and name not in self._working)
            return next(idle, None)
        if not live:
            return self._next_idle_call()
        if len(self._files) == 1 and not self._only and (idle_call := self._next_idle_call()) is not None:
            return idle_call
        return next(iter(self._files), None) or next((name for name in self._calls if name not in self._evicted), None)

    def _next_idle_call(self) -> str | None:
        """The first idle call, which stays the first until it is evicted."""
        if self._idle_call is None or self._idle_call in self._evicted:
            self._idle_call = next((name for name in self._idle if name not in self._evicted), None)
        return self._idle_call

    def add_file(self, session: QwenSession) -> None:
        """Add a file of this step, which has pages now."""
        self._files[session.utterance.id] = session
