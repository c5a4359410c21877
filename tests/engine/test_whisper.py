"""Whisper on recorded sound: the right words in five languages, none where nobody speaks, long and short audio, and
models that are no models."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import wave
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from G722 import G722

from asr.engines.interface import EngineUnusable
from asr.engines.speech import RATE_HZ, SpeechDetector
from asr.engines.whisper import answers, base
from asr.engines.whisper.engine import WhisperEngine
from asr.engines.whisper.model import Decode, Decoded, Detect, Encode, Sound, WhisperModel, load, together
from asr.engines.whisper.session import LONGEST_S, WhisperSession
from asr.engines.whisper.threads import CallThreads
from asr.scheduling.request import Lane, Request
from asr.text import words
from asr.utterance import BYTES_PER_S, Format, Utterance
from audio import Codec
from audio.codecs.g711 import alaw_encode, ulaw_encode
from benchmarks.word_errors.align import align
from config.settings import Asr, Settings
from lab.engine.offline import packets, utterances
from lab.media import nonspeech
from lab.media.speech import SPEECH, speech

R = 8000
SETTINGS = Settings(asr=Asr(engine="whisper"))
AMONG = Settings().asr.languages
SENTENCE, WORDS = "conf-onlyperson", "You are currently the only person in this conference."
OTHERS = {
    "es": ("es_MX_f_Allison/conf-onlyperson", "Por el momento, usted es la única persona en la conferencia."),
    "fr": ("fr_CA_f_June/conf-onlyperson", "Vous êtes présentement le seul participant dans cette conférence."),
    "it": ("it_IT_m_Carlo/conf-onlyperson", "Attualmente sei l'unica persona in questa conferenza."),
    "ru": (
        "ru_RU_f_IvrvoiceRU/pbx-invalid",
        "Извините, данный номер не существует. Пожалуйста, попробуйте еще раз.",
    ),
}
"""Recordings of other languages, and what is said in them: those that are on this machine are tried."""
INSTALLED = {
    language: (path, said)
    for language, (name, said) in OTHERS.items()
    if (path := SPEECH.parent / f"{name}.wav").exists()
}
LOUD = ("ring-back, Spain", "special information, Germany", "keys, dialled slowly", "fax, page", "hum of 50 Hz, loud",
        "pink noise, -34 dBFS, 10 s", "coughs: 2", "typing", "random bytes as µ-law, 3 s", "slow melody")  # fmt: skip
RECORDED = ("beep", "beeperr", "ascending-2tone", "descending-2tone", "tt-monkeys", "confbridge-join")
MUSIC = Path("/usr/share/asterisk/moh")


@pytest.fixture(scope="module")
def model() -> WhisperModel:
    folder = base.find()
    assert folder is not None
    return load(folder, "cpu", 1)


@pytest.fixture(scope="module")
def engine(model: WhisperModel) -> WhisperEngine:
    return WhisperEngine(model, 1, AMONG)


@pytest.fixture(autouse=True)
def closed(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "engine" in request.fixturenames:
        assert not request.getfixturevalue("engine")._sessions


def final(engine: WhisperEngine, audio: bytes, format: Format = "PCMU", language: str = "", context: str = "") -> Any:
    """The answer to all of it."""
    engine.open(Utterance("u", format, language, context))
    engine.append("u", audio)
    request = Request("u", 1, Lane.FINAL, True, len(audio), 0.0)
    while not (found := engine.step([request])):
        pass
    engine.close("u")
    return found[0]


def codes(samples: np.ndarray) -> bytes:
    return bytes(ulaw_encode(samples))


def prompt(path: Path) -> bytes:
    with wave.open(str(path)) as file:
        return codes(np.frombuffer(file.readframes(file.getnframes()), "<i2"))


# -- words -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("format", ["PCMU", "PCMA", "L16"])
def test_it_understands_a_telephone_line_and_wideband(engine: WhisperEngine, format: Format) -> None:
    if format == "L16":
        wide = G722(16000, 64000).decode((SPEECH / f"{SENTENCE}.g722").read_bytes())
        audio = np.asarray(wide, "<i2").tobytes()
    else:
        audio = codes(speech(SENTENCE)) if format == "PCMU" else bytes(alaw_encode(speech(SENTENCE)))
    answer = final(engine, audio, format)
    assert (answer.text, answer.language, answer.heard[0][0]) == (WORDS, "en", "en")


@pytest.mark.parametrize("language", INSTALLED)
def test_it_hears_which_language_is_spoken(engine: WhisperEngine, language: str) -> None:
    path, said = INSTALLED[language]
    for given in ("", language):
        answer = final(engine, prompt(path), language=given)
        assert answer.language == language and align(words(said), words(answer.text)).errors <= 1, answer.text
        assert bool(answer.heard) == (not given), "nobody listens for a language that is given"


def test_a_language_that_is_given_is_not_doubted(engine: WhisperEngine) -> None:
    answer = final(engine, codes(speech("auth-thankyou")), language="de")
    assert answer.language == "de" and answer.heard == ()


def test_what_a_leg_has_shown_before_decides_about_a_short_word(engine: WhisperEngine) -> None:
    """Two seconds of a clear language are remembered; a beep or a word changes nothing."""
    before = final(engine, codes(speech(SENTENCE))).heard
    engine.open(Utterance("u", "PCMU", heard=before))
    audio = codes(speech("activated"))
    engine.append("u", audio)
    request = Request("u", 1, Lane.FINAL, True, len(audio), 0.0)
    while not (found := engine.step([request])):
        pass
    engine.close("u")
    assert found[0].language == "en" and found[0].heard[0][0] == "en"


# -- the same alone, together, after a restart -------------------------------------------------------------------------


def test_calls_that_are_made_at_once_say_what_they_say_alone(model: WhisperModel) -> None:
    """As on a GPU. Contexts of different lengths do not fit into one call."""
    names = ["auth-thankyou", "pbx-invalid", "vm-goodbye", SENTENCE, "activated"]
    contexts = {SENTENCE: "conference", "activated": "activated, deactivated, Zypher"}
    engine = WhisperEngine(model, 1, ("en",))
    alone = {name: final(engine, codes(speech(name)), context=contexts.get(name, "")).text for name in names}
    sizes: list[int] = []

    def perform(calls: Sequence[Any]) -> list[Any]:
        sizes.append(len(calls))
        return model.perform(calls)

    engine._threads = CallThreads(1, perform, together, most=8)
    requests = []
    for name in names:
        audio = codes(speech(name))
        engine.open(Utterance(name, "PCMU", context=contexts.get(name, "")))
        engine.append(name, audio)
        requests.append(Request(name, 1, Lane.FINAL, True, len(audio), 0.0))
    found: dict[str, str] = {}
    while left := [request for request in requests if request.utterance_id not in found]:
        found |= {answer.request.utterance_id: answer.text for answer in engine.step(left)}
    assert found == alone and all(found.values()) and max(sizes) > 2


def test_another_process_says_the_same(engine: WhisperEngine, tmp_path: Path) -> None:
    """What was sent again after a crash."""
    audio = codes(np.concatenate([speech("pbx-invalid"), speech(SENTENCE)]))
    (tmp_path / "audio").write_bytes(audio)
    code = (
        "import sys; from pathlib import Path; from asr.utterance import Utterance\n"
        "from benchmarks.offline import recognize; from config.settings import Asr, Settings\n"
        "audio, settings = Path(sys.argv[1]).read_bytes(), Settings(asr=Asr(engine='whisper'))\n"
        "found = recognize(settings, Utterance('u', 'PCMU'), audio)\n"
        "print(repr((found.text, found.language, found.heard)))"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "audio")]
    ran = subprocess.run(command, check=True, capture_output=True, text=True)
    answer = final(engine, audio)
    assert ran.stdout.strip() == repr((answer.text, answer.language, answer.heard))


# -- long and short ----------------------------------------------------------------------------------------------------


MENU = ("demo-echotest", "vm-instructions", "conf-adminmenu-18")


@cache
def said_alone(engine: WhisperEngine) -> set[str]:
    return {word for name in MENU for word in words(final(engine, codes(speech(name)), language="en").text)}


@pytest.mark.parametrize("seconds", [30.0, 30.1, 60.0])
def test_long_audio_loses_nothing_where_it_is_cut(engine: WhisperEngine, seconds: float) -> None:
    audio = codes(np.concatenate([speech(name) for name in MENU * 4]))[: int(seconds * R)]
    assert len(audio) == int(seconds * R)
    whole, known = words(final(engine, audio, language="en").text), said_alone(engine)
    assert len(whole) > 1.8 * seconds, "somebody who reads a menu says more than two words a second"
    assert sum(word in known for word in whole) > 0.9 * len(whole)
    assert len(whole) < 4 * seconds, "no loop"


@pytest.mark.parametrize("seconds", [0.0, 0.001, 0.1, 0.39])
@pytest.mark.parametrize("format", ["PCMU", "L16"])
def test_too_little_to_hear(engine: WhisperEngine, format: Format, seconds: float) -> None:
    audio = codes(speech(SENTENCE)) if format == "PCMU" else np.repeat(speech(SENTENCE), 2).astype("<i2").tobytes()
    begin = BYTES_PER_S[format] // 2
    assert final(engine, audio[begin : begin + int(seconds * BYTES_PER_S[format])], format).text == ""


# -- what is no speech -------------------------------------------------------------------------------------------------


def test_sounds_that_are_no_speech_have_no_words(engine: WhisperEngine) -> None:
    said = {name: final(engine, nonspeech.codes(sound)).text for name, sound in nonspeech.sounds().items()}
    assert not {name: text for name, text in said.items() if text}


class Everything(SpeechDetector):
    """Takes every sound for speech, as it does now and then."""

    def first(self, samples: Any) -> int | None:
        return 0


@pytest.mark.parametrize("language", ["", "en", "de"])
def test_the_guards_know_it_where_voice_activity_detection_does_not(model: WhisperModel, language: str) -> None:
    sounds, engine = nonspeech.sounds(), WhisperEngine(model, 1, AMONG)
    engine._speech = Everything()
    said = {name: final(engine, nonspeech.codes(sounds[name]), language=language).text for name in LOUD}
    assert not {name: text for name, text in said.items() if text}


@pytest.mark.parametrize("name", RECORDED)
def test_a_recorded_sound_that_is_no_speech_has_no_words(engine: WhisperEngine, name: str) -> None:
    assert final(engine, codes(speech(name))).text == ""


def test_hold_music_has_next_to_no_words() -> None:
    """Through the detector, as in a call: half a minute of five pieces."""
    found = []
    for track in sorted(MUSIC.glob("*.wav")):
        music = prompt(track)[: 30 * R]
        found += [each.text for each in utterances(Codec.PCMU, packets(music), settings=SETTINGS) if each.text]
    assert len(" ".join(found).split()) <= 1, found


# -- loops -------------------------------------------------------------------------------------------------------------


def decoded(text: str, *, loop: bool = False) -> Decoded:
    return Decoded(text, loop=loop, nothing=loop, likelihood=-0.1, no_speech=0.0)


@pytest.mark.parametrize("again", [decoded("What was said."), decoded("what what what", loop=True)])
def test_a_loop_is_decoded_again_in_the_window_of_the_training(model: WhisperModel, again: Decoded) -> None:
    audio = codes(speech(SENTENCE))
    session = WhisperSession(model, SpeechDetector(), Utterance("u", "PCMU", "en"), AMONG)
    session.append(audio)
    answering = session.answer(Request("u", 1, Lane.FINAL, True, len(audio), 0.0))
    assert isinstance(encode := next(answering), Encode) and encode.frames == answers.SHORTEST_FRAMES
    sound = Sound(None, len(encode.samples), encode.frames)
    assert isinstance(answering.send(sound), Decode)
    assert isinstance(wide := answering.send(decoded("what what what", loop=True)), Encode)
    assert wide.frames == answers.LONGEST_FRAMES and np.array_equal(wide.samples, encode.samples)
    assert isinstance(answering.send(Sound(None, len(wide.samples), wide.frames)), Decode)
    with pytest.raises(StopIteration) as end:
        answering.send(again)
    assert end.value.value.text == ("" if again.loop else "What was said."), "nor is it decoded a third time"


@pytest.mark.parametrize(("nothing", "no_speech"), [(True, 0.1), (False, answers.DOUBTFUL + 0.01)])
def test_a_context_is_left_out_where_it_leads_to_nothing_or_to_a_text_of_a_doubtful_sound(
    model: WhisperModel, nothing: bool, no_speech: float
) -> None:
    """Once, and where there was one."""
    audio = codes(speech(SENTENCE))
    for context in ("Zypher, Alice Miller", ""):
        session = WhisperSession(model, SpeechDetector(), Utterance("u", "PCMU", "en", context), AMONG)
        session.append(audio)
        answering = session.answer(Request("u", 1, Lane.FINAL, True, len(audio), 0.0))
        encode, asked = next(answering), list[str]()
        decode = answering.send(Sound(None, len(encode.samples), encode.frames))
        with pytest.raises(StopIteration) as end:
            while isinstance(decode, Decode):
                asked.append(decode.context)
                decode = answering.send(Decoded("Zypher", False, nothing, likelihood=-1.0, no_speech=no_speech))
        assert asked == ([context, ""] if context else [""])
        assert end.value.value.text == ("" if nothing else "Zypher")


def test_a_language_is_asked_for_where_several_are_possible(model: WhisperModel) -> None:
    audio = codes(speech(SENTENCE))
    kinds: dict[tuple[str, tuple[str, ...]], type] = {}
    for given, among in (("", ("en", "es")), ("", ("es",)), ("es", ("en", "es"))):
        session = WhisperSession(model, SpeechDetector(), Utterance("u", "PCMU", given), among)
        session.append(audio)
        answering = session.answer(Request("u", 1, Lane.FINAL, True, len(audio), 0.0))
        encode = next(answering)
        kinds[given, among] = type(answering.send(Sound(None, len(encode.samples), encode.frames)))
    assert list(kinds.values()) == [Detect, Decode, Decode]


def test_a_long_utterance_is_decoded_in_pieces(model: WhisperModel) -> None:
    audio = codes(np.concatenate([speech("demo-echotest")] * 2))
    session = WhisperSession(model, SpeechDetector(), Utterance("u", "PCMU", "en"), AMONG)
    session.append(audio)
    answering = session.answer(Request("u", 1, Lane.FINAL, True, len(audio), 0.0))
    lengths: list[int] = []
    call, answer = next(answering), None
    while answer is None:
        try:
            if isinstance(call, Encode):
                lengths.append(len(call.samples))
                assert call.frames == answers.window(len(call.samples))
                call = answering.send(Sound(None, len(call.samples), call.frames))
            else:
                call = answering.send(decoded(f"piece {len(lengths)}"))
        except StopIteration as end:
            answer = end.value
    assert answer.text == " ".join(f"piece {number + 1}" for number in range(len(lengths)))
    assert len(lengths) > 2 and max(lengths) <= LONGEST_S * RATE_HZ and sum(lengths) == 2 * len(audio)


# -- folders that are no models ----------------------------------------------------------------------------------------


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    real = base.find()
    assert real is not None
    for file in real.iterdir():
        (tmp_path / file.name).symlink_to(file)
    return tmp_path


def replaced(path: Path, data: bytes) -> None:
    path.unlink()
    path.write_bytes(data)


@pytest.mark.parametrize("name", ["model.bin", "config.json", "tokenizer.json", "vocabulary.txt"])
def test_a_folder_that_lacks_a_file(copy: Path, name: str) -> None:
    (copy / name).unlink()
    with pytest.raises(EngineUnusable, match=r"no Whisper model for CTranslate2: it has no|cannot be loaded: .+"):
        WhisperModel(copy, device="cpu", threads=1)


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("model.bin", b""),
        ("model.bin", bytes(1000)),
        ("model.bin", b"version https://git-lfs.github.com/spec/v1\noid sha256:d01c\nsize 145217532\n"),
        ("config.json", b"{"),
        ("tokenizer.json", b""),
        ("tokenizer.json", b'{"version": "1.0", "model": {'),
        ("tokenizer.json", b"[]"),
    ],
)
def test_a_damaged_file(copy: Path, name: str, data: bytes) -> None:
    replaced(copy / name, data)
    with pytest.raises(EngineUnusable, match=r"cannot be loaded: .+"):
        WhisperModel(copy, device="cpu", threads=1)


@pytest.mark.parametrize("data", [b"", b"one\ntwo\n"])
def test_a_vocabulary_of_another_model(copy: Path, data: bytes) -> None:
    """It is loaded, and does not work."""
    replaced(copy / "vocabulary.txt", data)
    with pytest.raises(EngineUnusable, match=r"the Whisper model does not work: .+"):
        WhisperEngine(WhisperModel(copy, device="cpu", threads=1), 1, ("en",)).warm_up()


def test_a_part_of_a_model(copy: Path) -> None:
    real = copy.joinpath("model.bin").resolve()
    replaced(copy / "model.bin", real.read_bytes()[:5_000_000])
    with pytest.raises(EngineUnusable, match=r"cannot be loaded: .+"):
        WhisperModel(copy, device="cpu", threads=1)


def test_a_tokenizer_of_another_model(copy: Path) -> None:
    written = json.loads((copy / "tokenizer.json").read_text(encoding="utf-8"))
    written["added_tokens"], written["post_processor"] = [], None
    replaced(copy / "tokenizer.json", json.dumps(written).encode())
    with pytest.raises(EngineUnusable, match="is not Whisper's: it has no <|startoftranscript|>"):
        WhisperModel(copy, device="cpu", threads=1)


def test_no_folder_at_all(tmp_path: Path) -> None:
    with pytest.raises(EngineUnusable, match="it has no model.bin"):
        WhisperModel(tmp_path / "nowhere", device="cpu", threads=1)
    shutil.copy(__file__, tmp_path / "model.bin")
    with pytest.raises(EngineUnusable, match="it has no config.json"):
        WhisperModel(tmp_path, device="cpu", threads=1)
