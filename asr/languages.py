"""Languages: ISO 639 codes on the wire, names in the model's prompts and output.

639-1 where there is one, else 639-3 (`yue`, `fil`). The names are those that Qwen3-ASR writes into its language tag.
"""

from __future__ import annotations

from importlib.util import find_spec

QWEN3_ASR: dict[str, str] = {
    "ar": "Arabic", "cs": "Czech", "da": "Danish", "de": "German", "el": "Greek", "en": "English", "es": "Spanish",
    "fa": "Persian", "fi": "Finnish", "fil": "Filipino", "fr": "French", "hi": "Hindi", "hu": "Hungarian",
    "id": "Indonesian", "it": "Italian", "ja": "Japanese", "ko": "Korean", "mk": "Macedonian", "ms": "Malay",
    "nl": "Dutch", "pl": "Polish", "pt": "Portuguese", "ro": "Romanian", "ru": "Russian", "sv": "Swedish", "th": "Thai",
    "tr": "Turkish", "vi": "Vietnamese", "yue": "Cantonese", "zh": "Chinese",
}  # fmt: skip
ALIGNED = ("de", "en", "es", "fr", "it", "ja", "ko", "pt", "ru", "yue", "zh")
"""ISO 639 codes of the languages that Qwen3-ForcedAligner gives times of words for."""
SPLITTERS = {"ja": "nagisa", "ko": "soynlp"}
"""The packages that find the words in a text where spaces do not; they are not installed with the engine."""
_CODES = {name.lower(): code for code, name in QWEN3_ASR.items()}
_ALIASES = {
    "ara": "ar", "ces": "cs", "cmn": "zh", "cze": "cs", "dan": "da", "deu": "de", "dut": "nl", "ell": "el", "eng": "en",
    "fas": "fa", "fin": "fi", "fra": "fr", "fre": "fr", "ger": "de", "gre": "el", "hin": "hi", "hun": "hu", "ind": "id",
    "ita": "it", "jpn": "ja", "kor": "ko", "mac": "mk", "may": "ms", "mkd": "mk", "msa": "ms", "nld": "nl", "per": "fa",
    "pol": "pl", "por": "pt", "ron": "ro", "rum": "ro", "rus": "ru", "spa": "es", "swe": "sv", "tgl": "fil",
    "tha": "th", "tl": "fil", "tur": "tr", "vie": "vi", "zho": "zh", "chi": "zh", "zlm": "ms",
}  # fmt: skip
"""Other codes of these languages: those of ISO 639-2 and 639-3."""
_NAMES = {
    "castilian": "es", "farsi": "fa", "flemish": "nl", "mandarin": "zh", "moldavian": "ro", "moldovan": "ro",
    "tagalog": "fil",
}  # fmt: skip
"""Other names of these languages."""


def alignable() -> tuple[str, ...]:
    """Codes of the languages whose words can be timed with what is installed here."""
    return tuple(code for code in ALIGNED if code not in SPLITTERS or find_spec(SPLITTERS[code]) is not None)


def base(code: str) -> str:
    """`pt` of `pt-BR`, `fil` of `tl`. Of a language that is not in the table, which another engine may know, the code
    without its region; empty for what is no code."""
    if (known := name(code)) is not None:
        return _CODES[known.lower()]
    subtag = code.replace("_", "-").split("-")[0].strip().lower()
    return subtag if subtag.isascii() and subtag.isalpha() and 2 <= len(subtag) <= 3 else ""


def requested(language: str) -> str:
    """The code of a language as people and clients write it: `English`, `eng` and `en-GB` are `en`.

    Empty for `auto`, which leaves the language to the engine, as an empty one does. What is no language stays as it is,
    for the error that names it.
    """
    word = language.strip().lower()
    if word in ("", "auto"):
        return ""
    return _CODES.get(word) or _NAMES.get(word) or base(word) or word


def code(name: str) -> str:
    """ISO 639 code of a model's language name; empty for `None` and for a name that is not in the table."""
    return _CODES.get(name.strip().lower(), "")


def name(code: str) -> str | None:
    """The model's name for a code such as `en`, `pt-BR` or `zh_TW`; None when it does not know the language."""
    base = code.replace("_", "-").split("-")[0].strip().lower()
    return QWEN3_ASR.get(_ALIASES.get(base, base))
