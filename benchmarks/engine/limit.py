"""What a chip could do at best: operations and bytes of live speech through Qwen3-ASR, by arithmetic. Nothing is run.

The time of a piece of work is its operations over the chip's speed plus its bytes over the memory's: as if nothing
overlapped, and as if nothing else took any time. Two operations per parameter and position; the parameters of the head
are counted at every position, though only some need it, and attention's own products are left out, for at these lengths
they are few. Each forward reads the keys and values of its utterances, and the parameters once for all its rows.
"""

from __future__ import annotations

from dataclasses import dataclass

TOKENS_PER_S = 3.5
"""Of an answer, per second of speech."""
AUDIO_PER_S = 13
"""Positions of a second of audio."""
HEAD, TAIL = 9, 9
"""Positions of the prompt before the audio and behind it; the tail forces a language."""
ROWS = 160
"""Utterances that share a forward, and so its reading of the parameters."""
BYTES = 2
"""Of a number: 16 bits."""
FORWARDS = 2.8
"""Serial ones per partial when the partial before is a draft: two more tokens are said, and one says what follows."""


@dataclass(frozen=True, slots=True)
class Chip:
    name: str
    flops: float
    """Per second, dense bfloat16, that large products reach: about 80 % of the data sheet's."""
    bytes: float
    """Per second from memory, about 90 % of the data sheet's."""


CHIPS = {
    chip.name: chip
    for chip in (
        Chip("H200", 790e12, 4.3e12),
        Chip("H100", 790e12, 3.0e12),
        Chip("L40S", 290e12, 0.78e12),
        Chip("A10", 100e12, 0.54e12),
        Chip("L4", 97e12, 0.27e12),
    )
}


def chip_of(device: str) -> Chip | None:
    """By the name that a device gives itself, such as "NVIDIA H100 80GB HBM3"."""
    words = device.upper().replace("-", " ").split()
    return next((chip for name, chip in CHIPS.items() if name in words), None)


@dataclass(frozen=True, slots=True)
class Dimensions:
    """Of a Qwen3-ASR model."""

    encoder_layers: int
    encoder_width: int
    encoder_heads: int
    encoder_ffn: int
    width: int
    layers: int
    heads: int
    kv_heads: int
    head_width: int
    ffn: int
    vocabulary: int
    channels: int = 480
    """Of the convolutions."""

    @property
    def text(self) -> int:
        """Parameters of the text model's layers."""
        attention = self.width * self.head_width * 2 * (self.heads + self.kv_heads)
        return self.layers * (attention + 3 * self.width * self.ffn)

    @property
    def decode(self) -> int:
        """Parameters that every forward of the text model reads."""
        return self.text + self.vocabulary * self.width

    @property
    def kv_bytes(self) -> int:
        """Of one position."""
        return 2 * BYTES * self.layers * self.kv_heads * self.head_width

    @property
    def encoder(self) -> int:
        """Parameters of the encoder's layers."""
        return self.encoder_layers * (4 * self.encoder_width**2 + 2 * self.encoder_width * self.encoder_ffn)

    @property
    def convolutions(self) -> int:
        """Products for a second of audio: three strides of two over 128 bins and 100 frames."""
        first, second, third = 64 * 50 * 9, 32 * 25 * 9 * self.channels, 16 * 13 * 9 * self.channels
        return self.channels * (first + second + third + 16 * AUDIO_PER_S * self.encoder_width)


PUBLISHED = {
    "0.6B": Dimensions(18, 896, 14, 3584, 1024, 28, 16, 8, 128, 3072, 151_936),
    "1.7B": Dimensions(24, 1024, 16, 4096, 2048, 28, 16, 8, 128, 6144, 151_936),
}


@dataclass(frozen=True, slots=True)
class Cost:
    flops: float = 0.0
    bytes: float = 0.0

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.flops + other.flops, self.bytes + other.bytes)

    def __mul__(self, times: float) -> Cost:
        return Cost(self.flops * times, self.bytes * times)

    def seconds(self, chip: Chip) -> float:
        return self.flops / chip.flops + self.bytes / chip.bytes


def _cost(
    model: Dimensions, *, encoded_s: float, convolved_s: float, positions: float, forwards: float, seen: float
) -> Cost:
    """`positions`: through the text model; `seen`: whose keys and values each of its forwards reads."""
    encoder = encoded_s * AUDIO_PER_S * model.encoder + convolved_s * model.convolutions
    reading = BYTES * model.decode / ROWS + seen * model.kv_bytes
    return Cost(2 * (encoder + positions * model.decode), forwards * reading)


def refed(model: Dimensions, heard_s: float) -> Cost:
    """An answer to so much audio from nothing: a partial of those who re-feed everything, or a piece of a file."""
    before, said = HEAD + TAIL + AUDIO_PER_S * heard_s, TOKENS_PER_S * heard_s
    return _cost(
        model, encoded_s=heard_s, convolved_s=heard_s, positions=before + said, forwards=said + 1,
        seen=before + said / 2,
    )  # fmt: skip


def incremental(model: Dimensions, heard_s: float, *, partial_s: float, window_s: float) -> Cost:
    """A partial when finished windows, convolutions and the draft are there. A window that is just over is not."""
    window = max(0, -int(-heard_s // window_s) - 1)
    fresh_s, said = heard_s - window * window_s, TOKENS_PER_S * heard_s
    return _cost(
        model, encoded_s=fresh_s, convolved_s=partial_s,
        positions=TAIL + AUDIO_PER_S * fresh_s + said + TOKENS_PER_S * partial_s, forwards=FORWARDS,
        seen=HEAD + TAIL + AUDIO_PER_S * heard_s + said,
    )  # fmt: skip


def partials(model: Dimensions, *, utterance_s: float, partial_s: float, window_s: float | None) -> Cost:
    """The mean partial of an utterance; `window_s` None: of re-feeding."""
    count = max(1, round(utterance_s / partial_s))
    total = Cost()
    for number in range(1, count + 1):
        heard_s = number * partial_s
        total += (
            refed(model, heard_s)
            if window_s is None
            else incremental(model, heard_s, partial_s=partial_s, window_s=window_s)
        )
    return total * (1 / count)


def streams(
    model: Dimensions, chip: Chip, *, utterance_s: float, partial_s: float = 0.5, window_s: float | None = 8.0
) -> int:
    """People who speak at once, when partials are all there is to do."""
    each = partials(model, utterance_s=utterance_s, partial_s=partial_s, window_s=window_s)
    return int(partial_s / each.seconds(chip))


def streams_with_finals(
    model: Dimensions, chip: Chip, *, utterance_s: float, partial_s: float = 0.5, window_s: float = 8.0
) -> int:
    """The same with a final at the end of each utterance, which costs what a partial of the whole of it does."""
    each = partials(model, utterance_s=utterance_s, partial_s=partial_s, window_s=window_s)
    final = incremental(model, utterance_s, partial_s=partial_s, window_s=window_s)
    busy = each.seconds(chip) / partial_s + final.seconds(chip) / utterance_s
    return int(1 / busy)


def rtfx(model: Dimensions, chip: Chip, *, piece_s: float) -> float:
    """Seconds of files in a second, when files are all there is to do."""
    return piece_s / refed(model, piece_s).seconds(chip)
