"""Clients as people use them, each a program of its own that prints what it has got.

Their versions are pinned: those in Python by `requirements/dev.lock`, Node by `tests/node`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import wave
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from audio.codecs.g711 import ulaw_decode
from lab.house import ROOT
from lab.patience import seconds
from lab.worker.peers import Worker
from tools.field.outcome import Outcome, one_line

SAID = "four seven one two"
TIMEOUT_S = 60

OPENAI = """
import openai, sys
client = openai.OpenAI(base_url=f"{URL}/v1", api_key=KEY, max_retries=0)
"""
OPENAI_FILE = 'open(FILE, "rb")'


@dataclass(frozen=True, slots=True)
class Client:
    name: str
    reference: str
    program: str
    """Python, or JavaScript with `// node` as its first line, or a command of curl. URL, WS, KEY, FILE are known."""
    want: str = SAID
    """In what it prints."""
    key: str = ""
    """Another than the right one."""


CLIENTS = (
    Client("openai-python: json", "", OPENAI + f"""
print(client.audio.transcriptions.create(model="whisper-1", file={OPENAI_FILE}).text)"""),
    Client("openai-python: verbose_json with segments", "", OPENAI + f"""
done = client.audio.transcriptions.create(model="whisper-1", file={OPENAI_FILE}, response_format="verbose_json")
print(done.text, done.segments[0].text, done.duration)"""),
    Client("openai-python: srt", "", OPENAI + f"""
print(client.audio.transcriptions.create(model="whisper-1", file={OPENAI_FILE}, response_format="srt"))""", "00:00:0"),
    Client("openai-python: json with granularities, as the AI SDK sends it", "AI SDK, LiteLLM", OPENAI + f"""
print(client.audio.transcriptions.create(model="whisper-1", file={OPENAI_FILE}, response_format="json",
      timestamp_granularities=["segment"]).text)"""),
    Client("openai-python: stream", "", OPENAI + f"""
for event in client.audio.transcriptions.create(model="gpt-4o-transcribe", file={OPENAI_FILE}, stream=True):
    if event.type == "transcript.text.done": print(event.text)"""),
    Client("openai-python: diarized_json of one channel", "gpt-4o-transcribe-diarize", OPENAI + f"""
done = client.audio.transcriptions.create(model="gpt-4o-transcribe-diarize", file={OPENAI_FILE},
                                          response_format="diarized_json")
print(done.segments[0].speaker, done.segments[0].text)""", f"A {SAID}"),
    Client("openai-python: a language by its name", "faster-whisper servers", OPENAI + f"""
print(client.audio.transcriptions.create(model="whisper-1", file={OPENAI_FILE}, language="English").text)"""),
    Client("openai-python: whisper-1, stream and srt", "OpenAI ignores stream", OPENAI + f"""
with client.audio.transcriptions.with_streaming_response.create(model="whisper-1", file={OPENAI_FILE},
                                                                response_format="srt", stream=True) as answer:
    print(answer.read().decode())""", "00:00:0"),
    Client("openai-python: thirty requests at once", "", OPENAI + f"""
from concurrent.futures import ThreadPoolExecutor
def ask(_): return client.audio.transcriptions.create(model="whisper-1", file=("a.wav", {OPENAI_FILE}.read())).text
with ThreadPoolExecutor(30) as threads: print(*{{*threads.map(ask, range(30))}})"""),
    Client("a socket that is closed for sending", "nc -N", """
import socket
from urllib.parse import urlsplit
at = urlsplit(URL)
body = b'--b\\r\\nContent-Disposition: form-data; name="file"; filename="a.wav"\\r\\n\\r\\n'
body += open(FILE, "rb").read() + b"\\r\\n--b--\\r\\n"
head = f"POST /v1/audio/transcriptions HTTP/1.1\\r\\nHost: {at.netloc}\\r\\nAuthorization: Bearer {KEY}\\r\\n"
head += f"Content-Type: multipart/form-data; boundary=b\\r\\nContent-Length: {len(body)}\\r\\n\\r\\n"
with socket.create_connection((at.hostname, at.port)) as peer:
    peer.sendall(head.encode() + body)
    peer.shutdown(socket.SHUT_WR)
    while data := peer.recv(65536): print(data.decode())"""),
    Client("openai-python: models", "", OPENAI + "print(len(client.models.list().data), 'models')", "models"),
    Client("openai-python: a wrong key", "", OPENAI + f"""
try: client.audio.transcriptions.create(model="whisper-1", file={OPENAI_FILE})
except openai.AuthenticationError as error: print("refused", error.status_code)""", "refused 401", key="wrong"),
    Client("httpx: a wrong key and 20 MB", "openai-node, EPIPE", """
import httpx
answer = httpx.post(f"{URL}/v1/audio/transcriptions", headers={"Authorization": f"Bearer {KEY}"},
                    files={"file": ("a.wav", bytes(20_000_000))}, data={"model": "whisper-1"})
print("refused", answer.status_code)""", "refused 401", key="wrong"),
    Client("requests: text", "", """
import requests
answer = requests.post(f"{URL}/v1/audio/transcriptions", headers={"Authorization": f"Bearer {KEY}"},
                       files={"file": open(FILE, "rb")}, data={"model": "whisper-1", "response_format": "text"})
print(answer.text)"""),
    Client("aiohttp: json", "", """
import aiohttp, asyncio
async def main():
    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {KEY}"}) as session:
        form = aiohttp.FormData({"model": "whisper-1"})
        form.add_field("file", open(FILE, "rb"), filename="a.wav")
        async with session.post(f"{URL}/v1/audio/transcriptions", data=form) as answer:
            print((await answer.json())["text"])
asyncio.run(main())"""),
    Client("curl: vtt", "", "curl -sS -H 'Authorization: Bearer $KEY' -F file=@$FILE -F model=whisper-1 "
           "-F response_format=vtt $URL/v1/audio/transcriptions", "WEBVTT"),
    Client("curl: a file without a name", "", "curl -sS -H 'Authorization: Bearer $KEY' -F 'file=@-' "
           "-F model=whisper-1 $URL/v1/audio/transcriptions < $FILE"),
    Client("websockets: /ws/transcribe, all at once, then flush", "websockets defaults", """
import json, wave
from websockets.sync.client import connect
import numpy as np, soxr
with wave.open(FILE) as file: samples = np.frombuffer(file.readframes(file.getnframes()), "<i2")
wide = soxr.resample(samples, 8000, 16000)
with connect(f"{WS}/ws/transcribe", additional_headers={"Authorization": f"Bearer {KEY}"}) as socket:
    print(socket.recv())
    for at in range(0, len(wide), 32000): socket.send(wide[at : at + 32000].tobytes())
    socket.send(json.dumps({"action": "flush"}))
    while True:
        told = json.loads(socket.recv(timeout=30))
        if told.get("is_final") and told["text"]:
            print(told["text"])
            break"""),
    Client("Node's fetch: json", "", """// node
const form = new FormData();
form.set("model", "whisper-1");
form.set("file", new Blob([require("fs").readFileSync(FILE)]), "a.wav");
const headers = {authorization: `Bearer ${KEY}`};
const answer = await fetch(`${URL_}/v1/audio/transcriptions`, {method: "POST", body: form, headers});
console.log((await answer.json()).text);"""),
    Client("Node's fetch: a wrong key and 20 MB", "undici, EPIPE", """// node
const form = new FormData();
form.set("file", new Blob([new Uint8Array(20_000_000)]), "a.wav");
const headers = {authorization: `Bearer ${KEY}`};
const answer = await fetch(`${URL_}/v1/audio/transcriptions`, {method: "POST", body: form, headers});
console.log("refused", answer.status);""", "refused 401", key="wrong"),
)  # fmt: skip


def run(running: Worker, key: str, folder: Path) -> list[Outcome]:
    sound = folder / "customer.wav"
    _write(sound)
    found = []
    for client in CLIENTS:
        known = {
            "URL": running.url, "WS": running.twilio.removesuffix("/twilio/stream"), "KEY": client.key or key,
            "FILE": str(sound),
        }  # fmt: skip
        try:
            done = subprocess.run(
                _command(client.program, known), capture_output=True, text=True, timeout=seconds(TIMEOUT_S)
            )
            wrong = "" if client.want in done.stdout else one_line(done.stderr or done.stdout or "it printed nothing")
        except (OSError, subprocess.SubprocessError) as error:
            wrong = one_line(error)
        found.append(Outcome("clients", client.name, client.reference, wrong))
    return found


def _command(program: str, known: dict[str, str]) -> Sequence[str]:
    if program.startswith("curl "):
        for name, value in known.items():
            program = program.replace(f"${name}", value)
        return ["bash", "-c", program]
    if program.startswith("// node"):
        head = "".join(f"const {'URL_' if name == 'URL' else name} = {value!r};\n" for name, value in known.items())
        return [node(), "-e", f"(async () => {{\n{head}{program}\n}})();"]
    head = "".join(f"{name} = {value!r}\n" for name, value in known.items())
    return [sys.executable, "-c", head + program]


def node() -> str:
    if there := os.environ.get("NODE") or shutil.which("node"):
        return there
    command = [str(ROOT / "tools" / "install_node.sh"), sys.executable]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return f"{done.stdout.strip().splitlines()[-1]}/24/node"


def _write(path: Path) -> None:
    codes = (ROOT / "tests" / "data" / "digits" / "customer.ulaw").read_bytes()
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(8000)
        file.writeframes(ulaw_decode(codes).tobytes())
