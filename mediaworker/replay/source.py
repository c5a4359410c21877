"""The source of a replay: a capture or a recording, turned into arrivals over links with faults."""

from __future__ import annotations

from dataclasses import dataclass, replace
from operator import itemgetter
from pathlib import Path
from random import Random

from audio import Codec, RtpPacket
from mediaworker.replay import datagrams, pcap, recording, streams
from mediaworker.replay.datagrams import Datagram
from mediaworker.replay.link import Faults, Link, LinkArrival
from mediaworker.replay.recording import RecordedMessage
from mediaworker.replay.streams import CapturedStream

STRANGER = ("203.0.113.66", 6666)
"""The source of injected packets: an address for documentation (RFC 5737)."""


@dataclass(frozen=True, slots=True)
class Packets:
    """The streams of an RTP capture with their arrivals after the links, at times of the capture's clock."""

    streams: tuple[CapturedStream, ...]
    arrivals: tuple[tuple[LinkArrival[Datagram], ...], ...]
    signalling: tuple[Datagram, ...]

    @property
    def begin_s(self) -> float:
        return min(stream.packets[0].at_s for stream in self.streams)


@dataclass(frozen=True, slots=True)
class Messages:
    """The messages of a recorded stream with their arrivals after the link."""

    arrivals: tuple[LinkArrival[RecordedMessage], ...]


def load(
    path: str | Path, faults: Faults, *, codec: Codec | None = None, payload_type: int | None = None
) -> Packets | Messages:
    """Load a capture or a recording and carry it over links with these faults. Raises CaptureError."""
    if is_recording(path):
        return _messages(recording.read(path), faults)
    counters = datagrams.DatagramCounters()
    try:
        found = streams.find(datagrams.datagrams(pcap.read(path), counters), codec=codec, payload_type=payload_type)
    except pcap.CaptureError as error:
        text = str(error) if str(error).startswith(f"{path}:") else f"{path}: {error}"
        cut = f" ({counters.cut} packets were captured in part)" if counters.cut else ""
        raise pcap.CaptureError(text + cut) from None
    arrivals = []
    for index, stream in enumerate(found.streams):
        link = Link[Datagram](replace(faults, seed=faults.seed + index), stranger=_stranger)
        arrivals.append(tuple(link.carry((packet.at_s, packet) for packet in stream.packets)))
    return Packets(tuple(found.streams), tuple(arrivals), tuple(found.signalling))


def save(path: str | Path, source: Packets | Messages) -> None:
    """Write the arrivals to a new capture or recording. Raises OSError."""
    if isinstance(source, Messages):
        recording.write(path, [RecordedMessage(arrival.at_s, arrival.what.text) for arrival in source.arrivals])
        return
    every = [(arrival.at_s, arrival.what) for arrivals in source.arrivals for arrival in arrivals]
    every += [(datagram.at_s, datagram) for datagram in source.signalling]
    every.sort(key=itemgetter(0))
    pcap.write(path, [(at_s, datagrams.ip_packet(each.source, each.target, each.payload)) for at_s, each in every])


def is_recording(path: str | Path) -> bool:
    """Return whether the file is a recording, by its name: so an error in a broken file names the format that it should
    have."""
    return str(path).removesuffix(".gz").endswith((".jsonl", ".json", ".ndjson"))


def _messages(messages: list[RecordedMessage], faults: Faults) -> Messages:
    """Carry media messages over the link. Other messages are reliable, as with TCP, and those after the last media
    message arrive after all media."""
    media = [index for index, message in enumerate(messages) if recording.is_media(message.text)]
    link = Link[int](faults, ordered=True)
    arrivals = list(link.carry((messages[index].at_s, index) for index in media))
    end_s = max((arrival.at_s for arrival in arrivals), default=0.0)
    for index, message in enumerate(messages):
        if not media or index < media[0]:
            arrivals.append(LinkArrival(message.at_s, index))
        elif index > media[-1]:
            arrivals.append(LinkArrival(max(message.at_s, end_s), index))
        elif not recording.is_media(message.text):
            arrivals.append(LinkArrival(message.at_s + faults.delay_ms / 1000, index))
    arrivals.sort(key=lambda arrival: (arrival.at_s, arrival.what))
    return Messages(tuple(LinkArrival(arrival.at_s, messages[arrival.what]) for arrival in arrivals))


def _stranger(beside: Datagram, random: Random) -> Datagram:
    """Return a forged packet beside a real one. Half of the forged packets have the stream's SSRC; none follows its
    sequence numbers."""
    ssrc = random.getrandbits(32) if random.random() < 0.5 else int.from_bytes(beside.payload[8:12], "big")
    payload_type = beside.payload[1] & 0x7F
    forged = RtpPacket(payload_type, random.getrandbits(16), random.getrandbits(32), ssrc, bytes([0x11]) * 160)
    return beside._replace(source=STRANGER, payload=bytes(forged))
