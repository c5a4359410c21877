"""The errors in a peer's messages. Each is the peer's fault; it is counted, and the call goes on."""

from __future__ import annotations

from mediaworker.errors import MediaworkerError


class MalformedMessage(MediaworkerError):
    """The message breaks its protocol."""


class UnknownMessage(MediaworkerError):
    """The message is of a kind that this worker does not know."""
