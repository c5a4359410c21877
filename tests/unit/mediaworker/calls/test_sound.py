"""Sounds that are played to a caller: which bytes are one."""

from __future__ import annotations

import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.media.tones import tone, wav
from mediaworker.calls.sound import MAX_RATE_HZ, SoundError, read_wav


@pytest.mark.parametrize("claim", [b"\x00\xf0\xff\x7f", b"\xff\xff\xff\xff"])
def test_who_writes_into_a_pipe_does_not_know_the_length(claim: bytes) -> None:
    """espeak-ng's header and ffmpeg's: the largest that there is."""
    whole = wav(tone(8000))
    samples, rate_hz = read_wav(io.BytesIO(whole[:40] + claim + whole[44:]), max_s=1)
    assert samples.tobytes() == tone(8000).tobytes() and rate_hz == 8000
    with pytest.raises(SoundError, match="at most"):
        read_wav(io.BytesIO(whole[:40] + claim + whole[44:]), max_s=0.4)


@given(st.binary(max_size=100), st.integers(0, 60), st.binary(max_size=8))
def test_any_bytes_are_a_sound_or_a_reason(noise: bytes, at: int, other: bytes) -> None:
    good = wav(tone(8000, 0.01))
    for data in (noise, good[:at] + other + good[at + len(other) :]):
        try:
            samples, rate_hz = read_wav(io.BytesIO(data))
        except SoundError as error:
            assert str(error) and "\n" not in str(error)
            continue
        assert samples.dtype == np.int16 and samples.ndim == 1 and 1 <= rate_hz <= MAX_RATE_HZ
