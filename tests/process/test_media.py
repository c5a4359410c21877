"""Files as they come: read exactly, in little memory, and without harm from those that should not be."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import socket
import subprocess
import wave
from itertools import pairwise
from pathlib import Path
from random import Random

import av
import av.error
import numpy as np
import pytest

from config import Endpointing
from config.settings import Files
from lab.media import hostile as hostile_media
from lab.media import material
from lab.media.forked_decoder import read_all
from lab.media.material import LAG_S, LATE_S
from lab.patience import timeout, until
from mediaworker.files import decoder_process
from mediaworker.files.decoder_process import DecoderProcess, FileRefused, ReadingPlan
from mediaworker.files.media import RATE_HZ, MediaError, MediaFile
from mediaworker.files.messages import Chunk, Ended, Failed, FromReader, Opened

SETTINGS = Files()
MIX = ReadingPlan("mix", Endpointing())


async def read(path: Path, plan: ReadingPlan = MIX, settings: Files = SETTINGS) -> tuple[list[Chunk], Opened, Ended]:
    """All of a file, by the child. Raises Refused."""
    file = os.open(path, os.O_RDONLY)
    try:
        async with DecoderProcess(file, path.name, plan, settings) as reading:
            reading.grant(10_000)
            chunks = [message async for message in reading.messages() if isinstance(message, Chunk)]
            assert reading.facts.opened is not None and reading.facts.ended is not None
            return chunks, reading.facts.opened, reading.facts.ended
    finally:
        os.close(file)


def readers() -> list[str]:
    """Children of this process that read files, and those that nobody has waited for."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, parent = stat.read_text().rpartition(")")[2].split()[:2]
            ours = state == "Z" or b"files.decoder" in (stat.parent / "cmdline").read_bytes()
            if int(parent) == os.getpid() and ours:
                found.append(stat.parent.name)
    return found


def decoded(path: Path, channels: str = "mix") -> np.ndarray:
    with path.open("rb") as file:
        media = MediaFile(file, path.name, channels=channels, max_s=100_000.0)  # type: ignore[arg-type]
        blocks = list(media.blocks())
        media.close()
    return np.concatenate(blocks, axis=1)


# -- what is there ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def container_readings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[FromReader]]:
    """Container → what its decoder says."""
    folder = tmp_path_factory.mktemp("containers")
    for name, data in hostile_media.recorded().items():
        (folder / name).write_bytes(data)
    return {path.name: reading.said for path, reading in read_all(list(folder.iterdir())).items()}


@pytest.mark.parametrize("name", material.CONTAINERS)
def test_any_container_gives_its_speech_at_its_time(name: str, container_readings: dict[str, list[FromReader]]) -> None:
    _, table = hostile_media.recording()
    opened, *_, ended = container_readings[name]
    chunks = [each for each in container_readings[name] if isinstance(each, Chunk)]
    late_s = LATE_S if name == "audio-late.mkv" else LAG_S.get(name, 0.0)
    assert isinstance(opened, Opened) and isinstance(ended, Ended)
    assert opened.channels == 1 and ended.damaged == 0
    assert ended.duration_s == pytest.approx(hostile_media.SECONDS + late_s, abs=0.15)
    for chunk, spoken in zip(chunks, table, strict=True):
        assert chunk.start / 8000 == pytest.approx(spoken.start_s + late_s, abs=0.15)
        assert chunk.end / 8000 == pytest.approx(spoken.end_s + late_s, abs=0.25)


@pytest.mark.parametrize("name", ["16k.wav", "44k1.flac", "48k.wav"])
def test_no_sample_is_lost_or_moved(name: str, tmp_path: Path) -> None:
    samples, _ = material.recording(5.0, seed=4)
    path = tmp_path / name
    material.CONTAINERS[name](path, samples)
    (found,) = decoded(path)
    assert len(found) == len(samples)
    if name == "16k.wav":
        assert np.array_equal(found, samples)
    else:  # twice resampled: the same wave
        error = found.astype(float) - samples
        heard = np.abs(samples) > 1000
        assert np.sqrt(np.mean(error[heard] ** 2)) < 0.05 * np.sqrt(np.mean(samples[heard].astype(float) ** 2))


def test_channels_are_mixed_or_kept_apart(tmp_path: Path) -> None:
    path = tmp_path / "two.wav"
    material.two_speakers(path, 5.0, seed=1)
    both = decoded(path, "split")
    assert both.shape == (2, 80_000)
    mixed = decoded(path)
    assert np.abs(mixed[0].astype(int) - both.sum(axis=0, dtype=int) // 2).max() <= 2


@pytest.mark.parametrize(("layout", "channels"), [("stereo", 2), ("5.1", 6), ("7.1", 8), ("quad", 4)])
def test_a_mix_of_the_loudest_is_not_clipped(layout: str, channels: int, tmp_path: Path) -> None:
    tone = (32_767 * np.sin(np.arange(16_000) * 0.05)).astype(np.int16)
    path = tmp_path / "loud.wav"
    material.encode(path, np.tile(tone, (channels, 1)), "pcm_s16le", layout=layout)
    (mixed,) = decoded(path)
    assert np.abs(mixed.astype(int) - tone).max() <= 0.02 * 32_767


@pytest.mark.parametrize("channels", [3, 4, 5, 6, 7, 8, 9, 10, 11, 13, 16, 24, 63, 64])
def test_of_channels_without_a_name_each_counts(channels: int, tmp_path: Path) -> None:
    """FFmpeg guesses where six of them belong, and leaves out what it takes for a subwoofer."""
    path = tmp_path / "many.wav"
    for loud in {0, 1, 3 % channels, channels - 1}:
        samples = np.zeros((RATE_HZ // 10, channels), "<i2")
        samples[:, loud] = 16_000
        with wave.open(str(path), "wb") as file:
            file.setparams((channels, 2, RATE_HZ, 0, "NONE", ""))
            file.writeframes(samples.tobytes())
        assert decoded(path)[0, 500] == pytest.approx(16_000 / channels, abs=1)
        apart = decoded(path, "split")[:, 500]
        assert apart.tolist() == [16_000 * (number == loud) for number in range(channels)]


@pytest.mark.parametrize("channels", [4, 16])
def test_ambisonic_opus_is_heard(channels: int, tmp_path: Path) -> None:
    path, codes = tmp_path / "room.ogg", "|".join(f"c{number}=c0" for number in range(channels))
    command = ["ffmpeg", "-v", "error", "-f", "lavfi", "-i", "sine=frequency=440:duration=1:sample_rate=48000"]
    command += ["-af", f"pan={channels}c|{codes}", "-c:a", "libopus", "-mapping_family", "2", str(path)]
    subprocess.run(command, check=True)
    (mixed,) = decoded(path)
    assert len(mixed) == pytest.approx(RATE_HZ, abs=RATE_HZ // 50) and np.abs(mixed.astype(int)).mean() > 500


async def test_each_channel_has_its_own_stretches(tmp_path: Path) -> None:
    path = tmp_path / "two.wav"
    tables = material.two_speakers(path, 20.0, seed=1)
    chunks, opened, _ = await read(path, ReadingPlan("split", Endpointing()))
    assert opened.channels == 2
    for channel, table in enumerate(tables):
        mine = [chunk for chunk in chunks if chunk.channel == channel]
        assert [chunk.start / 8000 for chunk in mine] == pytest.approx([each.start_s for each in table], abs=0.15)
    assert [chunk.index for chunk in chunks] == list(range(len(chunks)))


ASTERISK_HZ = {"": 8000, "12": 12000, "16": 16000, "24": 24000, "32": 32000, "44": 44100, "48": 48000, "96": 96000}
LINEAR = [(f".sln{name}", rate) for name, rate in (ASTERISK_HZ | {"192": 192000}).items()]
COMPANDED = [(suffix, 8000) for suffix in (".ulaw", ".ul", ".ulw", ".mu", ".alaw", ".al", ".alw")]


@pytest.mark.parametrize(("suffix", "rate"), LINEAR + COMPANDED)
def test_headerless_telephone_audio_is_known_by_its_suffix(suffix: str, rate: int, tmp_path: Path) -> None:
    codec = {"u": "pcm_mulaw", "m": "pcm_mulaw", "a": "pcm_alaw", "s": "pcm_s16le"}[suffix[1]]
    samples, _ = material.recording(3.0, seed=2)
    material.encode(tmp_path / "voice.wav", samples, codec, rate)
    data = (tmp_path / "voice.wav").read_bytes()
    raw = tmp_path / f"voice{suffix}"
    raw.write_bytes(data[data.index(b"data") + 8 :])
    assert decoded(raw).shape[1] == pytest.approx(48_000, abs=64)
    (tmp_path / f"really-wav{suffix}").write_bytes(data)
    assert decoded(tmp_path / f"really-wav{suffix}").shape[1] == pytest.approx(48_000, abs=64)


async def test_a_reading_skips_what_is_known_and_finds_the_same(tmp_path: Path) -> None:
    path = tmp_path / "speech.wav"
    material.splice(path, 40.0, seed=5)
    whole, *_ = await read(path)
    again, *_ = await read(path, ReadingPlan("mix", Endpointing(), skip=(0, 2)))
    assert [each.audio == b"" for each in again] == [each.index in (0, 2) for each in whole]
    assert [(each.index, each.start, each.end) for each in again] == [(e.index, e.start, e.end) for e in whole]
    for each, before in zip(again, whole, strict=True):
        assert each.audio in (b"", before.audio)


async def test_no_more_is_decoded_than_was_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "speech.wav"
    material.splice(path, 60.0, seed=6)
    with path.open("rb") as file:
        async with DecoderProcess(file.fileno(), path.name, MIX, SETTINGS) as reading:
            reading.grant(3)
            chunks = (message async for message in reading.messages() if isinstance(message, Chunk))
            assert [(await anext(chunks)).index for _ in range(3)] == [0, 1, 2]
            with pytest.raises(TimeoutError):
                async with timeout(0.5):  # in which all of them would come
                    await anext(chunks)


def environ_of(pid: int) -> bytes:
    return Path(f"/proc/{pid}/environ").read_bytes()


async def test_who_reads_knows_no_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEDIAWORKER_JOBS__WEBHOOK_SECRET", "secret-of-the-webhooks-1")
    monkeypatch.setenv("HF_TOKEN", "secret-of-the-hub-2")
    path = tmp_path / "speech.wav"
    material.splice(path, 60.0, seed=6)
    with path.open("rb") as file:
        async with DecoderProcess(file.fileno(), path.name, MIX, SETTINGS) as reading:
            reading.grant(1)
            async for message in reading.messages():
                if isinstance(message, Chunk):
                    break
            assert reading.pid is not None
            environ = environ_of(reading.pid)
            assert b"PATH=" in environ and b"secret" not in environ
            assert os.getpriority(os.PRIO_PROCESS, reading.pid) > 0, "calls come first"


# -- what should not be ------------------------------------------------------------------------------------------------


@pytest.mark.timeout(300)
def test_hostile_files_do_no_harm(tmp_path: Path) -> None:
    """170 of them: an answer for each, and nothing else opened. Those that take gigabytes have a test of their own."""
    corpus = [each for each in hostile_media.corpus(tmp_path) if each.bomb != "memory"]
    for hostile in corpus:
        hostile.make(tmp_path / hostile.name)
    found = read_all([tmp_path / hostile.name for hostile in corpus])
    wrong: list[str] = []
    for hostile in corpus:
        said, ended, _ = found[tmp_path / hostile.name]
        match said[-1] if said else None:
            case Failed(fault, reason):
                outcome = "refused"
                assert fault not in ("internal", "stalled") and len(reason) > 10, (hostile.name, said[-1])
                assert "0x" not in reason and str(tmp_path) not in reason
            case Ended():
                outcome = "fine" if any(isinstance(each, Chunk) for each in said) else "silent"
            case _:
                outcome = "died"
        # A stump may hold no speech, and a bomb is what the limits are for; a playlist must never be heard.
        allowed = {"refused": {"refused"}, "partial": {"fine", "silent", "refused"}, "fine": {"fine", "silent"}}
        good = {"refused"} if hostile.follows else allowed[hostile.expected] | ({"refused"} if hostile.bomb else set())
        if outcome not in good or ended:
            wrong.append(f"{hostile.name}: {outcome} {ended}, expected {hostile.expected}")
    assert wrong == []


async def test_no_process_and_no_descriptor_is_left_of_a_reading(tmp_path: Path) -> None:
    """Of one that is refused, one that breaks off, one that is done, and one that nobody wants to its end."""

    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    whole = hostile_media.recorded()["16k.wav"]
    (tmp_path / "whole.wav").write_bytes(whole)
    (tmp_path / "cut.wav").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "noise.mp3").write_bytes(bytes(range(256)) * 100)
    await read(tmp_path / "whole.wav")
    before = descriptors()
    with pytest.raises(FileRefused):
        await read(tmp_path / "noise.mp3")
    for name in ("cut.wav", "whole.wav"):
        await read(tmp_path / name)
    with (tmp_path / "whole.wav").open("rb") as file:
        async with DecoderProcess(file.fileno(), "whole.wav", MIX, SETTINGS) as reading:
            await anext(reading.messages())
    assert not readers()
    await asyncio.to_thread(until, lambda: descriptors() == before)


def test_a_playlist_reaches_nobody(tmp_path: Path) -> None:
    """Not by name, not by URL, not by a socket of its own."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/speech.wav"
        for name, text in hostile_media.playlists(url, ".wav").items():
            (tmp_path / name).write_text(text)
        for reading in read_all(list(tmp_path.iterdir())).values():
            assert isinstance(reading.said[-1], Failed)
        with pytest.raises(BlockingIOError):
            listener.accept()


async def test_what_takes_too_much_memory_is_refused_and_the_worker_lives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decoder_process, "MEMORY_BYTES", 2**30)
    corpus = {each.name: each for each in hostile_media.corpus(tmp_path) if each.bomb == "memory"}
    assert len(corpus) >= 2
    for name, hostile in corpus.items():
        hostile.make(tmp_path / name)
        with pytest.raises(FileRefused) as refused:
            await read(tmp_path / name)
        assert refused.value.fault in ("too_large", "unreadable", "channels")


def test_a_long_file_takes_no_more_memory_than_a_short_one(tmp_path: Path) -> None:
    """Half an hour of samples is 58 MB."""
    table = material.mostly_silent(tmp_path / "long.flac", 0.5, clips=2, seed=2)
    material.mostly_silent(tmp_path / "short.flac", 0.01, clips=1)
    short, long = read_all([tmp_path / "short.flac", tmp_path / "long.flac"]).values()
    assert sum(isinstance(each, Chunk) for each in long.said) == len(table)
    assert long.peak_bytes - short.peak_bytes < 20 * 2**20


async def test_a_file_may_not_be_longer_than_is_allowed(tmp_path: Path) -> None:
    path = tmp_path / "long.flac"
    material.mostly_silent(path, 0.2, clips=2)
    with pytest.raises(FileRefused) as refused:
        await read(path, settings=Files(max_hours=0.1))
    assert refused.value.fault == "too_long" and "0.1 h are allowed" in refused.value.reason


def test_a_hole_is_silence_and_what_has_no_room_is_heard_all_the_same(tmp_path: Path) -> None:
    """Matroska blocks whose times overlap, and a hole between two others, which is shorter by what had no room."""
    tone = (3000 * np.sin(np.arange(RATE_HZ) * 0.3)).astype(np.int16)
    path = tmp_path / "odd.mka"
    path.write_bytes(hostile_media.matroska(np.tile(tone, 4), starts_ms=[0, 1000, 1500, 4000]))
    found = decoded(path)[0]
    loud = np.flatnonzero(np.abs(found.astype(int)) > 100)
    assert len(found) == pytest.approx(5 * RATE_HZ, abs=RATE_HZ // 10)
    gaps = [int(b - a) for a, b in pairwise(loud.tolist()) if b - a > 1000]
    assert gaps == [pytest.approx(1.0 * RATE_HZ, abs=RATE_HZ // 10)]


JOINED: dict[str, tuple[str, int]] = {
    "aac": ("aac", 44100),
    "amr": ("libopencore_amrnb", 8000),
    "flac": ("flac", 44100),
    "mka": ("libopus", 48000),
    "mp2": ("mp2", 48000),
    "mp3": ("libmp3lame", 44100),
    "mpg": ("mp2", 48000),
    "oga": ("flac", 44100),
    "ogg": ("libopus", 48000),
    "ts": ("aac", 48000),
    "webm": ("libopus", 48000),
}
"""Suffix → codec and rate of recordings that somebody may write one behind the other."""
LENGTHS_S = (6.0, 3.3, 12.1, 0.7)


def counted(data: bytes) -> tuple[float, int]:
    """Seconds of audio that FFmpeg decodes, whatever its timestamps say, and packets that it could not."""
    container, seconds, damaged = av.open(io.BytesIO(data)), 0.0, 0
    with container:
        for packet in container.demux(container.streams.best("audio")):
            try:
                seconds += sum(frame.samples / frame.sample_rate for frame in packet.decode())
            except av.error.EOFError:
                break
            except av.error.FFmpegError:
                damaged += 1
    return seconds, damaged


@pytest.mark.parametrize("suffix", JOINED)
def test_recordings_one_behind_the_other_are_heard_to_the_end(suffix: str, tmp_path: Path) -> None:
    codec, rate = JOINED[suffix]
    parts = []
    for number, seconds in enumerate(LENGTHS_S):
        tone = (8000 * np.sin(np.arange(int(seconds * RATE_HZ)) * 0.05)).astype(np.int16)
        material.encode(tmp_path / f"{number}.{suffix}", tone, codec, rate)
        parts.append((tmp_path / f"{number}.{suffix}").read_bytes())
    path, random = tmp_path / f"joined.{suffix}", Random(7)
    for _ in range(8):
        path.write_bytes(b"".join(random.choices(parts, k=random.randint(2, 4))))
        seconds, damaged = counted(path.read_bytes())
        assert seconds - 0.001 <= decoded(path).shape[1] / RATE_HZ <= seconds + 0.001 + 0.06 * damaged


TONE = (8000 * np.sin(np.arange(20 * RATE_HZ) * 0.05)).astype(np.int16)


def encoded(folder: Path, name: str, codec: str, rate: int) -> bytes:
    material.encode(folder / name, TONE, codec, rate)
    return (folder / name).read_bytes()


@pytest.mark.parametrize("suffix", ["flac", "oga", "ogg", "ts"])
@pytest.mark.parametrize("how", ["left out", "zeros", "noise"])
def test_a_hole_where_sound_should_be_is_told(suffix: str, how: str, tmp_path: Path) -> None:
    """FFmpeg passes over it without a word."""
    path = tmp_path / f"hole.{suffix}"
    data = encoded(tmp_path, path.name, *JOINED[suffix])
    size, half = len(data) // 8, len(data) // 2
    instead = {"left out": b"", "zeros": bytes(size), "noise": Random(3).randbytes(size)}[how]
    path.write_bytes(data[:half] + instead + data[half + size :])
    with path.open("rb") as file:
        media = MediaFile(file, path.name, channels="mix", max_s=1000.0)
        assert sum(block.shape[1] for block in media.blocks()) == pytest.approx(20 * RATE_HZ, abs=RATE_HZ // 10)
        assert media.damaged


@pytest.mark.parametrize("suffix", JOINED)
def test_nothing_is_told_of_a_file_that_is_whole_or_joined_of_such(suffix: str, tmp_path: Path) -> None:
    data = encoded(tmp_path, f"one.{suffix}", *JOINED[suffix])
    for name, many in (("one", data), ("three", data * 3)):
        if (suffix, name) == ("amr", "three"):
            continue  # the head of the second takes some of its frames with it
        with io.BytesIO(many) as file:
            media = MediaFile(file, f"{name}.{suffix}", channels="mix", max_s=1000.0)
            for _ in media.blocks():
                pass
            assert media.damaged == 0, name


def test_pauses_that_opus_leaves_out_are_no_holes(tmp_path: Path) -> None:
    """At most 400 ms of each, as encoders do with DTX."""
    voice = av.open(io.BytesIO(encoded(tmp_path, "voice.ogg", "libopus", 48000)))
    path = tmp_path / "dtx.ogg"
    with voice, av.open(path, "w") as written:
        source = voice.streams.audio[0]
        stream = written.add_stream_from_template(source)
        for number, packet in enumerate(voice.demux(source)):
            if packet.dts is not None and number % 100 < 80:
                packet.stream = stream
                written.mux(packet)
    with path.open("rb") as file:
        media = MediaFile(file, path.name, channels="mix", max_s=1000.0)
        assert sum(block.shape[1] for block in media.blocks()) > 15 * RATE_HZ and media.damaged == 0


@pytest.mark.parametrize("codec", ["mp3", "aac"])
@pytest.mark.parametrize("rates", [(8000, 48000), (16000, 44100), (44100, 16000), (48000, 8000, 48000)])
def test_another_rate_from_some_frame_on_is_no_damage(codec: str, rates: tuple[int, ...], tmp_path: Path) -> None:
    """FFmpeg makes the times of these up by the first rate: at six times that, its frames seem to lie far apart."""
    encoder = {"mp3": "libmp3lame", "aac": "aac"}[codec]
    data = b"".join(encoded(tmp_path, f"{rate}.{codec}", encoder, rate) for rate in rates)
    with io.BytesIO(data) as file:
        media = MediaFile(file, f"joined.{codec}", channels="mix", max_s=1000.0)
        found = np.concatenate(list(media.blocks()), axis=1)[0]
    assert len(found) / RATE_HZ == pytest.approx(20 * len(rates), abs=0.25 * len(rates)) and media.damaged == 0
    windows = np.abs(found[: len(found) // 320 * 320].reshape(-1, 320).astype(int)).max(axis=1)
    assert np.count_nonzero(windows < 1000) < 25 * len(rates), "no silence between frames"


@pytest.mark.parametrize("frames", [4_000_000, 10_000_000, 2**31, 2**32 - 1])
def test_a_length_that_is_wrong_keeps_no_file_out(frames: int, tmp_path: Path) -> None:
    """Of a Xing header, which says 29 hours and more."""
    material.encode(tmp_path / "short.mp3", np.tile(TONE, 4), "libmp3lame", 44100)
    data = bytearray((tmp_path / "short.mp3").read_bytes())
    at = data.index(b"Info") + 8
    data[at : at + 4] = frames.to_bytes(4, "big")
    (tmp_path / "lies.mp3").write_bytes(data)
    (chunks,) = read_all([tmp_path / "lies.mp3"]).values()
    opened, ended = chunks.said[0], chunks.said[-1]
    assert isinstance(opened, Opened) and opened.duration_s is None
    assert isinstance(ended, Ended) and ended.duration_s == pytest.approx(80, abs=1)


def test_a_length_that_is_right_is_believed_before_all_has_been_read(tmp_path: Path) -> None:
    path = tmp_path / "long.flac"
    material.mostly_silent(path, 0.5, clips=2)
    with path.open("rb") as file:
        media, found_s = MediaFile(file, path.name, channels="mix", max_s=1200.0), 0.0
        with pytest.raises(MediaError, match=r"the audio is 0\.5 h or longer; 0\.333333 h are allowed"):
            for block in media.blocks():
                found_s += block.shape[1] / RATE_HZ
    assert found_s < 600


@pytest.mark.parametrize(
    "name", ["jumps-a-million-seconds", "jumps-back", "runs-backwards", "stands-still", "end-of-time"]
)
async def test_whatever_a_clock_says_all_is_heard_and_it_is_told(name: str, tmp_path: Path) -> None:
    (hostile,) = [each for each in hostile_media.corpus(tmp_path) if each.name == f"{name}.mkv"]
    hostile.make(tmp_path / hostile.name)
    _, _, ended = await read(tmp_path / hostile.name)
    assert ended.duration_s == pytest.approx(hostile_media.SECONDS, abs=0.1) and ended.damaged == 0
    # A clock that stands still only leaves no room, and a time beyond all numbers is none for FFmpeg.
    assert (ended.jumps > 0) == (name not in ("stands-still", "end-of-time"))


@pytest.mark.parametrize("bit", [8, 12, 15, 21])
async def test_one_wrong_bit_in_the_time_of_a_cluster_moves_nothing_behind_it(bit: int, tmp_path: Path) -> None:
    samples, table = hostile_media.recording()
    starts = [round(number * 1000 * hostile_media.SECONDS / 60) for number in range(60)]
    found = []
    for name, flips in (("honest", 0), ("wrong", 1 << bit)):
        path = tmp_path / f"{name}.mkv"
        path.write_bytes(hostile_media.matroska(samples, [*starts[:20], starts[20] ^ flips, *starts[21:]]))
        chunks, _, ended = await read(path)
        found.append(([(chunk.start, chunk.end) for chunk in chunks], round(ended.duration_s, 1)))
    assert table and found[0] == found[1]
