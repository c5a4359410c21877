"""Some 200 media files: containers times what happens to files, against what FFmpeg decodes of the same bytes."""

from __future__ import annotations

import io
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import av
import av.error

from lab.media import material
from mediaworker.files.media import RATE_HZ, MediaError, MediaFile
from tools.field.outcome import Outcome, one_line

SECONDS = 6.0
NEAR_S = 0.1
MAX_S = 3600.0
Fault = Callable[[bytes, bytes, random.Random], bytes]


@dataclass(frozen=True, slots=True)
class Change:
    name: str
    reference: str
    make: Fault
    """From two files of a kind."""
    whole: bool = False
    """Nothing is wrong with it: there is no warning, and it is as long as it was."""


def _cut(one: bytes, other: bytes, chance: random.Random) -> bytes:
    return one[: len(one) * chance.randrange(40, 95) // 100]


def _bit(one: bytes, other: bytes, chance: random.Random) -> bytes:
    changed = bytearray(one)
    changed[chance.randrange(len(one) // 4, len(one))] ^= 1 << chance.randrange(8)
    return bytes(changed)


def _bit_in_head(one: bytes, other: bytes, chance: random.Random) -> bytes:
    changed = bytearray(one)
    changed[chance.randrange(min(400, len(one)))] ^= 1 << chance.randrange(8)
    return bytes(changed)


def _hole(one: bytes, other: bytes, chance: random.Random) -> bytes:
    at = chance.randrange(len(one) // 4, len(one) * 3 // 4)
    return one[:at] + one[at + 3000 :]


def _zeros(one: bytes, other: bytes, chance: random.Random) -> bytes:
    at = chance.randrange(len(one) // 4, len(one) * 3 // 4)
    return one[:at] + bytes(3000) + one[at + 3000 :]


CHANGES = (
    Change("as it is", "", lambda one, other, chance: one, whole=True),
    Change("two of them, one behind the other", "cat a.ogg b.ogg", lambda one, other, chance: one + other),
    Change("the same twice", "HLS segments", lambda one, other, chance: one + one),
    Change("three of them", "", lambda one, other, chance: one + other + one),
    Change("garbage between two", "", lambda one, other, chance: one + chance.randbytes(5000) + other),
    Change("cut off", "a recorder without power", _cut),
    Change("a wrong bit", "one bit in a WebM cluster", _bit),
    Change("another", "", _bit),
    Change("a wrong bit in its head", "", _bit_in_head),
    Change("a hole", "lost pages", _hole),
    Change("zeros in it", "a full disk", _zeros),
)


def run(folder: Path) -> list[Outcome]:
    folder.mkdir(parents=True)
    found = []
    first, second = (material.recording(SECONDS, seed)[0] for seed in (7, 8))
    for name, write in material.CONTAINERS.items():
        pair = []
        for number, samples in enumerate((first, second)):
            path = folder / f"{number}-{name}"
            write(path, samples)
            pair.append(path.read_bytes())
        for number, change in enumerate(CHANGES):
            data = change.make(pair[0], pair[1], random.Random(f"{name} {number}"))
            found.append(Outcome("files", f"{name}: {change.name}", change.reference, judged(name, data, change.whole)))
    return found


def judged(name: str, data: bytes, whole: bool) -> str:
    """What is wrong with how the worker reads it; empty: nothing. Never shorter than what FFmpeg decodes."""
    there_s = decoded_s(data)
    try:
        file = MediaFile(io.BytesIO(data), name, channels="mix", max_s=MAX_S)
        heard_s = sum(block.shape[1] for block in file.blocks()) / RATE_HZ
    except MediaError as error:
        return "" if there_s == 0 else f"refused, and FFmpeg decodes {there_s:.1f} s: {one_line(error)}"
    if heard_s < there_s - NEAR_S:
        return f"{heard_s:.1f} s, and FFmpeg decodes {there_s:.1f}"
    if whole and file.damaged:
        return f"{file.damaged} warnings of damage"
    return ""


def decoded_s(data: bytes) -> float:
    """By FFmpeg's libraries, frame by frame, whatever their times say; what cannot be decoded is left out."""
    total = 0.0
    try:
        with av.open(io.BytesIO(data), metadata_errors="ignore") as container:
            for packet in container.demux(container.streams.audio[0]):
                try:
                    for frame in packet.decode():
                        total += frame.samples / frame.sample_rate
                except av.error.FFmpegError:
                    continue
    except (av.error.FFmpegError, IndexError, ValueError):
        return total
    return total
