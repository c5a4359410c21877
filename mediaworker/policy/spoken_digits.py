"""The number words of the languages of most calls, in one table that works without knowing the language.

Only long runs of such words count as a number, so a single "un" or "sei" in a sentence has no effect.
"""

from __future__ import annotations

ONES = {
    "en": "zero one two three four five six seven eight nine",
    "de": "null eins zwei drei vier fünf sechs sieben acht neun",
    "es": "cero uno dos tres cuatro cinco seis siete ocho nueve",
    "fr": "zéro un deux trois quatre cinq six sept huit neuf",
    "it": "zero uno due tre quattro cinque sei sette otto nove",
    "pt": "zero um dois três quatro cinco seis sete oito nove",
    "nl": "nul een twee drie vier vijf zes zeven acht negen",
    "pl": "zero jeden dwa trzy cztery pięć sześć siedem osiem dziewięć",
    "ru": "ноль один два три четыре пять шесть семь восемь девять",
    "sv": "noll ett två tre fyra fem sex sju åtta nio",
    "tr": "sıfır bir iki üç dört beş altı yedi sekiz dokuz",
}
MORE = {"oh": "0", "o": "0", "nought": "0", "zwo": "2", "ein": "1", "meia": "6", "uma": "1", "duas": "2", "één": "1"}
TEENS = {
    "en": "ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen",
    "de": "zehn elf zwölf dreizehn vierzehn fünfzehn sechzehn siebzehn achtzehn neunzehn",
    "es": "diez once doce trece catorce quince dieciséis diecisiete dieciocho diecinueve",
    "fr": "dix onze douze treize quatorze quinze seize",
}
TENS = {
    "en": "twenty thirty forty fifty sixty seventy eighty ninety",
    "de": "zwanzig dreißig vierzig fünfzig sechzig siebzig achtzig neunzig",
    "es": "veinte treinta cuarenta cincuenta sesenta setenta ochenta noventa",
    "fr": "vingt trente quarante cinquante soixante",
}
REPEATS = {"double": 2, "triple": 3, "treble": 3}
FILLERS = frozenset("uh um er erm ah äh ähm euh eh and then und y et dash hyphen minus space bindestrich".split())
"""Words between digits that do not end a run."""
HAN = dict(zip("零〇一幺二两三四五六七八九", "0011223456789", strict=True))


def _table(language: str) -> dict[str, str]:
    words = {name: str(value) for value, name in enumerate(ONES[language].split())}
    words |= {name: str(value) for value, name in enumerate(TEENS.get(language, "").split(), 10)}
    if language == "de":  # German numbers are one word with the ones before the tens
        ones = ["ein", *ONES["de"].split()[2:]]
        for tens, name in enumerate(TENS["de"].split(), 2):
            words |= {f"{one}und{name}": f"{tens}{value}" for value, one in enumerate(ones, 1)}
    return {word.casefold(): digits for word, digits in words.items()}


BY_LANGUAGE = {language: _table(language) for language in ONES}
"""For each language its number words, case-folded, with their digits."""
WORDS = {word.casefold(): digits for word, digits in MORE.items()}
for _words in BY_LANGUAGE.values():
    WORDS |= _words
"""The number words of all languages, case-folded, with their digits."""
ROUND = {name: str(value) for names in TENS.values() for value, name in enumerate(names.split(), 2)}
"""The words of multiples of ten, case-folded, with their first digit. The second digit is the next word, or 0."""
HESITATION = "um"
"""This word is 'one' in Portuguese and a hesitation in English; the language of the digit before it decides."""
PORTUGUESE = frozenset(ONES["pt"].casefold().split()) | {"meia", "uma", "duas"}
ROUND = {word.casefold(): digit for word, digit in ROUND.items()}
