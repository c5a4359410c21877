"""Recorded prompts, many at once: each yields exactly the utterances, times and text that it yields offline."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest
from websockets.asyncio.client import connect

from audio import Codec
from audio.codecs.g711 import ulaw_encode
from lab.engine.listener import LISTENER
from lab.engine.offline import Expected, packets, utterances
from lab.engine.recognizer import install_listener, of_listener
from lab.events.story import check_story
from lab.media.speech import speech
from lab.patience import timeout
from lab.worker.calls import TOLERANCE_MS
from lab.worker.peers import Worker, worker
from mediaworker.ingress.twilio.sender import StreamWriter, new_sid, schedule

PROMPTS = 20
LONGEST_S = 5.0
TAIL_S = 1.0


async def test_every_prompt_is_heard_as_it_is_offline(
    tmp_path: Path, prompts: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The listener's words are others for any other byte."""
    install_listener(monkeypatch)
    short = sorted(name for name in prompts if 0.5 < len(speech(name)) / 8000 < LONGEST_S and "/" not in name)
    chosen = random.Random(7).sample(short, PROMPTS)
    with worker(tmp_path, SIP__ENABLED="false", **LISTENER) as running:
        async with timeout(100):
            await asyncio.gather(*(play(running, name, delay_s=index * 0.1) for index, name in enumerate(chosen)))
        calls = {call["external_id"]: call for call in await asyncio.to_thread(running.wait_ended, PROMPTS, 100)}
    assert set(calls) == set(chosen)
    heard = 0
    for name in chosen:
        finals = check_story(running.events(calls[name]["call_id"]))
        codes = ulaw_encode(speech(name)) + b"\xff" * int(8000 * TAIL_S)
        expected = utterances(Codec.PCMU, packets(codes), settings=of_listener())
        heard += len(expected)
        assert [final["text"] for final in finals] == [utterance.text for utterance in expected], name
        for final, utterance in zip(finals, expected, strict=True):
            assert near(final, utterance), (name, final, utterance)
    assert heard >= PROMPTS


def near(final: dict, utterance: Expected) -> bool:
    times = ((final["start_ms"], utterance.start_ms), (final["end_ms"], utterance.end_ms))
    return final["lost_ms"] == 0 and all(abs(live - offline) <= TOLERANCE_MS for live, offline in times)


async def play(running: Worker, name: str, delay_s: float) -> None:
    """The prompt as a Twilio stream whose CallSid is the prompt's name, in real time."""
    await asyncio.sleep(delay_s)
    loop = asyncio.get_running_loop()
    writer = StreamWriter(new_sid("MZ"), name, new_sid("AC"))
    async with connect(running.twilio, compression=None) as socket:
        start = loop.time()
        for due_s, write in schedule(writer, {"inbound": ulaw_encode(speech(name))}, {}, tail_s=TAIL_S):
            await asyncio.sleep(start + due_s - loop.time())
            await socket.send(write())
        await socket.wait_closed()
