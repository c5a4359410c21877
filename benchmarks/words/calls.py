"""Prompts joined to calls, with the noise of a place around them, as the packets or messages that a peer sends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from audio import Codec, RtpPacket
from audio.codecs.g711 import ulaw_encode
from benchmarks.words.prompts import Prompt
from mediaworker.ingress.twilio.sender import StreamWriter, schedule
from mediaworker.replay import pcap, recording
from mediaworker.replay.datagrams import ip_packet
from sip.phone import encode

LEAD_S, PAUSE_S = 1.0, 1.5
"""Before the first prompt, and behind each: longer than any endpointing waits."""
PTIME_S = 0.020
BAND_HZ = (300, 3400)
"""Of telephony: signal to noise is measured in it."""
TALKERS = 8
_SENDER, _WORKER = ("192.0.2.1", 4000), ("192.0.2.2", 5000)


@dataclass(frozen=True)
class Line:
    """How a call comes to the worker."""

    title: str
    codec: Codec
    twilio: bool = False

    @property
    def rate_hz(self) -> int:
        return 16000 if self.codec.wide else 8000


LINES = {
    "pcmu": Line("SIP, PCMU", Codec.PCMU),
    "pcma": Line("SIP, PCMA", Codec.PCMA),
    "g722": Line("SIP, G.722", Codec.G722),
    "opus": Line("SIP, Opus", Codec.OPUS),
    "twilio": Line("Twilio", Codec.PCMU, twilio=True),
}


@dataclass(frozen=True)
class Condition:
    """What happens to the sound on its way."""

    name: str
    title: str
    loss: float = 0.0
    noise: str = ""
    """`babble` or `car`."""
    snr_db: float = 0.0


CLEAN = Condition("clean", "clean")
LOSSES = (Condition("loss-1", "1 % lost", loss=0.01), Condition("loss-3", "3 % lost", loss=0.03))
NOISES = (
    Condition("babble-20", "babble, 20 dB", noise="babble", snr_db=20),
    Condition("babble-10", "babble, 10 dB", noise="babble", snr_db=10),
    Condition("car-20", "car, 20 dB", noise="car", snr_db=20),
    Condition("car-10", "car, 10 dB", noise="car", snr_db=10),
)
CONDITIONS = {condition.name: condition for condition in (CLEAN, *LOSSES, *NOISES)}


@dataclass(frozen=True)
class Part:
    """A prompt's place in its call, in positions: samples at 8 kHz, whatever the codec."""

    prompt: Prompt
    start: int
    end: int


@dataclass(frozen=True)
class Plan:
    """One call: its prompts in order."""

    number: int
    parts: tuple[Part, ...]

    @property
    def length(self) -> int:
        """In positions; a multiple of a packet."""
        end = self.parts[-1].end + round(8000 * PAUSE_S)
        return -(-end // 160) * 160

    @property
    def length_s(self) -> float:
        return self.length / 8000


def plan(prompts: Sequence[Prompt], calls: int) -> list[Plan]:
    """The prompts dealt out to so many calls of about the same length."""
    dealt: list[list[Prompt]] = [[] for _ in range(min(calls, len(prompts)))]
    lengths = [0.0] * len(dealt)
    for prompt in sorted(prompts, key=lambda prompt: (-prompt.length_s, prompt.name)):
        shortest = lengths.index(min(lengths))
        dealt[shortest].append(prompt)
        lengths[shortest] += prompt.length_s + PAUSE_S
    return [_placed(number, sorted(each, key=lambda prompt: prompt.name)) for number, each in enumerate(dealt)]


def _placed(number: int, prompts: list[Prompt]) -> Plan:
    at, parts = round(8000 * LEAD_S), []
    for prompt in prompts:
        end = at + len(prompt.samples(8000))
        parts.append(Part(prompt, at, end))
        at = end + round(8000 * PAUSE_S)
    return Plan(number, tuple(parts))


def sound(call: Plan, rate_hz: int, condition: Condition, others: Sequence[Prompt]) -> NDArray[np.int16]:
    """The call's samples, shape (n,). `others`: who babbles in the background."""
    clean = np.zeros(call.length * rate_hz // 8000)
    for part in call.parts:
        samples, start = part.prompt.samples(rate_hz), part.start * rate_hz // 8000
        clean[start : start + len(samples)] = samples[: len(clean) - start]
    if condition.noise:
        random = np.random.default_rng(call.number)
        if condition.noise == "car":
            noise = brown(len(clean), rate_hz, random)
        else:
            noise = babble(len(clean), rate_hz, others, random)
        gain = level(clean, rate_hz) / level(noise, rate_hz) / 10 ** (condition.snr_db / 20)
        clean += gain * noise
    clean *= min(1.0, 32000 / max(1.0, np.abs(clean).max()))
    return np.rint(clean).astype(np.int16)


def brown(count: int, rate_hz: int, random: np.random.Generator) -> NDArray[np.float64]:
    """What is heard inside a car: power falls with the square of the frequency, from 60 Hz on."""
    spectrum = np.fft.rfft(random.standard_normal(count))
    frequencies = np.fft.rfftfreq(count, 1 / rate_hz)
    noise: NDArray[np.float64] = np.fft.irfft(spectrum * np.where(frequencies < 60, 0, 1 / (frequencies + 1e-9)), count)
    return noise


def babble(count: int, rate_hz: int, prompts: Sequence[Prompt], random: np.random.Generator) -> NDArray[np.float64]:
    """Eight people who talk at once and never stop."""
    mixed = np.zeros(count)
    for _ in range(TALKERS):
        talk: list[NDArray[np.int16]] = []
        while sum(map(len, talk)) < count:
            talk.append(prompts[int(random.integers(len(prompts)))].samples(rate_hz))
        mixed += np.concatenate(talk)[:count]
    return mixed


def level(samples: NDArray[np.float64], rate_hz: int) -> float:
    """Root mean square in the band of telephony, of the 20 ms frames within 40 dB of the loudest."""
    spectrum = np.fft.rfft(samples)
    frequencies = np.fft.rfftfreq(len(samples), 1 / rate_hz)
    spectrum[(frequencies < BAND_HZ[0]) | (frequencies > BAND_HZ[1])] = 0
    frame = rate_hz // 50
    heard = np.fft.irfft(spectrum, len(samples))[: len(samples) // frame * frame]
    power = (heard.reshape(-1, frame) ** 2).mean(axis=1)
    return float(np.sqrt(power[power > power.max() / 1e4].mean()))


def write_capture(path: Path, samples: NDArray[np.int16], codec: Codec) -> None:
    """The call as the RTP that a phone sends, for `mediaworker replay`."""
    ticks = codec.clock_rate_hz // 50
    packets = []
    for number, payload in enumerate(encode(samples, codec)):
        packet = RtpPacket(codec.payload_type, number, number * ticks, 0x77777777, payload, marker=number == 0)
        packets.append((1.0 + number * PTIME_S, ip_packet(_SENDER, _WORKER, bytes(packet))))
    pcap.write(path, packets)


def write_recording(path: Path, samples: NDArray[np.int16], call_sid: str) -> None:
    """The call as the messages that Twilio sends, for `mediaworker replay`."""
    writer = StreamWriter(f"MZ{call_sid[2:]}", call_sid, "AC" + "0" * 32)
    messages = schedule(writer, {"inbound": bytes(ulaw_encode(samples))}, {})
    recording.write(path, [recording.RecordedMessage(due_s, write()) for due_s, write in messages])
