"""The device of an engine and how it computes, for the log, `/readyz` and metrics."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Runtime:
    """A loaded engine's description of itself, from its optional method `runtime`. What does not apply stays empty or
    0."""

    device: str = "cpu"
    """The name that torch has for it: `cpu`, `cuda`, `cuda:1`."""
    device_name: str = ""
    """The name of the GPU."""
    dtype: str = ""
    attention: str = ""
    """The attention that is used."""
    graphs: bool | None = None
    """CUDA graphs are used; None: the engine knows none."""
    self_check: str = ""
    """`passed`, or what it has found."""
    torch: str = ""
    cuda: str = ""
    """The version that torch was built for; empty without CUDA."""
    memory_bytes: int = 0
    """The memory of the device."""
    free_bytes: int = 0
    """The part of it that was free when the engine was ready."""
    slots_bytes: int = 0
    """The part of it that is reserved for keys and values."""
    slots: int = 0
    """The number of utterances of full length that these hold."""
    batch: int = 0
    """Requests in a step."""
    warnings: tuple[str, ...] = ()
    """Sentences for the operator."""

    def shown(self) -> dict[str, Any]:
        """The fields without what does not apply, and without the warnings, which are shown on their own."""
        fields = asdict(self)
        del fields["warnings"]
        return {key: value for key, value in fields.items() if value is False or value not in ("", 0, None)}
