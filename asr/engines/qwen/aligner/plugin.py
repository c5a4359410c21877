"""How to get the aligner. Imports nothing heavy before it is known that there is one."""

from __future__ import annotations

from asr.engines.aligner import Aligner
from asr.engines.interface import EngineUnusable
from asr.engines.selection import select_words
from config.settings import Asr, Qwen


def create_aligner(asr: Asr, qwen: Qwen) -> Aligner | None:
    """The aligner that `asr.word_timestamps` asks for; None when it asks for none. Raises EngineUnusable."""
    if not select_words(asr).languages:
        return None
    try:
        from asr.engines.qwen.aligner.aligner import build
    except ImportError as error:
        raise EngineUnusable(f"the aligner needs the extra `qwen`: pip install 'mediaworker[qwen]' ({error})") from None
    return build(asr, qwen)
