"""The options of a file's transcription that a client may set."""

from __future__ import annotations

import msgspec

from config import Endpointing
from mediaworker.files.messages import Channels


class Options(msgspec.Struct, frozen=True, omit_defaults=True):
    language: str = ""
    """The ISO 639 code of the language; empty: the engine detects it, for each segment anew."""
    prompt: str = ""
    channels: Channels = "mix"
    """`mix`: all channels are transcribed as one; `split`: each channel is a speaker."""
    speakers: list[str] = []
    """The names of the channels' speakers, in the order of the channels."""
    words: bool = False
    """The result has the times of its words, where the engine can compute them."""
    condition_on_previous_text: bool = False
    """The preceding text is the context of each segment, so segments are recognised one at a time."""
    endpointing: Endpointing | None = None
    """Settings in place of `endpointing.files`; None: those."""
