"""Trains `models/qwen3-asr-tiny`: the real Qwen3-ASR classes, small enough to read digits live on a CPU.

The way of an utterance: `words` (what, and which voices) → `espeak` (speech, and where its words end) → `channel`
(level, noise, codec, 16 kHz) → `utterances` (drawn from a seed) → `examples` (features, prompt, labels, batches) →
`training` (the loop; its losses are in `losses`) → `evaluation` (held-out voices, through the library's `generate()`) →
`export` (the folder, its card). `tokenizer` and `model` are what the folder is made of.

    python -m tools.train_tiny --work /var/tmp/tiny --out models/qwen3-asr-tiny
"""
