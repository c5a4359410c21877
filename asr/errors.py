"""The root of the errors of recognition.

AsrError
├── EngineError       one utterance cannot go on, the others can (`asr.engines.interface`)
├── EngineExhausted   a step needs more memory than there is; it can be done again, with less in it
├── EngineUnusable    the engine cannot be built on this machine; the message says what to do about it
├── ModelError        onnxruntime cannot compute a call of Moonshine's network (`asr.engines.moonshine.model`)
├── ProtocolError     a worker has sent what makes no sense; its link is closed, and no other
└── SpillError        audio that waits for the engine can be kept on no disk, or not be read back

A frame that is no message is a `config.process.framing.FrameError`.
"""

from __future__ import annotations


class AsrError(Exception):
    """The base of all of them."""
