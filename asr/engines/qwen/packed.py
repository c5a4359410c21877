"""One forward of the text model for many utterances at different stages: prefill, verification and decoding mixed.

All their new positions go through the layers as one row of tokens; only attention tells them apart. It writes each
utterance's keys and values to its pages and looks at nothing else, so what is valid of them is for their owner to say:
taking positions back costs nothing.

All that the device must know of a forward goes there in one copy, and what comes back is the most likely token at each
position that was asked about. With fixed shapes a forward is filled up to one of a few sizes, by positions of a page
that nobody has; one that is larger than all of them is done in parts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from asr.engines.qwen.device.execution import bucket, buckets
from asr.engines.qwen.device.interface import Graphs, Kernels, Rows, Staging
from asr.engines.qwen.kv_cache import KvCache
from asr.engines.qwen.model.fused import TextLayers

AUDIO = -1
"""In the place of a token: embeddings of audio."""


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

    pages: Sequence[int]
    start: int
    """What is on its pages is valid below it."""
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
    single: bool
    """All rows are of one position."""


@dataclass(frozen=True, slots=True)
class _Inputs:
    """Of a forward, on the device: views of what went there in one piece."""

    all: Tensor
    ids: Tensor
    positions: Tensor
    slot_mapping: Tensor
    cu_seqlens: Tensor
    context_lens: Tensor
    block_table: Tensor

    @classmethod
    def of(cls, whole: Tensor, size: _Size) -> _Inputs:
        count, rows = size.positions, size.rows
        return cls(whole, *torch.split(whole, [*[count] * 3, rows + 1, rows, len(whole) - 3 * count - 2 * rows - 1]))

    def rows(self, size: _Size, known: Sequence[tuple[int, int]] | None) -> Rows:
        table = self.block_table.view(size.rows, -1)
        cu_seqlens, context_lens, table = (each.to(torch.int32) for each in (self.cu_seqlens, self.context_lens, table))
        return Rows(cu_seqlens, context_lens, table, size.single, known)


Said = Callable[[], list[int]]
"""The tokens, for whoever waits for them."""


class Packed:
    """The text model over pages."""

    def __init__(
        self, model: Any, cache: KvCache, kernels: Kernels, graphs: Graphs, staging: Staging, *, never: int, rows: int,
        positions: int,
    ) -> None:  # fmt: skip
        """`model`: fused. `never`: the token that is no answer. `rows`, `positions`: of a forward with fixed shapes at
        most."""
        self.cache = cache
        self._layers = TextLayers(model.model.language_model, cache, kernels)
        self._embed, self._head = model.get_input_embeddings(), model.lm_head
        self._graphs, self.staging = graphs, staging
        self._never = never
        self.heads, self.most_rows, self.vocabulary = self._layers.heads, rows, len(self._embed.weight)
        self.forwards = self.positions = 0
        if graphs.fixed:
            weight = self._embed.weight
            # A row is in one part, however long it is.
            width, device, positions = weight.shape[1], weight.device, max(positions, rows, cache.positions)
            self._rows, self._buckets = buckets(rows), buckets(positions)
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
        parts = [self._run(part)[2] for part in self._parts(rows)]

        def collect() -> list[list[int]]:
            said = [token for part in parts for token in part()]
            ends = np.cumsum([row.wanted for row in rows]).tolist()
            return [said[end - row.wanted : end] for end, row in zip(ends, rows, strict=True)]

        return collect

    def observe(self, rows: Sequence[PackedRow]) -> tuple[Tensor, list[int]]:
        """The same with what the tokens are chosen from, for rows of which one token each is wanted: hidden states,
        (rows, width), and the tokens."""
        assert all(row.wanted == 1 for row in rows)
        states: list[Tensor] = []
        tokens: list[int] = []
        for part in self._parts(rows):
            hidden, logits_indices, said = self._run(part)
            states.append(hidden[torch.from_numpy(logits_indices).to(hidden.device)])
            tokens += said()
        return torch.cat(states), tokens

    def logits(self, hidden: Tensor) -> Tensor:
        """(…, width) → (…, vocabulary)"""
        found: Tensor = self._head(hidden).float()
        return found

    def _parts(self, rows: Sequence[PackedRow]) -> list[Sequence[PackedRow]]:
        """Of which each fits a fixed shape."""
        if not self._graphs.fixed:
            return [rows]
        parts, room = list[list[PackedRow]](), 0
        for row in rows:
            if not parts or len(row) > room or len(parts[-1]) == self.most_rows:
                parts.append([])
                room = self._buckets[-1]
            parts[-1].append(row)
            room -= len(row)
        return list(parts)

    def _run(self, rows: Sequence[PackedRow]) -> tuple[Tensor, NDArray[np.int64], Said]:
        """Hidden states, (positions, width), which the next forward overwrites; where the wanted ones are; and their
        tokens."""
        lengths = np.array([len(row) for row in rows])
        count = int(lengths.sum())
        self.forwards += 1
        self.positions += count
        logits_indices = _logits_indices(rows, lengths)
        if self._graphs.fixed:
            hidden = self._fixed(rows, lengths, self._size(count, len(rows)))
            said = self._ask(logits_indices) if len(logits_indices) else list[int]
        else:
            hidden = self._free(rows, lengths, _Size(count, len(rows), count == len(rows)))
            where = self.staging.down(logits_indices)
            said = self.staging.lift(self._say(hidden, where)) if len(where) else list[int]
        return hidden, logits_indices, said

    # -- any shapes -------------------------------------------------------------------------------------------------

    def _free(self, rows: Sequence[PackedRow], lengths: NDArray[np.int64], size: _Size) -> Tensor:
        inputs = _Inputs.of(self.staging.down(_described(rows, lengths, size, self.cache)), size)
        known = [(row.start, len(row)) for row in rows]
        return self._forward(inputs, self._put_audio(rows, lengths), size, known)

    # -- fixed shapes -----------------------------------------------------------------------------------------------

    def _size(self, count: int, rows: int) -> _Size:
        if count == rows:
            size = bucket(rows, self._rows)
            assert size is not None, "more rows than was said"
            return _Size(size, size, True)
        size = bucket(count, self._buckets)
        assert size is not None, "one row is larger than any shape"
        return _Size(size, self.most_rows, False)

    def capture(self) -> int:
        """Record every size, largest first, so that no call waits for one. -> how many."""
        if not self._graphs.fixed:
            return 0
        sizes = [_Size(count, count, True) for count in self._rows]
        sizes += [_Size(count, self.most_rows, False) for count in self._buckets]
        sizes.sort(key=lambda size: -size.positions)
        spare = PackedRow([self.cache.padding_page], 0, Input([0]), 1)
        for size in sizes:
            self._fixed([spare], np.ones(1, np.int64), size)
        for count in reversed(self._buckets):
            self._ask(np.zeros(count, np.int64))
        return len(sizes) + len(self._buckets)

    def _fixed(self, rows: Sequence[PackedRow], lengths: NDArray[np.int64], size: _Size) -> Tensor:
        described = _described(rows, lengths, size, self.cache)
        inputs = self._inputs.get(size)
        if inputs is None:
            whole = torch.zeros(len(described), dtype=torch.long, device=self._out.device)
            inputs = self._inputs[size] = _Inputs.of(whole, size)
        self.staging.down(described, inputs.all)
        audio = None if size.single else self._put_audio(rows, lengths, self._audio[: size.positions])
        out = self._out

        def forward() -> Tensor:
            return out[: size.positions].copy_(self._forward(inputs, audio, size))

        self._graphs.run(("text", size), forward)
        return out

    def _ask(self, logits_indices: NDArray[np.int64]) -> Said:
        out, count = self._out, bucket(len(logits_indices), self._buckets)
        assert count is not None, "not more than there are positions"
        where = self._wanted[count]
        self.staging.down(np.pad(logits_indices, (0, count - len(logits_indices))), where)
        said = self._graphs.run(("head", count), lambda: self._say(out, where))
        lifted = self.staging.lift(said)
        return lambda: lifted()[: len(logits_indices)]

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
        self, inputs: _Inputs, audio: Tensor | None, size: _Size, known: Sequence[tuple[int, int]] | None = None
    ) -> Tensor:
        """`known`: as in `Rows`."""
        hidden = self._embed(inputs.ids.clamp(min=0))
        if audio is not None:
            hidden = torch.where((inputs.ids == AUDIO)[:, None], audio, hidden)
        return self._layers(hidden, inputs.positions, inputs.slot_mapping, inputs.rows(size, known))

    def _say(self, hidden: Tensor, logits_indices: Tensor) -> Tensor:
        logits = self._head(hidden[logits_indices])
        logits[:, self._never] = -torch.inf
        said: Tensor = logits.argmax(dim=1)
        return said


def _described(rows: Sequence[PackedRow], lengths: NDArray[np.int64], size: _Size, cache: KvCache) -> NDArray[np.int64]:
    """What `_Inputs` has views of."""
    starts, ends = np.array([row.start for row in rows]), lengths.cumsum()
    count, page, width = int(ends[-1]), cache.page, cache.row_pages
    parts = [*[size.positions] * 3, size.rows + 1, size.rows, size.rows * width]
    out = np.zeros(sum(parts), np.int64)
    ids, positions, slot_mapping, cu_seqlens, context_lens, table = np.split(out, np.cumsum(parts[:-1]))
    block_table = table.reshape(size.rows, width)
    block_table[len(rows) :] = cache.padding_page
    for at, row in enumerate(rows):
        block_table[at, : len(row.pages)] = row.pages
    each = np.repeat(np.arange(len(rows)), lengths)
    ids[:count] = [token for row in rows for token in row.input.ids]
    positions[:count] = starts[each] + np.arange(count) - (ends - lengths)[each]
    number, inside = np.divmod(positions[:count], page)
    slot_mapping[:count] = block_table[each, number] * page + inside
    slot_mapping[count:] = cache.padding_page * page + np.arange(size.positions - count) % page
    context_lens[: len(rows)], context_lens[len(rows) :] = starts + lengths, 1
    cu_seqlens[1 : len(rows) + 1] = ends
    # A row of one position is there for each that fills decoding up; what fills other forwards up belongs to no row.
    cu_seqlens[len(rows) + 1 :] = np.arange(count + 1, size.rows + 1) if size.single else count
    return out


def _logits_indices(rows: Sequence[PackedRow], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where in the row of positions the wanted ones are."""
    wanted = np.array([row.wanted for row in rows])
    ends = wanted.cumsum()
    each = np.repeat(np.arange(len(rows)), wanted)
    found: NDArray[np.int64] = (lengths.cumsum() - ends)[each] + np.arange(int(ends[-1]))
    return found
