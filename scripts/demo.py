"""The demo: one worker, one SIP call in wideband, one Twilio stream with two speakers, all on this machine.

Starts the worker on free ports with a data folder of its own, shows its events live, places both calls with recorded
human prompts, prints both transcripts beside what was really said, and stops everything. Exit code 0 when both calls
came out as text.

`--engine tiny` (`make demo ENGINE=tiny`) runs Qwen3-ASR with the tiny model of this repository instead, on digits from
a synthetic voice, which is what that model reads; exit code 0 when every word is right.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
import wave
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parent.parent
DIGITS = ROOT / "tests" / "data" / "digits"
TINY = ROOT / "models" / "qwen3-asr-tiny"
SOUNDS = Path("/usr/share/asterisk/sounds/en_US_f_Allison")
WORDS = Path("/usr/share/doc/asterisk-core-sounds-en/core-sounds-en.txt.gz")
WORKER = [sys.executable, "-m", "mediaworker.cli.main"]

SIP_PROMPTS = ["pbx-invalid", "conf-onlyperson", "privacy-prompt"]
CUSTOMER_PROMPTS = ["tt-weasels", "auth-thankyou"]
AGENT_PROMPTS = ["vm-rec-name", "demo-thanks"]
PAUSE_S = 1.0


VERDICTS = {
    "pocketsphinx": (
        "The path is real: phone line → ring → VAD → endpoint → engine → events. The engine is for trying out:\n"
        "PocketSphinx, whose model is in its package, gets about 29 % of the words wrong in wideband (the SIP call\n"
        "above) and 60 to 70 % on 8 kHz telephone audio (the Twilio stream above)."
    ),
    "qwen": "The path is real: phone line → ring → VAD → endpoint → Qwen3-ASR (weights of this machine) → events.",
    "tiny": (
        "The path and the engine are real: phone line → ring → VAD → endpoint → Qwen3-ASR → events. The model is not:\n"
        "0.8 million parameters that read English digits and some forty words from synthetic voices."
    ),
}


@dataclass(frozen=True)
class Scene:
    """What is played, and what is said in it."""

    sip: Path
    sip_codec: str
    customer: Path
    agent: Path
    said: dict[str, str]
    """By the call's source."""
    settings: dict[str, str]
    exact: bool


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--engine", choices=("auto", "tiny"), default="auto")
    engine = parser.parse_args().engine
    with tempfile.TemporaryDirectory(prefix="mediaworker-demo-") as folder:
        base = Path(folder)
        scene = digits() if engine == "tiny" else prompts(base)
        with worker(base, scene.settings) as ports:
            http = f"http://127.0.0.1:{ports['http']}"
            watcher = subprocess.Popen([*WORKER, "watch", http, "--once"])
            try:
                title(f"A SIP call, {scene.sip_codec}: {scene.said['sip']}")
                sip = f"sip:demo@127.0.0.1:{ports['sip']}"
                run("call", sip, "--play", str(scene.sip), "--codec", scene.sip_codec, "--from", "100")
                wait_until_idle(http, calls=1)
                title(f"A Twilio stream, two tracks: {scene.said['twilio']}")
                url = f"ws://127.0.0.1:{ports['media']}/twilio/stream"
                run("stream", url, "--play", str(scene.customer), "--play-outbound", str(scene.agent))
                wait_until_idle(http, calls=2)
            finally:
                time.sleep(0.3)  # let the last lines reach the terminal
                watcher.terminate()
                watcher.wait()
            done = report(http, scene)
    title("How good is that?")
    print(VERDICTS["tiny" if engine == "tiny" else chosen_engine()])
    return 0 if done == len(scene.said) else 1


def prompts(base: Path) -> Scene:
    """Recorded human prompts, for the engine that this machine has."""
    texts = spoken_words()
    call_file, customer, agent = base / "call.g722", base / "customer.wav", base / "agent.wav"
    join_g722(SIP_PROMPTS, call_file)
    # The agent answers when the customer has finished.
    lead_s = join_wav(CUSTOMER_PROMPTS, customer)
    join_wav(AGENT_PROMPTS, agent, lead_s=lead_s)
    said = {"sip": quoted(SIP_PROMPTS, texts), "twilio": quoted(CUSTOMER_PROMPTS + AGENT_PROMPTS, texts)}
    return Scene(call_file, "G722", customer, agent, said, {}, exact=False)


def digits() -> Scene:
    """What the tiny model reads."""
    counted = "one two three four five six seven eight nine zero"
    said = {
        "sip": f"{counted} {counted}",
        "twilio": "four seven one two, nine oh five three eight (customer); zero six two, one eight four nine (agent)",
    }
    settings = {"ENGINE": "qwen", "MODEL": str(TINY), "PRELOAD": "true"}
    settings = {f"MEDIAWORKER_ASR__{key}": value for key, value in settings.items()}
    files = (DIGITS / "long.ulaw", "PCMU", DIGITS / "customer.ulaw", DIGITS / "agent.ulaw")
    return Scene(*files, said, settings, exact=True)


def chosen_engine() -> str:
    from asr.select import select
    from config import load

    return select(load(None).asr).engine


def report(http: str, scene: Scene) -> int:
    """Print the transcripts; the calls that came out as they should."""
    done = 0
    for call in reversed(get(f"{http}/v1/calls")["items"]):
        source = call["source"]
        url = f"{http}/v1/calls/{call['call_id']}/transcript?format=txt"
        with urllib.request.urlopen(url, timeout=10) as answer:
            text = answer.read().decode().strip()
        title(f"Transcript of the {source} call ({url})")
        print(text or "(no words)")
        print(f"\n  really said: {scene.said[source]}")
        done += words(text) == words(scene.said[source]) if scene.exact else bool(text)
    return done


def words(text: str) -> list[str]:
    """In no order, since two speak: times, names of legs and what is in brackets is not said."""
    spoken = re.sub(r"\([^)]*\)|^\[[^\]]*\] \w+: ", "", text, flags=re.MULTILINE)
    return sorted(re.findall(r"[a-z]+", spoken.lower()))


@contextlib.contextmanager
def worker(base: Path, settings: dict[str, str]) -> Iterator[dict[str, int]]:
    ports = dict(zip(["http", "media", "sip", "rtp"], free_ports(4), strict=True))
    environ = os.environ | {
        "MEDIAWORKER_DATA_DIR": str(base / "data"),
        "MEDIAWORKER_HTTP__PORT": str(ports["http"]),
        "MEDIAWORKER_MEDIA__PORT": str(ports["media"]),
        "MEDIAWORKER_SIP__PORT": str(ports["sip"]),
        "MEDIAWORKER_SHUTDOWN_S": "2",
        "MEDIAWORKER_LOG__LEVEL": "warning",
        **settings,
    }
    title(f"Starting the worker: HTTP {ports['http']}, media WebSockets {ports['media']}, SIP {ports['sip']}")
    process = subprocess.Popen([*WORKER, "serve"], env=environ, cwd=base)
    try:
        deadline = time.monotonic() + 60
        while True:
            if process.poll() is not None:
                raise SystemExit(f"the worker ended with code {process.returncode}")
            with contextlib.suppress(OSError, urllib.error.URLError):
                get(f"http://127.0.0.1:{ports['http']}/readyz")
                break
            if time.monotonic() > deadline:
                raise SystemExit("the worker did not become ready")
            time.sleep(0.1)
        yield ports
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=30)


def run(command: str, *arguments: str) -> None:
    print(f"$ mediaworker {command} {' '.join(arguments)}", flush=True)
    code = subprocess.run([*WORKER, command, *arguments]).returncode
    if code:
        raise SystemExit(f"mediaworker {command} failed with code {code}")


def wait_until_idle(http: str, calls: int) -> None:
    """Until `calls` calls are over: the last final follows the hang-up."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        items = get(f"{http}/v1/calls")["items"]
        if len(items) >= calls and all(item.get("ended_at") for item in items):
            return
        time.sleep(0.2)
    raise SystemExit("the call did not end")


def get(url: str) -> dict:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return json.load(answer)


def join_g722(names: list[str], target: Path) -> None:
    """G.722 has no header: prompts join by appending, with encoded silence in between."""
    from audio.g722 import G722Encoder

    silence = G722Encoder().encode(np.zeros(int(16000 * PAUSE_S), np.int16))
    target.write_bytes(silence.join([(SOUNDS / f"{name}.g722").read_bytes() for name in names]) + silence)


def join_wav(names: list[str], target: Path, lead_s: float = 0.0) -> float:
    pause = bytes(2 * int(8000 * PAUSE_S))
    sound = bytes(2 * int(8000 * lead_s))
    for name in names:
        with wave.open(str(SOUNDS / f"{name}.wav")) as file:
            sound += file.readframes(file.getnframes()) + pause
    with wave.open(str(target), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(8000)
        file.writeframes(sound)
    return len(sound) / 16000


def spoken_words() -> dict[str, str]:
    texts = {}
    for line in gzip.open(WORDS, "rt", encoding="utf-8", errors="replace"):
        name, _, words = line.partition(":")
        texts[name.strip()] = re.sub(r"\[[^\]]*\]", "", words).strip()
    return texts


def quoted(names: list[str], texts: dict[str, str]) -> str:
    return " ".join(f"“{texts[name]}”" for name in names)


def free_ports(count: int) -> list[int]:
    probes = [socket.socket() for _ in range(count)]
    for probe in probes:
        probe.bind(("127.0.0.1", 0))
    ports = [probe.getsockname()[1] for probe in probes]
    for probe in probes:
        probe.close()
    return ports


def title(text: str) -> None:
    print(f"\n── {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
