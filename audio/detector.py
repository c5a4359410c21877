"""The detector: all legs of all calls, one batched pass over their due windows at a time.

Run the process with one BLAS thread: set `OPENBLAS_NUM_THREADS=1` in the environment before numpy is imported. Nothing
here changes a global setting.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from audio.block import Block
from audio.bulk import Datagrams, receive
from audio.codec import Codec
from audio.detections import Detection, EndReason
from audio.endpointing import Limits
from audio.intake import Transport
from audio.legs import Leg
from audio.plane import ROWS
from audio.table import LegTable
from audio.vad import WINDOW, SileroVad
from config import Endpointing

MAX_LEGS = 1 << 16
"""Rows of the table: memory is taken for those in use only."""
_COUNTERS = (
    "packets", "lost_packets", "late", "duplicates", "malformed", "wrong_payload", "discarded", "refused", "rtcp",
    "ssrc_changes", "jumps", "refused_digits",
)  # fmt: skip


class Detector:
    """Opens legs and steps them. `now` is monotonic seconds, the same clock in every call."""

    def __init__(self, *, jitter_s: float = 0.060, stall_s: float = 2.0) -> None:
        """`jitter_s`: how long a window waits for missing packets; `stall_s`: how long a stream may say nothing before
        its timeline goes on as silence."""
        self.jitter_s, self.stall_s = jitter_s, stall_s
        self.windows = 0
        """Windows taken through the VAD since the start."""
        self._table = LegTable(MAX_LEGS)
        self._blocks: list[Block] = []
        self._vad: SileroVad | None = None
        self._queue: list[Detection] = []
        self._pressed: set[Leg] = set()
        self._totals = dict.fromkeys(_COUNTERS, 0)

    def open(
        self,
        codec: Codec,
        endpointing: Endpointing,
        *,
        transport: Transport,
        telephone_event: int | None = None,
        payload_type: int | None = None,
    ) -> Leg:
        """A new leg, waiting for its first audio, `start` or `anchor`.

        `telephone_event`: the payload type negotiated for RFC 4733 digits; `payload_type`: the codec's, when it is not
        the static one. Raises ValueError for L16 over RTP, and `audio.weights.WeightsError` when the VAD's weights are
        not installed.
        """
        if codec is Codec.L16 and transport == "rtp":
            raise ValueError("L16 is for stream transports")
        if self._vad is None:
            self._vad = SileroVad()
        block = self._block(codec.wide)
        row = block.take()
        block.bank.open(row, Limits.of(endpointing))
        leg = Leg(self, block, row, transport)
        leg.describe(codec, telephone_event, payload_type)
        block.legs[row] = leg
        return leg

    def _block(self, wide: bool) -> Block:
        for block in self._blocks:
            if block.wide == wide and not block.full:
                return block
        assert len(self._blocks) < MAX_LEGS // ROWS, "more legs than any machine serves"
        self._blocks.append(Block(self._table, len(self._blocks), wide=wide))
        return self._blocks[-1]

    def receive(
        self, datagrams: Datagrams, which: NDArray[np.intp], rows: NDArray[np.intp]
    ) -> NDArray[np.bool_]:
        """Take the plain ones of the datagrams `which`, each for the leg of that `index`; indices are distinct.

        Says of each whether it has been taken; give the others to their legs' `receive_rtp`.
        """
        return receive(self._table, self._blocks, datagrams, which, rows)

    def step(self, now: float) -> Iterator[list[Detection]]:
        """Take every window that is due at `now`; yields after each batch of at most 128 legs.

        Between two batches the caller may let its event loop breathe; legs may be opened, fed and closed meanwhile.
        """
        for leg in tuple(self._pressed):
            leg.flush_digit(now)
        if self._queue:
            yield self._drain()
        # What completes while the caller's loop breathes is for the next step: taken now, window by window, it would
        # cost a whole forward each.
        pending = [(block, block.horizon(now)) for block in self._blocks]
        while pending:
            for block, horizon in pending:
                rows = block.due(now, horizon)
                if len(rows):
                    assert self._vad is not None
                    self.windows += len(rows)
                    yield block.advance(rows, self._vad)
            pending = [(block, horizon) for block, horizon in pending if len(block.due(now, horizon))]
        if self._queue:
            yield self._drain()

    def _drain(self) -> list[Detection]:
        queue, self._queue = self._queue, []
        return queue

    def finish(self, leg: Leg, reason: EndReason) -> Iterator[Detection]:
        """See `Leg.finishing`."""
        assert self._vad is not None
        leg.flush_digit(float("inf"))
        queued = [each for each in self._queue if each.leg is leg]
        self._queue = [each for each in self._queue if each.leg is not leg]
        yield from queued
        block, row = leg.block, leg.row
        only = np.array([row])
        while block.consumed[row] < leg.end:
            self.windows += 1
            leg.give_up(int(block.consumed[row]) + WINDOW)
            yield from block.advance(only, self._vad)
        yield from block.bank.finish(row, reason, leg, int(block.consumed[row]))

    def publish(self, detection: Detection) -> None:
        """Have the next `step` yield it."""
        self._queue.append(detection)

    def watch_digits(self, leg: Leg, pressed: bool) -> None:
        """Whether a key of this leg is down, so that a lost end is noticed."""
        if pressed:
            self._pressed.add(leg)
        else:
            self._pressed.discard(leg)

    def move(self, leg: Leg, *, wide: bool) -> None:
        """Give the leg a row of the other kind, with all its state but the ring."""
        block = self._block(wide)
        row = block.take()
        old, old_row = leg.block, leg.row
        block.move(row, old, old_row)
        leg.attach(block, row)
        block.legs[row] = leg
        old.free(old_row)

    def close(self, leg: Leg) -> None:
        """See `Leg.close`."""
        for name in _COUNTERS:
            self._totals[name] += getattr(leg, name)
        self._pressed.discard(leg)
        self._queue = [each for each in self._queue if each.leg is not leg]
        leg.release()
        leg.block.free(leg.row)

    @property
    def legs(self) -> int:
        """Open legs."""
        return sum(ROWS - block.free_rows for block in self._blocks)

    @property
    def counters(self) -> dict[str, int]:
        """The legs' counters, summed over all legs that ever were."""
        totals = dict(self._totals)
        for block in self._blocks:
            for leg in block.legs:
                if leg is not None:
                    for name in _COUNTERS:
                        totals[name] += getattr(leg, name)
        return totals
