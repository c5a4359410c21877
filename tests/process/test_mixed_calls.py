"""A call in two languages at a worker with Moonshine and Whisper: each leg is understood in its own, and says so."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from websockets.asyncio.client import connect

from audio.codecs.g711 import ulaw_encode
from lab.events.story import check_story
from lab.media.speech import speech
from lab.worker.peers import Worker, worker
from mediaworker.cli.play import load_pcm
from mediaworker.cli.stream import StreamTarget, stream
from mediaworker.ingress.twilio.sender import StreamWriter, new_sid, schedule

SPANISH = Path("/usr/share/asterisk/sounds/es_MX_f_Allison")
SAID = {
    "conf-now-muted": "La conferencia está ahora en modo mudo.",
    "conf-getpin": "Por favor ingrese la clave de entrada para la conferencia.",
}
PAUSE = np.zeros(12000, np.int16)


def spanish(name: str) -> np.ndarray:
    """int16 at 8 kHz."""
    return load_pcm(SPANISH / f"{name}.g722", 8000)


async def play(running: Worker, **legs: list[np.ndarray]) -> None:
    tracks = {
        name: np.concatenate([part for each in said for part in (PAUSE, each)] + [PAUSE]) for name, said in legs.items()
    }
    writer = StreamWriter(new_sid("MZ"), new_sid("CA"), new_sid("AC"))
    codes = {name: bytes(ulaw_encode(track)) for name, track in tracks.items()}
    await stream(StreamTarget(running.twilio, "", {}, False), {}, writer, schedule(writer, codes, {}))


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Worker]:
    settings = {"ASR__ENGINE": "mixed", "ASR__PRELOAD": "true", "ASR__WORD_TIMESTAMPS": "true", "SIP__ENABLED": "false"}
    with worker(tmp_path, **settings) as started:
        yield started


async def test_each_leg_is_understood_in_its_own_language(running: Worker) -> None:
    async with connect(f"ws://127.0.0.1:{running.http_port}/v1/events") as socket:
        hello = json.loads(await socket.recv())
        assert hello["engine"]["partials"] == ["en"] and {"en", "es", "sw"} <= set(hello["engine"]["languages"])
    one, two = map(spanish, SAID)
    agent = [speech("conf-onlyperson"), PAUSE, speech("pbx-invalid"), PAUSE]
    await play(running, inbound=[one, PAUSE, two, PAUSE], outbound=agent)
    (call,) = running.wait_ended(1)
    story = running.events(call["call_id"])
    finals = check_story(story)
    inbound, outbound = ([each for each in finals if each["leg"] == leg] for leg in ("inbound", "outbound"))
    assert [each["text"] for each in inbound] == [*SAID.values()]
    assert {each["language"] for each in inbound} == {"es"} and {each["language"] for each in outbound} == {"en"}
    assert outbound[0]["text"] == "You are currently the only person in this conference."
    words = {each["utterance_id"]: each["words"] for each in story if each["type"] == "transcript.words"}
    assert words.keys() == {each["utterance_id"] for each in finals}
    for final in finals:
        timed = words[final["utterance_id"]]
        assert [each["word"] for each in timed] == final["text"].replace(".", "").replace(",", "").split()
        starts = [each["start_ms"] for each in timed]
        assert starts == sorted(starts) and final["start_ms"] <= starts[0] and timed[-1]["end_ms"] <= final["end_ms"]
