"""The model's README."""

from __future__ import annotations

from textwrap import fill

import numpy as np

from tools.train_aligner.evaluation import Errors
from tools.train_aligner.examples import Stream
from tools.train_tiny.training import Training
from tools.train_tiny.words import HELD_OUT_VARIANTS, TRAINING_VOICES, WORDS

_CARD = """\
---
license: apache-2.0
language: en
pipeline_tag: token-classification
library_name: transformers
---

# qwen3-aligner-tiny

A Qwen3-ForcedAligner of {parameters:,} parameters for tests: given audio and what is said in it, it says when each word
begins and ends. Architecture, input and output are those of the published model, so an engine that runs this one runs
that. It knows the {words} words of `qwen3-asr-tiny`, and was made from its weights.

**It is not** an aligner for people's speech. It was trained by `tools/train_aligner`; nothing of a published
checkpoint is in it. No human voice was in its training, and none in the figures below. Words that it does not know are
put somewhere. Token ids differ from the published ones: read them from the configuration and the tokenizer.

## Input and output

`<|audio_start|>`, the audio, `<|audio_end|>`, then `word<timestamp><timestamp>` for each word: one string, no turns.
One causal forward; at the first mark of a word the likeliest of 512 classes of 80 ms is its begin, at the second its
end. The library's `prepare_forced_aligner_inputs` and `decode_forced_alignment` do that.

It was trained on audio of at most {max_s} s and 18 words. Classes above that exist and mean nothing: cut longer audio.

## Figures

{held_out}

This folder's weights, one utterance at a time, through the library's own decoding; the transcript is what was said but
where the table says otherwise, and then the other words are judged.
|found − true| in ms; the classes alone cost 20 ms at the median and 38 ms at the 95th percentile.

| set | words | begin: median | 95 % | end: median | 95 % | both within 150 ms | longest audio |
|---|---|---|---|---|---|---|---|
{rows}

"Clean µ-law" is −25 to −3 dBFS, with at most faint line noise. "Any line" is −35 to −1 dBFS, µ-law, A-law or 16 kHz
linear, half of it filtered, nearly half with white, pink, hum or babble noise at 5 to 40 dB below the speech. A word
begins and ends where espeak-ng says, without the silence (under 1 % of the peak) at its edges.

It counts words more than it listens to them: where the transcript leaves one out, those behind it are put too early,
and beyond ten words it loses count. Give it short utterances and the whole of what was said.

## Training

- {steps:,} steps of {batch} utterances, seed {seed}, {hours:.1f} h of one core for the updates; another process spoke
  meanwhile. AdamW; these weights are a running mean.
- The encoder is that of `qwen3-asr-tiny` and stayed as it is. Projector and the first four layers of the decoder began
  as they are there; the fifth layer as one that adds nothing, the head as sines and cosines of the class.
- espeak-ng 1.51, {voices} voices, 120 to 220 words a minute; one to ten words with pauses up to 0.6 s, 6 % with 11 to
  18. A tenth is cut off; the word that was is not in the transcript. Any line, as above. Each utterance came about
  four times, with other transcripts.
- In a quarter of the transcripts a word is missing, or is another.
- Heads that exist in training alone were told, on the way, which word is being said, where it begins and ends, what
  time it is, how many words have begun, which was the one before, and which place in the audio a mark means.

## Again

From the repository's root, with espeak-ng installed (`libespeak-ng.so.1`) and Python 3.11:

    pip install torch==2.13.0 'transformers==5.23.*' numpy soxr msgspec
    export OMP_NUM_THREADS=1
    python -m tools.train_aligner --work /var/tmp/aligner --steps {steps} --out models/qwen3-aligner-tiny

It may be stopped at any time and goes on from its checkpoint. Another run makes other weights.
"""


def card(parameters: int, training: Training, figures: dict[str, Errors]) -> str:
    return _CARD.format(
        parameters=parameters,
        words=len(WORDS),
        max_s=Stream.MAX_S,
        held_out=fill(f"Voices that were never in training: {', '.join(HELD_OUT_VARIANTS)}, in every accent.", 120),
        rows="\n".join(_row(name, found) for name, found in figures.items()),
        steps=training.steps,
        batch=training.batch,
        seed=training.seed,
        hours=training.spent_s / 3600,
        voices=len(TRAINING_VOICES),
    )


def _row(name: str, found: Errors) -> str:
    percentiles = (np.percentile(values, share) for values in (found.starts, found.ends) for share in (50, 95))
    cells = " | ".join(f"{value:.0f}" for value in percentiles)
    return f"| {name} | {len(found.starts)} | {cells} | {100 * found.within(150):.1f} % | {found.seconds:.0f} s |"
