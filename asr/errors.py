"""The root of the errors of engines.

AsrError
├── EngineError       one utterance cannot go on, the others can (`asr.engines.interface`)
├── EngineExhausted   a step needs more memory than there is; it can be done again, with less in it
├── EngineUnusable    the engine cannot be built on this machine; the message says what to do about it
└── ModelError        onnxruntime cannot compute a call of Moonshine's network (`asr.engines.moonshine.model`)
"""

from __future__ import annotations


class AsrError(Exception):
    """The base of all of them."""
