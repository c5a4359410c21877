"""A fast path for the usual frames of a media stream: whole, masked text of up to 65,535 bytes (RFC 6455 section 5.2).

Thousands of them arrive each second, so all frames of a read are cut at once. The WebSocket library handles complete
control frames, and everything from the first frame on that is neither plain text nor control.
"""

from __future__ import annotations

from typing import NamedTuple

try:
    from websockets.speedups import apply_mask  # in C
except ImportError:
    from websockets.utils import apply_mask

_TEXT, _CONTROL, _MASKED = 0x81, 0x88, 0x80


class Split(NamedTuple):
    texts: list[bytes]
    """The payloads of the text frames, unmasked."""
    control: bytes
    """The control frames (close, ping, pong), unparsed."""
    rest: bytes
    """The start of an incomplete frame; if not `plain`, all remaining data."""
    plain: bool
    """Whether all frames so far were plain; if not, the library handles everything from `rest` on."""


def split(data: bytes, limit: int) -> Split:
    """Cut `data`, which begins with a frame. A frame of more than `limit` bytes is not plain."""
    texts: list[bytes] = []
    control = b""
    at, size = 0, len(data)
    while size - at >= 2:
        first, second = data[at], data[at + 1]
        length, head = second & 0x7F, at + 6
        if length == 126:
            if size - at < 4:
                break
            length, head = data[at + 2] << 8 | data[at + 3], at + 8
        is_text = first == _TEXT
        if second < _MASKED or length > limit or second == 0xFF or not (is_text or (first & 0xF8 == _CONTROL)):
            return Split(texts, control, data[at:], False)
        end = head + length
        if end > size:
            break
        if is_text:
            texts.append(apply_mask(data[head:end], data[head - 4 : head]))
        else:
            control += data[at:end]
        at = end
    return Split(texts, control, data[at:], True)
