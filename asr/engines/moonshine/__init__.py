"""Moonshine tiny: English, 27 million parameters, on onnxruntime; its weights are inside the wheel `moonshine-voice`.

    bytes ─ resample ─ cut into pieces ─ encoder ─ decoder ─ guards ─ text
             session         pieces           model       guards   shown

`plugin` says what the engine can do and builds it. The other modules are loaded by the inference process alone.
"""
