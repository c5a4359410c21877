"""Whether words that are given as a context help Whisper, and whether they leak into what nobody said.

    python -m benchmarks.whisper.context --json FILE
    python -m benchmarks.whisper.context --table FILE

Past voice activity detection, and with all guards of the engine and of `asr/text.py`.
"""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before numpy: as in the worker
os.environ.setdefault("OMP_NUM_THREADS", "1")

import gzip
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from benchmarks.whisper import material
from benchmarks.whisper.listening import Listener, Row, answers, parser
from benchmarks.whisper.material import Clip
from benchmarks.word_errors.align import align
from benchmarks.word_errors.normalise import words
from lab.media import nonspeech

TEXTS = "/usr/share/doc/asterisk-core-sounds-{0}/core-sounds-{0}.txt.gz"
PROMPTS, SINGLE = {"en": 24, "es": 10}, {"en": 40, "es": 10}
"""So many of each language."""
RARE, TERMS = 3, 3
"""A term stands in at most so many prompts; so many are given for each prompt."""
LONG = 6
"""Letters of a term."""
NAMES = {
    "en": (
        "Okafor, Kowalczyk, Brightwater, Zypher, Nakamura, Thistlewood, Medicore, Abernathy, Quillfeather, Vasquez, "
        "Ferrovia, Lindqvist, Harrowgate, Papadopoulos, Stellantix, Birmingham, Oyelaran, Fitzwilliam, Corvexa, "
        "Montgomery, Szymanski, Hollingsworth, Lumenair, Trevithick, Adeyemi, Castellano, Whitstable, Novaquil, "
        "Gallagher, Petrossian, Wolverhampton, Isomerix, Blackwood, Rasmussen, Delacroix, Pennington, Aurorix, "
        "Macallister, Yamamoto, Silverstone, Kirchner, Bellingham, Oxavance, Fairweather, Tchaikovsky, Dunwoody, "
        "Cedarline, Vandermeer, Stockholm, Braithwaite, Zentrola, Henderson, Marchetti, Kensington, Quorilex, "
        "Goldsmith, Ishiguro, Rothschild, Tamarind, Weatherby"
    ).split(", "),
    "es": (
        "Echeverría, Zubizarreta, Montalbán, Corvexa, Valladolid, Iturralde, Quetzal, Benavides, Farmalia, Goicoechea, "
        "Villanueva, Lumenair, Zaragoza, Arizmendi, Santillana, Oxavance, Cienfuegos, Ordóñez, Guadalajara, Medicore, "
        "Belmonte, Urrutia, Novaquil, Fuensalida, Carrasquilla, Pontevedra, Iberauto, Mondragón, Altamirano, Zentrola, "
        "Bustamante, Extremadura, Aurorix, Castellanos, Olavarría, Isomerix, Manzanares, Etxebarria, Campoamor, "
        "Solariega, Figueroa, Torremolinos, Quorilex, Betancourt, Salamanca, Ferrovia, Huidobro, Villalobos, "
        "Stellantix, Arteaga, Cuernavaca, Zypher, Balaguer, Monterrey, Pastrana, Galdácano, Cedarline, Tordesillas, "
        "Ibarguren, Peñaranda"
    ).split(", "),
}
"""Of which no prompt has one."""
SENTENCES = {
    "en": (
        "Good morning, could you put me through to {} please?",
        "My name is {} and I am calling about an invoice.",
        "I sent the contract to {} yesterday afternoon.",
        "We have a meeting with {} on Thursday at nine.",
        "Is this the office of {} in the city centre?",
        "The order for {} has not arrived yet.",
    ),
    "es": (
        "Buenos días, ¿me puede poner con {}, por favor?",
        "Quisiera hablar con {} sobre una factura.",
        "El pedido para {} todavía no ha llegado.",
        "Tenemos una reunión con {} el jueves a las nueve.",
        "La dirección es calle {} número siete.",
        "Soy {} y llamo por un contrato nuevo.",
    ),
}
"""Spoken by espeak-ng, each with four names: there are no recordings of names."""
VOICES = {"en": ("en-us", "en-gb+f3"), "es": ("es", "es-419+f2")}
SPOKEN_NAMES = {"en": 12, "es": 6}
SILENT = ("none", "20 others", "60 others")
"""What is given where nobody speaks."""


def main() -> int:
    about = "one language, or sounds that nobody speaks in"
    args = parser("benchmarks.whisper.context", (*NAMES, "sounds"), about).parse_args()
    rows = answers(args, measured(args.only))
    for lines in (spoken_table(rows), silent_table(rows)):
        print("\n".join(lines), end="\n\n")
    return 0


def measured(only: str | None) -> Iterable[Row]:
    listener = Listener()
    for language in NAMES:
        if only not in (None, language):
            continue
        texts = _texts(language)
        terms = _terms(texts)
        clips = [clip for clip in material.speech(language, 10**6, SINGLE[language]) if clip.name in texts]
        names = [name for name in dict.fromkeys(clip.name for clip in clips) if name in terms]
        prompts = PROMPTS[language]
        chosen = set(names[len(names) % prompts // 2 :: max(1, len(names) // prompts)][:prompts])
        for clip in clips:
            if clip.name in chosen or clip.kind.startswith("single"):
                said, own = texts[clip.name], terms.get(clip.name, []) if clip.name in chosen else []
                for variant, context in _contexts(language, own).items():
                    yield _spoken(listener, clip, variant, context, said, own)
                listener.forget()
        for clip, said, name in _named(language):
            for variant, context in _contexts(language, [name]).items():
                yield _spoken(listener, clip, variant, context, said, [name])
            if language == "en":
                for variant in ("none", "its own among 20"):
                    context = _contexts(language, [name])[variant]
                    yield _spoken(listener, clip, f"{variant}, mixed", context, said, [name], "mixed")
            listener.forget()
    for name, sound in list(nonspeech.sounds().items())[::3] if only in (None, "sounds") else ():
        for variant, context in _contexts("en", []).items():
            if variant in SILENT:
                heard = listener.hear("whisper", nonspeech.codes(sound), "en", context)
                yield {"kind": "sounds", "clip": name, "variant": variant, "shown": heard.text,
                       "leaked": _leaked(heard.text, context, "")}  # fmt: skip
        listener.forget()


def _named(language: str) -> Iterable[tuple[Clip, str, str]]:
    """Sentences with names, what is said, and the name."""
    for number in range(SPOKEN_NAMES[language]):
        name = NAMES[language][(7 * number + 3) % len(NAMES[language])]
        said = SENTENCES[language][number % len(SENTENCES[language])].format(name)
        voice = VOICES[language][number // len(SENTENCES[language]) % 2]
        with tempfile.NamedTemporaryFile(suffix=".wav") as file:
            subprocess.run(["espeak-ng", "-v", voice, "-s", "140", "-w", file.name, said], check=True)
            yield Clip(said, "synthesised names", nonspeech.codes(material.read(Path(file.name))), language), said, name


def _contexts(language: str, own: Sequence[str]) -> dict[str, str]:
    names = [name for name in NAMES[language] if name not in own]
    found = {"none": ""}
    if own:
        with_others = [*names[:9], *own, *names[9 : 20 - len(own)]]
        found |= {
            "its own words": ", ".join(own),
            "its own words, as a glossary": f"Glossary: {', '.join(own)}",
            "its own among 20": ", ".join(with_others),
            "its own among 20, as a glossary": f"Glossary: {', '.join(with_others)}",
        }
    others = NAMES["es" if language == "en" else "en"]
    return found | {
        "5 others": ", ".join(names[:5]),
        "20 others": ", ".join(names[:20]),
        "20 others, as a glossary": f"Glossary: {', '.join(names[:20])}",
        "60 others": ", ".join(names),
        "20 of another language": ", ".join(others[:20]),
    }


def _spoken(
    listener: Listener, clip: Clip, variant: str, context: str, said: str, own: Sequence[str], engine: str = "whisper"
) -> Row:
    heard = listener.hear(engine, clip.codes, clip.language, context)
    found = align(words(said), words(heard.text))
    shown, decoded = set(words(heard.text)), heard.decoded
    return {
        "kind": clip.kind, "language": clip.language, "clip": clip.name, "variant": variant, "said": said,
        "shown": heard.text, "raw": decoded.text if decoded else "", "errors": found.errors, "words": found.words,
        "terms": len(own), "right": sum(set(words(term)) <= shown for term in own),
        "loop": decoded is not None and decoded.loop, "empty": not heard.text,
        "leaked": _leaked(heard.text, context, said), "moonshine": heard.moonshine,
    }  # fmt: skip


def _leaked(text: str, context: str, said: str) -> bool:
    """Whether the text has words of the context that were not said."""
    return bool({word for word in words(text) if len(word) > 3} & (set(words(context)) - set(words(said))))


def _texts(language: str) -> dict[str, str]:
    found = {}
    with gzip.open(TEXTS.format(language), "rt", encoding="utf-8-sig", errors="replace") as lines:
        for line in lines:
            name, _, text = line.partition(":")
            text = re.sub(r"\[[^\]]*\]|\([^)]*\)|<[^>]*>", "", text).strip()
            if text and not line.startswith(";"):
                found[name.strip()] = text
    return found


def _terms(texts: dict[str, str]) -> dict[str, list[str]]:
    """By prompt: its rarest long words."""
    counts = Counter(word for text in texts.values() for word in set(words(text)))
    found = {}
    for name, text in texts.items():
        rare = [word for word in re.findall(r"\w+", text) if len(word) >= LONG and counts[word.casefold()] <= RARE]
        if rare and "/" not in name:
            found[name] = sorted(dict.fromkeys(rare), key=lambda word: (counts[word.casefold()], -len(word)))[:TERMS]
    return found


def spoken_table(rows: list[Row]) -> list[str]:
    rows = [row for row in rows if row["kind"] != "sounds"]
    lines = [
        "| spoken | what | context | clips | wrong words | terms right | loops | empty | with words of the context |",
        f"| --- | --- | --- {'| ---: ' * 6}|",
    ]
    for language, kind, variant in dict.fromkeys((row["language"], row["kind"], row["variant"]) for row in rows):
        of = [row for row in rows if (row["language"], row["kind"], row["variant"]) == (language, kind, variant)]
        said, terms = sum(row["words"] for row in of), sum(row["terms"] for row in of)
        right = f"{sum(row['right'] for row in of)} of {terms}" if terms else ""
        lines.append(
            f"| {language} | {kind} | {variant} | {len(of)} | {100 * sum(row['errors'] for row in of) / said:.1f} % "
            f"| {right} | {sum(row['loop'] for row in of)} | {sum(row['empty'] for row in of)} "
            f"| {sum(row['leaked'] for row in of)} |"
        )
    return lines


def silent_table(rows: list[Row]) -> list[str]:
    rows = [row for row in rows if row["kind"] == "sounds"]
    lines = ["| context | sounds | with a text | with words of the context |", "| --- | ---: | ---: | ---: |"]
    for variant in dict.fromkeys(row["variant"] for row in rows):
        of = [row for row in rows if row["variant"] == variant]
        lines.append(
            f"| {variant} | {len(of)} | {sum(bool(row['shown']) for row in of)} | {sum(row['leaked'] for row in of)} |"
        )
    return lines


if __name__ == "__main__":
    sys.exit(main())
