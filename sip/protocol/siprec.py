"""SIPREC metadata (RFC 7865): the speakers in the streams of a recording session. No I/O.

A recording client sends all metadata once, and then changes, each time as XML in a separate body beside the SDP.
`Recording` is the sum of all documents. Element and attribute names are those of the RFC and of its drafts, in any
namespace, because clients of ten years are in use.

    participant ──send──▶ stream ──label──▶ a=label of the m-line
"""

from __future__ import annotations

import base64
import re
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sip.protocol.errors import PeerError
from sip.protocol.message import SipMessage

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

CONTENT_TYPES = ("application/rs-metadata+xml", "application/rs-metadata")
MAX_CHARS = 65_536
MAX_ITEMS = 256
"""The most participants, and the most streams, of one recording."""
_MIXED = frozenset(("mix", "mixed"))
"""The labels of a stream that mixes all speakers, and its `mode` in the drafts."""
_SCHEME = re.compile(r"(?:sips?|tel):", re.IGNORECASE)


class MetadataError(PeerError):
    """The text is no recording metadata."""


@dataclass(frozen=True, slots=True)
class Participant:
    """A participant of the recorded call, with the URI as received and the display name, each "" if missing."""

    id: str
    aor: str = ""
    name: str = ""

    @property
    def user(self) -> str:
        """The user part of the URI, or the host without one: `sip:1001@pbx.example;user=phone` → `1001`."""
        rest = _SCHEME.sub("", self.aor, count=1)
        user, at, host = rest.partition("@")
        return (user if at else rest).split(";")[0].split("?")[0]

    def is_same(self, other: Participant) -> bool:
        """Whether both are one person. Some clients number participants anew in each document, others reuse one id."""
        if self.name and self.name == other.name:
            return True
        if self.aor and other.aor:
            return self.user.casefold() == other.user.casefold()
        return self.id == other.id


@dataclass(slots=True)
class Metadata:
    """One document. None stands for a removed participant or stream."""

    complete: bool
    participants: dict[str, Participant | None] = field(default_factory=dict)
    streams: dict[str, str | None] = field(default_factory=dict)
    """Stream id → label."""
    mixed: set[str] = field(default_factory=set)
    """The ids of the streams that are declared as a mix."""
    sends: dict[str, frozenset[str]] = field(default_factory=dict)
    """Participant id → ids of the streams that carry it."""
    sessions: dict[str, str] = field(default_factory=dict)
    """Id of the recorded session → its Session-ID (RFC 7989), "" without."""


def is_recording(message: SipMessage) -> bool:
    """Whether an INVITE opens a recording session, which one of three places shows (RFC 7866 section 6.1)."""
    if any(part.strip().lower() == "siprec" for part in message.joined("require").split(",")):
        return True
    return "+sip.src" in message.header("contact").lower() or bool(metadata_of(message))


def metadata_of(message: SipMessage) -> str:
    """The XML in a message; "" for none. Some clients encode it in base64, with or without declaring that."""
    text = next(filter(None, map(message.part, CONTENT_TYPES)), "")
    if not text.strip() or "<" in text:
        return text
    try:
        decoded = base64.b64decode("".join(text.split()), validate=True)
    except ValueError:
        return text
    return decoded.decode("utf-8-sig", "surrogateescape")


def parse(text: str) -> Metadata:
    """Parse a document. Raises MetadataError."""
    root = _document(text)
    mode = next((_text(child) for child in root if _name(child) in ("datamode", "datatype")), "")
    metadata = Metadata(complete=mode.lower() != "partial")
    left, there = set[str](), set[str]()
    for element in root:
        match _name(element):
            case "participant":
                _participant(element, metadata)
            case "stream":
                identity = _id(element, "stream")
                metadata.streams[identity] = None if _gone(element) else _child(element, "label")
                if _child(element, "mode").lower() in _MIXED:
                    metadata.mixed.add(identity)
            case "session" if not _gone(element):
                metadata.sessions[_id(element, "session")] = _child(element, "sipsessionid")
            case "participantstreamassoc":
                _association(_id(element, "participant"), element, metadata)
            case "participantsessionassoc":
                (left if _gone(element) else there).add(_id(element, "participant"))
    # A participant who leaves one session and joins another in the same document is still there.
    metadata.participants |= dict.fromkeys(left - there)
    if max(len(metadata.participants), len(metadata.streams), len(metadata.sends)) > MAX_ITEMS:
        raise MetadataError(f"more than {MAX_ITEMS} participants or streams")
    return metadata


def _document(text: str) -> Element:
    """The root element of the metadata. Raises MetadataError for other text."""
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
    return root


class Recording:
    """The sum of all metadata of a recording session."""

    def __init__(self) -> None:
        self._participants: dict[str, Participant] = {}
        self._known: dict[str, Participant] = {}
        """All participants so far: a document may refer to an earlier participant by the id only."""
        self._streams: dict[str, str] = {}
        self._sends: dict[str, frozenset[str]] = {}
        self._said_mixed: frozenset[str] = frozenset()
        self._mixes: frozenset[str] = frozenset()
        self.sessions: dict[str, str] = {}
        """Id of the recorded session → its Session-ID (RFC 7989), "" without; of all that were named so far."""

    def update(self, metadata: Metadata) -> None:
        """Apply a document, in place of all earlier ones (complete) or in addition to them. Raises MetadataError."""
        participants = {} if metadata.complete else dict(self._participants)
        streams = {} if metadata.complete else dict(self._streams)
        sends = {} if metadata.complete else dict(self._sends)
        for identity, participant in metadata.participants.items():
            if participant is None:
                participants.pop(identity, None)
            else:
                participants[identity] = _merged(self._known.get(identity), participant)
        for identity, label in metadata.streams.items():
            if label is None:
                streams.pop(identity, None)
            else:
                streams[identity] = label or self._streams.get(identity, "")
        sends |= metadata.sends
        if max(len(participants), len(streams), len(sends)) > MAX_ITEMS:
            raise MetadataError(f"more than {MAX_ITEMS} participants or streams in all")
        self._participants, self._streams, self._sends = participants, streams, sends
        self._known = dict(list((self._known | participants).items())[-MAX_ITEMS:])
        before = frozenset() if metadata.complete else self._said_mixed
        self._said_mixed = (before | metadata.mixed) & streams.keys()
        self._mixes = _mixes(streams, sends, self._said_mixed)
        self.sessions = dict(list((self.sessions | metadata.sessions).items())[-MAX_ITEMS:])

    def speakers(
        self, label: str, place: int, *, unmixed_place: int | None = None, of: int = 0
    ) -> tuple[Participant, ...]:
        """The speakers in the stream with that label, in the order of the metadata.

        `place`: the position of a stream without a label among all streams, which the metadata lists in that order.
        `unmixed_place` and `of`: its position among the streams that are no mix, and their number. If the metadata
        assigns no streams at all, participants and such streams are paired in order, provided their numbers are equal.
        """
        chosen = self._streams_of(label, place)
        if self._sends:
            return tuple(
                self._participants[identity]
                for identity, streams in self._sends.items()
                if identity in self._participants and streams & chosen
            )
        people = list(self._participants.values())
        if self._streams:
            single = [identity for identity in self._streams if identity not in self._mixes]
            places = [number for number, identity in enumerate(single) if identity in chosen]
            of = len(single)
        else:
            places = [place if unmixed_place is None else unmixed_place]
        return tuple(people[number] for number in places[:1] if len(people) == of and number < of)

    def is_mixed(self, label: str, place: int) -> bool:
        """Whether a stream mixes the speakers of the others. `label` and `place` as for `speakers`."""
        return label.casefold() in _MIXED or not self._mixes.isdisjoint(self._streams_of(label, place))

    def identities(self) -> tuple[str, ...]:
        """The URIs, their user parts, and the names of all participants."""
        found = (text for each in self._participants.values() for text in (each.aor, each.user, each.name))
        return tuple(dict.fromkeys(filter(None, found)))

    def _streams_of(self, label: str, place: int) -> set[str]:
        """The ids of the metadata's streams that correspond to a stream of the SDP."""
        if not label:
            return set(list(self._streams)[place : place + 1])
        # Some clients write the label in place of the stream's id.
        return {identity for identity, named in self._streams.items() if named == label} | {label}


def same_people(before: Collection[Participant], now: Collection[Participant]) -> bool:
    """Whether both collections contain the same people."""
    return all(any(each.is_same(other) for other in now) for each in before) and all(
        any(each.is_same(other) for other in before) for each in now
    )


def _mixes(
    streams: Mapping[str, str], sends: Mapping[str, frozenset[str]], declared: Collection[str]
) -> frozenset[str]:
    """The streams declared as a mix, and those of several speakers who all have separate streams, too."""
    found = {stream for stream, label in streams.items() if stream in declared or label.casefold() in _MIXED}
    senders = Counter(stream for each in sends.values() for stream in each)
    shared = {stream for stream, number in senders.items() if number > 1}
    not_alone = {stream for each in sends.values() if each <= shared for stream in each}
    return frozenset(found | shared - not_alone)


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
    """The participant after a document that may repeat only the id; a different address means another person."""
    if before is None or now.aor and before.aor and now.user.casefold() != before.user.casefold():
        return now
    return Participant(now.id, now.aor or before.aor, now.name or before.name)


def _id(element: Element, of: str) -> str:
    """The id of the participant or stream that an element describes, or to which it refers."""
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
    """The element's name without its namespace, in lower case."""
    return element.tag.rpartition("}")[2].lower() if isinstance(element.tag, str) else ""
