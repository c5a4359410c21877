"""G.722 at 64 kbit/s (ITU-T G.722, RFC 3551 section 4.5.2): one byte is one position, two samples at 16 kHz.

The codec carries state from byte to byte, so a stream has one decoder and feeds it in order. The C module behind it is
imported when the first such leg opens.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


class G722Decoder:
    def __init__(self) -> None:
        from G722 import G722

        self._codec = G722(16000, 64000)

    def decode(self, codes: bytes) -> NDArray[np.int16]:
        """n bytes → 2n samples at 16 kHz. Any bytes are valid G.722."""
        # An empty array('h') exports no buffer that numpy accepts.
        return np.frombuffer(self._codec.decode(codes), np.int16) if codes else np.empty(0, np.int16)


class G722Encoder:
    def __init__(self) -> None:
        from G722 import G722

        self._codec = G722(16000, 64000)

    def encode(self, samples: NDArray[np.int16]) -> bytes:
        """2n samples at 16 kHz → n bytes. Raises ValueError for an odd number of samples."""
        if len(samples) % 2:
            raise ValueError("G.722 takes samples in pairs")
        from array import array

        codes: bytes = self._codec.encode(array("h", samples.tobytes()))
        return codes
