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


@dataclass(slots=True)
class SharedCall(Generic[C]):
    call: Call
    seats: dict[str, C] = field(default_factory=dict)
    """The connection of each leg. A leg that is not here has lost its connection."""


class SharedCalls(Generic[C]):
    """The open calls of one ingress, by what its connections call them."""

    def __init__(self) -> None:
        self._named: dict[Hashable, SharedCall[C]] = {}
        self._by_id: dict[str, SharedCall[C]] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def find(self, name: Hashable) -> SharedCall[C] | None:
        """The call of that name that takes connections."""
        shared = self._named.get(name)
        return None if shared is None or shared.call.ending else shared

    def add(self, call: Call, name: Hashable | None) -> SharedCall[C]:
        """A new call, without connections; None: no other connection can find it."""
        shared = self._by_id[call.id] = SharedCall[C](call)
        call.on_hangup = lambda: self._on_hangup(shared)
        if name is not None:
            self._named[name] = shared
        return shared

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
        for name in [name for name, each in self._named.items() if each is shared]:
            del self._named[name]
