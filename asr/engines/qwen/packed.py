"""One forward of the text model for many utterances at different stages: prefill, verification and decoding mixed.

All their new positions go through the layers as one row of tokens; only attention tells them apart. It writes each
utterance's keys and values into its slot and looks at nothing else, so what is valid of a slot is for its owner to say:
taking positions back costs nothing.

All that the device must know of a forward goes there in one copy, and what comes back is the most likely token at each
position that was asked about. With fixed shapes a forward is filled up to one of a few sizes, by positions of a slot
that nobody has.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from asr.engines.qwen.device.graphs import bucket, buckets
from asr.engines.qwen.device.interface import Attention, Graphs, Spans, Staging
from asr.engines.qwen.model.fused import TextLayers
from asr.engines.qwen.slots import Slots

AUDIO = -1
"""In the place of a token: embeddings of audio."""
SEEN = 128
"""Decoding looks at so many positions of a slot, or a multiple of it."""
LONGEST, WITHIN = 160, 512
"""Queries of a row, and positions of a slot that it sees, at most, in mixed forwards of a fixed shape whose attention
fills rows up: 8 s of new speech of 30, and a draft. Forwards beyond that are started operation by operation."""
FEW, PER_ROW = 8, 8
"""A mixed forward of a fixed shape has at least `FEW` rows, and one for each `PER_ROW` positions: attention is computed
for all of them."""


@dataclass(slots=True)
class Input:
    """Positions on their way into the text model: tokens, and embeddings of audio between them."""

    ids: Sequence[int]
    audio: Sequence[tuple[int, Tensor]] = ()
    """(where it begins, (positions, width)); its ids are `AUDIO`."""

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, part: slice) -> Input:
        low, high, _ = part.indices(len(self.ids))
        audio = []
        for at, embeddings in self.audio:
            first, last = max(low, at), min(high, at + len(embeddings))
            if first < last:
                audio.append((first - low, embeddings[first - at : last - at]))
        return Input(self.ids[low:high], audio)


@dataclass(slots=True)
class PackedRow:
    """The next positions of one utterance."""

    slot: int
    start: int
    """The slot is valid below it."""
    input: Input
    wanted: int
    """Of so many positions at the end the next token is wanted."""

    def __len__(self) -> int:
        return len(self.input)


@dataclass(frozen=True, slots=True)
class _Size:
    """Of a forward; the key of its graph."""

    positions: int
    rows: int
    seen: int
    single: bool
    """All rows are of one position."""
    longest: int
    """Of one row."""


@dataclass(frozen=True, slots=True)
class _Inputs:
    """Of a forward, on the device: views of what went there in one piece."""

    all: Tensor
    ids: Tensor
    positions: Tensor
    where: Tensor
    bounds: Tensor
    used: Tensor
    slots: Tensor

    @classmethod
    def of(cls, whole: Tensor, size: _Size) -> _Inputs:
        count, rows = size.positions, size.rows
        return cls(whole, *torch.split(whole, [count, count, count, rows + 1, rows, rows]))


class Packed:
    """The text model over slots."""

    def __init__(
        self, model: Any, memory: Slots, attention: Attention, graphs: Graphs, staging: Staging, *,
        never: int, rows: int, positions: int,
    ) -> None:  # fmt: skip
        """`model`: fused. `never`: the token that is no answer. `rows`, `positions`: of a forward with fixed shapes at
        most; there may be more positions, but no graph is kept for them."""
        self.memory = memory
        self._layers = TextLayers(model.model.language_model, memory, attention)
        self._embed, self._head = model.get_input_embeddings(), model.lm_head
        self._in_place, self._graphs, self.staging = attention.in_place, graphs, staging
        self._never = never
        self.most_rows, self.vocabulary = rows, len(self._embed.weight)
        self.forwards = self.positions = 0
        if graphs.fixed:
            weight = self._embed.weight
            width, device, positions = weight.shape[1], weight.device, max(positions, rows)
            self._rows, self._buckets = buckets(rows), buckets(positions)
            whole = memory.keys.shape[2]
            self._seen = (whole,) if self._in_place else tuple(SEEN * each for each in buckets(whole // SEEN))
            self._longest, self._within = (
                (positions, whole) if self._in_place else (min(positions, LONGEST), min(whole, WITHIN))
            )
            self._audio, self._out = (
                torch.zeros(positions, width, dtype=weight.dtype, device=device) for _ in range(2)
            )
            self._wanted = {size: torch.zeros(size, dtype=torch.long, device=device) for size in self._buckets}
            self._inputs: dict[_Size, _Inputs] = {}

    def __call__(self, rows: Sequence[PackedRow]) -> list[list[int]]:
        """The most likely next token at each of the wanted positions of each row."""
        return self.launch(rows)()

    def launch(self, rows: Sequence[PackedRow]) -> Callable[[], list[list[int]]]:
        """The same; whoever wants the tokens waits for them."""
        order, _, _, said = self._run(rows)

        def collect() -> list[list[int]]:
            out: list[list[int]] = [[] for _ in rows]
            left = said()
            for at in order:
                out[at], left = left[: rows[at].wanted], left[rows[at].wanted :]
            return out

        return collect

    def observe(self, rows: Sequence[PackedRow]) -> tuple[Tensor, list[int]]:
        """The same with what the tokens are chosen from, for rows of which one token each is wanted: hidden states,
        (rows, width), and the tokens."""
        assert all(row.wanted == 1 for row in rows)
        order, hidden, where, said = self._run(rows)
        back = np.argsort(order)
        return hidden[torch.from_numpy(where).to(hidden.device)][back.tolist()].clone(), np.array(said())[back].tolist()

    def logits(self, hidden: Tensor) -> Tensor:
        """(…, width) → (…, vocabulary)"""
        found: Tensor = self._head(hidden).float()
        return found

    def _run(self, rows: Sequence[PackedRow]) -> tuple[list[int], Tensor, NDArray[np.int64], Callable[[], list[int]]]:
        """The order in which the rows were taken; of that the hidden states, (positions, width), which the next forward
        overwrites; where the wanted ones are; and their tokens, once somebody waits for them."""
        # Those of one position first: a kind of attention may take them all at once.
        counts = [len(row) for row in rows]
        order = sorted(range(len(rows)), key=lambda at: counts[at] > 1)
        mine = [rows[at] for at in order]
        lengths = np.array([counts[at] for at in order])
        self.forwards += 1
        self.positions += int(lengths.sum())
        size = self._size(mine, lengths)
        where = _wanted(mine, lengths)
        if size is None:
            hidden = self._free(mine, lengths)
            said = self.staging.lift(self._say(hidden, self.staging.down(where))) if len(where) else list[int]
        else:
            hidden = self._fixed(mine, lengths, size)
            said = self._ask(where) if len(where) else list[int]
        return order, hidden, where, said

    # -- any shapes -------------------------------------------------------------------------------------------------

    def _free(self, rows: Sequence[PackedRow], lengths: NDArray[np.int64]) -> Tensor:
        single = bool(lengths.max() == 1)
        size = _Size(int(lengths.sum()), len(rows), self._most(rows), single, int(lengths.max()))
        inputs = _Inputs.of(self.staging.down(_described(rows, lengths, size, self.memory)), size)
        audio = self._put_audio(rows, lengths)
        longer = [(row.slot, row.start, len(row)) for row in rows if len(row) > 1]
        return self._forward(inputs, audio, size, longer)

    def _most(self, rows: Sequence[PackedRow]) -> int:
        """Positions of a slot that a row sees, at most: of those of one position when attention is only over them."""
        counts = [row.start + len(row) for row in rows if self._in_place or len(row) == 1]
        return max(counts, default=0)

    # -- fixed shapes -----------------------------------------------------------------------------------------------

    def _size(self, rows: Sequence[PackedRow], lengths: NDArray[np.int64]) -> _Size | None:
        """None: a forward for which no graph is kept."""
        if not self._graphs.fixed:
            return None
        if lengths.max() == 1 and (count := bucket(len(rows), self._rows)) is not None:
            seen = next(each for each in self._seen if self._most(rows) <= each)
            return _Size(count, count, seen, True, 1)
        if lengths.max() > self._longest or max(row.start + len(row) for row in rows) > self._within:
            return None
        mixed = map(self._mixed, self._buckets)
        # A row more: what the size is filled up with.
        return next((each for each in mixed if lengths.sum() <= each.positions and len(rows) < each.rows), None)

    def _mixed(self, positions: int) -> _Size:
        rows = min(self._rows[-1], max(FEW, positions // PER_ROW))
        return _Size(positions, rows + 1, self._within, False, min(positions, self._longest))

    def capture(self) -> int:
        """Record every size, largest first, so that no call waits for one. -> how many."""
        if not self._graphs.fixed:
            return 0
        sizes = [_Size(count, count, seen, True, 1) for count in self._rows for seen in self._seen]
        sizes += [self._mixed(count) for count in self._buckets]
        sizes.sort(key=lambda size: -size.positions)
        spare = PackedRow(self.memory.spare, 0, Input([0]), 1)
        for size in sizes:
            self._fixed([spare], np.ones(1, np.int64), size)
        for count in reversed(self._buckets):
            self._ask(np.zeros(count, np.int64))
        return len(sizes) + len(self._buckets)

    def _fixed(self, rows: Sequence[PackedRow], lengths: NDArray[np.int64], size: _Size) -> Tensor:
        inputs = self._inputs.get(size)
        if inputs is None:
            count = 3 * size.positions + 3 * size.rows + 1
            whole = torch.zeros(count, dtype=torch.long, device=self._out.device)
            inputs = self._inputs[size] = _Inputs.of(whole, size)
        self.staging.down(_described(rows, lengths, size, self.memory), inputs.all)
        audio = None if size.single else self._put_audio(rows, lengths, self._audio[: size.positions])
        out = self._out

        def forward() -> Tensor:
            return out[: size.positions].copy_(self._forward(inputs, audio, size))

        self._graphs.run(("text", size), forward)
        return out

    def _ask(self, wanted: NDArray[np.int64]) -> Callable[[], list[int]]:
        out, count = self._out, bucket(len(wanted), self._buckets)
        assert count is not None, "not more than there are positions"
        where = self._wanted[count]
        self.staging.down(np.pad(wanted, (0, count - len(wanted))), where)
        said = self._graphs.run(("head", count), lambda: self._say(out, where))
        lifted = self.staging.lift(said)
        return lambda: lifted()[: len(wanted)]

    # -- both -------------------------------------------------------------------------------------------------------

    def _put_audio(
        self, rows: Sequence[PackedRow], lengths: NDArray[np.int64], into: Tensor | None = None
    ) -> Tensor | None:
        """Embeddings of audio where they belong; of other positions there is anything."""
        ends = lengths.cumsum()
        parts = [
            (int(end) - len(row) + at, embeddings)
            for end, row in zip(ends, rows, strict=True)
            for at, embeddings in row.input.audio
        ]
        if not parts:
            return into
        where = np.concatenate([np.arange(at, at + len(embeddings)) for at, embeddings in parts])
        together = torch.cat([embeddings for _, embeddings in parts])
        if into is None:
            into = together.new_zeros(int(ends[-1]), together.shape[1])
        return into.index_copy_(0, self.staging.down(where), together)

    def _forward(
        self, inputs: _Inputs, audio: Tensor | None, size: _Size,
        longer: Sequence[tuple[int, int, int]] | None = None,
    ) -> Tensor:  # fmt: skip
        """`longer`: None if it is not known, in a fixed shape."""
        if size.single:
            longer = ()
        spans = Spans(
            bounds=inputs.bounds.to(torch.int32),
            slots=inputs.slots,
            used=inputs.used.to(torch.int32),
            longest=size.longest,
            seen=size.seen,
            singles=size.rows - len(longer) if longer is not None else 0,
            longer=longer,
        )
        hidden = self._embed(inputs.ids.clamp(min=0))
        if audio is not None:
            hidden = torch.where((inputs.ids == AUDIO)[:, None], audio, hidden)
        return self._layers(hidden, inputs.positions, inputs.where, spans)

    def _say(self, hidden: Tensor, wanted: Tensor) -> Tensor:
        logits = self._head(hidden[wanted])
        logits[:, self._never] = -torch.inf
        said: Tensor = logits.argmax(dim=1)
        return said


def _described(rows: Sequence[PackedRow], lengths: NDArray[np.int64], size: _Size, memory: Slots) -> NDArray[np.int64]:
    """Ids, positions, where their keys go; then of the rows their bounds, positions seen, and slots."""
    slots = np.array([row.slot for row in rows])
    starts = np.array([row.start for row in rows])
    ends = lengths.cumsum()
    count, each = int(ends[-1]), np.repeat(np.arange(len(rows)), lengths)
    inside = np.arange(count) - (ends - lengths)[each]
    whole = memory.keys.shape[2]
    filling, missing = size.positions - count, size.rows - len(rows)
    out = np.zeros(3 * size.positions + 3 * size.rows + 1, np.int64)
    ids, positions, where, bounds, used, mine = np.split(
        out, np.cumsum([size.positions] * 3 + [size.rows + 1, size.rows])
    )
    ids[:count] = [token for row in rows for token in row.input.ids]
    positions[:count] = starts[each] + inside
    where[:count] = slots[each] * whole + positions[:count]
    # Each at a place of its own, as far as a slot goes.
    where[count:] = memory.spare * whole + np.arange(filling) % whole
    bounds[1 : len(rows) + 1], bounds[len(rows) + 1 :] = ends, size.positions
    used[: len(rows)], mine[: len(rows)], mine[len(rows) :] = starts + lengths, slots, memory.spare
    if missing and size.single:
        bounds[len(rows) + 1 :] = np.arange(count + 1, size.rows + 1)
        used[len(rows) :] = 1
    elif missing:
        used[len(rows)] = min(filling, whole)
    return out


def _wanted(rows: Sequence[PackedRow], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where in the row of positions the wanted ones are."""
    wanted = np.array([row.wanted for row in rows])
    ends = wanted.cumsum()
    each = np.repeat(np.arange(len(rows)), wanted)
    found: NDArray[np.int64] = (lengths.cumsum() - ends)[each] + np.arange(int(ends[-1]))
    return found
