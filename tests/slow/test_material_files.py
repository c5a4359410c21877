"""The files of the tests are what they say, by other means than those that made them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from lab.media import material
from lab.media.hostile import SECONDS, Hostile, corpus, recorded, recording
from lab.media.material import CLIPS, CONTAINERS, LAG_S, LATE_S, RATE_HZ, Samples, Spoken
from lab.patience import seconds

NEAR_S = 0.020


def probe(path: Path, *arguments: str) -> dict[str, Any]:
    command = ["ffprobe", "-v", "error", "-of", "json", *arguments, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds(10))
    return json.loads(done.stdout or "{}") if done.returncode == 0 else {}


def duration_s(path: Path) -> float:
    return float(probe(path, "-show_entries", "format=duration")["format"]["duration"])


def decoded(path: Path, *before: str, channel: str = "mono") -> Samples:
    """By the ffmpeg program, at 16 kHz."""
    mix = ["-ac", "1"] if channel == "mono" else ["-af", f"pan=mono|c0={channel}"]
    command = ["ffmpeg", "-v", "error", *before, "-i", str(path), *mix, "-ar", str(RATE_HZ), "-f", "s16le", "-"]
    return np.frombuffer(subprocess.run(command, capture_output=True, check=True).stdout, "<i2")


def heard(samples: Samples, loud_dbfs: float = -44) -> list[tuple[float, float]]:
    """Where it is loud, with pauses of less than half a second in it: 10 ms, every millisecond."""
    power = np.square(samples.astype(np.float64) / 32768)
    total = np.concatenate([[0], np.cumsum(power)])
    level = (total[160::16] - total[:-160:16]) / 160
    places = np.flatnonzero(level > 10 ** (loud_dbfs / 10)) / 1000
    cuts = np.flatnonzero(np.diff(places) > 0.5) + 1
    return [(part[0], part[-1] + 0.010) for part in np.split(places, cuts) if part.size]


def check_table(table: list[Spoken], samples: Samples, near_s: float = NEAR_S) -> None:
    found = heard(samples)
    assert len(found) == len(table)
    for spoken, (start_s, end_s) in zip(table, found, strict=True):
        assert abs(spoken.start_s - start_s) < near_s, f"{spoken} begins at {start_s}"
        assert abs(spoken.end_s - end_s) < near_s, f"{spoken} ends at {end_s}"


# -- speech ------------------------------------------------------------------------------------------------------------


def test_clips_are_of_three_to_six_digits_with_a_place_for_each() -> None:
    for clip in material.digit_clips(CLIPS, seed=0):
        assert 3 <= len(clip.words) == len(clip.spans_s) <= 6
        places = [second for span in clip.spans_s for second in span]
        assert places == sorted(places)
        # A faint consonant is part of a word, and not as loud as speech must be.
        assert 0 < clip.start_s - places[0] + NEAR_S < 0.15 and 0 < places[-1] - clip.end_s + NEAR_S < 0.15
        check_table([clip], clip.samples)


def test_more_clips_than_there_are_come_again() -> None:
    clips = material.digit_clips(3 * CLIPS, seed=5)
    assert len(clips) == 3 * CLIPS
    assert {clip.samples.tobytes() for clip in clips} == {clip.samples.tobytes() for clip in clips[-CLIPS:]}


def test_another_process_speaks_the_same() -> None:
    first = material._pool()
    material._pool.cache_clear()
    again = material._pool()
    assert first[0] is not again[0]
    assert all(material._same(one, other) for one, other in zip(first, again, strict=True))


@pytest.mark.parametrize("noise_dbfs", [-80, -50])
def test_a_recording_is_exactly_as_long_as_asked_and_speaks_where_it_says(noise_dbfs: float) -> None:
    samples, table = material.recording(61.7, 3, noise_dbfs)
    assert len(samples) == round(61.7 * RATE_HZ) and len(table) > 8
    check_table(table, samples)
    ends = [0.0, *(spoken.end_s for spoken in table)]
    gaps = [spoken.start_s - end for spoken, end in zip(table, ends, strict=False)]
    assert min(gaps) >= 0.7 - 1e-4 and max(gaps) <= 6
    quiet = samples[: round(table[0].start_s * RATE_HZ) - 100].astype(np.float64) / 32768
    assert 20 * np.log10(np.sqrt(np.square(quiet).mean())) == pytest.approx(noise_dbfs, abs=1)


@pytest.mark.parametrize("rate", [8000, 16000, 44100])
def test_a_splice_is_a_wav_of_that_rate(tmp_path: Path, rate: int) -> None:
    table = material.splice(tmp_path / "a.wav", 30, seed=1, rate=rate)
    assert duration_s(tmp_path / "a.wav") == 30
    assert probe(tmp_path / "a.wav", "-show_streams")["streams"][0]["sample_rate"] == str(rate)
    check_table(table, decoded(tmp_path / "a.wav"))


def test_a_seed_is_a_file(tmp_path: Path) -> None:
    one, again, other = (tmp_path / name for name in ("one.wav", "again.wav", "other.wav"))
    tables = [material.splice(path, 20, seed) for path, seed in ((one, 1), (again, 1), (other, 2))]
    assert one.read_bytes() == again.read_bytes() != other.read_bytes()
    assert tables[0] == tables[1] != tables[2]


def test_two_speakers_keep_to_their_sides(tmp_path: Path) -> None:
    path = tmp_path / "two.wav"
    left, right = material.two_speakers(path, 40, seed=4)
    assert [spoken.text for spoken in left] != [spoken.text for spoken in right]
    assert any(a.start_s < b.end_s and b.start_s < a.end_s for a in left for b in right), "never both at once"
    for table, channel in ((left, "c0"), (right, "c1")):
        check_table(table, decoded(path, channel=channel))


def test_hours_of_silence_are_small(tmp_path: Path) -> None:
    path = tmp_path / "silent.flac"
    table = material.mostly_silent(path, 1, clips=3)
    assert duration_s(path) == 3600 and path.stat().st_size < 2_000_000
    assert len(table) == 3 and table[-1].start_s > 3600 * 2 / 3
    for spoken in table:
        at = spoken.start_s - 1
        check_table([spoken.later(-at)], decoded(path, "-ss", str(at), "-t", "6"))


# -- containers --------------------------------------------------------------------------------------------------------


def lag_s(samples: Samples, reference: Samples) -> float:
    """By how much they must be shifted to be most alike."""
    size = 1 << (len(samples) + len(reference)).bit_length()
    spectrum = np.fft.rfft(samples.astype(np.float64), size) * np.conj(np.fft.rfft(reference.astype(np.float64), size))
    alike: NDArray[np.float64] = np.fft.irfft(spectrum)
    shift = int(alike.argmax())
    return (shift - size if shift > size // 2 else shift) / RATE_HZ


@pytest.mark.parametrize("name", CONTAINERS)
def test_a_container_holds_the_recording(tmp_path: Path, name: str) -> None:
    samples, _ = recording()
    path, again = tmp_path / name, tmp_path / f"again-{name}"
    path.write_bytes(recorded()[name])
    CONTAINERS[name](again, samples)
    assert path.read_bytes() == again.read_bytes()
    late_s = LATE_S if name == "audio-late.mkv" else 0
    assert duration_s(path) - late_s == pytest.approx(SECONDS, abs=0.11)
    assert lag_s(decoded(path), samples) == pytest.approx(LAG_S.get(name, 0), abs=NEAR_S / 2)


@pytest.mark.parametrize(("name", "start_s"), [("audio-late.mkv", LATE_S), ("at-40000s.ts", 40000)])
def test_audio_that_does_not_start_at_zero(tmp_path: Path, name: str, start_s: float) -> None:
    CONTAINERS[name](tmp_path / name, material.recording(6, seed=11)[0])
    packets = probe(tmp_path / name, "-select_streams", "a", "-show_entries", "packet=pts_time")["packets"]
    assert float(packets[0]["pts_time"]) == pytest.approx(start_s, abs=0.05)


def test_the_index_is_where_the_name_says(tmp_path: Path) -> None:
    for name, in_front in (("moov-behind.m4a", False), ("moov-in-front.m4a", True)):
        CONTAINERS[name](tmp_path / name, material.recording(6, seed=11)[0])
        data = (tmp_path / name).read_bytes()
        assert (data.index(b"moov") < data.index(b"mdat")) == in_front


def test_a_picture_without_sound(tmp_path: Path) -> None:
    material.video_only(tmp_path / "silent.mp4", 3)
    kinds = [stream["codec_type"] for stream in probe(tmp_path / "silent.mp4", "-show_streams")["streams"]]
    assert kinds == ["video"] and duration_s(tmp_path / "silent.mp4") == 3


# -- hostile files -----------------------------------------------------------------------------------------------------

# Frame by frame in a process that may have a gigabyte, as a worker's child would; a bad packet is left out.
DECODE = """
import json, resource, sys
import av
resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
options = json.loads(sys.argv[1])
for path in sys.stdin.read().splitlines():
    seconds, error = 0.0, ""
    try:
        with open(path, "rb") as file, av.open(file, options=options) as container:
            for packet in container.demux(container.streams.audio[0]):
                try:
                    seconds += sum(frame.samples / frame.sample_rate for frame in packet.decode())
                except av.FFmpegError as reason:
                    error = repr(reason)
    except (av.FFmpegError, IndexError, MemoryError) as reason:
        error = repr(reason)
    sys.stdout.write(json.dumps([path, seconds, error]) + "\\n")
    sys.stdout.flush()
"""


def decode_all(paths: list[Path], **options: str) -> dict[str, tuple[float, str]]:
    """File name → seconds that PyAV decodes, and the last error."""
    command = [sys.executable, "-c", DECODE, json.dumps(options)]
    text = "\n".join(map(str, paths))
    done = subprocess.run(
        command, input=text, capture_output=True, text=True, timeout=seconds(100), cwd=paths[0].parent
    )
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0, f"ended after {rows[-1:]}: {done.stderr[-2000:]}"
    return {Path(path).name: (seconds, error) for path, seconds, error in rows}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hostile")


@pytest.fixture(scope="module")
def hostile(folder: Path) -> list[Hostile]:
    made = corpus(folder)
    for file in made:
        file.make(folder / file.name)
    return made


def test_a_hostile_file_has_a_name_of_its_own_and_is_small(hostile: list[Hostile], folder: Path) -> None:
    assert len({file.name for file in hostile} | set(CONTAINERS)) == len(hostile) + len(CONTAINERS)
    assert {file.name: size for file in hostile if (size := (folder / file.name).stat().st_size) > 2_500_000} == {}


def test_what_is_refused_gives_no_sound_and_the_rest_some(hostile: list[Hostile], folder: Path) -> None:
    quick = [file for file in hostile if file.bomb != "time"]
    found = decode_all([folder / file.name for file in quick], protocol_whitelist="none")
    silent = {file.name: found[file.name] for file in quick if found[file.name][0] == 0}
    assert sorted(silent) == sorted(file.name for file in quick if file.expected == "refused"), silent
    fine = [file.name for file in quick if file.expected == "fine" and file.name != "one-sample.wav"]
    whole = {name: found[name][0] for name in fine}
    assert whole == pytest.approx(dict.fromkeys(whole, SECONDS), abs=0.1)


def test_bombs_are_as_long_as_they_say(folder: Path, hostile: list[Hostile]) -> None:
    for name in ("30-hours.flac", "30-hours.ogg"):
        assert duration_s(folder / name) == pytest.approx(30 * 3600, rel=1e-3)
        assert np.abs(decoded(folder / name, "-t", "60")).max() < 32, "louder than -60 dBFS"
        assert len(decoded(folder / name, "-ss", "100000", "-t", "60")) == pytest.approx(60 * RATE_HZ, abs=160)
    assert len(decoded(folder / "1-hz.wav", "-t", "60")) > 50 * RATE_HZ


def test_a_playlist_that_is_followed_is_noticed(folder: Path, hostile: list[Hostile]) -> None:
    """Without a guard, one of them brings the canary's sound: the corpus can tell."""
    assert decode_all([folder / "concat-relative.txt"])["concat-relative.txt"][0] == pytest.approx(SECONDS)
