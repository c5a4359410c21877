"""Kill -9 at random moments: nothing durable is lost or doubled, and every speech gets its one final."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import numpy as np
import pytest

from audio import Codec
from audio.codecs.g711 import ulaw_encode
from lab.chaos.kills import PAUSE, Chaos
from lab.engine.offline import MOONSHINE, packets, utterances
from lab.events.story import check_story
from lab.media.speech import speech
from lab.worker.peers import Worker, worker
from mediaworker.cli.stream import StreamTarget, stream
from mediaworker.ingress.twilio.sender import StreamWriter, new_sid, schedule

KILLS = 20
SEED = 20


@pytest.mark.timeout(300)
async def test_twenty_kills_under_live_calls(tmp_path: Path) -> None:
    report = await Chaos(tmp_path, seed=SEED).run(KILLS)
    print(*report.lines(), sep="\n")  # noqa: T201 - shown when it fails


# -- utterances that the engine cannot stand ------------------------------------------------------------------------

DEADLY, HANGING = bytes(range(0x20, 0x60)), bytes(range(0x5F, 0x1F, -1))
"""Codes that no speech has in this order."""
FAULTY = f"""
import os, signal, sys, time
if "asr.inference.process" in sys.orig_argv:
    from collections import defaultdict
    from asr.engines.moonshine.engine import MoonshineEngine as Engine
    append, step, audio = Engine.append, Engine.step, defaultdict(bytes)
    def kept(self, utterance_id, codes):
        audio[utterance_id] += codes
        append(self, utterance_id, codes)
    def faulty(self, requests):
        for request in requests:
            heard = audio[request.utterance_id][: request.end]
            if {DEADLY!r} in heard:
                os.kill(os.getpid(), signal.SIGKILL)
            if {HANGING!r} in heard:
                time.sleep(3600)
        return step(self, requests)
    Engine.append, Engine.step = kept, faulty
"""


def poison(mark: bytes) -> bytes:
    codes = ulaw_encode(np.concatenate([speech("vm-goodbye"), PAUSE]))
    return codes[:3200] + mark + codes[3200 + len(mark) :]


async def test_poison_utterances_end_failed_and_harm_nobody_else(tmp_path: Path) -> None:
    """Over one the engine dies, in another it hangs, each time it hears them: twice is enough."""
    (tmp_path / "sitecustomize.py").write_text(FAULTY)
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    healthy = ulaw_encode(np.concatenate([speech("auth-thankyou"), PAUSE, speech("vm-goodbye"), PAUSE]))
    expected = [utterance.text for utterance in utterances(Codec.PCMU, packets(healthy), settings=MOONSHINE)]
    assert len(expected) == 2
    environ = {
        "SIP__ENABLED": "false",
        "ASR__ENGINE": "moonshine",
        "ASR__HANG_S": "1.5",
        "MEDIA__SILENCE_AFTER_S": "30",
    }
    environ["ASR__THREADS"] = "1"  # one utterance at a time: it is certain over which one the engine died
    with worker(tmp_path, {"PYTHONPATH": path}, **environ) as running:
        said = (healthy, poison(DEADLY), poison(HANGING), healthy)
        sids = await asyncio.gather(*(play(running, codes) for codes in said))
        calls = await asyncio.to_thread(running.wait_ended, len(said))
        by_sid = {call["external_id"]: check_story(running.events(call["call_id"])) for call in calls}
        good, deadly, hanging, also_good = (by_sid[sid] for sid in sids)
        assert [final["text"] for final in good] == [final["text"] for final in also_good] == expected
        died, hung = "the inference process died (signal 9)", "the inference process did not answer for 1.5 s"
        assert [(final["reason"], final["text"], final["error"]) for final in deadly] == [("failed", "", died)]
        assert [(final["reason"], final["text"], final["error"]) for final in hanging] == [("failed", "", hung)]
        assert running.metric("mediaworker_asr_crashes_total") == 4
        assert running.metric("mediaworker_asr_hangs_total") == 2
        assert running.metric("mediaworker_asr_open_utterances") == 0


async def play(running: Worker, codes: bytes) -> str:
    writer = StreamWriter(new_sid("MZ"), new_sid("CA"), new_sid("AC"))
    await stream(StreamTarget(running.twilio, "", {}, False), {}, writer, schedule(writer, {"inbound": codes}, {}))
    return writer.call_sid
