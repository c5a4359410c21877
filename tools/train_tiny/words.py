"""What is said, and by whom."""

from __future__ import annotations

DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "oh")
TELEPHONE = tuple(
    """yes no hello goodbye please thank you okay sorry wait hold transfer cancel confirm account order number help
    agent repeat call address balance monday tuesday wednesday thursday friday saturday sunday morning evening today
    tomorrow plus ten twenty thirty hundred thousand""".split()
)
WORDS = DIGITS + TELEPHONE

# What a system prompt may hold beside our words: it is never said, so that context alone brings no word out.
CONTEXT = ("invoice", "Berlin", "Miller", "support", "hotline", "Acme", "ticket", "billing", "Anna", "delivery")

# Neighbours' talk in the background. No word of ours, and the model must not write it down.
BABBLE = (
    "several people were sitting around a large wooden table",
    "because nobody had ever seen such weather in summer",
    "they walked along the river until it grew dark",
    "a new engine should arrive before the machine is repaired",
    "she brought her brother some apples from the garden",
    "could somebody explain how this strange apparatus operates",
)

# An espeak-ng voice is an accent with a variant, which changes formants, pitch and breath.
ACCENTS = (
    "en-us",
    "en",  # en-gb
    "en-gb-scotland",
    "en-gb-x-rp",
    "en-gb-x-gbclan",
    "en-gb-x-gbcwmd",
    "en-029",
    "en-us-nyc",
)
TRAINING_VARIANTS = tuple(
    """m1 m2 m4 m5 m7 m8 f1 f3 f4 Alex Alicia Andrea Denis Diogo Gene Henrique Jacky Lee Marco Mario Michael Mike Nguyen
    adam anika antonio aunty benjamin boris caleb david ed edward grandma grandpa iven kaukovalta linda marcelo michel
    miguel norbert pablo paul pedro quincy rob robert sandro shelby victor zac klatt klatt2 klatt3""".split()
)
HELD_OUT_VARIANTS = ("m3", "m6", "f2", "f5", "Annie", "Andy", "Hugo", "belinda", "john", "max", "steph", "travis")
TRAINING_VOICES = (*ACCENTS, *(f"{accent}+{variant}" for accent in ACCENTS for variant in TRAINING_VARIANTS))
HELD_OUT_VOICES = tuple(f"{accent}+{variant}" for accent in ACCENTS for variant in HELD_OUT_VARIANTS)
