"""The engine `openai` with `transformers serve`, which is somebody else's server of Qwen3-ASR."""

from __future__ import annotations

import asyncio
import base64
import json
import urllib.request
from pathlib import Path

from asr.client.recognizer import Utterance
from asr.engines.openai.wire import wav
from asr.text import parse_output
from lab.engine.recognizer import client, codes, remote_engine
from lab.http.transcription_servers import transformers_serve
from lab.patience import seconds
from lab.worker.peers import TINY


async def test_transformers_serve_is_asked_by_chat(tmp_path: Path) -> None:
    """Its transcription route has no Qwen3-ASR, its chat has; it knows neither priorities nor beginnings of answers."""
    with transformers_serve(tmp_path) as base:

        def expected(audio: bytes) -> tuple[str, str]:
            data = f"data:audio/wav;base64,{base64.b64encode(wav('PCMU', audio)).decode()}"
            said = {"role": "user", "content": [{"type": "audio_url", "audio_url": {"url": data}}]}
            body = json.dumps({"model": str(TINY), "messages": [said], "temperature": 0.0}).encode()
            request = urllib.request.Request(f"{base}/chat/completions", body, {"content-type": "application/json"})
            with urllib.request.urlopen(request, timeout=seconds(120)) as answer:
                return parse_output(json.load(answer)["choices"][0]["message"]["content"])

        audio = codes("vm-goodbye")
        language, text = await asyncio.to_thread(expected, audio)
        async with client(remote_engine(base, str(TINY), url_route="chat", url_timeout_s=seconds(120))) as c:
            await c.ready()
            for name, forced in (("free", ""), ("forced", "en")):
                c.recognizer.open(Utterance(name, "PCMU", language=forced), c.heard.append)
                c.recognizer.append(name, audio)
                c.recognizer.final(name, 1, commit=True)
                await c.until(lambda name=name: c.finals(name))
            assert [(h.text, h.language, h.error) for h in c.heard] == [(text, language, None)] * 2
            assert text and language == "en"
