"""Pure functions about an answer: how much sound the network is shown, how long the answer may be, and whether it says
anything.

Whisper was trained on windows of 30 s. In a shorter one it is several times as fast, but below 10 s it does not find
the end of what was said, and repeats itself. The window depends on the length of the audio alone, so that a replay is
shown the same.

It was also trained on subtitles, and makes text of silence, noise, tones and music. Measured on such sounds, on
recorded prompts, single words and dictated numbers (docs/measurements/words.md), any one of these says that nobody
spoke: a high probability of no speech, which the model gives itself, unless the text is likely; a raised one with an
unlikely text; and a text with more tokens than anybody speaks. An unlikely text alone says nothing, for a single letter
or digit that was said is as unlikely; and neither does no speech alone, for digits that are dictated with pauses.
"""

from __future__ import annotations

import math

from asr.engines.speech import RATE_HZ
from asr.text import words

SHORTEST_S = 0.4
"""The model makes up a word for less audio than this."""
FRAMES_PER_S = 100
SHORTEST_FRAMES, LONGEST_FRAMES = 1000, 3000
BEHIND_S = 1.0
"""So much silence follows the audio in a window of more than 10 s."""
NO_SPEECH, DOUBTFUL = 0.6, 0.2
"""The probability of no speech above which there is no text that is not likely, and the one above which there is no
unlikely text."""
LIKELY, UNLIKELY = -0.5, -1.2
"""The mean logarithm of the tokens' probabilities from which on a text is likely, and below which it is unlikely."""
TWICE_WORDS = 4
"""A text that says so many words or more twice over may be a loop that has come to an end."""
TOKENS_PER_S, TOKENS_MORE = 9.0, 8
MOST_TOKENS = 448
"""The length of the decoder's memory, with the prompt."""


def window(samples: int) -> int:
    """Frames of 10 ms that the network is shown of audio with so many samples at 16 kHz."""
    wanted = 2 * math.ceil((samples / RATE_HZ + BEHIND_S) * FRAMES_PER_S / 2)
    return min(LONGEST_FRAMES, max(SHORTEST_FRAMES, wanted))


def longest(samples: int) -> int:
    """Tokens that an answer about so many samples may have: one that has them is a loop."""
    return TOKENS_MORE + int(TOKENS_PER_S * samples / RATE_HZ)


def max_length(samples: int, prompt: int) -> int:
    """The limit for `ctranslate2`, which makes half as many tokens, or as many as a prompt of this length leaves."""
    wanted = longest(samples)
    return min(MOST_TOKENS, max(2 * wanted, wanted + prompt))


def says_nothing(*, tokens: int, samples: int, likelihood: float, no_speech: float) -> bool:
    if tokens >= longest(samples):
        return True
    return (no_speech > NO_SPEECH and likelihood < LIKELY) or (no_speech > DOUBTFUL and likelihood < UNLIKELY)


def says_twice(text: str) -> bool:
    """Whether the second half of a text repeats the first."""
    said = words(text)
    half = len(said) // 2
    return half >= TWICE_WORDS and said[:half] == said[half:]
