"""Qwen3-ASR as an engine: growing utterances of many calls in one packed forward per step, equal to `generate()`.

    bytes ─ resample ─ mel ─ encoder ─ session ─ packed ─ text
                        frames   windows   tokens    slots

Only the inference process imports this package: it needs torch and transformers.
"""
