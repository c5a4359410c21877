"""The replay lab: what it reads, what its link does, and that a replayed call says what the live one said."""

from __future__ import annotations

import gzip
import json
import struct
import subprocess
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from audio import Codec, RtpPacket
from lab.engine.offline import utterances
from lab.engine.recognizer import install_listener, of_listener
from lab.patience import seconds
from lab.worker.peers import COMMAND, command, worker
from mediaworker.cli.live import renumber
from mediaworker.cli.main import main
from mediaworker.cli.replay import table
from mediaworker.replay import datagrams, pcap, recording, streams
from mediaworker.replay.datagrams import Datagram, DatagramCounters, ip_packet
from mediaworker.replay.link import Faults, Link
from mediaworker.replay.source import Messages, Packets, load, save

DATA = Path(__file__).parents[1] / "data" / "replay"
PCMU, G722, TWILIO = DATA / "pcmu-call.pcapng.gz", DATA / "g722-call.pcap.gz", DATA / "twilio-call.jsonl.gz"
A, B, C = ("192.0.2.1", 4000), ("192.0.2.2", 5000), ("2001:db8::3", 6000)
NONE = Faults()


Replayed = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def replayed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Replayed:
    install_listener(monkeypatch)

    monkeypatch.setenv("MEDIAWORKER_ASR__ENGINE", "listener")

    def replay(path: Path, *options: str) -> list[dict[str, Any]]:
        """The events of a replay; nothing else is on its output."""
        assert main(["replay", str(path), "--json", *options]) == 0
        return [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    return replay


def finals(events: list[dict[str, Any]]) -> dict[str, list[tuple[int, int, str]]]:
    found: dict[str, list[tuple[int, int, str]]] = {}
    for event in events:
        if event["type"] == "transcript.final":
            found.setdefault(event["leg"], []).append((event["start_ms"], event["end_ms"], event["text"]))
    return found


# -- real calls, captured: what the worker makes of them --------------------------------------------------------------


@pytest.mark.parametrize(("path", "codec", "packets"), [(PCMU, Codec.PCMU, (333, 334)), (G722, Codec.G722, (215, 216))])
def test_a_captured_call_says_what_it_said_live(
    path: Path, codec: Codec, packets: tuple[int, int], replayed: Replayed
) -> None:
    """Captured by tcpdump on loopback and, for G.722, on `any`: the caller's prompt, and the worker's silence back."""
    source = load(path, NONE)
    assert isinstance(source, Packets)
    assert [stream.descriptions[0].codec for stream in source.streams] == [codec, codec]
    assert len({stream.call for stream in source.streams}) == 1  # by the Call-ID of the SIP in it
    events = replayed(path)
    payloads = [RtpPacket.parse(datagram.payload).payload for datagram in source.streams[0].packets]
    (expected,) = utterances(codec, payloads, settings=of_listener())
    ((start_ms, end_ms, text),) = finals(events)["0"]
    offset_ms = start_ms - expected.start_ms
    assert (end_ms - offset_ms, text) == (expected.end_ms, expected.text) and 0 <= offset_ms < 100
    ended = events[-1]
    assert ended["type"] == "call.ended" and ended["reason"] == "hangup"
    assert [(leg["packets"], leg["lost"], leg["late"]) for leg in ended["legs"]] == [(n, 0, 0) for n in packets]
    kinds = [event["type"] for event in events if event["type"] not in ("transcript.partial", "metrics")]
    assert kinds == ["call.started", "speech.started", "speech.ended", "transcript.final", "call.ended"]


def test_the_text_is_the_same_at_every_speed(replayed: Replayed) -> None:
    """Real time included."""
    runs = [finals(replayed(TWILIO, "--speed", speed)) for speed in ("0", "1")]
    assert runs[0] == runs[1] and runs[0].keys() == {"inbound", "outbound"}


def test_faults_are_counted_and_the_table_tells(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    options = ["--loss", "0.1", "--burst", "3", "--jitter", "30", "--duplicate", "0.1", "--inject", "2", "--seed", "5"]
    faulted = tmp_path / "faulted.pcap"
    assert main(["replay", str(PCMU), *options, "--save", str(faulted)]) == 0
    head, first, *_ = [line.split() for line in capsys.readouterr().out.splitlines()[-5:]]
    assert head == "leg codec packets lost late twice foreign jitter position utterances words".split()
    source = load(PCMU, Faults(loss=0.1, burst=3, jitter_ms=30, duplicate=0.1, inject=2, seed=5))
    assert isinstance(source, Packets)
    again = load(faulted, NONE)  # what was saved is what arrived
    assert isinstance(again, Packets)
    for before, after in zip(source.arrivals, again.arrivals, strict=True):
        assert [a.what[1:] for a in after] == [a.what[1:] for a in before]
        assert all(abs(a.at_s - b.at_s) < 2e-6 for a, b in zip(after, before, strict=True))
    mine = [arrival for arrival in source.arrivals[0] if not arrival.foreign]
    came = {RtpPacket.parse(arrival.what.payload).sequence for arrival in mine}
    packets, lost, _, twice, foreign = map(int, first[2:7])
    assert packets == len(came) and twice == len(mine) - len(came)
    assert packets + lost == 333 - _unseen(came, 333)
    assert foreign == 2 * 333


def _unseen(came: set[int], count: int) -> int:
    """Packets before the first that came or behind the last: nobody can know of them."""
    first = min(came) if max(came) - min(came) < 0x8000 else min(number for number in came if number > 0x8000)
    span = max((number - first) & 0xFFFF for number in came) + 1
    return count - span


def test_a_source_at_a_running_worker(tmp_path: Path) -> None:
    """Live: the capture as a SIP call with loss and a stranger on the real socket, the recording as a Twilio stream."""
    with worker(tmp_path, ASR__ENGINE="moonshine") as running:
        stream = subprocess.Popen([*COMMAND, "replay", str(TWILIO), "--to", running.twilio])
        sip = f"sip:demo@127.0.0.1:{running.sip_port}"
        call = command("replay", str(G722), "--to", sip, "--loss", "0.05", "--inject", "3", "--seed", "2")
        assert stream.wait(seconds(60)) == 0
        assert call.returncode == 0, call.stderr
        calls = {each["source"]: each["call_id"] for each in running.wait_ended(2)}
        twilio, captured = running.events(calls["twilio"]), running.events(calls["sip"])
        refused = running.metric("mediaworker_rtp_wrong_source_total")
    texts = {leg: " ".join(text for *_, text in spoken) for leg, spoken in finals(twilio).items()}
    assert texts["outbound"] == "Thank you.", "what it said when it was recorded"
    assert texts["inbound"].startswith("Please enter a new extension")
    (leg,) = captured[-1]["legs"]
    source = load(G722, Faults(loss=0.05, seed=2))
    assert isinstance(source, Packets)
    sent = len(source.arrivals[0])
    assert call.stdout == f"200 OK: {sent} packets sent\n"
    assert sent - 5 <= leg["packets"] <= sent  # the last may be overtaken by the BYE
    assert 200 < refused <= 3 * 215 and leg["lost"] > 0


def test_what_goes_where(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", str(TWILIO), "--to", "sip:x@127.0.0.1:1"]) == 2
    assert main(["replay", str(PCMU), "--to", "sip:x@127.0.0.1:1", "--leg", "7"]) == 2
    capsys.readouterr()
    assert main(["replay", str(TWILIO), "--to", "ws://127.0.0.1:1/twilio/stream"]) == 1
    assert capsys.readouterr().err.count("\n") == 1


# -- containers and layers --------------------------------------------------------------------------------------------


def unzipped(path: Path) -> bytes:
    return gzip.decompress(path.read_bytes())


BROKEN = {
    "empty": b"",
    "one byte": b"\xd4",
    "text": b"no capture at all\n" * 20,
    "header only, cut": unzipped(G722)[:15],
    "packet cut": unzipped(G722)[:5000],
    "block cut": unzipped(PCMU)[:5000],
    "gzip cut": G722.read_bytes()[:3000],
    "gzip of nothing": gzip.compress(b""),
    "gzip, broken": G722.read_bytes()[:200] + bytes(200) + G722.read_bytes()[400:],
    "wrong link type": struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 147) + struct.pack("<IIII", 1, 0, 9, 9)
    + bytes(9),
    "a packet of 4 GB": struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 1) + b"\xff" * 16,
    "no packets": struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 1),
    "no interface": struct.pack("<IIIHHqI", 0x0A0D0D0A, 28, 0x1A2B3C4D, 1, 0, -1, 28)
    + struct.pack("<IIIIIIII", 6, 32, 0, 0, 0, 0, 0, 32),
}  # fmt: skip


@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_capture_is_one_line_and_exit_code_2(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, what: str
) -> None:
    path = tmp_path / "broken.pcap"
    path.write_bytes(BROKEN[what])
    assert main(["replay", str(path)]) == 2
    out, err = capsys.readouterr()
    assert not out and err.startswith(f"mediaworker: {path}: ") and err.count("\n") == 1 and len(err) < 300


@pytest.mark.parametrize("options", ["--loss 1", "--loss 0.9 --burst 2", "--jitter -1", "--speed -1", "--drift 1e9"])
def test_wrong_options_are_named(capsys: pytest.CaptureFixture[str], options: str) -> None:
    assert main(["replay", str(TWILIO), *options.split()]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_missing_file_and_a_folder(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for path in (tmp_path / "nothing.pcap", tmp_path, tmp_path / "nothing.jsonl"):
        assert main(["replay", str(path)]) == 2
        assert capsys.readouterr().err.count("\n") == 1


@given(st.sampled_from([PCMU, G722]), st.data())
def test_a_damaged_capture_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, path: Path, data: st.DataObject
) -> None:
    """Cut anywhere, some bytes changed: frames or a CaptureError, nothing else."""
    whole = bytearray(unzipped(path)[:6000])
    for _ in range(data.draw(st.integers(0, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    damaged = tmp_path_factory.getbasetemp() / "damaged"
    damaged.write_bytes(whole[: data.draw(st.integers(0, len(whole)))])
    try:
        streams.find(datagrams.datagrams(pcap.read(damaged), DatagramCounters()))
    except pcap.CaptureError:
        pass


@given(st.lists(st.tuples(st.integers(0, 2**31 * 10**6), st.binary(max_size=300)), max_size=20))
def test_what_is_written_is_read(tmp_path_factory: pytest.TempPathFactory, packets: list[tuple[int, bytes]]) -> None:
    path = tmp_path_factory.getbasetemp() / "written.pcap"
    pcap.write(path, [(micros / 1e6, packet) for micros, packet in packets])
    assert [(round(f.at_s * 1e6), f.link_type, f.data) for f in pcap.read(path)] == [
        (micros, pcap.RAW_IP, packet) for micros, packet in packets
    ]


@pytest.mark.parametrize("order", "<>")
def test_both_byte_orders_and_all_clocks(tmp_path: Path, order: str) -> None:
    path = tmp_path / "x"
    for magic, scale in ((0xA1B2C3D4, 10**6), (0xA1B23C4D, 10**9)):
        head = struct.pack(f"{order}IHHiIII", magic, 2, 4, 0, 0, 65535, 1 | 4 << 28)
        path.write_bytes(head + struct.pack(f"{order}IIII", 7, scale // 4, 2, 60) + b"ab")
        assert list(pcap.read(path)) == [(7.25, 1, b"ab")]
    section = struct.pack(f"{order}IIIHHqI", 0x0A0D0D0A, 28, 0x1A2B3C4D, 1, 0, -1, 28)
    options = struct.pack(f"{order}HHB3xHHqHH", 9, 1, 9, 14, 8, 100, 0, 0)
    interface = struct.pack(f"{order}IIHHI", 1, 20 + len(options), 113, 0, 0) + options
    interface += struct.pack(f"{order}I", 20 + len(options))
    ticks = 5_500_000_000
    packet = struct.pack(f"{order}IIIIIII", 6, 36, 0, ticks >> 32, ticks & 0xFFFFFFFF, 3, 3) + b"abc\0"
    simple = struct.pack(f"{order}III", 3, 20, 2) + b"xy\0\0" + struct.pack(f"{order}I", 20)
    unknown = struct.pack(f"{order}III", 0x0BAD, 12, 12)
    path.write_bytes(section + interface + unknown + packet + struct.pack(f"{order}I", 36) + simple)
    assert list(pcap.read(path)) == [(105.5, 113, b"abc"), (105.5, 113, b"xy")]


LAYERS = {
    1: bytes(12) + b"\x08\x00",
    113: bytes(14) + b"\x08\x00",
    276: b"\x08\x00" + bytes(18),
    0: b"\x02\0\0\0",
    108: b"\0\0\0\x02",
    101: b"",
    12: b"",
    228: b"",
}


@pytest.mark.parametrize("link_type", LAYERS)
def test_every_link_layer_gives_the_same_datagram(link_type: int) -> None:
    frame = pcap.CapturedFrame(1.5, link_type, LAYERS[link_type] + ip_packet(A, B, b"hello") + b"trailer")
    assert list(datagrams.datagrams([frame], DatagramCounters())) == [Datagram(1.5, A, B, b"hello")]


def test_tags_ipv6_fragments_and_what_is_cut() -> None:
    six = ("2001:db8::1", 7)
    packet, counters = ip_packet(six, C, b"hello"), DatagramCounters()
    tagged = bytes(12) + b"\x88\xa8\x00\x05\x81\x00\x00\x07\x86\xdd" + packet
    extended = packet[:6] + b"\0" + packet[7:40] + b"\x11\0\0\0\0\0\0\0" + packet[40:]
    fragment = bytearray(ip_packet(A, B, b"hello"))
    fragment[6] = 0x20
    frames = [
        pcap.CapturedFrame(0, 1, tagged),
        pcap.CapturedFrame(0, 101, extended),
        pcap.CapturedFrame(0, 101, bytes(fragment)),
        pcap.CapturedFrame(0, 101, ip_packet(A, B, b"hello")[:-2]),
        pcap.CapturedFrame(0, 1, bytes(12) + b"\x08\x06" + bytes(28)),
    ]
    found = list(datagrams.datagrams(frames, counters))
    assert found == [Datagram(0, six, C, b"hello")] * 2
    assert counters.cut == 1


# -- streams ----------------------------------------------------------------------------------------------------------


def flow(
    source: Any, target: Any, count: int, *, payload_type: int = 0, ssrc: int = 5, at_s: float = 0.0, size: int = 160
) -> list[Datagram]:
    return [
        Datagram(
            at_s + n * 0.02, source, target, bytes(RtpPacket(payload_type, n, n * 160, ssrc, bytes([n % 100]) * size))
        )
        for n in range(count)
    ]


def sdp(address: tuple[str, int], formats: str, at_s: float, call_id: str = "abc") -> Datagram:
    rtpmap = "".join(f"a=rtpmap:{line}\r\n" for line in formats.split(","))
    types = " ".join(line.split()[0] for line in formats.split(","))
    host, port = address
    body = f"v=0\r\no=- 1 1 IN IP4 {host}\r\nc=IN IP4 {host}\r\nm=audio {port} RTP/AVP {types}\r\n{rtpmap}"
    head = f"INVITE sip:x@y SIP/2.0\r\nCall-ID: {call_id}\r\nContent-Type: application/sdp\r\n\r\n"
    return Datagram(at_s, ("192.0.2.9", 5060), ("192.0.2.8", 5060), (head + body).encode())


def test_two_directions_are_one_call_and_others_are_others() -> None:
    noise = [Datagram(0.1, A, ("192.0.2.7", 53), b"\x80" + bytes(40)), *flow(A, ("192.0.2.7", 99), 3)]
    found = streams.find([*flow(A, B, 20), *flow(B, A, 20, ssrc=6), *flow(A, C, 20, payload_type=8), *noise])
    assert [(s.source, s.target, s.descriptions[0].codec.name) for s in found.streams] == [
        (A, B, "PCMU"), (B, A, "PCMU"), (A, C, "PCMA"),
    ]  # fmt: skip
    first, second, third = (stream.call for stream in found.streams)
    assert first == second != third


def test_what_the_sip_says_is_believed() -> None:
    """A dynamic payload type, its events, and a re-INVITE that moves to another codec."""
    own = sdp(B, "97 PCMU/8000,98 telephone-event/8000", 0.0)
    changed = sdp(B, "8 PCMA/8000,98 telephone-event/8000", 1.0)
    packets = flow(A, B, 50, payload_type=97) + flow(A, B, 50, payload_type=8, at_s=1.0)
    (stream,) = streams.find(sorted([own, changed, *packets], key=lambda d: d.at_s)).streams
    assert stream.call == "abc"
    assert [(d.codec.name, d.payload_type, d.telephone_event) for d in stream.descriptions] == [
        ("PCMU", 97, 98), ("PCMA", 8, 98),
    ]  # fmt: skip
    assert [d.at_s for d in stream.descriptions] == [0.0, 1.0]


def test_a_stranger_belongs_to_the_leg_that_it_reached() -> None:
    stranger = ("203.0.113.1", 9)
    (stream,) = streams.find([*flow(A, B, 40), *flow(stranger, B, 12, ssrc=66)]).streams
    assert stream.source == A and len(stream.packets) == 52


def test_an_unknown_codec_is_named_and_may_be_told() -> None:
    packets = flow(A, B, 20, payload_type=97) + flow(A, B, 4, payload_type=101, size=4)
    with pytest.raises(pcap.CaptureError, match="payload type 97"):
        streams.find(packets)
    (stream,) = streams.find(packets, codec=Codec.PCMA).streams
    assert stream.descriptions[0] == streams.Description(0.0, Codec.PCMA, 97, 101)
    (stream,) = streams.find(packets, codec=Codec.PCMA, payload_type=101).streams
    assert stream.descriptions[0].payload_type == 101
    with pytest.raises(pcap.CaptureError, match="no RTP stream"):
        streams.find(flow(A, B, 5))


def test_payload_types_are_renumbered_for_the_call() -> None:
    packet = bytes(RtpPacket(97, 1, 2, 3, b"abc", marker=True))
    assert RtpPacket.parse(renumber(packet, {97: 8})) == RtpPacket(8, 1, 2, 3, b"abc", marker=True)
    assert renumber(packet, {0: 8}) == packet and renumber(b"\x80", {0: 8}) == b"\x80"


# -- recordings -------------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.floats(0, 1e6), st.text(max_size=50) | st.just('{"event":"stop","streamSid":"MZ"}'))))
def test_recordings_are_written_as_they_are_read(messages: list[tuple[float, str]]) -> None:
    for at_s, text in messages:
        line = recording.print_line(recording.RecordedMessage(at_s, text))
        assert "\n" not in line
        assert recording._parse(line) == (round(at_s, 6), text)


def test_a_bare_recording_gets_its_arrivals_from_the_timestamps() -> None:
    path = Path(__file__).parents[1] / "data" / "twilio" / "golden.jsonl"
    messages = recording.read(path)
    assert len(messages) == len(path.read_text().splitlines())
    assert messages[0].at_s == messages[1].at_s == 0.0
    media = [message for message in messages if recording.is_media(message.text)]
    assert [round(message.at_s, 3) for message in media[:4]] == [0.02, 0.02, 0.04, 0.04]


@pytest.mark.parametrize("line", ["", "{", "[1]", '{"at_s": "x", "message": {}}', "\udc80", '{"event": "media"}'])
def test_a_broken_recording_is_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path, line: str) -> None:
    path = tmp_path / "broken.jsonl"
    path.write_text(f'{{"event":"connected"}}\n{line}\n', encoding="utf-8", errors="surrogateescape")
    assert main(["replay", str(path)]) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"mediaworker: {path}: ") and err.count("\n") == 1


def test_a_faulted_recording_keeps_its_frame(tmp_path: Path) -> None:
    """Start first and stop last, whatever happens to the audio; and what was saved is what arrived."""
    faults = Faults(loss=0.2, burst=4, jitter_ms=200, reorder=0.1, duplicate=0.1, delay_ms=100, seed=9)
    source = load(TWILIO, faults)
    assert isinstance(source, Messages)
    kinds = [json.loads(arrival.what.text)["event"] for arrival in source.arrivals]
    assert kinds[:2] == ["connected", "start"] and kinds[-1] == "stop" and 300 < kinds.count("media") < 430
    save(tmp_path / "x.jsonl", source)
    again = load(tmp_path / "x.jsonl", NONE)
    assert isinstance(again, Messages)
    assert [a.what.text for a in again.arrivals] == [a.what.text for a in source.arrivals]


# -- the link ---------------------------------------------------------------------------------------------------------


def carried(faults: Faults, count: int = 20_000, **options: Any) -> list[tuple[float, int]]:
    link = Link[int](faults, **options)
    return [(a.at_s, a.what) for a in link.carry((n * 0.02, n) for n in range(count))]


def test_a_link_without_faults_changes_nothing() -> None:
    arrivals = carried(NONE, 100)
    assert arrivals == [(n * 0.02, n) for n in range(100)]


@pytest.mark.parametrize(("loss", "burst"), [(0.01, 1), (0.3, 1), (0.05, 5), (0.3, 10)])
def test_loss_has_its_share_and_its_bursts(loss: float, burst: float) -> None:
    arrivals = carried(Faults(loss=loss, burst=burst, seed=3), 100_000)
    gaps = [after - before - 1 for (_, before), (_, after) in pairwise(arrivals) if after > before + 1]
    assert sum(gaps) / 100_000 == pytest.approx(loss, rel=0.1)
    independent = 1 / (1 - loss) if burst == 1 else burst
    assert sum(gaps) / len(gaps) == pytest.approx(independent, rel=0.1)


def test_the_seed_is_everything_and_one_fault_does_not_change_another() -> None:
    faults = Faults(loss=0.1, jitter_ms=40, seed=1)
    assert carried(faults) == carried(faults) != carried(replace(faults, seed=2))
    lost = {n for _, n in carried(faults)}
    assert lost == {n for _, n in carried(replace(faults, jitter_ms=0, reorder=0.2, duplicate=0.3, drift_ppm=50))}


def test_delay_jitter_drift_and_order() -> None:
    arrivals = carried(Faults(jitter_ms=50, delay_ms=100, seed=1))
    delays = [at_s - n * 0.02 for at_s, n in arrivals]
    assert min(delays) == pytest.approx(0.1, abs=0.001) and max(delays) == pytest.approx(0.15, abs=0.001)
    assert arrivals == sorted(arrivals) and [n for _, n in arrivals] != sorted(n for _, n in arrivals)
    arrivals = carried(Faults(jitter_ms=50, seed=1), ordered=True)
    assert [n for _, n in arrivals] == sorted(n for _, n in arrivals)
    arrivals = carried(Faults(drift_ppm=200))
    assert arrivals[-1][0] == pytest.approx(19_999 * 0.02 / 1.0002)
    arrivals = carried(Faults(duplicate=0.25, seed=1))
    assert len(arrivals) - 20_000 == pytest.approx(5000, rel=0.1)
    arrivals = carried(Faults(reorder=0.1, seed=1))
    assert sum(after < before for (_, before), (_, after) in pairwise(arrivals)) == pytest.approx(1800, rel=0.15)
    arrivals = carried(Faults(inject=2.5, seed=1), 100, stranger=lambda beside, random: -1)
    assert sum(n == -1 for _, n in arrivals) == 250


def test_the_table_of_nothing() -> None:
    assert table([]).split()[0] == "leg"


def test_a_speaker_who_goes_on_while_the_clock_stands_still_does_not_stop_it(replayed: Replayed) -> None:
    """A pause and its end within one tick: the speculative final is never answered, and nobody waits for it."""
    events = replayed(PCMU, "--jitter", "120", "--seed", "1")
    assert events[-1]["type"] == "call.ended" and finals(events)["0"][0][2]
