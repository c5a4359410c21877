"""Where the time goes between the end of speech and its final: a real worker, real streams, its own metrics.

`python -m benchmarks.latency [STREAMS]`: so many Twilio streams at once (default 1), one after another until 12 have
been played, each a recorded prompt; then the means of `final_latency_part_seconds`.
"""

from __future__ import annotations

import re
import subprocess
import sys
import urllib.request
from pathlib import Path

from benchmarks.idle import COMMAND, running

PROMPTS = Path("/usr/share/asterisk/sounds/en_US_f_Allison")
NAMES = ("vm-intro", "auth-thankyou", "conf-onlyperson", "demo-abouttotry", "vm-options", "conf-getpin")
CALLS = 12
PARTS = ("endpoint", "reorder", "vad", "queue", "engine", "commit", "fan_out")


def main() -> None:
    at_once = int(sys.argv[1]) if len(sys.argv) > 1 else 1
    with running(SIP__ENABLED="false") as (_, http, media):
        play(media, 1)  # the engine is there from now on
        before = parts(http)
        for _ in range(CALLS // at_once):
            play(media, at_once)
        after = parts(http)
    count = after["endpoint"][1] - before["endpoint"][1]
    print(f"{count:.0f} finals at an endpoint, {at_once} streams at once; means in ms")
    for name in PARTS:
        (total, number), (total0, number0) = after[name], before[name]
        if number > number0:
            print(f"{name:9} {1000 * (total - total0) / (number - number0):7.1f}")


def play(port: int, count: int) -> None:
    url = f"ws://127.0.0.1:{port}/twilio/stream"
    files = [PROMPTS / f"{NAMES[index % len(NAMES)]}.wav" for index in range(count)]
    callers = [subprocess.Popen([*COMMAND, "stream", url, "--tail", "1.5", "--play", str(file)]) for file in files]
    for caller in callers:
        caller.wait()


def parts(port: int) -> dict[str, tuple[float, float]]:
    """Part → (seconds, observations)."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        text = answer.read().decode()

    def read(what: str, part: str) -> float:
        found = re.search(rf'^mediaworker_final_latency_part_seconds_{what}{{part="{part}"}} (\S+)$', text, re.M)
        return float(found[1]) if found else 0.0

    return {part: (read("sum", part), read("count", part)) for part in PARTS}


if __name__ == "__main__":
    main()
