"""The errors of this package, by whose fault they are.

SipError
├── PeerError        the peer sent something wrong or impossible; `status` is the SIP status it deserves
│   ├── SdpError     not SDP (RFC 8866): 400
│   ├── NotAcceptable   valid SDP, nothing in it that can be used here: 488
│   ├── UnsupportedBody   a body that is no session description: 415
│   └── MetadataError   the metadata of a recording is malformed (`sip.protocol.siprec`): 400
├── CallFailed       the INVITE of the test phone was refused with `status` (`sip.phone`)
└── PortsExhausted   every RTP port is in use or resting: the caller is refused with 503
"""

from __future__ import annotations


class SipError(Exception):
    """Base of the package's errors; `status` is the SIP status that answers it."""

    status = 500


class PeerError(SipError):
    """A mistake of the peer."""

    status = 400

    @property
    def headers(self) -> tuple[tuple[str, str], ...]:
        """The headers of the response, in addition to its status."""
        return ()


class SdpError(PeerError):
    """Text that is not a session description."""


class NotAcceptable(PeerError):
    """An offer or answer without a stream that can be used.

    `warning` is a code of the Warning header (RFC 3261 section 20.43), whose text is the reason.
    """

    status = 488

    def __init__(self, reason: str, warning: int = 399) -> None:
        super().__init__(reason)
        self.warning = warning

    @property
    def headers(self) -> tuple[tuple[str, str], ...]:
        return (("Warning", f'{self.warning} mediaworker "{self}"'),)


class UnsupportedBody(PeerError):
    """A body that is not, and does not contain, a session description (RFC 3261 section 21.4.13)."""

    status = 415

    @property
    def headers(self) -> tuple[tuple[str, str], ...]:
        return ("Accept", "application/sdp, multipart/mixed"), ("Accept-Encoding", "identity")


class PortsExhausted(SipError):
    """No RTP port is free."""

    status = 503


NO_PJSUA2 = (
    "SIP needs pjsua2, which is not on PyPI: unpack mediaworker's source distribution (`pip download --no-deps "
    "--no-binary mediaworker mediaworker`), run its `tools/build_pjsip.sh` with the path of this environment's Python, "
    "and install the wheel whose path it prints with pip"
)
"""The advice if pjsua2 cannot be imported, as after a plain `pip install mediaworker`."""
