"""Counts the fragments of a WebSocket's messages by the heads of its frames (RFC 6455 section 5.2). No I/O."""

from __future__ import annotations

CONTINUATION, CONTROL = 0, 8
MASKED, LENGTH = 0x80, 0x7F
EXTENDED = {126: 2, 127: 8}
"""The number of bytes of the extended length that follow a first length of this value."""


class FragmentCounter:
    """Counts the fragments in one direction of one connection. The WebSocket library checks that frames are valid."""

    def __init__(self) -> None:
        self._head = bytearray()
        self._skip = 0
        """The number of bytes of payload before the next head."""
        self._fragments = 0

    def feed(self, data: bytes) -> int:
        """Follow input; return the most fragments that any message with a frame in it has had so far."""
        most, position = 0, 0
        while position < len(data):
            if self._skip:
                step = min(self._skip, len(data) - position)
                self._skip -= step
                position += step
                continue
            step = self._missing()
            self._head += data[position : position + step]
            position += step
            if not self._missing():
                most = max(most, self._end_head())
        return most

    def _missing(self) -> int:
        """The number of missing bytes of the head, as far as its first bytes show."""
        head = self._head
        if len(head) < 2:
            return 2 - len(head)
        return 2 + EXTENDED.get(head[1] & LENGTH, 0) + (4 if head[1] & MASKED else 0) - len(head)

    def _end_head(self) -> int:
        head, opcode = self._head, self._head[0] & 0x0F
        size = EXTENDED.get(head[1] & LENGTH)
        self._skip = head[1] & LENGTH if size is None else int.from_bytes(head[2 : 2 + size], "big")
        head.clear()
        if opcode < CONTROL:
            self._fragments = self._fragments + 1 if opcode == CONTINUATION else 1
        return self._fragments
