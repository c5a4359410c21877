"""The detector: all legs of all calls, one batched pass over their due windows at a time.

Run the process with one BLAS thread: set `OPENBLAS_NUM_THREADS=1` in the environment before numpy is imported. Nothing
here changes a global setting.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from audio.block import Block, Rows
from audio.codecs.codec import Codec
from audio.detections import Detection, EndReason
from audio.endpointing.batch import BatchEndpointer
from audio.endpointing.table import SILENT_WINDOWS, Limits
from audio.leg import Leg
from audio.leg_table import LegTable
from audio.reception import Transport
from audio.ring import ROWS
from audio.rtp.clock import RATE_HZ
from audio.rtp.fast_path import Datagrams, receive
from audio.vad.decimate import LAG
from audio.vad.silero import CONTEXT, HIDDEN, MAX_BATCH, WINDOW, SileroVad
from config import Endpointing

MAX_LEGS = 1 << 16
"""Rows of the table: memory is taken for those in use only."""
_COUNTERS = (
    "packets", "lost_packets", "late", "duplicates", "malformed", "wrong_payload", "discarded", "refused", "rtcp",
    "ssrc_changes", "jumps", "refused_digits",
)  # fmt: skip


class Shard(NamedTuple):
    """Some of the legs: those in every `of`-th block of 128, from block `number` on."""

    number: int = 0
    of: int = 1

    def has(self, index: int) -> bool:
        """Whether it is the turn of the leg with that `index`."""
        return index // ROWS % self.of == self.number


ALL = Shard()


class _Heard(NamedTuple):
    rows: Rows
    starts: NDArray[np.int64]
    probabilities: NDArray[np.float32]


class Detector:
    """Opens legs and steps them. `now` is monotonic seconds, the same clock in every call."""

    def __init__(self, *, jitter_s: float = 0.060, stall_s: float = 2.0) -> None:
        """`jitter_s`: how long a window waits for missing packets; `stall_s`: how long a stream may say nothing before
        its timeline goes on as silence."""
        self.jitter_s, self.stall_s = jitter_s, stall_s
        self.windows = 0
        """Windows taken through the VAD since the start."""
        self.skipped = 0
        """Windows of digital silence that were not."""
        self.table = LegTable(MAX_LEGS)
        self.bank = BatchEndpointer(MAX_LEGS)
        self._blocks: list[Block] = []
        # The network's state of each leg.
        self._hidden, self._cell = np.zeros((MAX_LEGS, HIDDEN), np.float32), np.zeros((MAX_LEGS, HIDDEN), np.float32)
        self._context = np.zeros((MAX_LEGS, CONTEXT), np.float32)
        self._heard: list[_Heard] = []
        """Windows whose probabilities have not been through the endpointers."""
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
        event_clock_hz: int = RATE_HZ,
    ) -> Leg:
        """A new leg, waiting for its first audio, `start` or `anchor`.

        `telephone_event`, `event_clock_hz`: payload type and clock negotiated for RFC 4733 digits; `payload_type`: the
        codec's, when it is not the static one. Raises ValueError for L16 over RTP and Opus over anything else, and
        `audio.vad.weights.WeightsError` when the VAD's weights are not installed.
        """
        codec.check(transport)
        if self._vad is None:
            self._vad = SileroVad()
        block, row = self._take(wide=codec.wide)
        self.bank.open(block.base + row, Limits.of(endpointing))
        leg = Leg(self, block, row, transport)
        leg.describe(codec, telephone_event, payload_type, event_clock_hz)
        block.legs[row] = leg
        return leg

    def _take(self, *, wide: bool) -> tuple[Block, int]:
        """A free row of that kind, with nothing left of the leg before; a new block when all are taken."""
        block = next((block for block in self._blocks if block.wide == wide and not block.full), None)
        if block is None:
            assert len(self._blocks) < MAX_LEGS // ROWS, "more legs than any machine serves"
            block = Block(len(self._blocks), wide=wide)
            self._blocks.append(block)
            for row in range(block.base, block.base + ROWS):
                self.table.clear(row)
        return block, block.take()

    def _free(self, block: Block, row: int) -> None:
        index = block.base + row
        self.table.clear(index)
        self._hidden[index] = self._cell[index] = self._context[index] = 0
        block.free(row)

    def receive(self, datagrams: Datagrams, which: NDArray[np.intp], rows: NDArray[np.intp]) -> NDArray[np.bool_]:
        """Take the plain ones of the datagrams `which`, each for the leg of that `index`; indices are distinct.

        Says of each whether it has been taken; give the others to their legs' `receive_rtp`.
        """
        return receive(self.table, self._blocks, datagrams, which, rows)

    def step(self, now: float, turn: Shard = ALL) -> Iterator[list[Detection]]:
        """Take every window that is due at `now`, of the legs whose turn it is; yields after each batch of at most 128.

        Between two batches the caller may let its event loop breathe; legs may be opened, fed and closed meanwhile.
        """
        for leg in tuple(self._pressed):
            leg.flush_digit(now)
        yield self._drain()
        # What completes while the caller's loop breathes is for the next step: taken now, window by window, it would
        # cost a whole forward each.
        used = len(self._blocks) * ROWS
        horizon = np.maximum(self.table.received[:used], (now - self.table.base_s[:used]) * 8000)
        wide = np.repeat([block.wide for block in self._blocks], ROWS)
        mine = np.arange(used)
        if turn.of > 1:
            mine = mine[mine // ROWS % turn.of == turn.number]
        rows = self._due(mine, now, horizon)
        while len(rows):
            for kind in (self._skip(rows[~wide[rows]]), rows[wide[rows]]):
                for first in range(0, len(kind), MAX_BATCH):
                    part = self._due(kind[first : first + MAX_BATCH], now, horizon)
                    if len(part):
                        self._hear(part)
                        yield []
            yield self._drain()
            rows = self._due(mine, now, horizon)
        yield self._drain()

    def _due(self, rows: Rows, now: float, horizon: NDArray[np.float64]) -> Rows:
        """Those of the rows whose next window is complete or overdue, and lies within `horizon`."""
        table = self.table
        stop = table.consumed[rows] + WINDOW
        waiting = (table.received[rows] >= stop) | (now >= table.base_s[rows] + stop * 0.000125)
        return rows[waiting & (stop <= horizon[rows] + 0.5)]  # half a sample: the clock's rounding

    def _skip(self, rows: Rows) -> Rows:
        """Take the next windows of those that go on in digital silence past the VAD; gives the other rows.

        The network would say nothing new of them: it hears the first SILENT_WINDOWS, and no utterance is open. A leg
        that is muted or on hold then costs next to nothing.
        """
        still = (self.table.silent[rows] >= SILENT_WINDOWS) & self.bank.at_rest(rows)
        if not still.any():
            return rows
        candidates = rows[still]
        starts = self.table.consumed[candidates]
        self._give_up(candidates, starts + WINDOW)
        silent = np.zeros(len(candidates), np.bool_)
        for low, high, block in self._spans(candidates):
            silent[low:high] = block.skip(candidates[low:high] - block.base, starts[low:high])
        skipped, starts = candidates[silent], starts[silent]
        self.table.consumed[skipped] = starts + WINDOW
        self.skipped += len(skipped)
        if len(skipped):
            self._heard.append(_Heard(skipped, starts, np.zeros(len(skipped), np.float32)))
        still[still] = silent
        return rows[~still]

    def _spans(self, rows: Rows) -> Iterator[tuple[int, int, Block]]:
        """The stretches of ascending rows that lie in one block."""
        ends = np.searchsorted(rows, np.arange(rows[0] // ROWS + 1, rows[-1] // ROWS + 1) * ROWS).tolist()
        for low, high in pairwise([0, *ends, len(rows)]):
            if low < high:
                yield low, high, self._blocks[int(rows[low]) // ROWS]

    def _give_up(self, rows: Rows, stops: NDArray[np.int64]) -> None:
        """What is missing before the end of the windows about to be taken stays silence."""
        for index in rows[self.table.received[rows] < stops].tolist():
            leg = self._leg(index)
            if leg.gapped:
                leg.give_up(leg.position + WINDOW)

    def _hear(self, rows: Rows) -> None:
        """Take the next window of each of `rows`, ascending and of one kind, through decoder and VAD."""
        assert self._vad is not None
        self.windows += len(rows)
        starts = self.table.consumed[rows]
        stops = starts + WINDOW
        self._give_up(rows, stops)
        samples = self._vad.input(len(rows))
        # Neighbours are the rule under load: a slice then gives views where an index array would copy.
        chosen: Rows | slice = slice(int(rows[0]), int(rows[-1]) + 1) if rows[-1] - rows[0] < len(rows) else rows
        samples[:, :CONTEXT] = self._context[chosen]
        silent = np.zeros(len(rows), np.bool_)
        for low, high, block in self._spans(rows):
            out = samples[low:high, CONTEXT:]
            silent[low:high] = block.samples(rows[low:high] - block.base, starts[low:high], out)
        self.table.silent[rows] = np.where(silent, self.table.silent[rows] + 1, 0)
        self._context[chosen] = samples[:, -CONTEXT:]
        hidden, cell = self._hidden[chosen], self._cell[chosen]
        probabilities = self._vad.forward(samples, hidden, cell)
        if not isinstance(chosen, slice):
            self._hidden[chosen], self._cell[chosen] = hidden, cell
        self.table.consumed[chosen] = stops
        if self._blocks[int(rows[0]) // ROWS].wide:
            starts = np.maximum(starts - LAG, 0)
        self._heard.append(_Heard(rows, starts, probabilities))

    def _settle(self) -> list[Detection]:
        """Take the probabilities of all windows heard since the last time through the endpointers."""
        if not self._heard:
            return []
        heard, self._heard = self._heard, []
        if len(heard) == 1:
            return self.bank.step(heard[0].rows, heard[0].starts, heard[0].probabilities, self._leg)
        rows, starts, probabilities = (np.concatenate(parts) for parts in zip(*heard, strict=True))
        return self.bank.step(rows, starts, probabilities, self._leg)

    def _leg(self, index: int) -> Leg:
        leg = self._blocks[index // ROWS].legs[index % ROWS]
        assert leg is not None, "a window of a leg that is closed"
        return leg

    def _drain(self) -> list[Detection]:
        """All that is known by now, each leg's in order: what another leg's end has brought to light comes first."""
        queue, self._queue = self._queue + self._settle(), []
        return queue

    def finish(self, leg: Leg, reason: EndReason) -> Iterator[Detection]:
        """See `Leg.finishing`."""
        self._queue += self._settle()
        leg.flush_digit(float("inf"))
        queued = [each for each in self._queue if each.leg is leg]
        self._queue = [each for each in self._queue if each.leg is not leg]
        yield from queued
        only = np.array([leg.index])
        while leg.position < leg.end:
            leg.give_up(leg.position + WINDOW)
            if leg.codec.wide or len(self._skip(only)):
                self._hear(only)
            yield from self._settle()
        yield from self.bank.finish(leg.index, reason, leg, leg.position)

    def retune(self, leg: Leg, endpointing: Endpointing) -> None:
        """See `Leg.retune`."""
        assert self.bank.idle(leg.index), "an utterance keeps the profile it has begun with"
        self.bank.limit(leg.index, Limits.of(endpointing))

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
        old, old_row, old_index = leg.block, leg.row, leg.index
        block, row = self._take(wide=wide)
        leg.attach(block, row)
        for values in (self._hidden, self._cell, self._context):
            values[leg.index] = values[old_index]
        self.bank.move(leg.index, old_index)
        block.legs[row] = leg
        self._free(old, old_row)

    def close(self, leg: Leg) -> None:
        """See `Leg.close`."""
        self._queue += self._settle()
        for name in _COUNTERS:
            self._totals[name] += getattr(leg, name)
        self._pressed.discard(leg)
        self._queue = [each for each in self._queue if each.leg is not leg]
        leg.release()
        self._free(leg.block, leg.row)

    @property
    def turns(self) -> int:
        """In how many turns to step: all legs at once would keep the first to speak waiting for the last."""
        used = sum(block.free_rows < ROWS for block in self._blocks)
        return 1 if used <= 2 else 2

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
