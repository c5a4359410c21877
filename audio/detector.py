"""The detector: it passes the due windows of all legs of all calls through decoder, VAD and endpointers in batches.

Run the process with one BLAS thread: set `OPENBLAS_NUM_THREADS=1` in the environment before numpy is imported. This
module changes no global setting itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from audio.codecs.codec import Codec
from audio.endpointing.batch import BatchEndpointer
from audio.endpointing.detections import Detection, Digit, EndReason
from audio.endpointing.table import SILENT_WINDOWS, Limits, powers
from audio.fast_path import Datagrams, receive
from audio.leg_table import LegTable
from audio.legs.block import Block, Rows
from audio.legs.due import Transport
from audio.legs.leg import Leg
from audio.legs.leg_audio import LegAudio
from audio.ring import ROWS
from audio.rtp.clock import RATE_HZ
from audio.vad.decimate import LAG
from audio.vad.silero import CONTEXT, HIDDEN, MAX_BATCH, WINDOW, SileroVad
from config import Endpointing

MAX_LEGS = 1 << 16
"""The number of rows in the table; only rows in use occupy memory."""
_COUNTERS = (
    "packets", "lost_packets", "late", "duplicates", "malformed", "wrong_payload", "discarded", "refused", "rtcp",
    "ssrc_changes", "jumps", "refused_digits",
)  # fmt: skip


class Shard(NamedTuple):
    """A part of the legs: those in every `of`-th block of 128, beginning with block `number`."""

    number: int = 0
    of: int = 1

    def has(self, index: int) -> bool:
        """Whether the leg with that `index` belongs to the shard."""
        return index // ROWS % self.of == self.number


ALL = Shard()


class WindowBatch(NamedTuple):
    rows: Rows
    starts: NDArray[np.int64]
    probabilities: NDArray[np.float32]
    powers: NDArray[np.float32]


class Detector:
    """Opens legs and steps them. `now` is monotonic seconds, the same clock in every call."""

    def __init__(self, *, jitter_s: float = 0.060, stall_s: float = 2.0) -> None:
        """`jitter_s`: how long a window waits for missing packets; `stall_s`: how long a stream may send nothing before
        its timeline advances as silence."""
        self.jitter_s, self.stall_s = jitter_s, stall_s
        self.windows = 0
        """The number of windows processed by the VAD since the start."""
        self.skipped = 0
        """The number of windows of digital silence that skipped the VAD."""
        self.table = LegTable(MAX_LEGS)
        self.endpointer = BatchEndpointer(MAX_LEGS)
        self._blocks: list[Block] = []
        # The network's state for each leg.
        self._hidden, self._cell = np.zeros((MAX_LEGS, HIDDEN), np.float32), np.zeros((MAX_LEGS, HIDDEN), np.float32)
        self._context = np.zeros((MAX_LEGS, CONTEXT), np.float32)
        self._batches: list[WindowBatch] = []
        """Windows whose probabilities have not been passed to the endpointers yet."""
        self._vad: SileroVad | None = None
        self._legs: dict[int, Leg] = {}
        """Open legs by index."""
        self._queue: list[Detection] = []
        self._keyed: dict[Leg, None] = {}
        """Legs with a pressed key that is not queued yet, in the order of their first packets."""
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
        stall_s: float = 0.0,
    ) -> Leg:
        """Open a leg, which waits for its first audio, `start` or `anchor`.

        `telephone_event`, `event_clock_hz`: payload type and clock negotiated for RFC 4733 digits; `payload_type`: the
        codec's, if it is not the static one; `stall_s`: the least time without audio before a stream continues as
        silence.
        Raises ValueError for L16 over RTP and Opus over anything else, and `audio.vad.weights.WeightsError` when the
        VAD's weights are not installed.
        """
        codec.check(transport)
        if self._vad is None:
            self._vad = SileroVad()
        block, row = self._allocate(wide=codec.wide)
        self.endpointer.open(block.base + row, Limits.of(endpointing))
        leg = Leg(
            self.table,
            LegAudio(block, row),
            transport,
            utterance=self.endpointer,
            keyed=self._keyed,
            jitter_s=self.jitter_s,
            stall_s=max(self.stall_s, stall_s),
        )
        leg.describe(codec, telephone_event, payload_type, event_clock_hz)
        self._legs[leg.index] = leg
        return leg

    def _allocate(self, *, wide: bool) -> tuple[Block, int]:
        """Allocate a cleared row of this kind, in a new block if no block has a free one."""
        block = next((block for block in self._blocks if block.wide == wide and not block.full), None)
        if block is None:
            assert len(self._blocks) < MAX_LEGS // ROWS, "more legs than any machine serves"
            block = Block(len(self._blocks), wide=wide)
            self._blocks.append(block)
            for row in range(block.base, block.base + ROWS):
                self.table.clear(row)
        return block, block.allocate()

    def _free(self, block: Block, row: int) -> None:
        index = block.base + row
        del self._legs[index]
        self.table.clear(index)
        self._hidden[index] = self._cell[index] = self._context[index] = 0
        block.free(row)

    def receive(self, datagrams: Datagrams, which: NDArray[np.intp], rows: NDArray[np.intp]) -> NDArray[np.bool_]:
        """Process the plain ones of the datagrams `which`, each for the leg with the index in `rows` (distinct).

        Returns for each datagram whether it was processed; pass the others to their legs' `receive_rtp`.
        """
        return receive(self.table, self._blocks, self._legs, datagrams, which, rows)

    def step(self, now: float, shard: Shard = ALL) -> Iterator[list[Detection]]:
        """Process every window of the shard that is due at `now`; yields after each batch of at most 128.

        Between two batches the caller may run its event loop; legs may be opened, fed and closed meanwhile.
        """
        for leg in self._keyed:
            leg.digits.expire(now)
        yield self._drain()
        # Windows that complete while the caller's loop runs wait for the next step: processed now, each would cost a
        # separate forward pass.
        used = len(self._blocks) * ROWS
        horizon = np.maximum(self.table.received[:used], (now - self.table.base_s[:used]) * 8000)
        wide = np.repeat([block.wide for block in self._blocks], ROWS)
        shard_rows = np.arange(used)
        if shard.of > 1:
            shard_rows = shard_rows[shard_rows // ROWS % shard.of == shard.number]
        rows = self._due(shard_rows, now, horizon)
        while len(rows):
            for kind in (self._skip(rows[~wide[rows]]), rows[wide[rows]]):
                for first in range(0, len(kind), MAX_BATCH):
                    part = self._due(kind[first : first + MAX_BATCH], now, horizon)
                    if len(part):
                        self._infer(part)
                        yield []
            yield self._drain()
            rows = self._due(shard_rows, now, horizon)
        yield self._drain()

    def _due(self, rows: Rows, now: float, horizon: NDArray[np.float64]) -> Rows:
        """The rows whose next window is complete or overdue, and lies within `horizon`."""
        table = self.table
        stop = table.consumed[rows] + WINDOW
        waiting = (table.received[rows] >= stop) | (now >= table.base_s[rows] + stop * 0.000125)
        return rows[waiting & (stop <= horizon[rows] + 0.5)]  # half a sample: the clock's rounding

    def _skip(self, rows: Rows) -> Rows:
        """Consume the next windows of legs in lasting digital silence without the VAD; returns the other rows.

        The network's result is known: it has processed the first SILENT_WINDOWS, and no utterance is open. So a leg
        that is muted or on hold costs almost nothing.
        """
        still = (self.table.silent[rows] >= SILENT_WINDOWS) & self.endpointer.at_rest(rows)
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
            silence = np.zeros(len(skipped), np.float32)
            self._batches.append(WindowBatch(skipped, starts, silence, silence))
        still[still] = silent
        return rows[~still]

    def _spans(self, rows: Rows) -> Iterator[tuple[int, int, Block]]:
        """The runs of ascending rows that lie in one block."""
        ends = np.searchsorted(rows, np.arange(rows[0] // ROWS + 1, rows[-1] // ROWS + 1) * ROWS).tolist()
        for low, high in pairwise([0, *ends, len(rows)]):
            if low < high:
                yield low, high, self._blocks[int(rows[low]) // ROWS]

    def _give_up(self, rows: Rows, stops: NDArray[np.int64]) -> None:
        """Give up the gaps before the end of the next windows: they stay silence."""
        for index in rows[self.table.received[rows] < stops].tolist():
            leg = self._legs[index]
            if leg.has_gaps:
                leg.give_up(leg.position + WINDOW)

    def _infer(self, rows: Rows) -> None:
        """Pass the next window of each of `rows`, ascending and of one kind, through decoder and VAD."""
        assert self._vad is not None
        self.windows += len(rows)
        starts = self.table.consumed[rows]
        stops = starts + WINDOW
        self._give_up(rows, stops)
        wide = self._blocks[int(rows[0]) // ROWS].wide
        if wide:
            self._decode(rows)
        samples = self._vad.input(len(rows))
        # Under load most rows are neighbours: then a slice gives views, while an index array would copy.
        chosen: Rows | slice = slice(int(rows[0]), int(rows[-1]) + 1) if rows[-1] - rows[0] < len(rows) else rows
        samples[:, :CONTEXT] = self._context[chosen]
        silent = np.zeros(len(rows), np.bool_)
        for low, high, block in self._spans(rows):
            out = samples[low:high, CONTEXT:]
            silent[low:high] = block.samples(rows[low:high] - block.base, starts[low:high], out)
        self.table.silent[rows] = np.where(silent, self.table.silent[rows] + 1, 0)
        self._context[chosen] = samples[:, -CONTEXT:]
        loud = powers(samples[:, CONTEXT:])
        hidden, cell = self._hidden[chosen], self._cell[chosen]
        probabilities = self._vad.forward(samples, hidden, cell)
        if not isinstance(chosen, slice):
            self._hidden[chosen], self._cell[chosen] = hidden, cell
        self.table.consumed[chosen] = stops
        if wide:
            starts = np.maximum(starts - LAG, 0)
        self._batches.append(WindowBatch(rows, starts, probabilities, loud))

    def _decode(self, rows: Rows) -> None:
        """Decode the next windows of the rows whose codec is decoded packet by packet, in order."""
        for index in rows.tolist():
            leg = self._legs[index]
            if leg.codec.stateful:
                leg.decode_window(leg.position, leg.position + WINDOW)

    def _settle(self) -> list[Detection]:
        """Pass the probabilities of all windows since the last call to the endpointers."""
        if not self._batches:
            return []
        batches, self._batches = self._batches, []
        if len(batches) == 1:
            return self.endpointer.step(*batches[0], self._legs)
        rows, starts, probabilities, loud = (np.concatenate(parts) for parts in zip(*batches, strict=True))
        return self.endpointer.step(rows, starts, probabilities, loud, self._legs)

    def _gather(self) -> None:
        """Queue all detections so far, each leg's in order."""
        for leg in tuple(self._keyed):
            self._queue += [
                Digit(leg, each.position, each.digit, each.duration // 8) for each in leg.digits.pop_ended()
            ]
            if leg.digits.open is None:
                del self._keyed[leg]
        self._queue += self._settle()

    def _drain(self) -> list[Detection]:
        """All detections so far, each leg's in order."""
        self._gather()
        queue, self._queue = self._queue, []
        return queue

    def finish(self, leg: Leg, reason: EndReason) -> list[Detection]:
        """Consume all received audio of the leg, the last window padded with silence, and end its open utterance."""
        return list(self.finishing(leg, reason))

    def finishing(self, leg: Leg, reason: EndReason) -> Iterator[Detection]:
        """`finish` as an iterator, which the caller must exhaust.

        The audio of each detection can be read when it is yielded. After the last one, the first utterances of a long
        backlog would lie beyond the reach of `Leg.read`.
        """
        if leg.closed:
            return
        self._gather()
        leg.digits.expire(float("inf"))
        self._gather()
        queued = [each for each in self._queue if each.leg is leg]
        self._queue = [each for each in self._queue if each.leg is not leg]
        yield from queued
        only = np.array([leg.index])
        while leg.position < leg.end:
            leg.give_up(leg.position + WINDOW)
            if leg.codec.wide or len(self._skip(only)):
                self._infer(only)
            yield from self._settle()
        yield from self.endpointer.finish(leg.index, reason, leg, leg.position)

    def retune(self, leg: Leg, endpointing: Endpointing) -> None:
        """Use another profile from the leg's current position on; its open utterance must have been finished.

        If everything counts as speech (`enter` 0), no silence is inserted while the sender pauses.
        """
        if leg.closed:
            return
        assert self.endpointer.idle(leg.index), "an utterance keeps the profile it has begun with"
        self.endpointer.limit(leg.index, Limits.of(endpointing))
        leg.due.wait(endless=not endpointing.enter)

    def change(
        self,
        leg: Leg,
        codec: Codec,
        telephone_event: int | None = None,
        payload_type: int | None = None,
        event_clock_hz: int = RATE_HZ,
    ) -> None:
        """Apply a new media description: this codec from the current position on, and any SSRC. See `open`.

        An utterance still open is flushed: its end comes with the next `step`. Audio from before stays readable, in the
        codec of its time. Raises ValueError for L16 over RTP, and Opus over anything else.
        """
        codec.check(leg.transport)
        if leg.closed:
            return
        if codec is leg.codec:
            leg.number(codec, telephone_event, payload_type, event_clock_hz)
            return
        flushed = self.finish(leg, "flush")
        self._queue += flushed
        leg.end_epoch()
        if codec.wide != leg.codec.wide:
            self._move(leg, wide=codec.wide)
        leg.describe(codec, telephone_event, payload_type, event_clock_hz)

    def _move(self, leg: Leg, *, wide: bool) -> None:
        """Move the leg to a row of the other kind, with all its state but the ring."""
        old, old_row, old_index = leg.audio.block, leg.audio.row, leg.index
        block, row = self._allocate(wide=wide)
        leg.move(self.table, block, row)
        for values in (self._hidden, self._cell, self._context):
            values[leg.index] = values[old_index]
        self.endpointer.move(leg.index, old_index)
        self._legs[leg.index] = leg
        self._free(old, old_row)

    def close(self, leg: Leg) -> None:
        """Clear and free the leg's row. Idempotent; later packets are ignored."""
        if leg.closed:
            return
        self._gather()
        for name in _COUNTERS:
            self._totals[name] += getattr(leg, name)
        self._keyed.pop(leg, None)
        self._queue = [each for each in self._queue if each.leg is not leg]
        leg.release()
        self._free(leg.audio.block, leg.audio.row)

    @property
    def shards(self) -> int:
        """The number of shards to step, so that the first leg of many does not wait for the last."""
        used = sum(block.free_rows < ROWS for block in self._blocks)
        return 1 if used <= 2 else 2

    @property
    def legs(self) -> int:
        """The number of open legs."""
        return len(self._legs)

    @property
    def counters(self) -> dict[str, int]:
        """The legs' counters, summed over all legs since the start."""
        totals = dict(self._totals)
        for leg in self._legs.values():
            for name in _COUNTERS:
                totals[name] += getattr(leg, name)
        return totals
