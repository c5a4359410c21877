"""A hundred calls, twenty at once: each is read as if it were alone, and nothing of them is left."""

from __future__ import annotations

import asyncio
import csv
from pathlib import Path

import numpy as np
import pytest

from audio import Codec
from audio.codecs.g711 import alaw_encode, ulaw_encode
from lab.engine.offline import packets, utterances
from lab.events.story import check_story
from lab.media.speech import speech
from lab.patience import until
from lab.sip.sipp_caller import Sipp
from lab.worker.calls import check_heard
from lab.worker.peers import worker

GAUGES = ("calls_active", "legs_active", "rtp_sockets", "sip_calls_active", "sip_dialogs", "tasks", "open_fds")


@pytest.mark.parametrize(
    ("values", "name"),
    [
        ({"payload_type": 0, "rtpmap": "PCMU/8000"}, "PCMU"),
        ({"payload_type": 8, "rtpmap": "PCMA/8000"}, "PCMA"),
    ],
)
async def test_a_hundred_calls_twenty_at_once_leave_nothing(
    tmp_path: Path, values: dict[str, object], name: str
) -> None:
    encode = ulaw_encode if name == "PCMU" else alaw_encode
    codes = encode(np.concatenate([speech("vm-goodbye"), np.zeros(6400, np.int16)]))
    sound = tmp_path / "goodbye.raw"
    sound.write_bytes(codes + codes[-1:] * (-len(codes) % 160))
    expected = utterances(Codec[name], packets(sound.read_bytes()))
    assert len(expected) == 1
    with worker(tmp_path, SIP__TRANSPORTS='["udp"]') as running:
        sipp, target = Sipp(tmp_path), f"127.0.0.1:{running.sip_port}"
        audio = f"{sound},1,{values['payload_type']},{values['rtpmap']}"
        talk_ms = len(codes) // 8 + 200
        # One call before: it starts the inference process, which stays.
        await sipp.run("call", target, audio=audio, talk_ms=talk_ms, **values)
        await asyncio.to_thread(running.wait_ended, 1)
        idle = {gauge: running.metric(f"mediaworker_{gauge}") for gauge in GAUGES}
        await sipp.run(
            "call",
            target,
            calls=50,
            at_once=20,
            rate=10,
            timeout_s=100,
            options=("-trace_stat", "-stf", "stat.csv", "-fd", "1"),
            audio=audio,
            talk_ms=talk_ms,
            **values,
        )
        rows = list(csv.DictReader((tmp_path / "call-2/stat.csv").read_text().splitlines(), delimiter=";"))
        assert rows[-1]["SuccessfulCall(C)"] == "50" and rows[-1]["FailedCall(C)"] == "0"
        calls = await asyncio.to_thread(running.wait_ended, 51, 120)
        assert len(calls) == 51
        for call in calls:
            finals = check_story(running.events(call["call_id"]))
            check_heard(finals, expected)
            assert call["legs"][0]["codec"] == name
        # PJSIP keeps a finished transaction for 32 s (RFC 3261, timer J); everything of ours is gone at once.
        for gauge in GAUGES:
            await asyncio.to_thread(
                until, lambda gauge=gauge: running.metric(f"mediaworker_{gauge}") <= idle[gauge], 40
            )
