"""What mod_audio_stream of FreeSWITCH sends, which cannot be run here: docs/how-to/pbx/freeswitch.md shows it."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

from websockets.asyncio.client import connect

from lab.asterisk.pbx import DIGITS
from lab.events.story import check_story
from lab.worker.peers import ROOT, worker
from lab.worker.qwen import QWEN, SAID
from mediaworker.cli.play import load_pcm

FRAME_S = 0.020


async def test_the_text_that_is_to_be_copied_opens_a_call(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "how-to" / "pbx" / "freeswitch.md").read_text()
    (path, rate, first) = re.findall(r"start ws://[^/]+(/\S+) mono (\d+)k (\{.*?\})'/>", page)[0]
    assert " " not in first, "FreeSWITCH ends an argument there"
    rate_hz = int(rate) * 1000
    audio = load_pcm(DIGITS / "customer.ulaw", rate_hz).astype("<i2").tobytes()
    frame = int(rate_hz * FRAME_S) * 2
    with worker(tmp_path, **QWEN, ASR__PRELOAD="true") as listening:
        async with connect(f"ws://127.0.0.1:{listening.media_port}{path}") as socket:
            await socket.send(first.replace("${caller_id_number}", "4711"))
            for at in range(0, len(audio), frame):
                await socket.send(audio[at : at + frame])
                await asyncio.sleep(FRAME_S)
        (call,) = await asyncio.to_thread(listening.wait_ended, 1)
        events = listening.events(call["call_id"])
    finals = check_story(events)
    assert [final["text"] for final in finals] == SAID["customer"]
    (leg,) = events[0]["legs"]
    assert (events[0]["source"], leg["role"], leg["name"]) == ("websocket", "customer", "4711")
    assert events[-1]["reason"] == "disconnected"
