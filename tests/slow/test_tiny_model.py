"""What the trained tiny model hears in the recordings that the tests of calls play."""

from __future__ import annotations

import pytest

from audio import Codec
from lab.engine.offline import packets, utterances
from lab.engine.qwen_models import generate, loaded_tiny, prompts
from lab.worker.qwen import SAID, SETTINGS, file


@pytest.mark.parametrize("name", SAID)
def test_what_is_said_is_what_the_library_reads(name: str) -> None:
    """One utterance at a time, without a call: the engine's text, the library's own, and the truth."""
    heard = utterances(Codec.PCMU, packets(file(name).read_bytes()), settings=SETTINGS)
    assert [each.text for each in heard] == [text.strip() for text in SAID[name]]
    model = loaded_tiny()
    for each in heard:
        tokens = generate(model.model, each.audio, prompts(model).build(), 200)
        assert prompts(model).read(tokens, prompts(model).build()) == ("en", each.text)
