"""`make reference`: the engine against the official `qwen-asr` package, which lives in an environment of its own.

`environment` (that package, as locked) · `checkpoints` (our models in its layout) · `cases` (who says what, with which
prompt) → `ours` (the engine) and `official` (runs over there, imports nothing of this project) → `compare`, with
`deviations` and `words` (where they may differ, each with its cause and a check of it) → `report` (the table). `times`
asks and compares the forced aligners in the same way.

    python -m tools.reference
"""
