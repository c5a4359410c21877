"""Calls that several connections share: each connection feeds its own legs, and the call ends with the last one."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from mediaworker.calls.call import Call


class Connection(Protocol):
    def hang_up(self) -> None:
        """End the connection, because the worker ends the call."""


C = TypeVar("C", bound=Connection)
MAX_NAMES = 64
"""The most names that one call may have: each connection that joins may bring another one."""


@dataclass(slots=True)
class SharedCall(Generic[C]):
    call: Call
    seats: dict[str, C] = field(default_factory=dict)
    """The connection of each leg. A leg without an entry has lost its connection."""
    names: set[Hashable] = field(default_factory=set)


class SharedCalls(Generic[C]):
    """The open calls of one ingress, by the names that its connections use for them."""

    def __init__(self) -> None:
        self._named: dict[Hashable, SharedCall[C]] = {}
        self._by_id: dict[str, SharedCall[C]] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def find(self, *names: Hashable) -> SharedCall[C] | None:
        """The call with one of these names that still accepts connections, or None."""
        found = (self._named[name] for name in names if name in self._named)
        return next((shared for shared in found if not shared.call.ending), None)

    def add(self, call: Call, *names: Hashable) -> SharedCall[C]:
        """Register a new call, still without connections. Without a name no other connection can find it."""
        shared = self._by_id[call.id] = SharedCall[C](call)
        call.on_hangup = lambda: self._on_hangup(shared)
        self.name(shared, *names)
        return shared

    def name(self, shared: SharedCall[C], *names: Hashable) -> None:
        """Add names to a call, except names in use by another open call, and names beyond MAX_NAMES."""
        for name in names:
            if self.find(name) is None and len(shared.names) < MAX_NAMES:
                self._named[name] = shared
                shared.names.add(name)

    def leave(self, call: Call, legs: Iterable[str], connection: C, reason: str) -> None:
        """Remove a closed connection and its legs from the call; the call ends with its last connection."""
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
