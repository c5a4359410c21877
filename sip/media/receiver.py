"""The receiver of all RTP sockets, once per media tick: `recvmmsg` per socket, then array operations on all of them.

Audio is processed once per tick, so reading it earlier would only cost a wake-up of the event loop per packet. Until
then it waits in the sockets' buffers, which hold seconds of it. The kernel stamps each datagram on arrival, which is
more exact than the time at which a busy event loop would read it.
"""

from __future__ import annotations

import ctypes
import errno
import socket
import sys
import time
from collections.abc import Generator, Iterator, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from audio import ALL, Detector, Leg, Shard
from audio.fast_path import LEAD, MAX_BYTES, Datagrams
from audio.ring import ROWS
from config.network.addresses import socket_address
from sip.media.latching import SILENCE_S, Address

BATCH = 512
"""The datagrams that are read before they are delivered and the event loop may run."""
ROOM = 8
"""The datagrams that one call reads from a socket; at 50 packets a second, two arrive per tick."""
MAX_PASSES = 32
"""The most calls per socket and tick: a flood on one port must not delay the others, but a backlog must be read."""
PARTITION_S = 1.0
"""How often the sockets are partitioned again if none was added or removed: a leg may have moved to another row."""
KEPT_S = 10.0
"""The longest time that a datagram can have waited in a socket's buffer."""
SO_TIMESTAMPNS = 35
"""socket(7); Python has no name for it."""
_STAMP_BYTES = 32  # a control message header of 16 bytes and a timespec
_NAME_BYTES, _NAME_STRIDE = 28, 32
"""Room for struct sockaddr_in, which has family, port and address in its first 8 bytes, and for struct sockaddr_in6,
which has family, port and a flow label that is always 0 there, and its address in the next 16 (ipv6(7))."""
_MESSAGE = np.dtype(
    [
        ("name", "u8"), ("name_bytes", "u4"), ("", "u4"), ("vector", "u8"), ("vectors", "u8"), ("control", "u8"),
        ("control_bytes", "u8"), ("flags", "i4"), ("", "i4"), ("bytes", "u4"), ("", "u4"),
    ]
)  # fmt: skip
"""struct mmsghdr of 64-bit Linux, recvmmsg(2)."""

# Unlike CDLL, PyDLL keeps the interpreter's lock: the call never blocks, and a thousand releases a tick are costly.
_libc = ctypes.PyDLL(None, use_errno=True)
_recvmmsg = _libc.recvmmsg
_recvmmsg.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_uint, ctypes.c_int, ctypes.c_void_p)
_recvmmsg.restype = ctypes.c_int

_INET6 = int(socket.AF_INET6)
_FAMILY_AT = _INET6.to_bytes(2, sys.byteorder).index(_INET6)

# The arguments of the call are kept as ctypes objects: converting numbers would cost as much as the call.
_ROOM, _NOW, _FOR_EVER = ctypes.c_uint(ROOM), ctypes.c_int(socket.MSG_DONTWAIT), ctypes.c_void_p(None)


class DatagramTarget(Protocol):
    """The owner of a socket, as the receiver sees it: where its datagrams go, and who switches its source filter."""

    slot: int
    """The number that `RtpReceiver.add` returned."""
    leg: Leg | None
    """The detector takes the plain packets of this leg in bulk; without one every datagram goes to `receive`."""

    def receive(self, datagram: bytes, address: Address, now: float) -> None:
        """Handle a datagram that the detector has not processed; it arrived at `now`."""

    def filter_sources(self, on: bool) -> None:
        """Let the kernel drop datagrams of other sources, or stop that."""


_Reader = tuple[int, tuple[ctypes.c_int, DatagramTarget]]
"""Slot, (file descriptor, owner of the socket)."""


class RtpReceiver:
    """Reads the sockets that are added to it whenever `sweep` is called."""

    def __init__(self, detector: Detector | None = None) -> None:
        """`detector`: the detector of the sockets' legs; without one every datagram goes to its target's `receive`."""
        self._detector = detector
        self._readers: dict[int, tuple[ctypes.c_int, DatagramTarget]] = {}
        self._free = list(range(64))
        self._source = np.zeros(64, np.uint64)
        """The locked source per slot as the first 8 bytes of its socket address; 0: none."""
        self._source6 = np.zeros((64, 2), np.uint64)
        """The next 16 bytes of the socket address, for IPv6 sockets."""
        self._speaks6 = np.zeros(64, np.bool_)
        self._open6 = 0
        """The number of IPv6 sockets: without any, IPv6 addresses need no comparison."""
        self.last_packet_s = np.zeros(64)
        """When the locked source last sent, per slot."""
        self._latched = np.zeros(64, np.bool_)
        """The slots whose stream has a locked source, although some datagrams may still need a decision."""
        self._filtered = np.zeros(64, np.bool_)
        """The latched slots whose socket drops datagrams of other sources."""
        self.packets = np.zeros(64, np.int64)
        """The number of accepted packets, per slot."""
        self.truncated = 0
        """The number of datagrams longer than any RTP packet."""
        self.errors = 0
        self._swept_s = [0.0]
        """When each shard was read last."""
        self._shards: list[list[_Reader]] = []
        self._changed, self._partitioned_s = True, 0.0
        self._buffers: _Buffers | None = None

    def add(self, target: DatagramTarget, bound: socket.socket) -> int:
        """Add a socket, which is read from now on. Returns its slot."""
        bound.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        if not self._free:
            self._grow()
        slot = self._free.pop()
        self._source[slot] = self.packets[slot] = 0
        self.last_packet_s[slot] = 0.0
        self._latched[slot] = self._filtered[slot] = False
        self._speaks6[slot] = bound.family == socket.AF_INET6
        self._open6 += int(self._speaks6[slot])
        self._readers[slot] = (ctypes.c_int(bound.fileno()), target)
        self._changed = True
        return slot

    def remove(self, slot: int) -> None:
        del self._readers[slot]
        self._latched[slot] = self._filtered[slot] = False
        self._changed = True
        self._open6 -= int(self._speaks6[slot])
        self._free.append(slot)

    def lock(self, slot: int, source: Address | None) -> None:
        """Accept datagrams of this source without a decision; None for none. No effect once the socket is closed."""
        if slot >= 0:
            name = b"" if source is None else socket_address(*source)
            words = np.frombuffer(name[:24].ljust(24, b"\0"), np.uint64)
            self._source[slot], self._source6[slot] = words[0], words[1:]

    def latch(self, slot: int, latched: bool) -> None:
        """Note that the slot's stream has another source, or none; the next tick updates the socket's filter."""
        if slot >= 0:
            self._latched[slot], self._filtered[slot] = latched, False

    def _update_filters(self, now: float) -> None:
        """Filter other sources while the stream's own sends; during its silence another one may be learned."""
        filtered = self._latched & (now - self.last_packet_s < SILENCE_S)
        for slot in np.flatnonzero(filtered != self._filtered).tolist():
            self._readers[slot][1].filter_sources(bool(filtered[slot]))
            self._filtered[slot] = filtered[slot]

    def _grow(self) -> None:
        """Double the number of slots."""
        size = len(self._source)
        self._source = np.concatenate([self._source, np.zeros(size, np.uint64)])
        self._source6 = np.concatenate([self._source6, np.zeros((size, 2), np.uint64)])
        self._speaks6 = np.concatenate([self._speaks6, np.zeros(size, np.bool_)])
        self.last_packet_s = np.concatenate([self.last_packet_s, np.zeros(size)])
        self._latched = np.concatenate([self._latched, np.zeros(size, np.bool_)])
        self._filtered = np.concatenate([self._filtered, np.zeros(size, np.bool_)])
        self.packets = np.concatenate([self.packets, np.zeros(size, np.int64)])
        self._free = list(range(size, 2 * size))

    def sweep(self, now: float, shard: Shard = ALL) -> Iterator[None]:
        """Read the datagrams for the legs of this shard. Yields after each batch, so that the event loop can run."""
        if not self._readers:
            return
        stale = self._changed or now - self._partitioned_s >= PARTITION_S
        if shard.number == 0 and stale or shard.of != len(self._shards):
            self._shards = self._partition(shard.of)
            self._changed, self._partitioned_s = False, now
            if shard.of != len(self._swept_s):
                self._swept_s = [0.0] * shard.of
        if self._buffers is None:
            self._buffers = _Buffers()
        if shard.number == 0:
            self._update_filters(now)
        since_s, self._swept_s[shard.number] = self._swept_s[shard.number], now
        yield from self._read_all(self._buffers, self._shards[shard.number], since_s)

    def drain(self, slot: int) -> None:
        """Read the datagrams of one socket, which is about to be closed."""
        if slot in self._readers and self._buffers is not None:
            for _ in self._read_all(self._buffers, [(slot, self._readers[slot])], 0.0):
                pass

    def _read_all(self, buffers: _Buffers, waiting: Sequence[_Reader], since_s: float) -> Iterator[None]:
        for _ in range(MAX_PASSES):
            waiting = yield from self._read(buffers, waiting, since_s)
            if not waiting:
                break

    def _partition(self, shards: int) -> list[list[_Reader]]:
        """The sockets by the shard of their legs; those without a leg are in the first."""
        if shards == 1:
            return [list(self._readers.items())]
        found: list[list[_Reader]] = [[] for _ in range(shards)]
        for reader in self._readers.items():
            leg = reader[1][1].leg
            found[0 if leg is None else leg.index // ROWS % shards].append(reader)
        return found

    def _read(
        self, buffers: _Buffers, readers: Sequence[_Reader], since_s: float
    ) -> Generator[None, None, Sequence[_Reader]]:
        """Read once from each socket. Returns those that may have more."""
        heads = buffers.heads
        filled = 0
        more: list[_Reader] = []
        sockets: list[DatagramTarget] = []
        counts: list[int] = []
        for reader in readers:
            slot, own = reader
            if filled + ROOM > BATCH:
                self._deliver(buffers, filled, sockets, counts, since_s)
                filled, sockets, counts = 0, [], []
                yield
            if self._readers.get(slot) is not own:
                continue  # it was closed while the event loop ran
            count = _recvmmsg(own[0], heads[filled], _ROOM, _NOW, _FOR_EVER)
            if count < 0 and ctypes.get_errno() != errno.EAGAIN:  # an ICMP error is reported first, once
                count = _recvmmsg(own[0], heads[filled], _ROOM, _NOW, _FOR_EVER)
            if count <= 0:
                if ctypes.get_errno() != errno.EAGAIN:
                    self.errors += 1
                continue
            sockets.append(own[1])
            counts.append(count)
            filled += count
            if count == ROOM:
                more.append(reader)
        if filled:
            self._deliver(buffers, filled, sockets, counts, since_s)
        return more

    def _deliver(
        self, buffers: _Buffers, filled: int, sockets: list[DatagramTarget], counts: list[int], since_s: float
    ) -> None:
        """Deliver a batch: `counts[i]` datagrams of `sockets[i]`, in the order of arrival.

        This is done in rounds, first the first datagram of each socket, then the second, so that no leg occurs twice in
        a round: the detector processes the plain packets of a round together, and the others are delivered singly.
        """
        datagrams = buffers.finish(filled, since_s)
        lengths = np.array(counts)
        owners = np.repeat(np.arange(len(sockets)), lengths)
        slots = np.array([socket.slot for socket in sockets])[owners]
        rows = np.array([-1 if socket.leg is None else socket.leg.index for socket in sockets])[owners]
        rounds = np.arange(filled) - (np.cumsum(lengths) - lengths)[owners]
        locked = self._locked(buffers, slots) & (rows >= 0)
        for number in range(max(counts)):
            others = self._deliver_plain(datagrams, np.flatnonzero(rounds == number), locked, slots, rows)
            if not len(others):
                continue
            for index in others.tolist():
                self._deliver_one(buffers, index, sockets[owners[index]])
            locked = self._locked(buffers, slots) & (rows >= 0)  # a delivery may have changed a locked source

    def _deliver_plain(
        self,
        datagrams: Datagrams,
        round_: NDArray[np.intp],
        locked: NDArray[np.bool_],
        slots: NDArray[np.int64],
        rows: NDArray[np.int64],
    ) -> NDArray[np.intp]:
        """Let the detector process the plain packets of a round that come from locked sources. Returns the others."""
        if self._detector is None:
            return round_
        candidates = locked[round_]
        which = round_[candidates]
        placed = candidates.copy()
        placed[candidates] = self._detector.receive(datagrams, which, rows[which])
        plain = round_[placed]
        self.last_packet_s[slots[plain]] = datagrams.arrivals[plain]
        self.packets[slots[plain]] += 1
        return round_[~placed]

    def _deliver_one(self, buffers: _Buffers, index: int, target: DatagramTarget) -> None:
        if buffers.messages["flags"][index] & socket.MSG_TRUNC:
            self.truncated += 1
            return
        datagrams = buffers.datagrams
        target.receive(datagrams.datagram(index), buffers.address(index), float(datagrams.arrivals[index]))

    def _locked(self, buffers: _Buffers, slots: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Whether each datagram, whose slot is in `slots`, comes from its locked source."""
        found: NDArray[np.bool_] = buffers.keys[: len(slots)] == self._source[slots]
        if self._open6:
            which = np.flatnonzero(found & self._speaks6[slots])
            sent, locked = buffers.keys6[which], self._source6[slots[which]]
            found[which] = (sent[:, 0] == locked[:, 0]) & (sent[:, 1] == locked[:, 1])
        return found


class _Buffers:
    """The memory that `recvmmsg` fills, laid out once."""

    def __init__(self) -> None:
        self.datagrams = Datagrams(BATCH)
        self.names = np.zeros((BATCH, _NAME_STRIDE), np.uint8)
        words = self.names.view(np.uint64)
        self.keys: NDArray[np.uint64] = words[:, 0]
        """Family, port and IPv4 address of each sender as one number."""
        self.keys6: NDArray[np.uint64] = words[:, 1:3]
        """The IPv6 address of each sender that has one."""
        self._raw = self.names.data.cast("B")
        self._stamps = np.zeros((BATCH, _STAMP_BYTES // 8), np.int64)
        vectors = np.zeros((BATCH, 2), np.uint64)
        vectors[:, 0] = _addresses(self.datagrams.data) + np.uint64(LEAD)
        vectors[:, 1] = MAX_BYTES
        self._vectors = vectors
        self.messages = np.zeros(BATCH, _MESSAGE)
        self.messages["name"], self.messages["control"] = _addresses(self.names), _addresses(self._stamps)
        self.messages["vector"], self.messages["vectors"] = _addresses(vectors), 1
        self._reset(BATCH)
        self.heads = [ctypes.c_void_p(address) for address in _addresses(self.messages).tolist()]

    def _reset(self, count: int) -> None:
        self.messages["name_bytes"][:count] = _NAME_BYTES
        self.messages["control_bytes"][:count] = _STAMP_BYTES

    def finish(self, count: int, since_s: float) -> Datagrams:
        """Fill in sizes and arrival times of the first `count` datagrams, and reset for the next batch.

        No arrival is before `since_s`.
        """
        datagrams, (now, ahead_s) = self.datagrams, _clocks()
        datagrams.sizes[:count] = self.messages["bytes"][:count]
        seconds, nanoseconds = self._stamps[:count, 2], self._stamps[:count, 3]
        # The kernel stamps wall-clock time. Bounds keep a step of that clock from reaching the calls.
        arrivals = seconds + nanoseconds * 1e-9 + ahead_s
        arrivals[self.messages["control_bytes"][:count] != _STAMP_BYTES] = now
        np.clip(arrivals, min(max(since_s, now - KEPT_S), now), now, out=datagrams.arrivals[:count])
        self._reset(count)
        return datagrams

    def address(self, index: int) -> Address:
        at = _NAME_STRIDE * index
        if self._raw[at + _FAMILY_AT] == _INET6:
            name = self._raw[at : at + _NAME_BYTES]
            return socket.inet_ntop(socket.AF_INET6, name[8:24]), name[2] << 8 | name[3]
        name = self._raw[at : at + 8]
        return socket.inet_ntoa(name[4:]), name[2] << 8 | name[3]


def _clocks() -> tuple[float, float]:
    """The monotonic clock, and how far it is ahead of the wall clock: the closest of three readings of both."""
    readings = []
    for _ in range(3):
        before, wall, after = time.monotonic(), time.time(), time.monotonic()
        readings.append((after - before, after, before - wall))
    _, now, ahead_s = min(readings)
    return now, ahead_s


def _addresses(array: np.ndarray) -> NDArray[np.uint64]:
    """The address of each row in memory."""
    return np.uint64(array.ctypes.data) + np.uint64(array.strides[0]) * np.arange(len(array), dtype=np.uint64)
