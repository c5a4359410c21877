"""A customer who can be heard in the agent's headset, by a real Twilio stream and a real recogniser."""

from __future__ import annotations

import wave
from pathlib import Path

import numpy as np

from lab.events.story import check_story
from lab.media.speech import SPEECH, speech
from lab.worker.peers import command, worker

PROMPT, WORDS = "please-try-call-later", "Please try your call again later."


def test_each_word_is_transcribed_once(tmp_path: Path) -> None:
    agent = tmp_path / "agent.wav"
    heard = np.concatenate([np.zeros(8 * 140), speech(PROMPT) * 0.1]).astype("<i2")
    with wave.open(str(agent), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(8000)
        file.writeframes(heard.tobytes())
    with worker(tmp_path, ASR__ENGINE="moonshine", ASR__PRELOAD="true") as running:
        played = command(
            "stream", running.twilio, "--play", str(SPEECH / f"{PROMPT}.wav"), "--play-outbound", str(agent)
        )
        assert played.returncode == 0, played.stderr
        (call,) = running.wait_ended(1)
        finals = check_story(running.events(call["call_id"]))
        assert running.metric("mediaworker_transcripts_crosstalk_finals_total") >= 1
    said = {leg: " ".join(each["text"] for each in finals if each["leg"] == leg) for leg in ("inbound", "outbound")}
    assert WORDS in said["inbound"] and not said["outbound"].strip()
    assert {each.get("crosstalk") for each in finals if each["leg"] == "outbound"} == {"inbound"}
