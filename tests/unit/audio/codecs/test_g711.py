"""G.711 and G.722 against other implementations, and the codec descriptions."""

from __future__ import annotations

import warnings
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from audio import Codec
from audio.codecs import g711
from audio.codecs.g722 import G722Decoder, G722Encoder

PROMPTS = Path("/usr/share/asterisk/sounds/en_US_f_Allison")
EVERY_CODE = bytes(range(256))
EVERY_SAMPLE = np.arange(-32768, 32768).astype(np.int16)


@pytest.fixture(scope="module")
def audioop() -> ModuleType:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        import audioop
    return audioop


def test_every_code_decodes_as_in_audioop(audioop: ModuleType) -> None:
    assert g711.ulaw_decode(EVERY_CODE).tobytes() == audioop.ulaw2lin(EVERY_CODE, 2)
    assert g711.alaw_decode(EVERY_CODE).tobytes() == audioop.alaw2lin(EVERY_CODE, 2)


def test_every_sample_encodes_as_in_audioop(audioop: ModuleType) -> None:
    assert g711.ulaw_encode(EVERY_SAMPLE) == audioop.lin2ulaw(EVERY_SAMPLE.tobytes(), 2)
    assert g711.alaw_encode(EVERY_SAMPLE) == audioop.lin2alaw(EVERY_SAMPLE.tobytes(), 2)


def test_decoding_and_encoding_again_is_the_identity_but_for_negative_zero() -> None:
    assert g711.alaw_encode(g711.alaw_decode(EVERY_CODE)) == EVERY_CODE
    assert g711.ulaw_encode(g711.ulaw_decode(EVERY_CODE)) == EVERY_CODE.replace(b"\x7f", b"\xff")


def test_decoding_takes_bytes_and_arrays() -> None:
    codes = np.frombuffer(EVERY_CODE, np.uint8)
    for form in (codes, bytearray(EVERY_CODE), memoryview(EVERY_CODE)):
        assert np.array_equal(g711.ulaw_decode(form), g711.ulaw_decode(EVERY_CODE))


def test_silence_codes_are_the_quietest() -> None:
    assert g711.ulaw_decode(bytes([Codec.PCMU.silence]))[0] == 0
    assert g711.alaw_decode(bytes([Codec.PCMA.silence]))[0] == np.abs(g711.ALAW).min()


def test_g722_decodes_a_recording_the_same_in_pieces_and_at_once() -> None:
    codes = (PROMPTS / "activated.g722").read_bytes()
    whole, decoder = G722Decoder().decode(codes), G722Decoder()
    cuts = [0, 1, 1, 160, 161, 4000, len(codes)]
    pieces = [decoder.decode(codes[a:b]) for a, b in zip(cuts, cuts[1:], strict=False)]
    assert len(whole) == 2 * len(codes)
    assert np.array_equal(np.concatenate(pieces), whole)
    assert np.abs(whole).max() > 3000


def test_g722_encodes_what_it_decodes() -> None:
    tone = (8000 * np.sin(2 * np.pi * 1000 / 16000 * np.arange(16000))).astype(np.int16)
    codes = G722Encoder().encode(tone)
    assert len(codes) == 8000
    lag = 22  # of its filter bank
    difference = G722Decoder().decode(codes)[lag + 1000 :].astype(int) - tone[1000:-lag]
    assert np.abs(difference).mean() < 200
    with pytest.raises(ValueError, match="pairs"):
        G722Encoder().encode(tone[:3])


def test_codecs_say_what_sdp_needs() -> None:
    assert [(c.rtp_name, c.payload_type, c.clock_rate_hz, c.wide) for c in (Codec.PCMU, Codec.PCMA, Codec.G722)] == [
        ("PCMU", 0, 8000, False),
        ("PCMA", 8, 8000, False),
        ("G722", 9, 8000, True),
    ]
