"""Moonshine tiny: English, 27 million parameters, on onnxruntime; its weights are inside the wheel `moonshine-voice`.

    bytes ─ resample ─ is it speech? ─ cut into pieces ─ encoder ─ decoder ─ is it a loop? ─ text that stays
             session        sound            sound         model     model       answers         answers

`plugin` says what the engine can do and builds it. The other modules are loaded by the inference process alone.
"""
