"""What the engines say where nobody speaks, and how much of real speech their guards swallow.

    python -m benchmarks.whisper.nonspeech --sounds DIR,… --json FILE
    python -m benchmarks.whisper.nonspeech --table FILE

The engines are asked past voice activity detection, so that their own guards are seen; whether it would have let the
sound through is told beside it.
"""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before numpy: as in the worker
os.environ.setdefault("OMP_NUM_THREADS", "1")

import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path

from asr.engines.mixed.session import UNSURE
from asr.engines.whisper.answers import DOUBTFUL, LIKELY, NO_SPEECH, UNLIKELY
from benchmarks.whisper import material
from benchmarks.whisper.listening import Listener, Row, answers, parser
from benchmarks.whisper.material import Clip

ASKED = (
    ("whisper", ""), ("whisper", "en"), ("whisper", "es"), ("whisper", "de"), ("mixed", ""), ("mixed", "en"),
    ("moonshine", ""),
)  # fmt: skip
"""Engines, and the language that is given."""
SPEECH = {"en": (30, 30), "es": (12, 10), "fr": (12, 10), "it": (12, 10), "ru": (12, 10)}
"""So many prompts and single words of each language."""
RULES: dict[str, Callable[[Row], bool]] = {
    f"no speech > {NO_SPEECH:g}": lambda row: row["no_speech"] > NO_SPEECH,
    f"likelihood < {UNLIKELY:g}": lambda row: row["likelihood"] < UNLIKELY,
    "too many tokens": lambda row: row["loop"],
    f"no speech > {NO_SPEECH:g}, likelihood < -1.2 or too many tokens": lambda row: (
        row["no_speech"] > NO_SPEECH or row["likelihood"] < -1.2 or row["loop"]
    ),
    f"no speech > {NO_SPEECH:g}, or > {DOUBTFUL:g} and likelihood < {UNLIKELY:g}, or too many tokens": lambda row: (
        row["loop"] or row["no_speech"] > (DOUBTFUL if row["likelihood"] < UNLIKELY else NO_SPEECH)
    ),
    "built in": lambda row: (
        row["loop"]
        or (row["no_speech"] > NO_SPEECH and row["likelihood"] < LIKELY)
        or (row["no_speech"] > DOUBTFUL and row["likelihood"] < UNLIKELY)
    ),
    "OpenAI's": lambda row: row["loop"] or (row["no_speech"] > 0.6 and row["likelihood"] < -1),
}


def main() -> int:
    options = parser("benchmarks.whisper.nonspeech", ("sounds", *SPEECH), "sounds, or speech of one language")
    options.add_argument("--sounds", default="", metavar="DIR,…", help="folders with recordings in which nobody speaks")
    args = options.parse_args()
    folders = [Path(each) for each in args.sounds.split(",") if each]
    rows = answers(args, measured(_clips(args.only, folders)))
    for lines in (nonspeech_table(rows), rules_table(rows), speech_table(rows)):
        print("\n".join(lines), end="\n\n")
    return 0


def _clips(only: str | None, folders: list[Path]) -> Iterable[Clip]:
    if only in (None, "sounds"):
        yield from material.sounds(folders)
    for language, (prompts, words) in SPEECH.items():
        if only in (None, language):
            yield from material.speech(language, prompts, words)


def measured(clips: Iterable[Clip]) -> Iterable[Row]:
    """A row for each question about each clip. The engines take turns in groups: offline, one is loaded at a time."""
    listener, clips = Listener(), list(clips)
    for at in range(0, len(clips), 40):
        for engine in ("whisper", "mixed", "moonshine"):
            for clip in clips[at : at + 40]:
                for asked, language in _asked(clip):
                    if asked == engine:
                        yield _row(listener, clip, engine, language)
        listener.forget()


def _asked(clip: Clip) -> Iterable[tuple[str, str]]:
    if not clip.language:
        return ASKED
    given = [("whisper", clip.language)]
    return [*given, ("mixed", "en")] if clip.language == "en" else given


def _row(listener: Listener, clip: Clip, engine: str, language: str) -> Row:
    heard = listener.hear(engine, clip.codes, language)
    decoded = asdict(heard.decoded) if heard.decoded else {"nothing": False}
    return {
        "clip": clip.name, "kind": clip.kind, "seconds": len(clip.codes) / material.R, "spoken": clip.language,
        "speaks": listener.speaks(clip.codes), "engine": engine, "given": language, "shown": heard.text,
        "language": heard.language, "moonshine": heard.moonshine, **decoded,
    }  # fmt: skip


# -- tables ------------------------------------------------------------------------------------------------------------


def _of(rows: Iterable[Row], **wanted: object) -> list[Row]:
    return [row for row in rows if all(row[key] == value for key, value in wanted.items())]


def nonspeech_table(rows: list[Row]) -> list[str]:
    rows = _of(rows, spoken="")
    clips, heard = {row["clip"] for row in rows}, {row["clip"] for row in rows if row["speaks"]}
    lines = [
        f"{len(clips)} sounds, {len(heard)} of which voice activity detection takes for speech",
        "| engine | language | without guards | with them | and voice activity detection |",
        "| --- | --- | ---: | ---: | ---: |",
    ]
    for engine, given in ASKED:
        of = _of(rows, engine=engine, given=given)
        raw = sum(bool(row["text"].strip()) for row in of if "text" in row) if engine == "whisper" else None
        shown = [row for row in of if row["shown"]]
        lines.append(
            f"| {engine} | {given or 'detected'} | {'' if raw is None else raw} | {len(shown)} "
            f"| {sum(row['speaks'] for row in shown)} |"
        )
    unsure = [row for row in _of(rows, engine="mixed", given="en") if row["moonshine"] is not None]
    asked = [row for row in unsure if row["moonshine"] < UNSURE]
    lines.append(f"mixed, English: Moonshine unsure in {len(asked)}, Whisper then silent in {_silent(asked)}")
    return lines


def _silent(rows: list[Row]) -> int:
    return sum(not row["shown"] for row in rows)


def rules_table(rows: list[Row]) -> list[str]:
    rows = [row for row in _of(rows, engine="whisper") if row.get("text", "").strip()]
    lines = ["| rule | sounds that said something | real ones lost |", "| --- | ---: | ---: |"]
    sounds, real = (
        [row for row in rows if not row["spoken"]],
        [row for row in rows if row["spoken"] and row["spoken"] == row["given"]],
    )
    for name, rule in RULES.items():
        caught, lost = sum(map(rule, sounds)), sum(map(rule, real))
        lines.append(f"| {name} | {caught} of {len(sounds)} | {lost} of {len(real)} |")
    return lines


def speech_table(rows: list[Row]) -> list[str]:
    rows = [row for row in rows if row["spoken"]]
    lines = ["| spoken | what | engine | language | clips | empty | by a guard | VAD |", f"| {'--- | ' * 8}".rstrip()]
    groups = dict.fromkeys((row["spoken"], row["kind"], row["engine"], row["given"]) for row in rows)
    for spoken, kind, engine, given in groups:
        of = _of(rows, spoken=spoken, kind=kind, engine=engine, given=given)
        guarded = sum(row["nothing"] for row in of if not row["shown"])
        unheard, language = sum(not row["speaks"] for row in of), given or "detected"
        lines.append(
            f"| {spoken} | {kind} | {engine} | {language} | {len(of)} | {_silent(of)} | {guarded} | {unheard} |"
        )
    return lines


if __name__ == "__main__":
    sys.exit(main())
