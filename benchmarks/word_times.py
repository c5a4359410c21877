"""When was each word said? Times of words by Whisper's attention, beside forced alignment by PocketSphinx.

    python -m benchmarks.word_times [--prompts N] [--calls N]

PocketSphinx (`pip install pocketsphinx`, not among the worker's dependencies) aligns Asterisk's English prompts at
16 kHz with what is said in them. The worker's aligner hears the same prompts at 8 kHz in mu-law, with the text as it is
printed, with that of each engine, and through calls. Words that an engine got wrong have no reference and are left out.
Other languages have no reference: their words should lie in speech, in order, and last.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asr.engines.aligner import AlignRequest
from asr.engines.speech import PROBABILITY, RATE_HZ, WINDOW_S, SpeechDetector
from asr.engines.whisper import plugin as whisper
from asr.samples import Wideband
from asr.text import word_spans
from asr.utterance import TimedWord
from audio import Codec
from audio.codecs.g711 import ulaw_encode
from benchmarks.offline import transcribe
from benchmarks.words.prompts import Prompt, recorded
from config import Settings
from config.settings import Asr
from lab.engine.offline import packets, utterances
from lab.worker.peers import command, worker
from mediaworker.cli.play import load_pcm

SOUNDS = Path("/usr/share/asterisk/sounds")
LANGUAGES = {"es": "es_MX", "fr": "fr_CA", "it": "it_IT", "ru": "ru_RU"}
OTHERS = 20
"""Prompts of each other language, of 2 to 20 s."""
LEAD_MS, PAUSE_MS, SPLICED_MS = 300, 1500, 400
DIGITS = dict(zip("0123456789", "zero one two three four five six seven eight nine".split(), strict=True))
AIMS_MS = (60, 160)
"""p50 and p90."""


@dataclass(frozen=True)
class Word:
    word: str
    start_ms: float
    end_ms: float

    def later(self, ms: float) -> Word:
        return Word(self.word, self.start_ms + ms, self.end_ms + ms)


@dataclass
class Row:
    """The errors of one way to get a text, in milliseconds: those above zero are late."""

    title: str
    words: int
    starts: list[float]
    ends: list[float]

    def __str__(self) -> str:
        both = np.abs([*self.starts, *self.ends])
        percentiles = " / ".join(f"{value:.0f}" for value in np.percentile(both, (50, 90, 95)))
        sides = [f"{np.percentile(np.abs(side), 90):.0f}, {np.median(side):+.0f}" for side in (self.starts, self.ends)]
        return f"| {self.title} | {len(self.starts)} of {self.words} | {percentiles} | {sides[0]} | {sides[1]} |"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.word_times")
    parser.add_argument("--prompts", type=int, default=60, metavar="N", help="in English (default 60)")
    parser.add_argument("--calls", type=int, default=20, metavar="N", help="prompts that are played (default 20)")
    args = parser.parse_args()
    chosen = dict(_unused(args.prompts))
    print(f"{len(chosen)} prompts, {sum(map(len, chosen.values()))} words, in ms")
    print("| text | words | p50 / p90 / p95 | starts: p90, median | ends: p90, median |")
    print("| --- | ---: | ---: | ---: | ---: |")
    rows = []
    for row in (*_offline(chosen), *_through_calls(chosen, args.calls)):
        rows.append(row)
        print(row, flush=True)
    print("\n| language | words | middle in speech | 20 ms or less |\n| --- | ---: | ---: | ---: |")
    for language in LANGUAGES:
        print(_sane(language), flush=True)
    printed = np.percentile(np.abs([*rows[0].starts, *rows[0].ends]), (50, 90))
    return int(any(printed > AIMS_MS))


# -- the reference ---------------------------------------------------------------------------------------------------


def _unused(count: int) -> Iterator[tuple[Prompt, list[Word]]]:
    """Prompts with their words, of the half that did not choose the aligner's constants."""
    by_length = sorted(recorded(), key=lambda prompt: (prompt.length_s, prompt.name))[::2]
    decoder = _sphinx()
    found = [(prompt, words) for prompt in by_length if (words := _reference(decoder, prompt))]
    yield from (found[round(at)] for at in np.linspace(0, len(found) - 1, min(count, len(found))))


def _sphinx() -> Any:
    from pocketsphinx import Decoder

    # Short silences are silences rather than part of the word before.
    return Decoder(samprate=RATE_HZ, lm=None, loglevel="FATAL", silprob=0.1, dither=True, seed=1)


def _reference(decoder: Any, prompt: Prompt) -> list[Word]:
    """The words of a prompt; empty if one is not in PocketSphinx's dictionary, or if it is not what is said."""
    spoken = [
        (shown, [DIGITS.get(part, part) for part in shown.casefold().replace("\u2019", "'").split("-")])
        for shown in (prompt.text[begin:end] for begin, end in word_spans(prompt.text))
    ]
    flat = [part for _, parts in spoken for part in parts]
    if any(decoder.lookup_word(part) is None for part in flat):
        return []
    silence = np.random.default_rng(0).integers(-4, 5, LEAD_MS * RATE_HZ // 1000).astype(np.int16)
    decoder.set_align_text(" ".join(flat))
    decoder.start_utt()
    decoder.process_raw(np.concatenate([silence, prompt.samples(RATE_HZ), silence]).tobytes(), full_utt=True)
    decoder.end_utt()
    # Frames of 10 ms; fillers are in angle or square brackets.
    frames = [(each.start_frame, each.end_frame + 1) for each in decoder.seg() or () if each.word[0] not in "<["]
    if len(frames) != len(flat):
        return []
    found, at = [], 0
    for shown, parts in spoken:
        behind = at + len(parts)
        found.append(Word(shown, 10 * frames[at][0] - LEAD_MS, 10 * frames[behind - 1][1] - LEAD_MS))
        at = behind
    return found


# -- offline ---------------------------------------------------------------------------------------------------------


def _offline(chosen: dict[Prompt, list[Word]]) -> Iterator[Row]:
    def row(title: str, texts: Iterable[tuple[bytes, str, list[Word]]]) -> Row:
        found = Row(title, 0, [], [])
        for audio, text, reference in texts:
            _compare(found, reference, _timed(audio, text))
        return found

    told = [(_ulaw(prompt), prompt.text, words) for prompt, words in chosen.items()]
    yield row("as printed", told)
    yield row("without punctuation and capitals", [(audio, _bare(text), words) for audio, text, words in told])
    yield row("two prompts spliced, without punctuation", _spliced(told))
    for engine in ("moonshine", "whisper"):
        settings = Settings(asr=Asr(engine=engine, language="en"))
        yield row(f"{engine}'s own", [(audio, transcribe(settings, "PCMU", audio), words) for audio, _, words in told])


def _spliced(told: Sequence[tuple[bytes, str, list[Word]]]) -> Iterator[tuple[bytes, str, list[Word]]]:
    silence = b"\xff" * (8 * SPLICED_MS)
    for (audio, text, words), (behind, after, others) in zip(told[::2], told[1::2], strict=False):
        begin_ms = len(audio + silence) / 8
        later = [word.later(begin_ms) for word in others]
        yield audio + silence + behind, _bare(f"{text} {after}"), [*words, *later]


def _compare(row: Row, reference: Sequence[Word], words: Sequence[Word]) -> None:
    """Words that both have, in order."""
    row.words += len(reference)
    mine, theirs = ([_bare(each.word) for each in side] for side in (words, reference))
    for block in SequenceMatcher(None, mine, theirs, autojunk=False).get_matching_blocks():
        for at in range(block.size):
            word, right = words[block.a + at], reference[block.b + at]
            row.starts.append(word.start_ms - right.start_ms)
            row.ends.append(word.end_ms - right.end_ms)


def _timed(audio: bytes, text: str, language: str = "en") -> list[Word]:
    (found,) = _aligner().align([AlignRequest("PCMU", audio, text, language)])
    _check(found, text, len(audio) / 8)
    return [Word(each.word, each.start_ms, each.end_ms) for each in found]


def _check(found: Sequence[TimedWord], text: str, end_ms: float) -> None:
    assert len(found) == len(word_spans(text)), "as many as the text has"
    edges = [edge for word in found for edge in (word.start_ms, word.end_ms)]
    assert edges == sorted(edges) and (not edges or 0 <= edges[0] <= edges[-1] <= end_ms + 1)
    assert all(0 <= word.confidence <= 1 for word in found)


@cache
def _aligner() -> Any:
    return whisper.create_aligner(Asr(threads=1))


def _ulaw(prompt: Prompt) -> bytes:
    return bytes(ulaw_encode(prompt.samples(8000)))


def _bare(text: str) -> str:
    return " ".join(re.sub(r"[^\w'’-]+", " ", text).casefold().split())


# -- through calls ---------------------------------------------------------------------------------------------------


def _through_calls(chosen: dict[Prompt, list[Word]], count: int) -> Iterator[Row]:
    """What `transcript.words` says of a call by WebSocket and one by SIP, beside the reference and beside the same
    utterances offline."""
    some = list(chosen.items())[:: max(1, len(chosen) // count)][:count]
    played, reference = bytearray(b"\xff" * (8 * PAUSE_MS)), list[Word]()
    for prompt, words in some:
        reference += [word.later(len(played) / 8) for word in words]
        played += _ulaw(prompt) + b"\xff" * (8 * PAUSE_MS)
    offline = list(_offline_words(bytes(played)))
    with tempfile.TemporaryDirectory() as base:
        file = Path(base, "prompts.ulaw")
        file.write_bytes(played)
        options = {"ASR__ENGINE": "mixed", "ASR__LANGUAGE": "en", "ASR__WORD_TIMESTAMPS": "true"}
        with worker(Path(base), **options) as running:
            for calls, (title, arguments) in enumerate(
                {
                    "through a Twilio stream": ("stream", running.twilio),
                    "through a SIP call": ("call", f"sip:demo@127.0.0.1:{running.sip_port}"),
                }.items()
            ):
                done = command(*arguments, "--play", str(file), timeout_s=60 + len(played) / 8000)
                assert done.returncode == 0, done.stderr
                events = running.events(running.wait_ended(calls + 1)[-1]["call_id"])
                heard = [
                    Word(each["word"], each["start_ms"], each["end_ms"])
                    for event in events
                    if event["type"] == "transcript.words"
                    for each in event["words"]
                ]
                shift_ms = heard[0].start_ms - offline[0].start_ms if arguments[0] == "call" else 0.0
                beside, against = Row(title, 0, [], []), Row(f"{title}, beside offline", 0, [], [])
                heard = [word.later(-shift_ms) for word in heard]
                _compare(beside, reference, heard)
                _compare(against, offline, heard)
                yield beside
                yield against


def _offline_words(codes: bytes) -> Iterator[Word]:
    """The words of the utterances that endpointing finds, by the same engine and aligner, in the time of the call."""
    at = 0
    settings = Settings(asr=Asr(engine="mixed", language="en"))
    for heard in utterances(Codec.PCMU, packets(codes), settings=settings):
        at = codes.index(heard.audio, at)
        for word in _timed(heard.audio, heard.text):
            edges = [min(max(at / 8 + ms, heard.start_ms), heard.end_ms) for ms in (word.start_ms, word.end_ms)]
            yield Word(word.word, *edges)


# -- other languages -------------------------------------------------------------------------------------------------


def _sane(language: str) -> str:
    """A row about words in a language without a reference."""
    settings = Settings(asr=Asr(engine="whisper", language=language))
    words = inside = short = 0
    for audio in _others(language):
        samples = Wideband("PCMU").feed(audio)
        voiced = SpeechDetector().probabilities(samples) >= PROBABILITY
        for word in _timed(audio, transcribe(settings, "PCMU", audio), language):
            words += 1
            inside += bool(_at(voiced, (word.start_ms + word.end_ms) / 2000))
            short += word.end_ms - word.start_ms <= 20
    return f"| {language} | {words} | {100 * inside / words:.1f} % | {short} |"


def _at(voiced: NDArray[np.bool_], seconds: float) -> bool:
    """Whether there is speech in the window with this moment, or in the next: the detector is a window late."""
    window = int(seconds / WINDOW_S)
    return bool(voiced[window : window + 2].any())


def _others(language: str) -> Iterator[bytes]:
    (folder,) = SOUNDS.glob(f"{LANGUAGES[language]}_*")
    every = [file for file in sorted(folder.glob("*.wav")) if 2 < file.stat().st_size / 16000 < 20]
    for file in every[:: max(1, len(every) // OTHERS)][:OTHERS]:
        yield bytes(ulaw_encode(load_pcm(file, 8000)))


if __name__ == "__main__":
    sys.exit(main())
