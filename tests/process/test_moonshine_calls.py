"""Calls at a worker with Moonshine, by SIP and by Twilio: the right words, and a media process that stays light."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from lab.events.story import check_story
from lab.media.speech import SPEECH
from lab.patience import seconds
from lab.worker.peers import COMMAND, Worker, command, worker

HEAVY = re.compile(r"/(onnxruntime|moonshine_voice|torch|transformers|scipy|av)/")
SAID = {
    "sip": ("conf-onlyperson", "You are currently the only person in this conference."),
    "twilio": ("please-try-call-later", "Please try your call again later."),
}


def libraries(pid: int) -> set[str]:
    """Of what is heavy, what the process has mapped."""
    return set(HEAVY.findall(Path(f"/proc/{pid}/maps").read_text()))


def inference_process(running: Worker) -> int | None:
    for thread in Path(f"/proc/{running.process.pid}/task").iterdir():
        for child in (thread / "children").read_text().split():
            if "asr.inference.process" in Path(f"/proc/{child}/cmdline").read_text():
                return int(child)
    return None


def test_both_calls_are_understood_and_the_media_process_stays_light(tmp_path: Path) -> None:
    sip, twilio = (str(SPEECH / f"{SAID[source][0]}.wav") for source in ("sip", "twilio"))
    with worker(tmp_path, ASR__ENGINE="moonshine", ASR__PRELOAD="true", ASR__PARTIAL_MS="2000") as running:
        stream = subprocess.Popen([*COMMAND, "stream", running.twilio, "--play", twilio])
        call = command("call", f"sip:100@127.0.0.1:{running.sip_port}", "--play", sip)
        assert call.returncode == 0, call.stderr
        assert stream.wait(seconds(60)) == 0
        calls = {each["source"]: check_story(running.events(each["call_id"])) for each in running.wait_ended(2)}
        pid = inference_process(running)
        assert pid is not None and libraries(pid) == {"onnxruntime"}, "the weights are read, and the package is not"
        assert libraries(running.process.pid) == set()
        assert running.metric("mediaworker_asr_crashes_total") == 0
    for source, (_, words) in SAID.items():
        text = " ".join(final["text"] for final in calls[source])
        assert words in text, (source, text)
        assert {final["language"] for final in calls[source] if final["text"]} == {"en"}
