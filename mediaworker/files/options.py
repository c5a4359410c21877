"""What a user may ask of a file."""

from __future__ import annotations

import msgspec

from config import Endpointing
from mediaworker.files.messages import Channels


class Options(msgspec.Struct, frozen=True, omit_defaults=True):
    language: str = ""
    """ISO 639 code to force; empty: the engine detects, in each stretch anew."""
    prompt: str = ""
    channels: Channels = "mix"
    """`split`: each channel is a speaker."""
    speakers: list[str] = []
    """Names of the channels."""
    words: bool = False
    """Say when each word was said, where the engine can."""
    condition_on_previous_text: bool = False
    """The text before a stretch is context for it: one stretch at a time."""
    endpointing: Endpointing | None = None
    """Other than `endpointing.files`."""
