"""What each codec is on the wire and in a leg, and audio that is read across a change of codec."""

from __future__ import annotations

import numpy as np
import pytest

from audio.codecs.codec import Codec
from audio.codecs.g711 import alaw_decode, alaw_encode, ulaw_decode, ulaw_encode
from audio.codecs.history import EpochHistory, join


def test_names_clocks_and_sizes_are_those_of_the_rfcs() -> None:
    table = {
        codec.name: (codec.rtp_name, codec.payload_type, codec.clock_rate_hz, codec.position_bytes, codec.wide)
        for codec in Codec
    }
    assert table == {
        "PCMU": ("PCMU", 0, 8000, 1, False),
        "PCMA": ("PCMA", 8, 8000, 1, False),
        "G722": ("G722", 9, 8000, 1, True),
        "OPUS": ("opus", 111, 48000, 1, True),
        "L16": ("L16", 96, 16000, 4, True),
    }
    assert {codec.name for codec in Codec if codec.stateful} == {"G722", "OPUS"}
    assert (Codec.PCMU.silence, Codec.PCMA.silence, Codec.L16.silence) == (0xFF, 0xD5, 0)
    assert Codec.PCMU.mask is not None and b"\xff\x00".translate(Codec.PCMU.mask) == b"\x00\xff"
    assert Codec.G722.mask is None


def test_opus_is_for_rtp_and_l16_is_not() -> None:
    for codec in Codec:
        for transport in ("rtp", "stream"):
            if (codec, transport) in ((Codec.L16, "rtp"), (Codec.OPUS, "stream")):
                with pytest.raises(ValueError, match="is for"):
                    codec.check(transport)
            else:
                codec.check(transport)


SAMPLES = (np.sin(np.arange(160) / 5) * 8000).astype(np.int16)


def test_an_epoch_gives_what_of_a_range_lies_in_it() -> None:
    narrow, wide = EpochHistory(Codec.PCMU, 100, bytes(range(50))), EpochHistory(Codec.L16, 10, bytes(range(40)))
    assert (narrow.end, wide.end) == (150, 20)
    assert narrow.read(90, 103) == bytes([0, 1, 2]) and narrow.read(148, 999) == bytes([48, 49])
    assert narrow.read(0, 100) == b"" == narrow.read(150, 160)
    assert wide.read(11, 12) == bytes([4, 5, 6, 7])


def test_pieces_are_joined_in_the_form_of_the_last() -> None:
    ulaw, alaw = ulaw_encode(SAMPLES), alaw_encode(SAMPLES)
    wide = SAMPLES.repeat(2).astype("<i2").tobytes()
    assert join([(Codec.PCMU, ulaw), (Codec.PCMU, ulaw)]) == ulaw * 2
    assert join([(Codec.PCMA, alaw), (Codec.PCMU, b"")]) == ulaw_encode(alaw_decode(alaw))
    assert join([(Codec.PCMU, ulaw), (Codec.PCMA, b"")]) == alaw_encode(ulaw_decode(ulaw))
    assert join([(Codec.G722, wide), (Codec.L16, wide)]) == wide * 2, "both are kept as samples"
    assert join([(Codec.L16, wide), (Codec.PCMU, ulaw)]) == ulaw * 2
    assert join([(Codec.L16, wide), (Codec.PCMA, b"")]) == alaw
    joined = np.frombuffer(join([(Codec.PCMU, ulaw), (Codec.L16, wide)]), "<i2")
    assert joined[:320].tolist() == ulaw_decode(ulaw).repeat(2).tolist() and joined[320:].tobytes() == wide
    uneven = np.array([1, 4, -3, -4], "<i2").tobytes()
    assert alaw_decode(join([(Codec.L16, uneven), (Codec.PCMA, b"")])).tolist() == [
        *alaw_decode(alaw_encode(np.array([2, -4], np.int16)))
    ]
