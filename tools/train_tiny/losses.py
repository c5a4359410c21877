"""What is learnt from: the transcript, and where in the audio each word is.

A causal decoder that must find out by itself which of its audio positions hold the next word takes thousands of steps
to see the first one. As the speech is synthetic, it is known where every word begins and ends: two heads that exist in
training alone ask the encoder which word is being said at each of its positions, and the decoder, half-way up, which
word has just been completed. The rest of the decoder has little more to do than to read the words off.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn
from transformers import Qwen3ASRForConditionalGeneration

from tools.train_tiny.examples import IGNORED, Batch
from tools.train_tiny.words import WORDS

_DECODER_LAYER = 2


class Heads(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, len(WORDS) + 1))
        self.decoder = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, len(WORDS) + 1))


def losses(
    model: Qwen3ASRForConditionalGeneration, heads: Heads, batch: Batch
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """-> of the transcript, of the word being said, of the word just completed."""
    out = model.model(
        input_ids=batch.input_ids,
        input_features=batch.features,
        input_features_mask=batch.feature_mask,
        use_cache=False,
        output_hidden_states=True,
    )
    wanted = batch.labels[:, 1:] != IGNORED
    logits = model.lm_head(out.last_hidden_state[:, :-1][wanted])
    transcript = F.cross_entropy(logits, batch.labels[:, 1:][wanted])
    audio = batch.input_ids == model.config.audio_token_id
    saying = F.cross_entropy(heads.encoder(out.audio_hidden_states), batch.covers)
    said = F.cross_entropy(heads.decoder(out.hidden_states[_DECODER_LAYER][audio]), batch.completes)
    return transcript, saying, said
