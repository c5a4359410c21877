"""What the engine takes of each GPU by default, and what the arithmetic allows: `python -m benchmarks.engine.presets`.

Nothing is run. Free memory is what is left beside the weights; half of it becomes slots, as
`asr.engines.qwen.device.memory` decides.
"""

from __future__ import annotations

from asr.engines.qwen.device.memory import shape_for
from benchmarks.engine.limit import BYTES, CHIPS, PUBLISHED, Dimensions, rtfx, streams_with_finals
from config.settings import Qwen

GIB = 2**30
MEMORY_GIB = {"L4": 22.0, "A10": 22.0, "L40S": 44.5, "H100": 79.0, "H200": 139.0}
"""As their drivers report it."""
POSITIONS = 1024
UTTERANCE_S, PIECE_S = 5.0, 20.0


def table() -> list[str]:
    """In Markdown."""
    lines = [
        "| GPU | memory | model | weights | slots × size | batch | people who speak | files, × real time |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for chip, gib in MEMORY_GIB.items():
        for name, model in PUBLISHED.items():
            weights_gib = weights_bytes(model) / GIB
            slot = POSITIONS * model.kv_bytes
            found = shape_for(int((gib - weights_gib) * GIB), slot, Qwen(), cpu=False)
            people = streams_with_finals(model, CHIPS[chip], utterance_s=UTTERANCE_S)
            files = rtfx(model, CHIPS[chip], piece_s=PIECE_S)
            lines.append(
                f"| {chip} | {gib:g} GiB | {name} | {weights_gib:.1f} GiB | {found.slots} × {slot // 2**20} MiB | "
                f"{found.batch} | {people:,} | {files:,.0f} |"
            )
    return lines


def weights_bytes(model: Dimensions) -> int:
    return BYTES * (model.decode + model.encoder)


if __name__ == "__main__":
    print(*table(), sep="\n")
