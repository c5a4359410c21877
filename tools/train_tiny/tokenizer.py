"""The files of a Qwen2 tokenizer: byte-level BPE with merges learnt from our own words, and the real special tokens."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from transformers import AddedToken, Qwen2Tokenizer, Qwen3ASRProcessor
from transformers.convert_slow_tokenizer import bytes_to_unicode
from transformers.models.qwen3_asr.feature_extraction_qwen3_asr import Qwen3ASRFeatureExtractor

from asr.engines.qwen.model.prompt import AUDIO_END, AUDIO_PAD, AUDIO_START, END_OF_TEXT, IM_END, IM_START
from asr.text import ASR_TAG
from tools.train_tiny.words import CONTEXT, WORDS

TIMESTAMP = "<timestamp>"
# In the real tokenizer, too, the last two are no "special" tokens: decoding keeps them.
SPECIAL = (END_OF_TEXT, IM_START, IM_END, AUDIO_START, AUDIO_END, AUDIO_PAD)
MARKS = (ASR_TAG, TIMESTAMP)

# The published layout: the system turn is there even when it is empty, and the assistant's turn may be begun for it.
CHAT_TEMPLATE = """\
{%- set context = namespace(text='') -%}
{%- for message in messages if message.role == 'system' -%}
  {%- if message.content is string -%}
    {%- set context.text = context.text + message.content -%}
  {%- else -%}
    {%- for part in message.content if part.type == 'text' -%}
      {%- set context.text = context.text + part.text -%}
    {%- endfor -%}
  {%- endif -%}
{%- endfor -%}
{{- '<|im_start|>system\\n' + context.text + '<|im_end|>\\n' -}}
{%- for message in messages if message.role != 'system' -%}
  {{- '<|im_start|>' + message.role + '\\n' -}}
  {%- if message.content is string -%}
    {{- message.content -}}
  {%- else -%}
    {%- for part in message.content -%}
      {%- if part.type == 'audio' -%}
        {{- '<|audio_start|><|audio_pad|><|audio_end|>' -}}
      {%- elif part.type == 'text' -%}
        {{- part.text -}}
      {%- endif -%}
    {%- endfor -%}
  {%- endif -%}
  {{- '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
  {{- '<|im_start|>assistant\\n' -}}
{%- endif -%}
"""


def prompt(context: str = "", audio_tokens: int = 1, language: str | None = None) -> str:
    """What `CHAT_TEMPLATE` renders, with the audio's placeholders in place."""
    return (
        f"{IM_START}system\n{context}{IM_END}\n{IM_START}user\n{AUDIO_START}{AUDIO_PAD * audio_tokens}{AUDIO_END}"
        f"{IM_END}\n{IM_START}assistant\n" + (f"language {language}{ASR_TAG}" if language else "")
    )


def answer(words: tuple[str, ...]) -> str:
    return f"language {'English' if words else 'None'}{ASR_TAG}{' '.join(words)}{IM_END}"


def learn_merges(words: Counter[str], limit: int) -> list[tuple[str, str]]:
    """Byte-pair encoding; of pairs that are equally frequent, the first in the alphabet."""
    alphabet = bytes_to_unicode()
    spelled = {tuple(alphabet[byte] for byte in word.encode()): count for word, count in words.items()}
    merges: list[tuple[str, str]] = []
    while len(merges) < limit:
        pairs: Counter[tuple[str, str]] = Counter()
        for symbols, count in spelled.items():
            for pair in zip(symbols, symbols[1:], strict=False):
                pairs[pair] += count
        if not pairs:
            break
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        merges.append(best)
        spelled = {_merge(symbols, best): count for symbols, count in spelled.items()}
    return merges


def _merge(symbols: tuple[str, ...], pair: tuple[str, str]) -> tuple[str, ...]:
    out: list[str] = []
    for symbol in symbols:
        if out and (out[-1], symbol) == pair:
            out[-1] += symbol
        else:
            out.append(symbol)
    return tuple(out)


def build(limit: int = 400) -> Qwen2Tokenizer:
    """Our words, first in a sentence and after a space; the prompt's own; nothing whole of a context's words."""
    words = Counter({form: 2 for word in WORDS for form in (word, " " + word)})
    words.update({form: 3 for form in ("system", "user", "assistant", "language", " English", " None")})
    words.update({form: 1 for word in CONTEXT for form in (word[:2], " " + word[:2])})
    merges = learn_merges(words, limit)
    pieces = [*sorted(bytes_to_unicode().values()), *dict.fromkeys(left + right for left, right in merges)]
    vocabulary = {piece: i for i, piece in enumerate(pieces)}
    tokenizer = Qwen2Tokenizer(
        vocab=vocabulary,
        merges=merges,
        pad_token=END_OF_TEXT,
        eos_token=IM_END,
        model_max_length=131072,
        clean_up_tokenization_spaces=False,
        extra_special_tokens={
            "audio_token": AUDIO_PAD,
            "audio_bos_token": AUDIO_START,
            "audio_eos_token": AUDIO_END,
        },
    )
    tokenizer.add_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in MARKS])
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def processor(tokenizer: Qwen2Tokenizer, template: str = CHAT_TEMPLATE) -> Qwen3ASRProcessor:
    return Qwen3ASRProcessor(Qwen3ASRFeatureExtractor(), tokenizer, chat_template=template)


def save(folder: Path) -> Qwen3ASRProcessor:
    """Also vocab.json and merges.txt, as published folders have them."""
    out = processor(build())
    out.save_pretrained(folder)
    out.tokenizer.backend_tokenizer.model.save(str(folder))
    return out
