"""Session descriptions (RFC 8866): frozen dataclasses whose `parse` and `__str__` are inverses. No I/O.

Parsing is lenient where peers are sloppy (bare LF, missing `s=` or `t=`, unknown line types, which are dropped) and
strict where a mistake would change the meaning: ports, formats and addresses. Lines other than `c=`, `a=` and `m=` are
kept in `other` and printed in the order of the grammar.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from enum import Enum

from sip.protocol.errors import NotAcceptable, SdpError

MAX_BYTES = 65536
MAX_MEDIA = 64
MAX_FORMATS = 32
"""The most formats of an m-line that are used: PJSIP drops further ones (its PJMEDIA_MAX_SDP_FMT)."""

_SESSION_ORDER = "iuepbtrzk"
_MEDIA_ORDER = "ibk"
_NUMBER = re.compile(r"[0-9]{1,5}")
_SHAPES = {
    "b": re.compile(r"[^\s:]+:[0-9]+(?:\s.*)?"),
    "t": re.compile(r"[0-9]+ [0-9]+\s*"),
    "m": re.compile(r"(?:\S| )*"),
}
"""The forms of lines in RFC 8866 sections 5.8, 5.9 and 5.14. If a separator is missing or wrong, a less strict parser
may read the next line as a part of this one, or only a part of this one."""
_TOKEN = re.compile(r"[!#-'*+.0-9A-Z^-~-]+")
"""A token of RFC 8866 section 9."""
_RTPMAP = re.compile(r"([0-9]{1,3}) +([^/ ]+)/([0-9]{1,6})(?:/([0-9]{1,2}))?")

# RFC 3551 table 4: what a payload type means without an rtpmap.
_STATIC = {0: ("PCMU", 8000), 8: ("PCMA", 8000), 9: ("G722", 8000), 13: ("CN", 8000), 18: ("G729", 8000)}

Attribute = tuple[str, str | None]
Line = tuple[str, str]


class Direction(Enum):
    """The direction of a stream (RFC 3264 section 5.1), as seen by the side whose SDP contains it."""

    SENDRECV = "sendrecv"
    SENDONLY = "sendonly"
    RECVONLY = "recvonly"
    INACTIVE = "inactive"

    @classmethod
    def of(cls, sends: bool, receives: bool) -> Direction:
        return next(each for each in cls if (each.sends, each.receives) == (sends, receives))

    @property
    def sends(self) -> bool:
        return self in (Direction.SENDRECV, Direction.SENDONLY)

    @property
    def receives(self) -> bool:
        return self in (Direction.SENDRECV, Direction.RECVONLY)

    @property
    def mirrored(self) -> Direction:
        """The same flow as seen by the other side."""
        return {Direction.SENDONLY: Direction.RECVONLY, Direction.RECVONLY: Direction.SENDONLY}.get(self, self)


@dataclass(frozen=True, slots=True)
class ConnectionLine:
    """`c=`: the address at which a side receives."""

    address: str
    family: str = "IP4"

    @classmethod
    def parse(cls, value: str) -> ConnectionLine:
        match value.split():
            case ["IN", ("IP4" | "IP6") as family, address] if address[0] != "/":
                return cls(address, family)
            case ["IN", kind, _] if kind not in ("IP4", "IP6"):
                raise NotAcceptable("an address of a kind that is not known here", 301)
            case [network, _, _] if network != "IN":
                raise NotAcceptable("a network of a kind that is not known here", 300)
        raise SdpError(f"bad connection: {value[:80]!r}")

    def __str__(self) -> str:
        return f"IN {self.family} {self.address}"

    @property
    def null(self) -> bool:
        """Whether it is the null address, by which RFC 2543 signals a hold: nothing is received there (RFC 3264 section
        8.4)."""
        address = self.address.split("/")[0]
        return address in ("0.0.0.0", "0") or ":" in address and not address.strip("0:")


@dataclass(frozen=True, slots=True)
class Origin:
    """`o=`: identity of the description. `version` is kept as text: peers send more than 64 bits."""

    username: str
    session_id: str
    version: str
    address: str
    family: str = "IP4"

    @classmethod
    def parse(cls, value: str) -> Origin:
        match value.split():
            case [username, session_id, version, "IN", ("IP4" | "IP6") as family, address]:
                return cls(username, session_id, version, address, family)
            case [session_id, version, "IN", ("IP4" | "IP6") as family, address]:  # without a user, as some send it
                return cls("-", session_id, version, address, family)
        raise SdpError(f"bad origin: {value[:80]!r}")

    def __str__(self) -> str:
        return f"{self.username} {self.session_id} {self.version} IN {self.family} {self.address}"


@dataclass(frozen=True, slots=True)
class RtpFormat:
    """One payload type of an m-line, as its rtpmap, or RFC 3551 for a static type, describes it."""

    payload_type: int
    encoding: str
    """The encoding name in upper case."""
    clock_hz: int
    channels: int = 1


@dataclass(frozen=True, slots=True)
class MediaDescription:
    """`m=` and the lines below it. `port` 0 means refused or closed."""

    kind: str
    port: int
    protocol: str
    formats: tuple[str, ...]
    connection: ConnectionLine | None = None
    attributes: tuple[Attribute, ...] = ()
    other: tuple[Line, ...] = ()
    port_count: int = 1

    @classmethod
    def parse(cls, value: str) -> MediaDescription:
        """Parse the value of the `m=` line alone."""
        parts = value.split()
        if len(parts) < 4 or not all(map(_TOKEN.fullmatch, (parts[0], *parts[2].split("/"), *parts[3:]))):
            raise SdpError(f"bad media line: {value[:80]!r}")
        port, _, count = parts[1].partition("/")
        return cls(parts[0], _number(port, 65535), parts[2], tuple(parts[3:]), port_count=_number(count or "1", 65535))

    def __str__(self) -> str:
        count = "" if self.port_count == 1 else f"/{self.port_count}"
        lines = [f"m={self.kind} {self.port}{count} {self.protocol} {' '.join(self.formats)}"]
        lines += [f"{kind}={value}" for kind, value in self.other if kind == "i"]
        if self.connection is not None:
            lines.append(f"c={self.connection}")
        lines += [f"{kind}={value}" for kind, value in self.other if kind != "i"]
        lines += map(_attribute_line, self.attributes)
        return "".join(f"{line}\r\n" for line in lines)

    def attribute(self, name: str) -> str | None:
        """The value of the first attribute of that name; "" for a flag; None when absent."""
        return next((value or "" for key, value in self.attributes if key == name), None)

    def rtp_formats(self) -> tuple[RtpFormat, ...]:
        """The payload types in the order of the m-line, without undescribed ones."""
        described = dict(_STATIC)
        channels: dict[int, int] = {}
        for name, value in self.attributes:
            if name == "rtpmap" and value and (found := _RTPMAP.match(value.strip())):
                described[int(found[1])] = (found[2].upper(), int(found[3]))
                channels[int(found[1])] = int(found[4] or 1)
        types = [int(text) for text in self.formats[:MAX_FORMATS] if _NUMBER.fullmatch(text) and int(text) <= 127]
        return tuple(RtpFormat(pt, *described[pt], channels.get(pt, 1)) for pt in types if pt in described)


@dataclass(frozen=True, slots=True)
class SessionDescription:
    """A session description. `media` keeps the order of the m-lines: an answer matches its offer by position."""

    origin: Origin
    media: tuple[MediaDescription, ...] = ()
    connection: ConnectionLine | None = None
    name: str = "-"
    attributes: tuple[Attribute, ...] = ()
    other: tuple[Line, ...] = (("t", "0 0"),)

    @classmethod
    def parse(cls, text: str) -> SessionDescription:
        """Parse a description. Raises SdpError, and NotAcceptable for a network other than the Internet."""
        if len(text) > MAX_BYTES:
            raise SdpError(f"{len(text)} characters; at most {MAX_BYTES} are read")
        session, *media = _sections(_lines(text))
        origin = next((Origin.parse(value) for kind, value in session if kind == "o"), None)
        if origin is None or session[0] != ("v", "0"):
            raise SdpError("no v=0 or no o= line")
        name = next((value for kind, value in session if kind == "s"), "-")
        return cls(
            origin,
            tuple(_media(section) for section in media),
            _connection(session),
            name or "-",
            _attributes(session),
            _other(session, _SESSION_ORDER),
        )

    def __str__(self) -> str:
        before = [f"{kind}={value}" for kind, value in self.other if kind in "iuep"]
        after = [f"{kind}={value}" for kind, value in self.other if kind not in "iuep"]
        lines = ["v=0", f"o={self.origin}", f"s={self.name}", *before]
        if self.connection is not None:
            lines.append(f"c={self.connection}")
        lines += after
        lines += map(_attribute_line, self.attributes)
        return "".join(f"{line}\r\n" for line in lines) + "".join(map(str, self.media))

    def connection_of(self, media: MediaDescription) -> ConnectionLine | None:
        return media.connection or self.connection

    def direction_of(self, media: MediaDescription) -> Direction:
        """The direction of the media, else of the session, else sendrecv (RFC 8866 section 6.7)."""
        for attributes in (media.attributes, self.attributes):
            for name, _ in attributes:
                if name in _DIRECTIONS:
                    return Direction(name)
        return Direction.SENDRECV


_DIRECTIONS = frozenset(direction.value for direction in Direction)


def _lines(text: str) -> list[Line]:
    lines: list[Line] = []
    # The binding passes bytes that are not UTF-8 as surrogates, but does not accept surrogates.
    for raw in text.encode("utf-8", "replace").decode().split("\n"):
        line = raw.removesuffix("\r")
        if not line:
            continue
        if "\r" in line or "\0" in line or line[1:2] != "=":
            raise SdpError(f"bad line: {line[:80]!r}")
        if (shape := _SHAPES.get(line[0])) and not shape.fullmatch(line, 2):
            raise SdpError(f"bad {line[:2]} line: {line[:80]!r}")
        lines.append((line[0], line[2:]))
    return lines


def _sections(lines: list[Line]) -> list[list[Line]]:
    sections: list[list[Line]] = [[]]
    for line in lines:
        if line[0] == "m":
            sections.append([])
        sections[-1].append(line)
    if not sections[0]:
        raise SdpError("no session part")
    if len(sections) > MAX_MEDIA + 1:
        raise SdpError(f"more than {MAX_MEDIA} media")
    return sections


def _media(section: list[Line]) -> MediaDescription:
    connection, attributes, other = _connection(section), _attributes(section), _other(section, _MEDIA_ORDER)
    return replace(MediaDescription.parse(section[0][1]), connection=connection, attributes=attributes, other=other)


def _connection(section: list[Line]) -> ConnectionLine | None:
    return next((ConnectionLine.parse(value) for kind, value in section if kind == "c"), None)


def _attributes(section: list[Line]) -> tuple[Attribute, ...]:
    pairs = (value.partition(":") for kind, value in section if kind == "a")
    return tuple((name, value if colon else None) for name, colon, value in pairs if name)


def _other(section: list[Line], order: str) -> tuple[Line, ...]:
    # t= and r= alternate, so both rank as t.
    kept = [line for line in section if line[0] in order]
    return tuple(sorted(kept, key=lambda line: order.index("t" if line[0] == "r" else line[0])))


def _attribute_line(attribute: Attribute) -> str:
    name, value = attribute
    return f"a={name}" if value is None else f"a={name}:{value}"


def _number(text: str, limit: int) -> int:
    if not _NUMBER.fullmatch(text) or int(text) > limit:
        raise SdpError(f"bad number: {text[:20]!r}")
    return int(text)
