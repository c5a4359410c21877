"""What is learnt from: when words begin and end, and the steps on the way to knowing it.

The encoder's positions begin anew with each second, and the decoder must count: seconds, to say when, and words, to
tell one `one` from the next. As the speech is synthetic, all that is known at every position. Heads that exist in
training alone ask the encoder's output which word is being said and where it begins and ends; the decoder, after two
layers, what time it is, how many words have begun and which was the one before; and the marks, after three, to which
position of the audio they belong. The rest has only to read off the time.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn
from transformers.models.qwen3_asr import Qwen3ASRForTokenClassification

from tools.train_aligner.examples import MAX_ORDINAL, Batch
from tools.train_aligner.model import CLASS_MS, LABELS, waves
from tools.train_tiny.words import WORDS

_COUNTED, _POINTED = 2, 3
_BLUR_MS = 50.0
"""A boundary is no sharper than this: what lies between two classes is half of each."""


class Heads(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, len(WORDS) + 1))
        self.edges = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4))
        self.clock = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, LABELS, bias=False))
        self.counter = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, MAX_ORDINAL + 1))
        self.before = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, len(WORDS) + 1))
        self.mark = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width))
        self.place = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width))
        with torch.no_grad():
            self.clock[1].weight.copy_(waves(width))


def at_time(logits: torch.Tensor, times_ms: torch.Tensor) -> torch.Tensor:
    away = torch.arange(LABELS) * CLASS_MS - times_ms[:, None]
    return F.cross_entropy(logits, torch.softmax(-(away**2) / (2 * _BLUR_MS**2), dim=-1))


def losses(model: Qwen3ASRForTokenClassification, heads: Heads, batch: Batch) -> tuple[torch.Tensor, ...]:
    """-> of the marks' times; of the word being said and of its edges; of the clock, of the count of words and of the
    word before; of the marks' places."""
    audio = batch.input_ids == model.config.audio_token_id
    heard = model.model.multi_modal_projector(batch.audio)
    embedded = model.get_input_embeddings()(batch.input_ids).masked_scatter(audio[:, :, None], heard)
    out = model.model(inputs_embeds=embedded, use_cache=False, output_hidden_states=True)
    marks = batch.input_ids == model.config.timestamp_token_id
    counted, pointed = out.hidden_states[_COUNTED][audio], out.hidden_states[_POINTED]
    # 13 positions a second, of 80 ms each but for the last.
    position = audio.cumsum(-1)[audio] - 1
    now_ms = position // 13 * 1000 + position % 13 * 80 + 40
    scores = heads.mark(pointed) @ heads.place(pointed).transpose(1, 2) / pointed.shape[-1] ** 0.5
    scores = scores.masked_fill(~audio[:, None, :], -1e9)
    saying, edges, begun, before = batch.labels.unbind(-1)
    return (
        at_time(model.score(out.last_hidden_state[marks]), batch.times_ms),
        F.cross_entropy(heads.encoder(heard), saying),
        F.cross_entropy(heads.edges(heard), edges),
        at_time(heads.clock(counted), now_ms),
        F.cross_entropy(heads.counter(counted), begun),
        F.cross_entropy(heads.before(counted), before),
        F.cross_entropy(scores[marks], batch.points),
    )
