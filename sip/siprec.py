"""SIPREC metadata (RFC 7865): who speaks in which stream of a recording session. No I/O.

A recording client sends all of it once, and then what has changed, each time as XML in a body of its own beside the
SDP. `Recording` is what it all adds up to. Element and attribute names are those of the RFC and of the drafts before
it, in any namespace, because clients of ten years are in the field.

    participant ──send──▶ stream ──label──▶ a=label of the m-line
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sip.errors import PeerError
from sip.messages import SipMessage

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

CONTENT_TYPES = ("application/rs-metadata+xml", "application/rs-metadata")
MAX_CHARS = 65_536
MAX_ITEMS = 256
"""Participants, and streams, of one recording."""
_SCHEME = re.compile(r"(?:sips?|tel):", re.IGNORECASE)


class MetadataError(PeerError):
    """Text that is no recording metadata."""


@dataclass(frozen=True, slots=True)
class Participant:
    """One who takes part in the recorded call: the URI as it came, and the name that is displayed; "" without."""

    id: str
    aor: str = ""
    name: str = ""

    @property
    def user(self) -> str:
        """`sip:1001@pbx.example;user=phone` → `1001`; a URI without a user gives its host."""
        rest = _SCHEME.sub("", self.aor, count=1)
        user, at, host = rest.partition("@")
        return (user if at else rest).split(";")[0].split("?")[0]


@dataclass(slots=True)
class Metadata:
    """One document. None stands for what is gone."""

    complete: bool
    participants: dict[str, Participant | None] = field(default_factory=dict)
    streams: dict[str, str | None] = field(default_factory=dict)
    """Stream id → label."""
    sends: dict[str, frozenset[str]] = field(default_factory=dict)
    """Participant id → ids of the streams that carry it."""
    sessions: dict[str, str] = field(default_factory=dict)
    """Id of the recorded session → its Session-ID (RFC 7989), "" without."""


def is_recording(message: SipMessage) -> bool:
    """Whether an INVITE opens a recording session: it says so in one of three places (RFC 7866 section 6.1)."""
    if any(part.strip().lower() == "siprec" for part in message.joined("require").split(",")):
        return True
    return "+sip.src" in message.header("contact").lower() or bool(metadata_of(message))


def metadata_of(message: SipMessage) -> str:
    """The XML that a message carries, "" for none."""
    return next(filter(None, map(message.part, CONTENT_TYPES)), "")


def parse(text: str) -> Metadata:
    """Raises MetadataError."""
    from xml.etree.ElementTree import ParseError

    from defusedxml import DefusedXmlException
    from defusedxml.ElementTree import fromstring

    if len(text) > MAX_CHARS:
        raise MetadataError(f"metadata of {len(text)} characters; at most {MAX_CHARS} are read")
    source: str | bytes = text.strip()
    try:
        if not text.isascii() and any("\udc80" <= each <= "\udcff" for each in text):
            source = text.strip().encode("utf-8", "surrogateescape")  # no UTF-8: the XML may say what it is
        root: Element = fromstring(source, forbid_dtd=True)
    except (ParseError, DefusedXmlException, ValueError, LookupError, RecursionError) as error:
        raise MetadataError(f"no XML: {str(error)[:200]}") from None
    if _name(root) != "recording":
        raise MetadataError(f"the element is {_name(root)[:40]!r}, not 'recording'")
    mode = next((_text(child) for child in root if _name(child) in ("datamode", "datatype")), "")
    metadata = Metadata(complete=mode.lower() != "partial")
    for element in root:
        match _name(element):
            case "participant":
                _participant(element, metadata)
            case "stream":
                identity = _id(element, "stream")
                metadata.streams[identity] = None if _gone(element) else _child(element, "label")
            case "session" if not _gone(element):
                metadata.sessions[_id(element, "session")] = _child(element, "sipsessionid")
            case "participantstreamassoc":
                _association(_id(element, "participant"), element, metadata)
            case "participantsessionassoc" if _gone(element):
                metadata.participants[_id(element, "participant")] = None
    if max(len(metadata.participants), len(metadata.streams), len(metadata.sends)) > MAX_ITEMS:
        raise MetadataError(f"more than {MAX_ITEMS} participants or streams")
    return metadata


class Recording:
    """What all metadata of a recording session adds up to."""

    def __init__(self) -> None:
        self._participants: dict[str, Participant] = {}
        self._streams: dict[str, str] = {}
        self._sends: dict[str, frozenset[str]] = {}
        self.sessions: dict[str, str] = {}
        """Id of the recorded session → its Session-ID (RFC 7989), "" without; of all that were named so far."""

    def update(self, metadata: Metadata) -> None:
        """Take a document over: instead of all that came before it, or on top of that. Raises MetadataError."""
        participants = {} if metadata.complete else dict(self._participants)
        streams = {} if metadata.complete else dict(self._streams)
        sends = {} if metadata.complete else dict(self._sends)
        for identity, participant in metadata.participants.items():
            if participant is None:
                participants.pop(identity, None)
            else:
                participants[identity] = _merged(participants.get(identity), participant)
        for identity, label in metadata.streams.items():
            if label is None:
                streams.pop(identity, None)
            else:
                streams[identity] = label or streams.get(identity, "")
        sends |= metadata.sends
        if max(len(participants), len(streams), len(sends)) > MAX_ITEMS:
            raise MetadataError(f"more than {MAX_ITEMS} participants or streams in all")
        self._participants, self._streams, self._sends = participants, streams, sends
        self.sessions = dict(list((self.sessions | metadata.sessions).items())[-MAX_ITEMS:])

    def speakers(self, label: str, place: int) -> tuple[Participant, ...]:
        """Who is heard in the stream of that label, in the order of the metadata.

        `place`: of a stream without a label among all streams; the metadata's streams are taken to be in that order.
        """
        if label:
            wanted = {identity for identity, named in self._streams.items() if named == label}
            wanted.add(label)  # some name the label where the stream's id belongs
        else:
            wanted = set(list(self._streams)[place : place + 1])
        return tuple(
            self._participants[identity]
            for identity, streams in self._sends.items()
            if identity in self._participants and streams & wanted
        )


def _participant(element: Element, metadata: Metadata) -> None:
    identity = _id(element, "participant")
    if _gone(element):
        metadata.participants[identity] = None
        return
    name_id = next((child for child in element if _name(child) == "nameid"), None)
    holder = element if name_id is None else name_id
    aor = holder.get("aor", "") or _child(holder, "aor") or _child(element, "aor")
    metadata.participants[identity] = Participant(identity, _clean(aor), _child(holder, "name"))
    if any(_name(child) == "send" for child in element):  # as the drafts had it
        _association(identity, element, metadata)


def _association(identity: str, element: Element, metadata: Metadata) -> None:
    streams = frozenset(_text(child) for child in element if _name(child) == "send") - {""}
    metadata.sends[identity] = metadata.sends.get(identity, frozenset()) | (frozenset() if _gone(element) else streams)


def _merged(before: Participant | None, now: Participant) -> Participant:
    """A partial update may repeat the identity alone."""
    if before is None:
        return now
    return Participant(now.id, now.aor or before.aor, now.name or before.name)


def _id(element: Element, of: str) -> str:
    """The id of the participant or stream that an element is, or is about."""
    for name in (f"{of}_id", of, "id"):
        if value := element.get(name, "").strip():
            return value
    raise MetadataError(f"a {_name(element)} without an id")


def _gone(element: Element) -> bool:
    return any(_name(child) in ("disassociate-time", "stop-time", "end-time") for child in element)


def _child(element: Element, name: str) -> str:
    return next((_text(child) for child in element if _name(child) == name), "")


def _text(element: Element) -> str:
    return _clean("".join(element.itertext()))


def _clean(text: str) -> str:
    return " ".join(text.split())[:500]


def _name(element: Element) -> str:
    """Without its namespace, in small letters."""
    return element.tag.rpartition("}")[2].lower() if isinstance(element.tag, str) else ""


