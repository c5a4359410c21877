"""Trains `models/qwen3-aligner-tiny`: a Qwen3-ForcedAligner that knows when the words of `models/qwen3-asr-tiny` are
said. Speech, line, tokenizer and loop are those of `tools.train_tiny`.

`model` (the tiny recognizer's weights under another head) → `examples` (transcript with marks, times) → `losses` →
`training` → `evaluation` (held-out voices, through the library's own alignment) → `export` (the folder, its `card`).

    python -m tools.train_aligner --work /var/tmp/aligner --out models/qwen3-aligner-tiny
"""
