"""A second of arithmetic on the loaded model before the first call: does this device compute what it should?

Kernels, drivers and recorded graphs have errors that raise nothing: rows beside others come out wrong, or a graph keeps
a tensor that has moved. So rows together are compared with the same rows alone, computed by the plainest means there
are: `scaled_dot_product_attention` one row at a time, operation by operation. Beyond rounding nothing may differ.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import structlog
import torch
from torch import Tensor
from torch.nn import functional

from asr.engines.interface import EngineUnusable, first_line
from asr.engines.qwen.device import memory
from asr.engines.qwen.device.execution import Execution, Graphs
from asr.engines.qwen.device.kernels import Kernels, Rows, Windows
from asr.engines.qwen.encoder import Encoder
from asr.engines.qwen.model.mel import FrontEnd, Stretch
from asr.engines.qwen.packed import Input, Packed, PackedRow
from asr.utterance import Format

PASSED = "passed"
"""The sentence about a device on which nothing differs."""
COUNTS = (1, 2, 4, 8, 12, 16, 32)
"""Rows together."""
WINDOWS = (1, 3, 16)
LONG = 400
"""Positions of the first row: kernels take keys in blocks, and joining several has errors of its own."""
ATTENDED = ((0, 1), (299, 1), (63, 1), (64, 1), (0, 130), (17, 65), (200, 33), (300, 2))
"""(positions before, new ones) of rows whose attention is compared by itself."""
ATTENDED_WINDOWS = (1, 13, 64, 104, 77)
ATTENDED_APART = {torch.float32: 1e-4, torch.float16: 0.01, torch.bfloat16: 0.03}
"""The limits, as `LIMITS`, of attention alone. One position more or less among 300 is off by 0.06."""
LIMITS = {torch.float32: 0.01, torch.float16: 0.03, torch.bfloat16: 0.12}
"""Largest difference of a hidden state, relative to its length, that is put down to rounding. Measured on a CPU between
two ways to compute the same, with three layers: 5e-6 in float32, 0.005 in float16, 0.012 in bfloat16. A wrong row is
off by around 1."""
FRAMES_APART = 0.01
"""Largest difference of a frame of noise, in powers of ten: 2e-6 between orders of summation, around 1 for a wrong
sample."""
CODES_MORE = 1234
"""Codes beyond a second."""
REFUSED = 3.0
"""The last resort is refused beyond this many times that limit: there is nothing to fall back to."""

WRONG = "This device does not compute what the model says: update its driver and torch, or set asr.devices = ['cpu']"
Made = tuple[Encoder, Packed]
log = structlog.get_logger("asr.engines.qwen")


@torch.inference_mode()
def settle(make: Callable[[Execution], Made], wanted: Execution, dtype: torch.dtype) -> tuple[Execution, str]:
    """Try `wanted`, then simpler ones, until one computes what is right: this one, and the result as a sentence for the
    operator.

    What was made last is the one to use, with its graphs recorded. Raises EngineUnusable when none does, and whatever
    says that memory is short.
    """
    plain = Execution(Kernels(), Graphs(), wanted.staging)
    steps = [wanted]
    if wanted.graphs.fixed:
        steps.append(Execution(wanted.kernels, Graphs(), wanted.staging))
    if wanted.kernels.name != Kernels.name:
        steps.append(plain)
    reference, made = make(plain), None
    expected = _Expected(*reference)
    del reference
    troubles: list[str] = []
    for execution in steps:
        made = None  # the graphs of the one before go first
        limit = LIMITS[dtype] * (REFUSED if execution is steps[-1] and len(steps) > 1 else 1.0)
        try:
            made = make(execution)
            for part in made:
                part.capture()
            trouble = _attend(execution.kernels, made[1]) or expected.compare(*made, limit)
        except Exception as error:  # a compiler, a driver and torch each have errors of their own
            if memory.exhausted(error):
                raise
            trouble = first_line(error)
        if trouble is None:
            if not troubles:
                return execution, PASSED
            sentence = f"{'; '.join(troubles)}. The engine uses {execution.described} instead"
            log.error("self check", reason=sentence)
            return execution, sentence
        troubles.append(f"{execution.described} is wrong on this device: {trouble}")
    raise EngineUnusable(f"self check: {'; '.join(troubles)}. {WRONG}")


@torch.inference_mode()
def check_frames(front: FrontEnd, plain: FrontEnd) -> None:
    """`plain`: on the host. Raises EngineUnusable when the two do not make the same frames."""
    rng = np.random.default_rng(0)
    length = 8000 + CODES_MORE
    ends: dict[Format, int] = {"PCMU": 2 * length, "PCMA": 2 * length - 100, "L16": length // 2}
    stretches = [
        Stretch(rng.integers(0, 256, length, np.uint8).tobytes(), format, 0, front.frames(end), end)
        for format, end in ends.items()
    ]
    (found, order), (expected, other) = front(stretches), plain(stretches)
    apart = float((found.cpu() - expected).abs().max())
    if order.tolist() != other.tolist() or not apart <= FRAMES_APART:
        raise EngineUnusable(f"self check: frames of sound differ by {apart:.2g} from those made on the host. {WRONG}")


def _attend(kernels: Kernels, packed: Packed) -> str | None:
    """A difference in attention alone, over noise: in a model of many layers it would drown in rounding."""
    cache, plain, rng = packed.cache, Kernels(), torch.Generator().manual_seed(1)
    keys, values = (each[0] for each in (cache.keys, cache.values))
    device, dtype, (page, fewer, width) = keys.device, keys.dtype, keys.shape[1:]

    def noise(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=rng).to(device, dtype)

    known = [row for row in ATTENDED if sum(row) <= cache.positions]
    while sum(counts := [-(-sum(row) // page) for row in known]) > cache.pages:
        known.pop()
    needed, table = sum(counts), torch.zeros(len(known), cache.row_pages, dtype=torch.int32)
    for row_pages, pages in zip(table, torch.split(torch.randperm(needed, generator=rng), counts), strict=True):
        row_pages[: len(pages)] = pages
    keys[:needed], values[:needed] = (noise(needed, page, fewer, width) for _ in range(2))
    lengths = torch.tensor([length for _, length in known])
    rows = Rows(
        functional.pad(lengths.cumsum(0), (1, 0)).to(device, torch.int32),
        torch.tensor([sum(row) for row in known]).to(device, torch.int32),
        table.to(device), single=False, known=known,
    )  # fmt: skip
    query = noise(int(lengths.sum()), packed.heads, width)
    group = packed.heads // fewer
    found, expected = (
        each.attend(query, keys, values, rows, each.plan(rows, len(query), group)) for each in (kernels, plain)
    )
    if not (apart := _apart(found, expected)) <= ATTENDED_APART[dtype]:
        return f"of attention over pages something differs by {apart:.2g}"
    cu_seqlens = functional.pad(torch.tensor(ATTENDED_WINDOWS).cumsum(0), (1, 0)).to(device, torch.int32)
    windows, count = Windows(cu_seqlens, ATTENDED_WINDOWS), sum(ATTENDED_WINDOWS)
    query, key, value = noise(count, 3, packed.heads, width).unbind(1)
    found, expected = (
        each.attend_windows(query, key, value, windows, each.plan_windows(windows, count)) for each in (kernels, plain)
    )
    apart = _apart(found, expected)
    return None if apart <= ATTENDED_APART[dtype] else f"of attention over windows something differs by {apart:.2g}"


@dataclass(frozen=True, slots=True)
class _Speaker:
    """A row of random tokens: a beginning of some length, and two more, one at a time."""

    ids: list[int]
    begin: int

    pages: list[int]

    def row(self, number: int) -> PackedRow:
        """The row of its beginning (0), or of the first or second token after it."""
        if number == 0:
            return PackedRow(self.pages, 0, Input(self.ids[: self.begin]), 1)
        at = self.begin + number - 1
        return PackedRow(self.pages, at, Input(self.ids[at : at + 1]), 1)


class _Expected:
    """The results of each row and window alone."""

    def __init__(self, encoder: Encoder, packed: Packed) -> None:
        rng = torch.Generator().manual_seed(0)
        self._cache = cache = packed.cache
        lengths = [min(LONG, cache.positions - 2), *(20 + 37 * at % 90 for at in range(1, COUNTS[-1]))]
        self._speakers: list[_Speaker] = []
        pages = list(range(cache.pages))
        for length in lengths[: packed.most_rows]:
            needed = -(-(length + 2) // cache.page)
            ids = torch.randint(0, packed.vocabulary, (length + 2,), generator=rng).tolist()
            if needed <= len(pages):
                self._speakers.append(_Speaker(ids, length, [pages.pop() for _ in range(needed)]))
        self._hidden = [
            torch.cat([packed.observe([speaker.row(number)])[0] for number in range(3)]) for speaker in self._speakers
        ]
        self._logits = [packed.logits(hidden) for hidden in self._hidden]
        tower = encoder.tower
        self._windows = [
            torch.randn(1 + 31 * at % tower.window, tower.width, generator=rng).to(cache.keys)
            for at in range(WINDOWS[-1])
        ]
        self._frames = torch.randn(3, encoder.chunk, tower.bins, generator=rng).to(cache.keys.device)
        self._embedded = [tower.attend([[window]])[0] for window in self._windows]
        self._convolved = [tower.convolve(self._frames, [each], [0.5], [encoder.chunk])[0] for each in range(3)]

    def compare(self, encoder: Encoder, packed: Packed, limit: float) -> str | None:
        """A difference beyond rounding, in words; None when there is none."""
        for count in COUNTS:
            if count <= len(self._speakers) and (trouble := self._compare_rows(packed, count, limit)) is not None:
                return trouble
        for count in WINDOWS:
            found = encoder.tower.attend([[each] for each in self._windows[:count]])
            worst = max(_apart(*pair) for pair in zip(found, self._embedded, strict=False))
            if not worst <= limit:
                return f"of {count} windows of audio together one differs by {worst:.2g} from itself alone"
        together = encoder.tower.convolve(self._frames, range(3), [0.5] * 3, [encoder.chunk] * 3)
        worst = max(map(_apart, together, self._convolved))
        return None if worst <= limit else f"three seconds of audio differ by {worst:.2g} from each alone"

    def _compare_rows(self, packed: Packed, count: int, limit: float) -> str | None:
        """The first half begins; it goes on while the second half begins; all go on."""
        self._cache.keys.zero_()
        self._cache.values.zero_()
        half = (count + 1) // 2
        for kind, numbers in (
            ("beginning", {slot: 0 for slot in range(half)}),
            ("mixed", {slot: int(slot < half) for slot in range(count)}),
            ("decoding", {slot: 1 + int(slot < half) for slot in range(count)}),
        ):
            rows = [self._speakers[at].row(number) for at, number in numbers.items()]
            hidden, tokens = packed.observe(rows)
            for at, (slot, number) in enumerate(numbers.items()):
                apart = _apart(hidden[at], self._hidden[slot][number])
                if not apart <= limit:  # no number is no less
                    return f"of {len(rows)} rows ({kind}) number {at + 1} differs by {apart:.2g} from itself alone"
                logits = self._logits[slot][number]
                if not logits[tokens[at]] >= logits.max() - limit * logits.abs().max():
                    return f"of {len(rows)} rows ({kind}) number {at + 1} says a token that it does not say alone"
        return None


def _apart(one: Any, other: Any) -> float:
    difference = (one.float() - other.float()).norm(dim=-1) / other.float().norm(dim=-1).clamp(min=1e-6)
    return float(difference.max())
