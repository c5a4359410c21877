"""The recognizer's tokenizer, with a template that writes a transcript and its marks behind the audio: no turns."""

from __future__ import annotations

from pathlib import Path

from transformers import Qwen3ASRProcessor

from tools.train_tiny import tokenizer

CHAT_TEMPLATE = """\
{%- for message in messages -%}
  {%- for part in message.content -%}
    {%- if part.type == 'audio' -%}
      {{- '<|audio_start|><|audio_pad|><|audio_end|>' -}}
    {%- elif part.type == 'text' -%}
      {{- part.text + '<timestamp><timestamp>' -}}
    {%- endif -%}
  {%- endfor -%}
{%- endfor -%}
"""


def save(folder: Path) -> Qwen3ASRProcessor:
    made = tokenizer.build()
    made.chat_template = CHAT_TEMPLATE
    out = tokenizer.processor(made, CHAT_TEMPLATE)
    out.save_pretrained(folder)
    out.tokenizer.backend_tokenizer.model.save(str(folder))
    return out
