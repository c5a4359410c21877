"""Who loses their pages to whom, in a step whose utterances need more than are free. No I/O."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from asr.engines.qwen.session import QwenSession


class Victims:
    """Those whose pages may be taken in one step, the one that nothing was done for for longest first.

    A call takes the pages of a file, or else of another call. Files take those of whom nothing is asked: of a file, or
    when none has any of a call; and calls leave the last file its own as long as a call has some to spare.
    """

    def __init__(
        self, owners: Sequence[QwenSession], files: Sequence[QwenSession], working: Collection[str], *, only: bool
    ) -> None:
        """`owners`: of pages, in that order; `files`: those of them that are no calls. `working`: who has a request in
        this step. `only`: there is room for one."""
        self._working, self._only = working, only
        self._files = {owner.utterance.id: owner for owner in files}
        self._taken: set[str] = set()
        # Each call is looked at once in a step, however many pages are wanted.
        self._calls = self._others(owners, idle=False)
        self._idle = self._others(owners, idle=True)
        self._spare: str | None = None

    def _others(self, owners: Sequence[QwenSession], *, idle: bool) -> Iterator[str]:
        for owner in owners:
            name = owner.utterance.id
            if owner.utterance.live and name not in self._working and not (idle and owner.now is not None):
                yield name

    def take(self, *, live: bool) -> str | None:
        """Whose pages an utterance gets, who then is no longer here; None: nobody's."""
        victim = self._choose(live=live)
        if victim is not None:
            self._taken.add(victim)
            self._files.pop(victim, None)
        return victim

    def _choose(self, *, live: bool) -> str | None:
        if not live and (self._files or self._only):
            idle = (name for name, owner in self._files.items() if owner.now is None and name not in self._working)
            return next(idle, None)
        if not live:
            return self._next_spare()
        if len(self._files) == 1 and not self._only and (spare := self._next_spare()) is not None:
            return spare
        return next(iter(self._files), None) or next((name for name in self._calls if name not in self._taken), None)

    def _next_spare(self) -> str | None:
        """The first call of which nothing is asked; it stays the first until it is taken."""
        if self._spare is None or self._spare in self._taken:
            self._spare = next((name for name in self._idle if name not in self._taken), None)
        return self._spare

    def add_file(self, session: QwenSession) -> None:
        """A file of this step has pages now."""
        self._files[session.utterance.id] = session
