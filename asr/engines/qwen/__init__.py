"""Qwen3-ASR as an engine: growing utterances of many calls in one packed forward per step, equal to `generate()`.

One request in eight steps, each with what comes out of it; the lengths are those of the 0.6B model and a partial after
5 s of speech:

1. `QwenEngine.append` keeps the bytes of the call's codec (`sound.py`): 40,000 bytes.
2. `PageAllocator.allocate` allocates the pages that its answer may need (`allocation.py`): 3 pages.
3. `compute_views` decodes, resamples and filters the new bytes on the device (`model/mel.py`): frames (500, 128).
4. `Encoder.run` convolves each second of frames and lets windows of 8 s attend to themselves (`encoder.py`,
   `model/tower.py`): chunks (5, 13, 896), then embeddings (65, 1024).
5. `QwenSession.prefill` puts head, audio, tail and draft in a row of positions (`session.py`): 9 + 65 + 9 + 16 ids.
6. `Packed.launch` takes the rows of all sessions through the text model (`packed.py`): hidden states (positions, 1024),
   logits (17, 151936) for the draft and one more, and their 17 most likely tokens.
7. `QwenSession.accept` keeps the draft as far as these tokens agree, and one token more; the next step goes on there.
8. `Prompts.read` turns the tokens of a complete answer into a language and a text (`model/prompt.py`).

Steps 2 to 8 are `QwenEngine.step` (`engine.py`), for all requests of a step together. A request that has no answer
after it comes back in the next one.

Ten words:

- **frame**: 10 ms of sound as 128 mel bins (`model/mel.py`), kept on the device (`sound.py`).
- **chunk**: a second of frames through the convolutions, 13 vectors (`model/tower.py`).
- **window**: 8 s of chunks that attend to each other; a finished one is not computed again (`encoder.py`).
- **position**: a place in the text model's input, a token or a vector of audio (`packed.py`).
- **page**: the keys and values of 64 positions; an utterance has as many as it needs (`model/kv_cache.py`).
- **session**: one utterance in the engine: its sound, its windows, and what is on its pages (`session.py`).
- **draft**: the last answer, verified in the forward that reads the new audio (`session.py`).
- **row**: the next positions of one session; a forward takes rows of many sessions (`packed.py`).
- **step**: a bounded piece of work on many requests; two cohorts of sessions are under way at a time (`engine.py`).
- **execution**: the kernels, graphs and copies by which a device does all of this (`device/execution.py`).

docs/topics/engine.md says why it is so. Only the inference process imports this package: it needs torch and
transformers.
"""
