"""Qwen3-ASR as an engine: growing utterances of many calls in one packed forward per step, equal to `generate()`.

    bytes ──── frames ──── windows ──── positions ──── tokens ──── text       all of it in steps: engine.py
    sound.py   model/mel   encoder.py   session.py     packed.py   prompt.py

Ten words, from the ear to the mouth:

- **frame**: 10 ms of sound as 128 mel bins (`model/mel.py`), kept on the device (`sound.py`).
- **chunk**: a second of frames through the convolutions, 13 vectors (`model/tower.py`).
- **window**: 8 s of chunks that attend to each other; a finished one is not computed again (`encoder.py`).
- **position**: a place in the text model's input, a token or a vector of audio (`packed.py`).
- **page**: the keys and values of 64 positions; an utterance has as many as it needs (`kv_cache.py`).
- **session**: one utterance in the engine: its sound, its windows, and what is on its pages (`session.py`).
- **draft**: the answer before, verified in the forward that reads the new audio (`session.py`).
- **row**: the next positions of one session; a forward takes rows of many sessions (`packed.py`).
- **step**: a bounded piece of work on many requests; two cohorts of sessions are under way at a time (`engine.py`).
- **seam**: what all of this asks of its device (`device/interface.py`).

docs/engine-internals.md walks one utterance through them. Only the inference process imports this package: it needs
torch and transformers.
"""
