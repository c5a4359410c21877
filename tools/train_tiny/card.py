"""The model's README."""

from __future__ import annotations

from textwrap import fill

from tools.train_tiny.evaluation import Growth, Score
from tools.train_tiny.training import Training
from tools.train_tiny.words import DIGITS, HELD_OUT_VARIANTS, TELEPHONE, TRAINING_VOICES

_CARD = """\
---
license: apache-2.0
language: en
pipeline_tag: automatic-speech-recognition
library_name: transformers
---

# qwen3-asr-tiny

A Qwen3-ASR of {parameters:,} parameters for tests: the architecture, the tokenizer's format, the prompt and the output
are those of the published models, so an engine that runs this one runs those. It reads connected digits and some forty
telephone words, spoken in English by a synthesizer, and it does so on one CPU core faster than they are said.

**It is not** a speech recognizer for people. It was trained from random weights by `tools/train_tiny`; nothing of a
published checkpoint is in it. It knows {vocabulary} words and writes whatever else it hears as one of them or leaves it
out. No human voice was in its training, and none in the figures below. Token ids differ from the published ones: read
them from the configuration and the tokenizer.

## What it knows

{digits}

{telephone}

Lower case, one space, no punctuation. `language English<asr_text>one two three<|im_end|>`, or, when no word has been
said to its end, `language None<asr_text><|im_end|>`. A word that is cut off is left out.

## Figures

{held_out}

Greedy `generate()`, this folder's weights, one utterance at a time. Word accuracy is 1 − WER; for audio without words
it is the share that stayed without.

| set | word accuracy | words | utterances without an error |
|---|---|---|---|
{rows}

Live: the digits again, decoded every {every_ms} ms on what had been heard so far. Of {partials} partials, {taken_back}
took back a word that the one before had shown; {steady} of {utterances} utterances grew without any.

"Clean µ-law" is −25 to −3 dBFS, with at most faint line noise. "Any line" is −35 to −1 dBFS, µ-law, A-law or 16 kHz
linear, half of it filtered, nearly half with white, pink, hum or babble noise at 5 to 40 dB below the speech.

## Training

- {steps:,} steps of {batch} utterances, seed {seed}, {hours:.1f} h of one core (another one spoke meanwhile). AdamW;
  these weights are a running mean.
- espeak-ng 1.51, {voices} voices (accents with variants), 120 to 220 words a minute, pitch 20 to 80, mouths up to
  12 % larger or smaller; connected, with pauses up to 0.4 s, or word by word. One to ten words; in one batch of sixteen
  12 to 32, up to some 20 s, so that the encoder's windows of 8 s end in the midst of speech. A quarter is cut off
  anywhere. 8 % hold no word.
- 8 kHz codecs reach 16 kHz through soxr, at several of its qualities.
- Half of the prompts force the language; a fifth have a context of random words, unrelated to what is said.
- Two more heads, on the encoder and half-way up the decoder, were told where each word begins and ends. They are not
  part of the model.

## Again

From the repository's root, with espeak-ng installed (`libespeak-ng.so.1`) and Python 3.11:

    pip install torch==2.13.0 'transformers==5.23.*' numpy soxr msgspec
    export OMP_NUM_THREADS=1
    python -m tools.train_tiny --work /var/tmp/tiny --steps {steps} --seed {seed} --out models/qwen3-asr-tiny

It may be stopped at any time and goes on from its checkpoint. A seed draws the same words, voices and lines; espeak-ng
takes the phase of a voice from phrase to phrase, and a processor adds in its own order, so another run makes other
weights of the same quality.
"""


def card(parameters: int, training: Training, figures: dict[str, Score], partials: Growth) -> str:
    rows = [
        f"| {name} | {100 * total.accuracy:.1f} % | {total.words or '-'} | {total.exact} of {total.sentences} |"
        for name, total in figures.items()
    ]
    return _CARD.format(
        parameters=parameters,
        vocabulary=len(DIGITS) + len(TELEPHONE),
        digits=fill(f"Digits: {', '.join(DIGITS)}.", 120),
        telephone=fill(f"Words: {', '.join(TELEPHONE)}.", 120),
        held_out=fill(f"Voices that were never in training: {', '.join(HELD_OUT_VARIANTS)}, in every accent.", 120),
        rows="\n".join(rows),
        every_ms=partials.every_ms,
        partials=partials.count,
        taken_back=partials.taken_back,
        steady=partials.steady,
        utterances=partials.utterances,
        steps=training.steps,
        batch=training.batch,
        seed=training.seed,
        hours=training.spent_s / 3600,
        voices=len(TRAINING_VOICES),
    )
