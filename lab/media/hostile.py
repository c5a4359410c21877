"""Files that should not be, each with what is right to make of it. What is written by hand says which field lies.

- refused: there is no sound to be had; an error, and no text.
- partial: some of the speech is there. What can be decoded is, up to the end or to an error.
- fine: odd, and all there.

Whatever the class: no crash, no hang, bounded memory, and nothing else of this machine or its network is opened.
"""

from __future__ import annotations

import io
import struct
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np

from lab.media import material
from lab.media.material import RATE_HZ, Samples, Spoken, encode

Expected = Literal["refused", "partial", "fine"]
SECONDS = 6.0
BOMB_HOURS = 30


@dataclass(frozen=True, slots=True)
class Hostile:
    name: str
    """Of the file, which says what is wrong with it."""
    expected: Expected
    make: Callable[[Path], None]
    """Writes it to the path."""
    bomb: Literal["", "time", "memory"] = ""
    """What it takes much of, small as it is: hours of samples, or gigabytes unless they are denied."""
    follows: bool = False
    """Names another file, or a port."""


def corpus(folder: Path) -> list[Hostile]:
    """`folder`: for what they are made of, and for `canary.wav`, the speech that playlists point to. Those of them that
    name it without a folder mean the folder they lie in, so write them there too."""
    folder.mkdir(parents=True, exist_ok=True)
    whole = recorded()
    (folder / "canary.wav").write_bytes(whole["16k.wav"])
    return [
        *nothing(), *_truncated(whole), *_misnamed(whole), *_waves(recording()[0]), *bombs(), *_pictures(whole),
        *_playlists(folder / "canary.wav"), *_timestamps(recording()[0]), *_streams(),
    ]  # fmt: skip


def recording() -> tuple[Samples, list[Spoken]]:
    """What all of them are made of."""
    samples, table = material.recording(SECONDS, seed=7)
    assert table, "without speech a leak could not be heard"
    return samples, table


@cache
def recorded() -> dict[str, bytes]:
    """The recording in each container."""
    with tempfile.TemporaryDirectory() as folder:
        for name, write in material.CONTAINERS.items():
            write(Path(folder) / name, recording()[0])
        return {name: (Path(folder) / name).read_bytes() for name in material.CONTAINERS}


def _bytes(
    name: str, expected: Expected, data: bytes, bomb: Literal["", "time", "memory"] = "", follows: bool = False
) -> Hostile:
    def write(path: Path) -> None:
        path.write_bytes(data)

    return Hostile(name, expected, write, bomb, follows)


# -- not media ---------------------------------------------------------------------------------------------------------


def nothing() -> Iterator[Hostile]:
    yield _bytes("empty.wav", "refused", b"")
    yield _bytes("one-byte.mp3", "refused", b"R")
    yield _bytes("zeros.wav", "refused", bytes(100_000))
    for seed in range(3):
        yield _bytes(f"random-{seed}.mp3", "refused", np.random.default_rng(seed).bytes(65536))
    yield _bytes("text.txt", "refused", b"one two three four\n" * 500)
    yield _bytes("page.html", "refused", b"<!doctype html><title>404</title><p>Not found</p>" * 50)
    yield _bytes("names.csv", "refused", b"name,number\nAnna,12\n" * 100)
    # Text, but FFmpeg knows subtitles and takes them for a container.
    yield _bytes("subtitles.srt", "refused", b"1\n00:00:01,000 --> 00:00:02,000\none two three\n\n")
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("speech.wav", bytes(1_000_000))
    yield _bytes("archive.zip", "refused", archive.getvalue())


def _truncated(whole: dict[str, bytes]) -> Iterator[Hostile]:
    # Of the WAVs of many rates one will do.
    kinds = {name: data for name, data in whole.items() if not name.endswith("k.wav") and "96k" not in name}
    for name, data in (kinds | {"16k.wav": whole["16k.wav"]}).items():
        # Its index is its end.
        lost: Expected = "refused" if name == "moov-behind.m4a" else "partial"
        yield _bytes(f"cut-at-12-{name}", "refused", data[:12])
        for percent in (30, 60, 90):
            yield _bytes(f"cut-at-{percent}%-{name}", lost, data[: len(data) * percent // 100])
        yield _bytes(f"cut-before-last-{name}", "partial", data[:-1])


def _misnamed(whole: dict[str, bytes]) -> Iterator[Hostile]:
    for name, wrong in (
        ("44k1.mp3", "mp3.wav"), ("16k.wav", "wav.mp3"), ("moov-behind.m4a", "m4a.txt"), ("opus.ogg", "ogg.flac"),
        ("opus.webm", "webm.m3u8"), ("44k1.flac", "flac.jpg"),
    ):  # fmt: skip
        yield _bytes(f"really-{wrong}", "fine", whole[name])


# -- WAV ---------------------------------------------------------------------------------------------------------------


def wave(
    data: bytes, *, tag: int = 1, channels: int = 1, rate: int = RATE_HZ, bits: int = 16, size: int | None = None
) -> bytes:
    """`size` is what the header says of the data."""
    align = channels * bits // 8
    form = struct.pack("<HHIIHH", tag, channels, rate, rate * align % 2**32, align % 2**16, bits)
    size = len(data) if size is None else size
    head = struct.pack("<4sI4s4sI", b"RIFF", min(36 + size, 2**32 - 1), b"WAVE", b"fmt ", len(form)) + form
    return head + struct.pack("<4sI", b"data", size) + data


def _waves(samples: Samples) -> Iterator[Hostile]:
    data = samples.tobytes()
    yield _bytes("header-only.wav", "refused", wave(b""))
    yield _bytes("one-sample.wav", "fine", wave(data[:2]))
    yield _bytes("half-a-sample-more.wav", "fine", wave(data + b"\0"))
    yield _bytes("claims-4-gb.wav", "partial", wave(data, size=2**32 - 100))
    yield _bytes("claims-nothing.wav", "partial", wave(data, size=0))
    yield _bytes("no-channels.wav", "refused", wave(data, channels=0))
    yield _bytes("65535-channels.wav", "refused", wave(data, channels=65535))
    yield _bytes("0-hz.wav", "refused", wave(data, rate=0))
    # Legal to FFmpeg: 96,000 samples at 1 Hz are 27 hours, and 2 GHz plays them within 50 us.
    yield _bytes("1-hz.wav", "partial", wave(data, rate=1), bomb="time")
    yield _bytes("2-ghz.wav", "partial", wave(data, rate=2**31 - 1))
    yield _bytes("0-bits.wav", "refused", wave(data, bits=0))
    yield _bytes("unknown-codec.wav", "refused", wave(data, tag=0x6AFE))
    floats = samples.astype(np.float32) / 32768
    for name, value in (("nan", np.nan), ("inf", np.inf), ("huge", 1e30)):
        # A value that no sample can be, in every 50th of the first half.
        bad = floats.copy()
        bad[: len(bad) // 2 : 50] = value
        yield _bytes(f"{name}-samples.wav", "partial", wave(bad.tobytes(), tag=3, bits=32))


# -- much out of little ------------------------------------------------------------------------------------------------


def bombs() -> Iterator[Hostile]:
    yield Hostile("30-hours.flac", "fine", lambda path: _flac_of_silence(path, BOMB_HOURS), bomb="time")
    yield Hostile("30-hours.ogg", "fine", lambda path: _opus_of_silence(path, BOMB_HOURS), bomb="time")


def _crc_table(polynomial: int, bits: int) -> list[int]:
    table = []
    for byte in range(256):
        value = byte << (bits - 8)
        for _ in range(8):
            value = (value << 1 ^ (polynomial if value >> (bits - 1) else 0)) & (1 << bits) - 1
        table.append(value)
    return table


def _crc(data: bytes, table: list[int], bits: int) -> int:
    value = 0
    for byte in data:
        value = table[value >> (bits - 8) ^ byte] ^ value << 8 & (1 << bits) - 1
    return value


def _flac_of_silence(path: Path, hours: int, rate: int = 8000, block: int = 65535) -> None:
    """RFC 9639: frames of 65,535 equal samples, 16 bytes each. No field lies."""
    frames = hours * 3600 * rate // block
    total = frames * block
    packed = rate << 44 | 0 << 41 | 15 << 36 | total
    info = struct.pack(">HH", block, block) + bytes(6) + packed.to_bytes(8, "big") + bytes(16)
    crc8, crc16 = _crc_table(0x07, 8), _crc_table(0x8005, 16)
    with path.open("wb") as file:
        file.write(b"fLaC\x80\0\0\x22" + info)
        for number in range(frames):
            # Fixed block size; 16-bit block size behind, 8 kHz; mono, 16 bits; the frame's number as UTF-8 would be.
            head = b"\xff\xf8\x74\x08" + chr(number).encode("utf-8", "surrogatepass") + struct.pack(">H", block - 1)
            frame = head + bytes([_crc(head, crc8, 8)]) + b"\0\0\0"  # one constant subframe: 0
            file.write(frame + struct.pack(">H", _crc(frame, crc16, 16)))


_REVERSED = bytes(int(f"{byte:08b}"[::-1], 2) for byte in range(256))


def ogg_page(packets: bytes, sizes: list[int], number: int, granule: int, flags: int = 0) -> bytes:
    page = struct.pack("<4sBBQIIIB", b"OggS", 0, flags, granule, 1, number, 0, len(sizes)) + bytes(sizes) + packets
    # Ogg's checksum is zlib's with every bit order turned around, and without its inversions.
    mirrored = zlib.crc32(page.translate(_REVERSED), 0xFFFFFFFF) ^ 0xFFFFFFFF
    return page[:22] + struct.pack("<I", int(f"{mirrored:032b}"[::-1], 2)) + page[26:]


def _opus_of_silence(path: Path, hours: int) -> None:
    """RFC 7845 and 6716: packets of one byte that say "120 ms, nothing sent". No field lies."""
    head = b"OpusHead\x01\x01" + struct.pack("<HIHB", 0, 48000, 0, 0)
    tags = b"OpusTags" + struct.pack("<II", 0, 0)
    packet = b"\x19"  # SILK, narrow band, 60 ms; two frames of equal size: 0
    pages = hours * 3600 * 1000 // 120 // 255
    with path.open("wb") as file:
        file.write(ogg_page(head, [len(head)], 0, 0, flags=2) + ogg_page(tags, [len(tags)], 1, 0))
        for number in range(pages):
            granule = (number + 1) * 255 * 5760
            last = 4 if number == pages - 1 else 0
            file.write(ogg_page(packet * 255, [1] * 255, number + 2, granule, flags=last))


# -- pictures ----------------------------------------------------------------------------------------------------------


def png(width: int, height: int) -> bytes:
    """A header of that size over one row of pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")


def jpeg(width: int, height: int) -> bytes:
    """One grey component; the frame header's size, and next to no data."""
    quantisation = b"\xff\xdb\x00\x43\x00" + bytes([1] * 64)
    frame = b"\xff\xc0" + struct.pack(">HBHHBBBB", 11, 8, height, width, 1, 1, 0x11, 0)
    codes = b"".join(b"\xff\xc4\x00\x14" + kind + b"\x01" + bytes(15) + b"\x00" for kind in (b"\x00", b"\x10"))
    scan = b"\xff\xda\x00\x08\x01\x01\x00\x00\x3f\x00" + bytes(64)
    return b"\xff\xd8" + quantisation + frame + codes + scan + b"\xff\xd9"


def _id3(picture: bytes, mime: bytes) -> bytes:
    """ID3v2.3 with an attached picture."""
    body = b"\0" + mime + b"\0\x03\0" + picture
    frame = struct.pack(">4sIH", b"APIC", len(body), 0) + body
    size = bytes(len(frame) >> shift & 127 for shift in (21, 14, 7, 0))
    return b"ID3\x03\0\0" + size + frame


def _pictures(whole: dict[str, bytes]) -> Iterator[Hostile]:
    yield _bytes("photo.jpg", "refused", jpeg(64, 64))
    yield _bytes("gigantic.png", "refused", png(2**31 - 1, 2**31 - 1))
    yield _bytes("large.png", "refused", png(30000, 30000))
    yield _bytes("gigantic.jpg", "refused", jpeg(65500, 65500))
    yield _bytes("gigantic.mjpeg", "refused", jpeg(65500, 65500) * 20)
    yield _bytes("cover-only.mp3", "refused", _id3(jpeg(64, 64), b"image/jpeg"))
    yield _bytes("gigantic-cover.mp3", "fine", _id3(png(30000, 30000), b"image/png") + whole["44k1.mp3"])
    yield Hostile("video-only.mp4", "refused", lambda path: material.video_only(path, 2))
    # The tag says that it is 256 MB long.
    yield _bytes("endless-tag.mp3", "refused", b"ID3\x03\0\0\x7f\x7f\x7f\x7f" + whole["44k1.mp3"])


# -- files that name others --------------------------------------------------------------------------------------------


def playlists(target: str, suffix: str) -> dict[str, str]:
    """Every kind that FFmpeg follows, or followed once; `target` is a path or a URL."""
    media = "#EXTM3U\n#EXT-X-TARGETDURATION:10\n{extra}#EXTINF:9,\n{segment}\n#EXT-X-ENDLIST\n"
    dash = (
        '<?xml version="1.0"?><MPD xmlns="urn:mpeg:dash:schema:mpd:2011" type="static" '
        'profiles="urn:mpeg:dash:profile:isoff-on-demand:2011" mediaPresentationDuration="PT9S"><Period><AdaptationSet '
        f'mimeType="audio/wav"><Representation id="1" bandwidth="1"><BaseURL>{target}</BaseURL></Representation>'
        "</AdaptationSet></Period></MPD>"
    )
    return {
        f"playlist-{suffix}.m3u8": media.format(extra="", segment=target),
        f"playlist-concat-{suffix}.m3u8": media.format(extra="", segment=f"concat:{target}|{target}"),
        f"playlist-key-{suffix}.m3u8": media.format(
            extra=f'#EXT-X-KEY:METHOD=AES-128,URI="{target}",IV=0x0\n', segment=target
        ),
        f"playlist-map-{suffix}.m3u8": media.format(extra=f'#EXT-X-MAP:URI="{target}"\n', segment=target),
        f"master-{suffix}.m3u8": f"#EXTM3U\n#EXT-X-STREAM-INF:BANDWIDTH=1\n{target}\n",
        f"concat-{suffix}.txt": f"ffconcat version 1.0\nfile {target}\n",
        f"concat-options-{suffix}.txt": f"ffconcat version 1.0\nfile {target}\noption protocol_whitelist file,http\n",
        f"dash-{suffix}.mpd": dash,
        f"old-{suffix}.pls": f"[playlist]\nNumberOfEntries=1\nFile1={target}\n",
        f"old-{suffix}.asx": f'<asx version="3.0"><entry><ref href="{target}"/></entry></asx>',
    }


SDP = "v=0\no=- 0 0 IN IP4 127.0.0.1\ns=-\nc=IN IP4 127.0.0.1\nt=0 0\nm=audio 47812 RTP/AVP 0\n"
"""FFmpeg binds its port and waits there."""


def _playlists(canary: Path) -> Iterator[Hostile]:
    for suffix, target in (
        # Nobody listens on port 9: to refuse is right, to be refused is not.
        ("absolute", str(canary)), ("relative", canary.name), ("file", f"file://{canary}"),
        ("url", "http://127.0.0.1:9/canary.wav"),
    ):  # fmt: skip
        for name, text in playlists(target, suffix).items():
            yield _bytes(name, "refused", text.encode(), follows=True)
    index = b"# VobSub index file, v7\nsize: 720x480\nid: en, index: 0\ntimestamp: 00:00:01:000, filepos: 000000000\n"
    yield _bytes("opens-its-sub.idx", "refused", index, follows=True)
    yield _bytes("session.sdp", "refused", SDP.encode(), follows=True)


# -- Matroska with its own mind about time -----------------------------------------------------------------------------


def _element(name: int, *parts: bytes) -> bytes:
    data = b"".join(parts)
    return name.to_bytes((name.bit_length() + 7) // 8, "big") + (1 << 56 | len(data)).to_bytes(8, "big") + data


def _number(name: int, value: int) -> bytes:
    return _element(name, value.to_bytes(8, "big"))


def matroska(samples: Samples, starts_ms: list[int], codec: bytes = b"A_PCM/INT/LIT", claimed: int = 0) -> bytes:
    """16 kHz linear; a cluster with an equal share of the samples at each start. `claimed`: what the codec's private
    data says of its size."""
    audio = _element(0xE1, _element(0xB5, struct.pack(">d", RATE_HZ)), _number(0x9F, 1), _number(0x6264, 16))
    private = b"\x63\xa2" + (1 << 56 | claimed).to_bytes(8, "big") if claimed else b""
    numbers = _number(0xD7, 1) + _number(0x73C5, 1) + _number(0x83, 2)
    track = _element(0xAE, numbers, _element(0x86, codec), audio, private)
    clusters = [
        _element(0x1F43B675, _number(0xE7, start), _element(0xA3, b"\x81\0\0\x80", share.tobytes()))
        for start, share in zip(starts_ms, np.array_split(samples, len(starts_ms)), strict=True)
    ]
    header = _element(0x1A45DFA3, _element(0x4282, b"matroska"))
    info = _element(0x1549A966, _number(0x2AD7B1, 1_000_000))
    return header + _element(0x18538067, info, _element(0x1654AE6B, track), *clusters)


def _timestamps(samples: Samples) -> Iterator[Hostile]:
    shares = 60
    steps = [round(number * 1000 * SECONDS / shares) for number in range(shares)]
    half = shares // 2
    far = [step + (1_000_000_000 if number >= half else 0) for number, step in enumerate(steps)]
    yield _bytes("honest.mkv", "fine", matroska(samples, steps))
    yield _bytes("jumps-a-million-seconds.mkv", "fine", matroska(samples, far))
    yield _bytes("jumps-back.mkv", "fine", matroska(samples, steps[half:] + steps[:half]))
    yield _bytes("runs-backwards.mkv", "fine", matroska(samples, steps[::-1]))
    yield _bytes("stands-still.mkv", "fine", matroska(samples, [0] * shares))
    yield _bytes("end-of-time.mkv", "fine", matroska(samples, [*steps[:-1], 2**63 - 1]))
    yield _bytes("header-beyond-its-track.mkv", "partial", matroska(samples, steps, claimed=200_000_000))
    yield _bytes("unknown-codec.mkv", "refused", matroska(samples, steps, b"A_NOTHING"))


# -- streams that change, or keep to themselves ------------------------------------------------------------------------


def _encoded(name: str, codec: str, rate: int, **more: Any) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        encode(Path(folder) / name, recording()[0], codec, rate, **more)
        return (Path(folder) / name).read_bytes()


@cache
def _streams() -> list[Hostile]:
    return list(_unsteady(recorded()))


def _unsteady(whole: dict[str, bytes]) -> Iterator[Hostile]:
    yield _bytes("chained.ogg", "partial", whole["opus.ogg"] * 2)
    slow, fast = (_encoded(f"{rate}.ogg", "flac", rate) for rate in (8000, 44100))
    yield _bytes("chained-8k-44k1.ogg", "partial", slow + fast)
    slow, fast = (_encoded(f"{rate}.aac", "aac", rate) for rate in (8000, 48000))
    yield _bytes("8k-then-48k.aac", "partial", slow + fast)
    yield _bytes("16k-then-44k1.mp3", "partial", _encoded("16000.mp3", "libmp3lame", 16000) + whole["44k1.mp3"])
    yield _bytes("noise-in-the-midst.mp3", "partial", noisy(whole["44k1.mp3"]))
    yield _bytes("noise-in-the-midst.ts", "partial", noisy(whole["at-40000s.ts"]))
    secret = {"encryption_scheme": "cenc-aes-ctr", "encryption_key": "00" * 15 + "01", "encryption_kid": "00" * 16}
    yield _bytes("encrypted.mp4", "refused", _encoded("encrypted.mp4", "aac", 44100, muxer=secret))
    yield _bytes("80-million-samples.m4a", "refused", _many_samples(whole["moov-in-front.m4a"]), "memory")
    yield _bytes("gigabyte-of-index.mov", "refused", _compressed_index(), "memory")


def noisy(data: bytes) -> bytes:
    third = len(data) // 3
    return data[:third] + np.random.default_rng(1).bytes(third) + data[2 * third :]


def _many_samples(data: bytes) -> bytes:
    """The tables that an MP4's index is built from claim 80 million samples: of one byte, of equal length, in each
    chunk. FFmpeg takes 24 bytes for each, and gives up only beyond 2 GB."""
    many = 80_000_000
    for kind, at, value in ((b"stts", 12, many), (b"stsz", 8, 1), (b"stsz", 12, many), (b"stsc", 16, many)):
        place = data.index(kind) + at
        data = data[:place] + struct.pack(">I", value) + data[place + 4 :]
    return data


def _atom(kind: bytes, *parts: bytes) -> bytes:
    data = b"".join(parts)
    return struct.pack(">I4s", 8 + len(data), kind) + data


def _compressed_index() -> bytes:
    """QuickTime's compressed `moov`: a gigabyte of zeros from a megabyte. No field lies."""
    piece, count = bytes(1 << 20), 1 << 10
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    # Behind a full flush nothing refers to what went before: the same bytes may come again.
    packed = packer.compress(piece) + packer.flush(zlib.Z_FULL_FLUSH)
    size = len(piece) * count
    checksum = struct.pack(">I", size % 65521 << 16 | 1)  # Adler-32 of zeros
    stream = b"\x78\x9c" + packed * count + b"\x03\x00" + checksum
    packed_index = _atom(b"cmov", _atom(b"dcom", b"zlib"), _atom(b"cmvd", struct.pack(">I", size), stream))
    return _atom(b"ftyp", b"qt  ", bytes(4)) + _atom(b"moov", packed_index)
