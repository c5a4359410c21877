"""Plain totals over all files, for the metrics."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class FileStats:
    chunks: int = 0
    failed_chunks: int = 0
    retried_chunks: int = 0
    audio_s: float = 0.0
    """Of files that were read to their end."""
    refused: dict[str, int] = field(default_factory=dict)
    """By fault."""
