"""One forward of the text model for many utterances at different stages: prefill, verification and decoding mixed.

All their new positions go through the layers as one sequence of tokens; only attention distinguishes them. A forward
writes the keys and values of its rows to their pages and reads nothing but what is before each position. The session
says how many of its positions are valid, so a rejected draft is dropped by a smaller number and no copy.

All that the device must know of a forward goes there in one copy, and only the most likely token after each position
that was asked about comes back. With fixed shapes a forward is filled up to one of a few sizes by positions on the
padding page; a forward larger than all sizes is done in parts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from asr.engines.qwen.device.execution import Graphs, Staging, bucket, buckets
from asr.engines.qwen.device.kernels import Kernels, Rows
from asr.engines.qwen.model.fused import TextLayers
from asr.engines.qwen.model.kv_cache import KvCache

AUDIO = -1
"""The id of a position that has an embedding of audio and no token."""


@dataclass(slots=True)
class Input:
    """Positions on their way into the text model: tokens, and embeddings of audio between them."""

    ids: Sequence[int]
    audio: Sequence[tuple[int, Tensor]] = ()
    """Pairs of the first position and embeddings, (positions, width). The ids of these positions are `AUDIO`."""

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
    """The position of the first one. The pages hold valid keys and values of all positions before it."""
    input: Input
    logits_count: int
    """The next token is computed after each of the last `logits_count` positions."""

    def __len__(self) -> int:
        return len(self.input)


@dataclass(frozen=True, slots=True)
class _Size:
    """The size of a forward, which is the key of its graph."""

    positions: int
    rows: int
    single: bool
    """Each row has one position, as in decoding."""


@dataclass(frozen=True, slots=True)
class _Inputs:
    """The inputs of a forward on the device: views of one tensor, which went there in one copy."""

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


Tokens = Callable[[], list[int]]
"""A function that waits for the device and returns the tokens."""


class Packed:
    """The text model over the pages of a `KvCache`."""

    def __init__(
        self, model: Any, cache: KvCache, kernels: Kernels, graphs: Graphs, staging: Staging, *, never: int, rows: int,
        positions: int,
    ) -> None:  # fmt: skip
        """
        Args:
            model: the library's model, after `fuse`.
            never: the token that is no answer.
            rows, positions: the most in a forward of fixed shape.
        """
        self.cache = cache
        self._layers = TextLayers(model.model.language_model, cache, kernels)
        self._embed, self._head = model.get_input_embeddings(), model.lm_head
        self._graphs, self.staging = graphs, staging
        self._never = never
        self.heads, self.most_rows, self.vocabulary = self._layers.heads, rows, len(self._embed.weight)
        self.forwards = self.positions = 0
        if graphs.fixed:
            weight = self._embed.weight
            # One row must fit into one part, however long it is.
            width, device, positions = weight.shape[1], weight.device, max(positions, rows, cache.positions)
            self._rows, self._buckets = buckets(rows), buckets(positions)
            self._audio, self._out = (
                torch.zeros(positions, width, dtype=weight.dtype, device=device) for _ in range(2)
            )
            self._logits_indices = {size: torch.zeros(size, dtype=torch.long, device=device) for size in self._buckets}
            self._inputs: dict[_Size, _Inputs] = {}

    def launch(self, rows: Sequence[PackedRow]) -> Callable[[], list[list[int]]]:
        """Start a forward. The returned function waits for the tokens of each row, `logits_count` of each."""
        parts = [self._run(part)[2] for part in self._parts(rows)]

        def collect() -> list[list[int]]:
            tokens = [token for part in parts for token in part()]
            ends = np.cumsum([row.logits_count for row in rows]).tolist()
            return [tokens[end - row.logits_count : end] for end, row in zip(ends, rows, strict=True)]

        return collect

    def observe(self, rows: Sequence[PackedRow]) -> tuple[Tensor, list[int]]:
        """The hidden states, (rows, width), and the tokens of rows whose `logits_count` is 1."""
        assert all(row.logits_count == 1 for row in rows)
        states: list[Tensor] = []
        tokens: list[int] = []
        for part in self._parts(rows):
            hidden, logits_indices, part_tokens = self._run(part)
            states.append(hidden[torch.from_numpy(logits_indices).to(hidden.device)])
            tokens += part_tokens()
        return torch.cat(states), tokens

    def logits(self, hidden: Tensor) -> Tensor:
        """The scores of all tokens: hidden states (…, width) → (…, vocabulary), float32."""
        found: Tensor = self._head(hidden).float()
        return found

    def _parts(self, rows: Sequence[PackedRow]) -> list[Sequence[PackedRow]]:
        """The rows in parts that each fit a fixed shape."""
        if not self._graphs.fixed:
            return [rows]
        parts: list[list[PackedRow]] = []
        room = 0
        for row in rows:
            if not parts or len(row) > room or len(parts[-1]) == self.most_rows:
                parts.append([])
                room = self._buckets[-1]
            parts[-1].append(row)
            room -= len(row)
        return [*parts]

    def _run(self, rows: Sequence[PackedRow]) -> tuple[Tensor, NDArray[np.int64], Tokens]:
        """Hidden states, (positions, width), which the next forward overwrites; the indices of those whose next tokens
        are computed; and these tokens."""
        lengths = np.array([len(row) for row in rows])
        count = int(lengths.sum())
        self.forwards += 1
        self.positions += count
        logits_indices = _logits_indices(rows, lengths)
        if self._graphs.fixed:
            hidden = self._fixed(rows, lengths, self._size(count, len(rows)))
        else:
            hidden = self._free(rows, lengths, _Size(count, len(rows), count == len(rows)))
        if not len(logits_indices):  # parts of prefills alone
            return hidden, logits_indices, lambda: []
        if self._graphs.fixed:
            return hidden, logits_indices, self._fixed_tokens(logits_indices)
        return hidden, logits_indices, self.staging.lift(self._argmax(hidden, self.staging.down(logits_indices)))

    # -- any shapes -------------------------------------------------------------------------------------------------

    def _free(self, rows: Sequence[PackedRow], lengths: NDArray[np.int64], size: _Size) -> Tensor:
        inputs = _Inputs.of(self.staging.down(_described(rows, lengths, size, self.cache)), size)
        known = [(row.start, len(row)) for row in rows]
        return self._forward(inputs, self._embed_audio(rows, lengths), size, known)

    # -- fixed shapes -----------------------------------------------------------------------------------------------

    def _size(self, count: int, rows: int) -> _Size:
        if count == rows:
            size = bucket(rows, self._rows)
            assert size is not None, "more rows than a forward of fixed shape may have"
            return _Size(size, size, True)
        size = bucket(count, self._buckets)
        assert size is not None, "one row is larger than any shape"
        return _Size(size, self.most_rows, False)

    def capture(self) -> int:
        """Record the graphs of all sizes, so that no call waits for one, and return their number.

        The largest comes first: the graphs share one pool of memory, and a smaller one fits into what a larger had.
        """
        if not self._graphs.fixed:
            return 0
        sizes = [_Size(count, count, True) for count in self._rows]
        sizes += [_Size(count, self.most_rows, False) for count in self._buckets]
        sizes.sort(key=lambda size: -size.positions)
        padding = PackedRow([self.cache.padding_page], 0, Input([0]), 1)
        for size in sizes:
            self._fixed([padding], np.ones(1, np.int64), size)
        for count in reversed(self._buckets):
            self._fixed_tokens(np.zeros(count, np.int64))
        return len(sizes) + len(self._buckets)

    def _fixed(self, rows: Sequence[PackedRow], lengths: NDArray[np.int64], size: _Size) -> Tensor:
        described = _described(rows, lengths, size, self.cache)
        inputs = self._inputs.get(size)
        if inputs is None:
            whole = torch.zeros(len(described), dtype=torch.long, device=self._out.device)
            inputs = self._inputs[size] = _Inputs.of(whole, size)
        self.staging.down(described, inputs.all)
        audio = None if size.single else self._embed_audio(rows, lengths, self._audio[: size.positions])
        out = self._out

        def forward() -> Tensor:
            return out[: size.positions].copy_(self._forward(inputs, audio, size))

        self._graphs.run(("text", size), forward)
        return out

    def _fixed_tokens(self, logits_indices: NDArray[np.int64]) -> Tokens:
        out, count = self._out, bucket(len(logits_indices), self._buckets)
        assert count is not None, "not more than there are positions"
        where = self._logits_indices[count]
        self.staging.down(np.pad(logits_indices, (0, count - len(logits_indices))), where)
        lifted = self.staging.lift(self._graphs.run(("head", count), lambda: self._argmax(out, where)))
        return lambda: lifted()[: len(logits_indices)]

    # -- both -------------------------------------------------------------------------------------------------------

    def _embed_audio(
        self, rows: Sequence[PackedRow], lengths: NDArray[np.int64], into: Tensor | None = None
    ) -> Tensor | None:
        """The embeddings of audio at their positions, (positions, width); other positions hold anything."""
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
        """The hidden states, (positions, width). `known` is that of `Rows`."""
        hidden = self._embed(inputs.ids.clamp(min=0))
        if audio is not None:
            hidden = torch.where((inputs.ids == AUDIO)[:, None], audio, hidden)
        return self._layers(hidden, inputs.positions, inputs.slot_mapping, inputs.rows(size, known))

    def _argmax(self, hidden: Tensor, logits_indices: Tensor) -> Tensor:
        """The most likely token after each of these positions, (logits_indices)."""
        logits = self._head(hidden[logits_indices])
        logits[:, self._never] = -torch.inf
        tokens: Tensor = logits.argmax(dim=1)
        return tokens


def _described(rows: Sequence[PackedRow], lengths: NDArray[np.int64], size: _Size, cache: KvCache) -> NDArray[np.int64]:
    """The numbers of a forward in one array, in the order of the fields of `_Inputs`."""
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
    # In decoding each padding position is a row of its own; in other forwards padding belongs to no row.
    cu_seqlens[len(rows) + 1 :] = np.arange(count + 1, size.rows + 1) if size.single else count
    return out


def _logits_indices(rows: Sequence[PackedRow], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """The indices, among the positions of a forward, of those whose next token is computed."""
    counts = np.array([row.logits_count for row in rows])
    ends = counts.cumsum()
    each = np.repeat(np.arange(len(rows)), counts)
    found: NDArray[np.int64] = (lengths.cumsum() - ends)[each] + np.arange(int(ends[-1]))
    return found
