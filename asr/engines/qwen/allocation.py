"""Decides which utterances of a step get pages of keys and values, and which others lose theirs for it. No I/O.

An utterance gets all the pages that its answer may come to before the answer is begun. An answer that took pages as it
grew could stop half way for want of one, and two such answers could wait for each other's pages for ever.

The device computes one cohort of utterances while the host prepares the next. The pages of the cohort that it computes
are in `in_flight` and nobody gets them: the kernels of that step still read and write them, and a prefill of another
utterance on the same pages would come out wrong without any error.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from asr.engines.qwen.model.kv_cache import KvCache
from asr.engines.qwen.session import QwenSession
from asr.scheduling.request import Request


class PageAllocator:
    """Allocates the pages of a `KvCache` to sessions, and evicts the least recently used ones.

    Args:
        frames: the number of mel frames of so many samples at 16 kHz.
        only: there is room for one utterance of full length.
    """

    def __init__(self, cache: KvCache, frames: Callable[[int], int], *, only: bool) -> None:
        self._cache, self._frames, self._only = cache, frames, only
        self.owners: dict[str, QwenSession] = {}
        """Sessions that have pages, the least recently used first."""
        self.in_flight: set[str] = set()
        """Utterances of the step that has been launched and not been collected."""

    def can_allocate(self, session: QwenSession, request: Request) -> bool:
        """True when `allocate` would succeed for this request alone. A live request always gets its pages."""
        if session.utterance.live or (lacking := self._lacking(session, request) - self._cache.free) <= 0:
            return True
        return self._choose(self._victims((session.utterance.id,)), lacking, live=False) is not None

    def allocate(self, work: Sequence[tuple[QwenSession, Request]]) -> list[bool]:
        """Allocate all pages that the answer to each request may need. Returns for each session whether it has them.

        Sessions that lose their pages forget what was on them. The most urgent request comes first.
        """
        victims = None
        working = frozenset(request.utterance_id for _, request in work)
        allocated = []
        for session, request in work:
            name, live, lacking = request.utterance_id, session.utterance.live, self._lacking(session, request)
            if lacking > self._cache.free:
                victims = victims or self._victims(working)
                for victim in self._choose(victims, lacking - self._cache.free, live=live) or ():
                    self.owners[victim].evict()
                    self.release(victim)
            allocated.append(lacking <= self._cache.free)
            if lacking and allocated[-1]:
                self._cache.allocate(name, lacking)
                self.owners.setdefault(name, session)
                if victims is not None and not live:
                    victims.add_file(name)
        return allocated

    def release(self, name: str) -> None:
        """Free all pages of an utterance; nothing happens when it has none."""
        self._cache.release(name)
        self.owners.pop(name, None)

    def touch(self, session: QwenSession) -> None:
        """Note that the step works on this session: it is the most recently used one now."""
        name = session.utterance.id
        self.owners[name] = self.owners.pop(name)

    def order(self, sessions: list[QwenSession]) -> None:
        """Sort the sessions of a step: calls first, in their order, then files, the least recently used first.

        A step has little room for files. Without this order the first file would have all of it in each step.
        """
        if not all(session.utterance.live for session in sessions):
            turns = {name: turn for turn, name in enumerate(self.owners)}
            sessions.sort(key=lambda each: 0 if each.utterance.live else 1 + turns[each.utterance.id])

    def _lacking(self, session: QwenSession, request: Request) -> int:
        """The number of pages that the answer may need and the session does not have."""
        if session.has_begun(request):  # it has them: a session that loses its pages drops its answer
            return 0
        positions = session.most_positions(request, self._frames(session.end(request)))
        return self._cache.missing(session.utterance.id, min(positions, self._cache.positions))

    def _choose(self, victims: Victims, lacking: int, *, live: bool) -> list[str] | None:
        """The utterances whose pages make room for `lacking` more pages; None when there are not enough."""
        names: list[str] = []
        while lacking > 0:
            name = victims.pop(live=live)
            if name is None:
                return None
            names.append(name)
            lacking -= len(self._cache.of(name))
        return names

    def _victims(self, working: Collection[str]) -> Victims:
        owners = [owner for name, owner in self.owners.items() if name not in self.in_flight]
        return Victims(owners, working, only=self._only)


class Victims:
    """The utterances that may lose their pages in one step, the least recently used first.

    A call gets the pages of a file, or else of another call. A file gets those of an idle file or, when no file has
    any, of an idle call. Idle means that nothing is asked about it. Calls leave the last file its pages as long as a
    call is idle: otherwise files would stand still wherever as many calls are open as there are slots.

    Args:
        owners: sessions that have pages, the least recently used first.
        working: utterances that have a request in this step.
        only: there is room for one utterance.
    """

    def __init__(self, owners: Sequence[QwenSession], working: Collection[str], *, only: bool) -> None:
        self._only = only
        self._files: dict[str, bool] = {}
        """Each file, and True when it is idle."""
        # Each step asks once what every owner does, however many pages are needed.
        self._calls: dict[str, None] = {}
        self._idle_calls: dict[str, None] = {}
        for owner in owners:
            name, working_on = owner.utterance.id, owner.utterance.id in working
            if not owner.utterance.live:
                self._files[name] = owner.now is None and not working_on
            elif not working_on:
                self._calls[name] = None
                if owner.now is None:
                    self._idle_calls[name] = None

    def pop(self, *, live: bool) -> str | None:
        """Remove and return the utterance whose pages a call (`live`) or a file gets; None when there is none."""
        idle_call = next(iter(self._idle_calls), None)
        if live and not (len(self._files) == 1 and not self._only and idle_call is not None):
            victim = next(iter(self._files or self._calls), None)
        elif not live and (self._files or self._only):
            victim = next((name for name, idle in self._files.items() if idle), None)
        else:
            victim = idle_call
        if victim is not None:
            for names in (self._files, self._calls, self._idle_calls):
                names.pop(victim, None)
        return victim

    def add_file(self, name: str) -> None:
        """Add a file of this step, which has pages now."""
        self._files[name] = False
