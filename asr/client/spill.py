"""Stores audio that waits for the engine and does not fit into memory, in blocks of a file without a name.

The file is created when it is first needed, and deleted when it is empty or the process ends. No other process can open
it, and a kill leaves nothing behind. Reads and writes block the caller's thread; they go to the page cache, and happen
only beyond `asr.max_backlog_mb`, when callers already wait for minutes.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO, cast

from asr.errors import AsrError

BLOCK_BYTES = 32 * 1024


class SpillError(AsrError):
    """The spill is full, or the disk cannot be written or read; the message says which."""


class Spill:
    """Blocks of `block_bytes` in a temporary file in `directory`, at most `max_bytes` of them together."""

    def __init__(self, directory: str | Path, *, max_bytes: int, block_bytes: int = BLOCK_BYTES) -> None:
        self.block_bytes = block_bytes
        self._directory, self._limit = Path(directory), max_bytes // block_bytes
        self._file: BinaryIO | None = None
        self._free: list[int] = []
        self._made = 0

    @property
    def used_bytes(self) -> int:
        return (self._made - len(self._free)) * self.block_bytes

    def put(self, block: bytes) -> int:
        """Write exactly one block and return its number. Raises SpillError."""
        assert len(block) == self.block_bytes
        if not self._free and self._made >= self._limit:
            raise SpillError("more audio waits for the engine than asr.max_spill_mb allows")
        number = self._free[-1] if self._free else self._made
        try:
            if self._file is None:
                self._file = cast(BinaryIO, tempfile.TemporaryFile(dir=self._directory, buffering=0))
            written = os.pwrite(self._file.fileno(), block, number * self.block_bytes)
        except OSError as error:
            raise SpillError(f"audio that waits for the engine cannot be kept on disk ({error.strerror})") from None
        if written < len(block):
            raise SpillError("audio that waits for the engine cannot be kept on disk (it is full)")
        if self._free:
            self._free.pop()
        else:
            self._made += 1
        return number

    def get(self, number: int) -> bytes:
        """Read a block back. Raises SpillError."""
        assert self._file is not None
        try:
            block = os.pread(self._file.fileno(), self.block_bytes, number * self.block_bytes)
        except OSError as error:
            raise SpillError(f"audio that waited for the engine cannot be read back ({error.strerror})") from None
        if len(block) < self.block_bytes:
            raise SpillError("audio that waited for the engine cannot be read back (it is gone)")
        return block

    def free(self, numbers: Iterable[int]) -> None:
        """Free these blocks."""
        self._free += numbers
        if len(self._free) == self._made:
            self.close()

    def close(self) -> None:
        """Delete the file and all blocks."""
        if self._file is not None:
            self._file.close()
        self._file, self._made = None, 0
        self._free.clear()


class UtteranceAudio:
    """The audio of one utterance. Its beginning may be on disk; the rest is in memory."""

    __slots__ = ("_blocks", "_memory", "_spill")

    def __init__(self, spill: Spill) -> None:
        self._spill, self._memory = spill, bytearray()
        self._blocks: list[int] = []

    def __len__(self) -> int:
        return len(self._blocks) * self._spill.block_bytes + len(self._memory)

    @property
    def on_disk(self) -> bool:
        return bool(self._blocks)

    @property
    def movable(self) -> bool:
        """Whether at least one whole block is in memory."""
        return len(self._memory) >= self._spill.block_bytes

    def append(self, audio: bytes) -> None:
        self._memory += audio

    def move(self) -> None:
        """Move the oldest block in memory to the disk. Raises SpillError."""
        size = self._spill.block_bytes
        self._blocks.append(self._spill.put(bytes(self._memory[:size])))
        del self._memory[:size]

    def read(self, start: int, end: int) -> bytes:
        """Read from `start` up to `end`, or only to the end of the block on disk. Raises SpillError."""
        size = self._spill.block_bytes
        moved = len(self._blocks) * size
        if start >= moved:
            return bytes(self._memory[start - moved : end - moved])
        number, at = divmod(start, size)
        return self._spill.get(self._blocks[number])[at : at + end - start]

    def drop(self) -> None:
        """Free all audio, in memory and on disk."""
        self._memory.clear()
        self._spill.free(self._blocks)
        self._blocks.clear()
