"""SIP messages as text (RFC 3261 section 7): start line, headers and bodies. No I/O."""

from __future__ import annotations

import re
from dataclasses import dataclass

from audio.rtp.packet import TelephoneEvent
from sip.protocol.errors import PeerError
from sip.protocol.uri import without_parameters

_COMPACT = {
    "i": "call-id",
    "m": "contact",
    "e": "content-encoding",
    "l": "content-length",
    "c": "content-type",
    "f": "from",
    "s": "subject",
    "k": "supported",
    "t": "to",
    "v": "via",
}
_SECRET = frozenset(("authorization", "proxy-authorization"))
_TOKEN = re.compile(r"[A-Za-z0-9.!%*_+`'~-]+")
_FOLD = re.compile(r"\r?\n[ \t]+")
_QUOTED = re.compile(r'"(?:\\.|[^"\\])*+(?:(")|\\?\Z)', re.DOTALL)
"""A quoted string, or an unterminated one, so that the search does not restart at each of its quotes."""
BLANK_LINE = re.compile(r"\r?\n\r?\n")
_URI = re.compile(r"<([^<>\s]+)>")
_TAG = re.compile(r";\s*tag\s*=\s*([^;,\s]+)", re.IGNORECASE)
_BOUNDARY = re.compile(r'boundary="?([^";,\s]+)"?', re.IGNORECASE)
_SIGNAL = re.compile(r"\b(?:signal|d)\s*[=:]\s*\"?([^\s\";,]+)", re.IGNORECASE)
_DURATION = re.compile(r"duration\s*[=:]\s*([0-9]{1,5})(?![0-9])", re.IGNORECASE)
_DIGIT_TYPES = ("application/dtmf-relay", "application/dtmf", "application/vnd.nortelnetworks.digits")
_FLASH = 16
"""The number of the flash event (RFC 4733 section 3.2)."""


@dataclass(frozen=True, slots=True)
class SipMessage:
    """A request or response. Header names are lower case and long; their order and repetitions are kept."""

    start_line: str
    headers: tuple[tuple[str, str], ...]
    body: str = ""

    @classmethod
    def parse(cls, text: str) -> SipMessage:
        """Parse a message, whose lines end in CRLF or LF; folded headers are unfolded. Raises PeerError."""
        head, _, body = text.replace("\r\n", "\n").partition("\n\n")
        start_line, *lines = _FOLD.sub(" ", head).split("\n")
        headers: list[tuple[str, str]] = []
        for line in lines:
            name, colon, value = line.partition(":")
            name = name.strip().lower()
            if not colon or not _TOKEN.fullmatch(name):
                raise PeerError(f"bad header line: {line[:80]!r}")
            headers.append((_COMPACT.get(name, name), value.strip()))
        if not start_line.strip():
            raise PeerError("no start line")
        return cls(start_line.strip(), tuple(headers), body)

    def __str__(self) -> str:
        lines = [self.start_line, *(f"{name}: {value}" for name, value in self.headers)]
        return "\n".join(lines) + "\n\n" + self.body

    def header(self, name: str) -> str:
        """The first header with that (lower case, long) name; "" if absent."""
        return next((value for key, value in self.headers if key == name), "")

    def joined(self, name: str) -> str:
        """All headers with that (lower case, long) name, joined by commas (RFC 3261 section 7.3.1)."""
        return ", ".join(value for key, value in self.headers if key == name)

    def public_headers(self) -> dict[str, str]:
        """All headers except credentials, with repeated ones joined by commas (RFC 3261 section 7.3.1)."""
        joined: dict[str, str] = {}
        for name, value in self.headers:
            if name not in _SECRET:
                joined[name] = f"{joined[name]}, {value}" if name in joined else value
        return joined

    def part(self, content_type: str) -> str:
        """The body with that type, also from within `multipart/*` (RFC 5621); "" if there is none."""
        found = locate_part(self.header("content-type"), self.body, content_type)
        return self.body[found] if found else ""


def locate_part(own: str, body: str, content_type: str) -> slice | None:
    """The place of the part with that type in a body with the Content-Type `own`; None if there is none.

    A whole body of the type is the part itself; of `multipart/*` (RFC 2046 section 5.1) one level is searched.
    """
    if _media_type(own) == content_type:
        return slice(0, len(body))
    if not _media_type(own).startswith("multipart/") or not (boundary := _BOUNDARY.search(own)):
        return None
    delimiter = f"--{boundary[1]}"
    start = 0
    while start <= len(body):
        end = body.find(delimiter, start)
        end = len(body) if end < 0 else end
        blank = BLANK_LINE.search(body, start, end)
        head = body[start : blank.start() if blank else end]
        for line in _FOLD.sub(" ", head).split("\n"):
            name, _, value = line.partition(":")
            if name.strip().lower() in ("content-type", "c") and _media_type(value) == content_type:
                return slice(blank.end() if blank else end, end)
        start = end + len(delimiter)
    return None


def _media_type(header: str) -> str:
    return header.split(";")[0].strip().lower()


def address_uri(header: str) -> str:
    """The URI of a From, To or Contact header, without display name and its parameters: `sip:1001@pbx.example`.

    Parameters of the user, before the `@`, are kept.
    """
    header = _unquoted(header)
    found = _URI.search(header)
    return without_parameters(found[1] if found else header.strip())


def _unquoted(header: str) -> str:
    """The header without its quoted strings."""
    return _QUOTED.sub(lambda found: "" if found[1] else found[0], header)


def tag_of(header: str) -> str:
    """The tag of a From or To header (RFC 3261 section 19.3); "" if it has none."""
    found = _TAG.search(_URI.sub("", _unquoted(header)))
    return found[1] if found else ""


def parameter_of(header: str, name: str) -> str:
    """The value of a parameter of a header or its URI; "" if there is none, or if it is quoted."""
    found = re.search(rf";\s*{re.escape(name)}\s*=\s*([^;,<>?\s]+)", _unquoted(header), re.IGNORECASE)
    return found[1] if found else ""


def dtmf_info(content_type: str, body: str) -> tuple[str, int] | None:
    """(digit, duration in ms) of a SIP INFO body, with the digit "" for a flash; None if it has neither.

    There is no standard: the body has the lines `Signal=5` and `Duration=160`, or only the digit. That may be the
    number of its event (RFC 4733): 10 for `*`, 11 for `#`, 16 for a flash. Other peers write a flash as `!`, or give it
    a separate type.
    """
    kind = _media_type(content_type)
    if kind == "application/hook-flash":
        return "", 0
    if kind not in _DIGIT_TYPES:
        return None
    found = _SIGNAL.search(body)
    digit = _digit(found[1] if found else body.strip())
    duration = _DURATION.search(body)
    return None if digit is None else (digit, int(duration[1]) if duration else 0)


def _digit(signal: str) -> str | None:
    if signal == "!":
        return ""
    if not re.fullmatch("[0-9]{1,2}", signal):
        return signal.upper() if re.fullmatch("[*#A-Da-d]", signal) else None
    return "" if int(signal) == _FLASH else TelephoneEvent(int(signal), 0).digit
