"""Frames of AudioSocket by hand."""

from __future__ import annotations

from uuid import UUID

import numpy as np

from mediaworker.ingress.audiosocket.messages import UUID as ID
from mediaworker.ingress.audiosocket.messages import Frame

NAME = UUID("40325ec2-5efd-4bd3-805f-53576e581d13")
HELLO = bytes(Frame(ID, NAME.bytes))


def pcm(count: int, seed: int = 1) -> bytes:
    return np.random.default_rng(seed).integers(-20000, 20000, count).astype("<i2").tobytes()
