"""Calls that several connections share, each feeding legs of its own. A call ends with the last of them."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from mediaworker.calls.call import Call


class Connection(Protocol):
    def hang_up(self) -> None:
        """The worker ends the call."""


C = TypeVar("C", bound=Connection)
MAX_NAMES = 64
"""The most names of one call: each connection that joins it may bring another one."""


@dataclass(slots=True)
class SharedCall(Generic[C]):
    call: Call
    seats: dict[str, C] = field(default_factory=dict)
    """The connection of each leg. A leg that is not here has lost its connection."""
    names: set[Hashable] = field(default_factory=set)


class SharedCalls(Generic[C]):
    """The open calls of one ingress, by what its connections call them."""

    def __init__(self) -> None:
        self._named: dict[Hashable, SharedCall[C]] = {}
        self._by_id: dict[str, SharedCall[C]] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def find(self, *names: Hashable) -> SharedCall[C] | None:
        """A call of one of these names that takes connections."""
        found = (self._named[name] for name in names if name in self._named)
        return next((shared for shared in found if not shared.call.ending), None)

    def add(self, call: Call, *names: Hashable) -> SharedCall[C]:
        """A new call, without connections, of these names; without a name no other connection can find it."""
        shared = self._by_id[call.id] = SharedCall[C](call)
        call.on_hangup = lambda: self._on_hangup(shared)
        self.name(shared, *names)
        return shared

    def name(self, shared: SharedCall[C], *names: Hashable) -> None:
        """These names are the call's too, but for those of another call that takes connections, and for too many."""
        for name in names:
            if self.find(name) is None and len(shared.names) < MAX_NAMES:
                self._named[name] = shared
                shared.names.add(name)

    def leave(self, call: Call, legs: Iterable[str], connection: C, reason: str) -> None:
        """The connection is gone, and its legs with it; with the last connection the call ends."""
        shared = self._by_id.get(call.id)
        left = [] if shared is None else [leg for leg in legs if shared.seats.get(leg) is connection]
        if shared is None or not left:
            return
        for leg in left:
            del shared.seats[leg]
        if shared.seats:
            for leg in left:
                call.flush(leg)
            return
        self._forget(shared)
        call.on_hangup = None
        call.end(reason)

    def _on_hangup(self, shared: SharedCall[C]) -> None:
        self._forget(shared)
        seats, shared.seats = shared.seats, {}
        for connection in {id(each): each for each in seats.values()}.values():
            connection.hang_up()

    def _forget(self, shared: SharedCall[C]) -> None:
        self._by_id.pop(shared.call.id, None)
        for name in shared.names:
            if self._named.get(name) is shared:
                del self._named[name]
