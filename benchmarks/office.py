"""A small office on one small machine: eight calls of two legs each and a file beside them, live.

Half of the calls are Twilio streams of two tracks, half are recording sessions (SIPREC) by SIPp with two streams of
RTP. In each a customer and an agent take turns, in recorded prompts of the call's language, which nobody tells the
worker. The senders run on the same machine as the worker.

    python -m benchmarks.office [--minutes 3] [--file-minutes 10] [--calls 8] [--languages en,es,ru] [--engine mixed]
"""

from __future__ import annotations

import argparse
import asyncio
import random
import tempfile
import time
import wave
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from audio.codecs.g711 import ulaw_encode
from lab.chaos.jobs import finished, submit
from lab.events.story import check_story
from lab.patience import until
from lab.sip.rtp_sender import RtpSender
from lab.sip.sipp_caller import Sipp
from lab.sip.sipp_scenario import Pause, Send, mixed, offer
from lab.sip.siprec import REQUIRE, line, metadata, talking
from lab.worker.peers import Worker, worker
from mediaworker.cli.stream import StreamTarget, stream
from mediaworker.ingress.twilio.sender import StreamWriter, new_sid, schedule

SOUNDS = Path("/usr/share/asterisk/sounds")
SPEECH = {
    "en": "en_US_f_Allison", "es": "es_MX_f_Allison", "fr": "fr_CA_f_June", "it": "it_IT_m_Carlo",
    "ru": "ru_RU_f_IvrvoiceRU",
}  # fmt: skip
"""The folders of the voices, of Debian's packages asterisk-core-sounds-…-wav."""
HZ = 8000
GAP_S = (0.7, 1.5)
"""Between two turns; longer than an endpoint waits."""
LENGTH_S = (1.5, 8.0)
"""Of a turn."""


@dataclass
class Memory:
    """Resident memory of the two processes in MB, each second."""

    media: list[float] = field(default_factory=list)
    inference: list[float] = field(default_factory=list)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=3.0)
    parser.add_argument("--file-minutes", type=float, default=10.0)
    parser.add_argument("--calls", type=int, default=8)
    parser.add_argument("--languages", default="en", help=f"of {', '.join(SPEECH)}; the calls have them in turn")
    parser.add_argument("--engine", default="moonshine")
    asyncio.run(office(parser.parse_args()))


async def office(options: argparse.Namespace) -> None:
    spoken = options.languages.split(",")
    prompts = [load(language) for language in spoken]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        settings = {"ASR__ENGINE": options.engine, "ASR__PRELOAD": "true", "ENDPOINTING__ASSIST__MIN_SILENCE_MS": "500"}
        with worker(folder, **settings) as running:
            await asyncio.to_thread(until, lambda: httpx.get(f"{running.url}/readyz").status_code == 200, 60)
            file = folder / "file.wav"
            write(file, dialogue(random.Random(0), prompts[0], options.file_minutes * 60)[0])
            job = await asyncio.to_thread(submit, running, file)
            begun_s = time.monotonic()
            memory = Memory()
            watching = asyncio.create_task(watch(running, memory))
            calling = (
                call(running, folder, prompts[number % len(spoken)], spoken[number % len(spoken)], number, options)
                for number in range(options.calls)
            )
            await asyncio.gather(*calling)
            calls = await asyncio.to_thread(running.wait_ended, options.calls, 60)
            ended_s = time.monotonic() - begun_s
            at_end = await asyncio.to_thread(running.get, f"/v1/jobs/{job}")
            found = await asyncio.to_thread(finished, running, job, 3600)
            file_s = time.monotonic() - begun_s
            watching.cancel()
            report(running, calls, memory)
            print(f"file of {options.file_minutes:g} min: {found['status']} after {file_s:.0f} s")
            print(f"when the calls ended, after {ended_s:.0f} s: {at_end['status']}, {at_end.get('progress')}")


def load(language: str) -> list[np.ndarray]:
    found = []
    for path in sorted((SOUNDS / SPEECH[language]).glob("*.wav")):
        with wave.open(str(path)) as file:
            samples = np.frombuffer(file.readframes(file.getnframes()), "<i2")
        if LENGTH_S[0] * HZ <= len(samples) <= LENGTH_S[1] * HZ:
            found.append(samples)
    return found


def dialogue(chance: random.Random, prompts: list[np.ndarray], seconds: float) -> tuple[np.ndarray, np.ndarray, int]:
    """Customer and agent, int16 at 8 kHz, of the same length; and how many turns there are."""
    sides = np.zeros((2, int(seconds * HZ)), np.int16)
    at, turn = HZ // 2, 0
    while True:
        said = chance.choice(prompts)
        if at + len(said) + HZ > sides.shape[1]:
            return sides[0], sides[1], turn
        sides[turn % 2, at : at + len(said)] = said
        at += len(said) + int(chance.uniform(*GAP_S) * HZ)
        turn += 1


def write(path: Path, samples: np.ndarray) -> None:
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(HZ)
        file.writeframes(samples.tobytes())


async def call(
    running: Worker, folder: Path, prompts: list[np.ndarray], language: str, number: int, options: argparse.Namespace
) -> None:
    await asyncio.sleep(0.5 * number)
    customer, agent, _ = dialogue(random.Random(number + 1), prompts, options.minutes * 60)
    sides = [bytes(ulaw_encode(customer)), bytes(ulaw_encode(agent))]
    if number % 2:
        senders = [RtpSender(), RtpSender()]
        lines = [line(sender.port, label) for sender, label in zip(senders, "12", strict=True)]
        invite = Send(
            "INVITE", mixed(offer(*lines), metadata()), (*REQUIRE, f"X-Spoken: {language}"), keep={"ports": "m=audio.*"}
        )
        pause = Pause(int(options.minutes * 60_000) + 2000)
        own = folder / f"sipp-{number}"
        own.mkdir()
        sipp = Sipp(own)
        async with talking(
            sipp, running, senders, invite, pause, Send("BYE"), timeout_s=int(options.minutes * 60) + 60
        ) as ports:
            await asyncio.gather(
                *(sender.talk(codes, port) for sender, codes, port in zip(senders, sides, ports, strict=True))
            )
    else:
        writer = StreamWriter(new_sid("MZ"), new_sid("CA"), new_sid("AC"))
        messages = schedule(writer, {"inbound": sides[0], "outbound": sides[1]}, {"spoken": language}, tail_s=2.0)
        await stream(StreamTarget(running.twilio, "", {}, False), {}, writer, messages)


async def watch(running: Worker, memory: Memory) -> None:
    while True:
        memory.media.append(resident_mb(running.process.pid))
        memory.inference += [resident_mb(child) for child in inference(running.process.pid)]
        await asyncio.sleep(1)


def inference(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(each) for each in children if b"asr.inference.process" in Path(f"/proc/{each}/cmdline").read_bytes()]


def resident_mb(pid: int) -> float:
    fields = dict(each.split(":", 1) for each in Path(f"/proc/{pid}/status").read_text().splitlines())
    return int(fields["VmRSS"].split()[0]) / 1024


def report(running: Worker, calls: list[dict[str, Any]], memory: Memory) -> None:
    after_ms, finals, empty, lost_ms, utterances = [], 0, 0, 0, 0
    languages: dict[str, Counter[str]] = defaultdict(Counter)
    for each in calls:
        events = running.events(each["call_id"])
        spoken = next(value for name, value in each["custom"].items() if name.lower().endswith("spoken"))
        ended = {e["utterance_id"]: e["at_ms"] for e in events if e["type"] == "speech.ended"}
        utterances += len(ended)
        for final in check_story(events):
            finals += 1
            empty += not final["text"]
            languages[spoken][final["language"] or "none"] += 1
            lost_ms += final["lost_ms"]
            after_ms.append(final["at_ms"] - ended[final["utterance_id"]])
    partials = int(running.metric("mediaworker_transcripts_partials_total"))
    print(f"{len(calls)} calls of two legs: {utterances} utterances, {finals} finals, {empty} of them without words")
    print(f"{partials} partials")
    for spoken, found in languages.items():
        print(f"calls in {spoken}: {found[spoken] / found.total():.1%} of the finals in it; {dict(found)}")
    print(f"lost audio in finals: {lost_ms} ms")
    p50, p95, p99 = np.percentile(after_ms, [50, 95, 99])
    print(f"final after the endpoint: p50 {p50:.0f} ms, p95 {p95:.0f} ms, p99 {p99:.0f} ms")
    for name, found in (("media", memory.media), ("inference", memory.inference)):
        tenth, half, end = (found[round(at * (len(found) - 1))] for at in (0.1, 0.5, 1.0))
        print(f"{name} process: {tenth:.0f} MB after a tenth of the time, {half:.0f} at half, {end:.0f} at the end")


if __name__ == "__main__":
    main()
