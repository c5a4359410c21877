"""Moonshine on recorded sound: the right words, no words where nobody speaks, partials that stay."""

from __future__ import annotations

import math
import wave
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from G722 import G722
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from asr.engines import devices
from asr.engines.moonshine import answers
from asr.engines.moonshine.engine import MoonshineEngine, build
from asr.engines.moonshine.model import RATE_HZ, Tokens
from asr.engines.moonshine.plugin import assets
from asr.engines.moonshine.session import LONGEST_S
from asr.engines.shown import Shown, agreed, plain
from asr.engines.speech import REST_S, cuts
from asr.scheduling.request import Lane, Request
from asr.utterance import BYTES_PER_S, Format, Utterance
from audio import Codec
from audio.codecs.g711 import alaw_encode, ulaw_encode
from config.settings import Asr, Settings
from lab.engine.offline import packets, utterances
from lab.media.speech import SPEECH, speech

MUSIC = Path("/usr/share/asterisk/moh")
SETTINGS = Settings(asr=Asr(engine="moonshine"))
SENTENCE, WORDS = "conf-onlyperson", "You are currently the only person in this conference."
R = 8000


@pytest.fixture(scope="module")
def engine() -> MoonshineEngine:
    folder = assets()
    assert folder is not None
    return build(folder, 1)


@pytest.fixture(autouse=True)
def closed(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "engine" in request.fixturenames:
        assert not request.getfixturevalue("engine")._sessions


def answer(engine: MoonshineEngine, revision: int, end: int, *, final: bool) -> str:
    request = Request("u", revision, Lane.FINAL if final else Lane.PARTIAL, final, end, 0.0)
    while not (answers := engine.step([request])):
        pass
    return answers[0].text


def final(engine: MoonshineEngine, audio: bytes, format: Format = "PCMU") -> str:
    engine.open(Utterance("u", format))
    engine.append("u", audio)
    try:
        return answer(engine, 1, len(audio), final=True)
    finally:
        engine.close("u")


def partials(engine: MoonshineEngine, audio: bytes, every_s: float = 0.5) -> list[str]:
    """What is shown of it while it is spoken, and its final."""
    engine.open(Utterance("u", "PCMU"))
    found, sent = [], 0
    for revision, end in enumerate([*range(int(0.6 * R), len(audio), int(every_s * R)), len(audio)]):
        engine.append("u", audio[sent:end])
        found.append(answer(engine, revision, end, final=end == len(audio)))
        sent = end
    engine.close("u")
    return found


def codes(samples: NDArray[np.float64] | NDArray[np.int16]) -> bytes:
    return bytes(ulaw_encode(np.clip(samples, -32768, 32767).astype(np.int16)))


def said(text: str) -> list[str]:
    return [plain(word) for word in text.split()]


# -- words -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("format", ["PCMU", "PCMA", "L16"])
def test_it_understands_a_telephone_line_and_wideband(engine: MoonshineEngine, format: Format) -> None:
    if format == "L16":
        wide = G722(16000, 64000).decode((SPEECH / f"{SENTENCE}.g722").read_bytes())
        audio = np.asarray(wide, "<i2").tobytes()
    else:
        audio = bytes(ulaw_encode(speech(SENTENCE)) if format == "PCMU" else alaw_encode(speech(SENTENCE)))
    assert final(engine, audio, format) == WORDS


def test_a_final_knows_what_it_may_and_no_more(engine: MoonshineEngine) -> None:
    """A replayed request arrives after all the audio."""
    audio = codes(speech(SENTENCE))
    half = len(audio) // 2
    expected, whole = final(engine, audio[:half]), final(engine, audio)
    engine.open(Utterance("u", "PCMU"))
    engine.append("u", audio)
    assert answer(engine, 1, half, final=True) == expected != whole
    assert answer(engine, 2, len(audio), final=True) == whole
    engine.close("u")


def test_a_long_utterance_is_cut_where_nobody_hears_it(engine: MoonshineEngine) -> None:
    """Over the pieces' length, and over the length that the model bears in one piece."""
    names = ["demo-echotest", "conf-adminmenu-18", "vm-instructions"]
    gap = np.zeros(R // 3, np.int16)
    audio = codes(np.concatenate([part for name in names for part in (speech(name), gap)]))
    assert len(audio) / R > 2 * LONGEST_S
    text = final(engine, audio)
    alone = [word for name in names for word in said(final(engine, codes(speech(name))))]
    assert len(said(text)) == pytest.approx(len(alone), rel=0.02), "none is lost, and none is there twice"
    assert sum(word in alone for word in said(text)) > 0.95 * len(alone)
    assert partials(engine, audio, every_s=30.0)[-1] == text


# -- partials ----------------------------------------------------------------------------------------------------------


def test_partials_seldom_take_a_word_back(engine: MoonshineEngine, prompts: dict[str, str]) -> None:
    names = [name for name in sorted(prompts) if 2 * R < len(speech(name)) < 8 * R][::32]
    count = back = late = 0
    for name in names:
        *shown, _ = partials(engine, codes(speech(name)))
        for before, after in zip(shown, shown[1:], strict=False):
            count += 1
            back += agreed(before.split(), after.split()) < len(before.split())
        late += not shown[-1]
    assert count > 25 and back <= 0.03 * count, f"{back} of {count}"
    assert late <= 0.1 * len(names), "before the end something is shown"


def test_a_pause_shows_everything_unless_it_takes_a_word_back() -> None:
    shown = Shown()
    assert shown.partial("Weasels") == ""
    assert shown.partial("Weasels have.") == "Weasels"
    assert shown.pause("Weasels have eaten.") and shown.words == 3
    assert shown.partial("Weasels have eaten our") == "Weasels have eaten"
    assert not shown.pause("We sells have eaten our phone.")
    assert shown.partial("Weasels have eaten our phone") == "Weasels have eaten our"


def test_an_early_word_of_which_the_model_is_not_sure_is_shown_when_three_have_had_it() -> None:
    shown = Shown()
    assert shown.partial("Please", 0) == ""
    assert shown.partial("Please and", 0) == ""
    assert shown.partial("Please, enter", 0) == "Please"
    shown = Shown()
    assert shown.partial("Please", 1) == ""
    assert shown.partial("Please enter", 1) == "Please"
    assert shown.partial("Please enter your", 1) == "Please", "two of three words are shown by two and a likely one"
    assert shown.partial("Please enter your", 3) == "Please enter your"
    assert shown.partial("Please enter your", 0) == "Please enter your", "what is shown stays"


@given(st.lists(st.sampled_from(["\u2581a", "b", "\u2581cd"]), max_size=8), st.integers(0, 9))
def test_words_are_whole_when_all_their_tokens_are(pieces_: list[str], count: int) -> None:
    names = ["\u2581a", "b", "\u2581cd"]
    tokens = Tokens(b"".join(bytes([len(name.encode())]) + name.encode() for name in names))
    found = [names.index(each) for each in pieces_]
    whole = tokens.text(found).split()
    begun = tokens.text(found[:count]).split()
    complete = begun == whole[: len(begun)]
    assert tokens.whole_words(found, count) == len(begun) - (not complete)


def test_a_word_is_taken_back_when_two_agree_on_another() -> None:
    shown = Shown()
    for text in ("one two", "one two", "one too many"):
        assert shown.partial(text) == ("" if text == "one two" and not shown._shown else "one two")
    assert shown.partial("one too many men") == "one too many"


@given(st.lists(st.lists(st.sampled_from(["a", "b", "A,", "b."]), max_size=6).map(" ".join), max_size=12))
def test_what_is_shown_was_recognised_twice(texts: list[str]) -> None:
    shown, before = Shown(), ""
    seen: list[list[str]] = []
    for text in texts:
        now = shown.partial(text)
        seen.append(said(text))
        assert (
            any(
                said(now) == one[: len(said(now))] == other[: len(said(now))]
                for one, other in zip(seen, seen[1:], strict=False)
            )
            or not now
        )
        assert now == now.strip() and not now.endswith((".", ","))
        before = now
    assert not before or texts


# -- what is no speech -------------------------------------------------------------------------------------------------


def tone(frequencies: tuple[int, ...], on_s: float, off_s: float, times: int) -> NDArray[np.float64]:
    at = np.arange(int(on_s * R)) / R
    once = np.sum([4000 * np.sin(2 * np.pi * f * at) for f in frequencies], axis=0)
    return np.tile(np.concatenate([once, np.zeros(int(off_s * R))]), times)


def dtmf(digits: str) -> NDArray[np.float64]:
    keys, rows, columns = "123A456B789C*0#D", (697, 770, 852, 941), (1209, 1336, 1477, 1633)
    places = [divmod(keys.index(digit), 4) for digit in digits]
    return np.concatenate([tone((rows[row], columns[column]), 0.1, 0.1, 1) for row, column in places])


def noise(seconds: float, rms: float, slope: float = 0.0) -> NDArray[np.float64]:
    """`slope`: 0 white, 0.5 pink, 1 brown."""
    spectrum = np.fft.rfft(np.random.default_rng(1).standard_normal(int(seconds * R)))
    sound = np.fft.irfft(spectrum / np.maximum(np.arange(len(spectrum)), 1.0) ** slope)
    return np.asarray(sound / math.sqrt(float((sound**2).mean())) * rms)


CLICKS = np.zeros(4 * R)
CLICKS[:: R // 2], CLICKS[1 :: R // 2] = 20000, -20000
SOUNDS = {
    "silence": np.zeros(3 * R),
    "ring-back tone, North America": tone((440, 480), 2.0, 4.0, 2),
    "ring-back tone, Europe": tone((425,), 1.0, 4.0, 2),
    "busy tone": tone((480, 620), 0.5, 0.5, 6),
    "dial tone": tone((350, 440), 3.0, 0.0, 1),
    "DTMF": dtmf("5551234*0#"),
    "fax, calling (T.30 CNG)": tone((1100,), 0.5, 3.0, 2),
    "fax, answering (T.30 CED)": tone((2100,), 3.3, 0.1, 1),
    "white noise": noise(4.0, 3000.0),
    "pink noise": noise(4.0, 3000.0, 0.5),
    "car noise": noise(4.0, 3000.0, 1.0),
    "line noise": noise(4.0, 30.0),
    "clicks": CLICKS,
    "one click": CLICKS[: R // 2],
}
RECORDED = ("beep", "beeperr", "ascending-2tone", "descending-2tone", "tt-monkeys", "confbridge-join")


@pytest.mark.parametrize("name", SOUNDS)
def test_a_sound_that_is_no_speech_has_no_words(engine: MoonshineEngine, name: str) -> None:
    assert set(partials(engine, codes(SOUNDS[name]))) == {""}


@pytest.mark.parametrize("name", RECORDED)
def test_a_recorded_sound_that_is_no_speech_has_no_words(engine: MoonshineEngine, name: str) -> None:
    assert set(partials(engine, codes(speech(name)))) == {""}


def test_hold_music_has_next_to_no_words() -> None:
    """Through the detector, as in a call: half a minute of five pieces; in one, something sounds like a voice."""
    found = []
    tracks = sorted(MUSIC.glob("*.wav"))
    assert len(tracks) == 5
    for track in tracks:
        with wave.open(str(track)) as file:
            music = np.frombuffer(file.readframes(30 * R), "<i2")
        found += [each.text for each in utterances(Codec.PCMU, packets(codes(music)), settings=SETTINGS) if each.text]
    assert len(" ".join(found).split()) <= 1, found


@pytest.mark.parametrize("seconds", [0.0, 0.001, 0.1, 0.39])
@pytest.mark.parametrize("format", ["PCMU", "L16"])
def test_too_little_to_hear(engine: MoonshineEngine, format: Format, seconds: float) -> None:
    audio = codes(speech(SENTENCE)) if format == "PCMU" else np.repeat(speech(SENTENCE), 2).astype("<i2").tobytes()
    begin = BYTES_PER_S[format] // 2
    assert final(engine, audio[begin : begin + int(seconds * BYTES_PER_S[format])], format) == ""


# -- loops -------------------------------------------------------------------------------------------------------------


def test_a_loop_ends(engine: MoonshineEngine) -> None:
    """Without the silence at its end, as a partial, this prompt sends the model into a loop."""
    audio = codes(speech("vm-marked-urgent"))
    engine.open(Utterance("u", "PCMU"))
    engine.append("u", audio)
    answer(engine, 1, len(audio), final=False)
    text = answer(engine, 2, len(audio), final=False)
    engine.close("u")
    assert text and len(set(said(text))) == len(said(text)), text


@pytest.mark.parametrize(
    ("tokens", "limit", "left"),
    [
        ([5, 6, 7], 9, [5, 6, 7]),
        ([5, 5, 5, 6], 9, [5, 5, 5, 6]),
        ([5, 6, 5, 6, 5, 6, 5], 7, [5, 6]),
        ([1, 2, 5, 6, 5, 6, 5], 7, [1, 2, 5, 6]),
        ([9, *[5] * 20], 99, [9, 5]),
        ([1, 2, 3, 4], 4, [1, 2, 3, 4]),
    ],
)
def test_what_is_left_of_a_loop(tokens: list[int], limit: int, left: list[int]) -> None:
    assert answers.believable(tokens, limit) == left


@given(st.lists(st.integers(0, 3), max_size=60), st.integers(1, 60))
def test_what_is_left_is_how_it_began(tokens: list[int], limit: int) -> None:
    left = answers.believable(tokens, limit)
    assert left == tokens[: len(left)] and bool(left) == bool(tokens)


# -- cuts --------------------------------------------------------------------------------------------------------------


@given(st.integers(0, 2**32 - 1), st.lists(st.integers(1, 80 * RATE_HZ), min_size=1, max_size=4))
def test_cuts_depend_on_the_sound_before_them(seed: int, ends: list[int]) -> None:
    rng = np.random.default_rng(seed)
    loudness = np.repeat(rng.random(80 * 5), RATE_HZ // 5)
    sound = (loudness * rng.standard_normal(80 * RATE_HZ)).astype(np.float32)
    known: tuple[int, ...] = ()
    for end in sorted(ends):
        grown = cuts(sound[:end], LONGEST_S, known)
        assert grown == cuts(sound[:end], LONGEST_S) and grown[: len(known)] == known
        bounds = [0, *grown, end]
        lengths = [(after - before) / RATE_HZ for before, after in zip(bounds, bounds[1:], strict=False)]
        assert max(lengths) <= LONGEST_S and min([REST_S, *lengths[:-1]]) >= REST_S
        assert not grown or lengths[-1] >= REST_S
        known = grown


# -- the vocabulary ----------------------------------------------------------------------------------------------------


def vocabulary(entries: list[bytes]) -> bytes:
    lengths = [bytes([n]) if (n := len(each)) < 128 else bytes([n % 128 + 128, n // 128]) for each in entries]
    return b"".join(length + each for length, each in zip(lengths, entries, strict=True))


@given(st.lists(st.text(max_size=5).map(str.encode) | st.binary(min_size=126, max_size=300), max_size=8), st.data())
def test_a_vocabulary_is_read_or_refused(entries: list[bytes], data: st.DataObject) -> None:
    written = vocabulary(entries)
    tokens = Tokens(written)
    assert len(tokens) == len(entries)
    for token, entry in enumerate(entries):
        assert tokens.text([token]) == entry.decode("utf-8", "replace").replace("\u2581", " ").strip()
    if written:
        part = written[: data.draw(st.integers(0, len(written) - 1))]
        try:
            assert len(Tokens(part)) < len(entries)
        except ValueError as error:
            assert "breaks off" in str(error)


# -- threads -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "limit, threads",
    [
        ("max 100000", 15),
        ("200000 100000", 1),
        ("250000 100000", 2),
        ("50000 100000", 1),
        ("9900000 100000", 15),
        (None, 15),
        ("", 15),
        ("nonsense", 15),
        ("1 0", 15),
    ],
)
def test_a_thread_for_each_core_but_one_or_as_the_container_may(
    limit: str | None, threads: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(16)))
    monkeypatch.setattr(devices, "CPU_MAX", tmp_path / "cpu.max")
    if limit is not None:
        (tmp_path / "cpu.max").write_text(f"{limit}\n")
    assert devices.usual_threads() == threads
