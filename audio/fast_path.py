"""The fast path for plain RTP packets of many legs at once, which are stored directly in their rings.

A packet is plain if it needs no decision: it has the expected payload type, SSRC, sequence number and timestamp, no
padding, extension or CSRC, no gap before it, and its place in the ring is within reach. Nearly all packets of nearly
all calls are plain. Any other packet goes to `Leg.receive_rtp`, which handles every packet. For a plain one both have
the same effect, which a test checks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from audio.leg_table import LegTable
from audio.ring import AHEAD, RING, ROWS
from audio.rtp.clock import DRIFT, DRIFT_MASK
from audio.rtp.packet import HEADER

if TYPE_CHECKING:
    from audio.legs.block import Block
    from audio.legs.leg import Leg

STRIDE = 1600
"""The bytes of a row: more than an Ethernet frame carries, and no power of two, so that rows share no cache sets."""
LEAD = 4
"""The offset of a datagram in its row: with it the payload, after the 12 bytes of header, is aligned to 8 bytes."""
MAX_BYTES = STRIDE - 8
_PAYLOAD = LEAD + HEADER.size
_MARKER = np.uint32(0xFF7FFFFF)
Ints = NDArray[np.int64]
Index = NDArray[np.intp]


class Datagrams:
    """A buffer for `count` datagrams: row i is `data[i, LEAD:LEAD + sizes[i]]`, which arrived at `arrivals[i]`."""

    def __init__(self, count: int) -> None:
        self.data = np.zeros((count, STRIDE), np.uint8)
        self.words: NDArray[np.uint32] = self.data.view(">u4")
        self.longs: NDArray[np.uint64] = self.data.view(np.uint64)
        self.sizes = np.zeros(count, np.int64)
        self.arrivals = np.zeros(count)

    def __len__(self) -> int:
        return len(self.sizes)

    def datagram(self, index: int) -> bytes:
        return self.data[index, LEAD : LEAD + int(self.sizes[index])].tobytes()

    def store(self, index: int, datagram: bytes, arrival_s: float) -> None:
        """Store a datagram that was not read from a socket into the buffer."""
        self.data[index, LEAD : LEAD + len(datagram)] = np.frombuffer(datagram, np.uint8)
        self.sizes[index], self.arrivals[index] = len(datagram), arrival_s


def receive(
    table: LegTable, blocks: Sequence[Block], legs: Mapping[int, Leg], datagrams: Datagrams, which: Index, rows: Index
) -> NDArray[np.bool_]:
    """Process the plain ones of the datagrams `which`, for the legs in `rows` (distinct); returns which were plain."""
    words = datagrams.words[which, LEAD // 4 : _PAYLOAD // 4]
    first = words[:, 0].astype(np.uint32) & _MARKER
    sizes = datagrams.sizes[which] - HEADER.size
    position, consumed = table.next_position[rows], table.consumed[rows]
    end, offset, last = position + sizes, position % RING, table.transit[rows]
    room = table.room[rows]
    if (room != RING).any():
        offset = position % np.maximum(room, 1)
    plain: NDArray[np.bool_] = first == (table.head[rows] << 16 | table.next_sequence[rows])
    plain &= words[:, 1] == table.next_timestamp[rows]
    plain &= words[:, 2] == table.ssrc[rows]
    at_drift_check = first & DRIFT_MASK == 0
    if at_drift_check.any():  # at each 64th packet the sender's clock is checked, which seldom has an effect
        drift = np.abs(table.min_transit[rows])
        plain &= ~at_drift_check | (drift <= DRIFT) | np.isinf(drift)
    plain &= position == table.received[rows]  # no gap, neither here nor before
    plain &= (consumed <= position) & (end <= consumed + AHEAD)
    plain &= (sizes > 0) & (offset + sizes <= room)
    plain &= last == last  # false for NaN, which means unknown
    if not plain.all():
        which, rows, sizes, end = which[plain], rows[plain], sizes[plain], end[plain]
        position, offset, last, at_drift_check = position[plain], offset[plain], last[plain], at_drift_check[plain]
    if not len(rows):
        return plain
    _store(table, blocks, legs, datagrams, which, rows, offset, sizes)
    table.next_sequence[rows] += 1
    table.next_timestamp[rows] += sizes
    table.next_position[rows] = table.end[rows] = table.received[rows] = end
    table.packets[rows] += 1
    transit = (datagrams.arrivals[which] - table.origin_s[rows]) * 8000.0 - position
    jitter = table.jitter[rows]
    table.jitter[rows] = jitter + (np.abs(transit - last) - jitter) * 0.0625
    table.transit[rows] = transit
    table.min_transit[rows] = np.where(at_drift_check, transit, np.minimum(table.min_transit[rows], transit))
    return plain


def _store(
    table: LegTable,
    blocks: Sequence[Block],
    legs: Mapping[int, Leg],
    datagrams: Datagrams,
    which: Index,
    rows: Index,
    offset: Ints,
    sizes: Ints,
) -> None:
    number = rows // ROWS
    for each in range(int(number.min()), int(number.max()) + 1):
        in_block = np.flatnonzero(number == each)
        if not len(in_block):
            continue
        block = blocks[each]
        here, own, at = which[in_block], rows[in_block] - each * ROWS, offset[in_block]
        if block.wide:
            for index, row, start, size in zip(here.tolist(), own.tolist(), at.tolist(), sizes[in_block], strict=True):
                # G.722 codes wait in the leg's own ring until their window is decoded.
                ring = legs[row + each * ROWS].audio.ring
                ring[start : start + int(size)] = datagrams.data[index, _PAYLOAD : _PAYLOAD + size].data
            continue
        target = own * RING + at
        lengths, masks = sizes[in_block], table.mask[rows[in_block]]
        while len(lengths):
            size = int(lengths[0])
            group, rest = np.flatnonzero(lengths == size), np.flatnonzero(lengths != size)
            group_target, group_here, group_masks = target[group], here[group], masks[group]
            target, here, masks, lengths = target[rest], here[rest], masks[rest], lengths[rest]
            if size % 8 == 0 and not (group_target & 7).any():
                payloads = datagrams.longs[group_here, _PAYLOAD // 8 : (_PAYLOAD + size) // 8]
                block.plane.longs[(group_target >> 3)[:, None] + np.arange(size // 8)] = payloads ^ group_masks[:, None]
            else:
                codes = datagrams.data[group_here, _PAYLOAD : _PAYLOAD + size]
                narrow = group_masks.astype(np.uint8)[:, None]
                block.plane.codes[group_target[:, None] + np.arange(size)] = codes ^ narrow
