"""Numbers, names and addresses through each engine, whole and offline: `make words WORDS=--entities`.

Each entity is wrong as a text (words) and wrong as a value: once as the engine writes it, once with
`text.numerals = "digits"`.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from audio.codecs.g711 import ulaw_encode
from benchmarks.entities import speech
from benchmarks.entities.sets import LANGUAGES, Entity, entities
from benchmarks.entities.values import PARSERS, plain
from benchmarks.offline import transcribe
from benchmarks.word_errors.align import align
from benchmarks.word_errors.normalise import words
from config.settings import Asr, Settings
from mediaworker.policy.inverse_normalisation import with_digits

_THOUSANDS, _HUNDREDTHS = re.compile(r"(?<=\d)[., ](?=\d{3}(?!\d))"), re.compile(r"(?<=\d)[.,](\d\d)(?!\d)")
_UNITS = re.compile(r"\b(?:and|con|et|und|e|dollars?|dolares|dollari|euros?|cents?|centimos|centimes|centesimi)\b|[$€]")


@dataclass(frozen=True)
class Answer:
    """One entity, and what an engine has written."""

    engine: str
    entity: Entity
    said: str
    text: str
    cpu_s: float

    @property
    def digits(self) -> str:
        return with_digits(self.text, self.entity.language)

    def value(self, text: str) -> str | None:
        return PARSERS[self.entity.kind](text, self.entity.language)


@dataclass(frozen=True)
class Row:
    engine: str
    language: str
    kind: str
    voice: str
    count: int
    words: int
    word_errors: int
    empty: int
    """How many texts are empty."""
    wrong: int
    """As values, of the text as the engine writes it."""
    wrong_digits: int
    """The same with `text.numerals = "digits"`."""


def measure(name: str, asr: Asr, languages: Sequence[str]) -> Iterator[Answer]:
    """All entities of these languages through one engine."""
    settings = Settings(asr=asr)
    for language in languages:
        for entity in entities(language):
            samples, wide = speech.sound(entity), speech.rate_hz(entity) == 16000
            audio = samples.tobytes() if wide else bytes(ulaw_encode(samples))
            begun = time.process_time()
            text = transcribe(settings, "L16" if wide else "PCMU", audio, language=language)
            yield Answer(name, entity, speech.said(entity), text, time.process_time() - begun)


def rows(answers: Sequence[Answer]) -> list[Row]:
    """A row for each engine, language, kind and voice, in the order of the answers."""
    grouped: dict[tuple[str, str, str, str], list[Answer]] = {}
    for each in answers:
        entity = each.entity
        grouped.setdefault((each.engine, entity.language, entity.kind, speech.voice(entity)), []).append(each)
    return [_row(*key, group) for key, group in grouped.items()]


def _row(engine: str, language: str, kind: str, voice: str, group: list[Answer]) -> Row:
    money = kind == "amount"
    errors = [align(_words(each.said, language, money), _words(each.text, language, money)) for each in group]
    return Row(
        engine,
        language,
        kind,
        voice,
        len(group),
        words=sum(each.words for each in errors),
        word_errors=sum(each.errors for each in errors),
        empty=sum(not each.text for each in group),
        wrong=sum(each.value(each.text) != each.entity.value for each in group),
        wrong_digits=sum(each.value(each.digits) != each.entity.value for each in group),
    )


def _words(text: str, language: str, money: bool = False) -> list[str]:
    """The words of a text without accents, and each digit of its numbers as a word: neither their spelling nor the
    spaces between them are errors. `money`: nor is "$25.50" for "25 dollars and 50 cents"."""
    text = plain(with_digits(text, language))
    if money:
        text = _UNITS.sub(" ", _HUNDREDTHS.sub(r" \1", _THOUSANDS.sub("", text)))
    return [part for word in words(text) for part in (word if word.isdecimal() else [word])]


def table(found: Sequence[Row]) -> str:
    """Markdown."""
    lines = [
        "| engine | language | what | voice | entities | wrong words | no text | wrong values | with digits |",
        "| --- | --- | --- | --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for row in found:
        share = 100 * row.word_errors / max(1, row.words)
        lines.append(
            f"| {row.engine} | {row.language} | {row.kind} | {row.voice} | {row.count} | {share:.0f} % "
            f"| {row.empty} | {row.wrong} | {row.wrong_digits} |"
        )
    return "\n".join(lines)


def main(model: str = "", markdown: str = "", *, verbose: bool = False) -> int:
    """Print the table; `model`: the folder of a Qwen3-ASR that is measured as well."""
    if lacking := speech.missing(LANGUAGES):
        print(f"words: apt-get install {' '.join(lacking)}", file=sys.stderr)
        return 2
    engines = [("Moonshine", Asr(engine="moonshine"), ("en",)), ("Whisper", Asr(engine="whisper"), LANGUAGES)]
    if model:
        engines.append((Path(model).name, Asr(engine="qwen", model=model), LANGUAGES))
    answers: list[Answer] = []
    for name, asr, languages in engines:
        for answer in measure(name, asr, languages):
            answers.append(answer)
            if verbose:
                entity = answer.entity
                values = f"{answer.value(answer.text)} {answer.value(answer.digits)}"
                print(
                    f"{name} {entity.language} {entity.kind}: {answer.said!r} {answer.text!r} {entity.value} {values}"
                )
        print(f"{name}: {sum(each.cpu_s for each in answers if each.engine == name):.0f} CPU s", file=sys.stderr)
    print(table(rows(answers)))
    if markdown:
        Path(markdown).write_text(table(rows(answers)) + "\n", encoding="utf-8")
    return 0
