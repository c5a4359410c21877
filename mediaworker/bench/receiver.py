"""The worker's media path as the media benchmark measures it: sockets, rings, VAD, endpointing, events and their store.

Everything is the real thing but recognition, which lives in another process: here it answers every final at once with
no words. Run as its own process: `python -m mediaworker.bench.receiver PORTS SECONDS`.
"""

from __future__ import annotations

import asyncio
import gc
import json
import resource
import sys
import tempfile
from collections.abc import Callable

import numpy as np

from asr.utterance import Hypothesis, Utterance
from audio import Codec, Detector
from config import Settings
from mediaworker.call import LegSpec
from mediaworker.events.hub import EventHub
from mediaworker.events.store import EventStore
from mediaworker.ingress.connections import raise_open_files
from mediaworker.media import MediaLoop
from mediaworker.registry import CallRegistry
from sip.ports import RtpPorts
from sip.receiver import RtpReceiver
from sip.sockets import RtpCounters, RtpSocket, SilenceTicker


class NoWords:
    """A recognizer that takes audio as the real client does and knows no words."""

    def __init__(self) -> None:
        self.bytes = 0
        self._heard: dict[str, Callable[[Hypothesis], None]] = {}

    def open(self, utterance: Utterance, on_hypothesis: Callable[[Hypothesis], None]) -> None:
        self._heard[utterance.id] = on_hypothesis

    def append(self, utterance_id: str, audio: bytes) -> None:
        self.bytes += len(audio)

    def partial(self, utterance_id: str, revision: int) -> None:
        self._answer(utterance_id, revision, "…", final=False)

    def final(self, utterance_id: str, revision: int, *, commit: bool) -> None:
        self._answer(utterance_id, revision, "", final=True)

    def commit(self, utterance_id: str) -> None:
        self._heard.pop(utterance_id, None)

    def cancel(self, utterance_id: str) -> None:
        self._heard.pop(utterance_id, None)

    def _answer(self, utterance_id: str, revision: int, text: str, *, final: bool) -> None:
        heard = self._heard.get(utterance_id)
        if heard is not None:
            hypothesis = Hypothesis(
                utterance_id=utterance_id, revision=revision, text=text, language="", stable_chars=0, final=final
            )
            asyncio.get_running_loop().call_soon(heard, hypothesis)


async def main(first: int, last: int, seconds: float, data_dir: str) -> dict[str, float]:
    loop = asyncio.get_running_loop()
    raise_open_files()
    settings = Settings(data_dir=data_dir, max_calls=100_000)
    hub = EventHub(settings, EventStore(data_dir))
    await hub.start()
    detector = Detector(jitter_s=settings.rtp.jitter_ms / 1000, stall_s=settings.media.stall_s)
    calls = CallRegistry(settings, detector=detector, recognizer=NoWords(), publish=hub.publish, clock=loop.time)
    receiver = RtpReceiver(detector)
    media = MediaLoop(detector, lambda: calls, sweep=receiver.sweep)
    ports = RtpPorts(first, last + 1, host="127.0.0.1")
    counters, ticker = RtpCounters(), SilenceTicker(loop)
    sockets: list[RtpSocket] = []
    for _ in range(first, last + 1, 2):
        socket = RtpSocket(ports, receiver, counters, ticker, loop)
        call = calls.open(source="sip", legs=[LegSpec("main", Codec.PCMU)])
        socket.leg = call.legs["main"]
        sockets.append(socket)
    await hub.flush()
    media.start()
    gc.collect()
    gc.freeze()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    before = resource.getrusage(resource.RUSAGE_SELF)
    await asyncio.sleep(seconds + 1)
    after = resource.getrusage(resource.RUSAGE_SELF)
    stalls = np.array(media.stalls_s)
    result = {
        "packets": counters.packets,
        "cpu_s": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        "loop_stall_p99_ms": round(float(np.percentile(stalls, 99)) * 1000, 2),
        "vad_lag_max_ms": round(media.lag_max_s * 1000, 2),
        "utterances": calls.stats.utterances,
        "events": sum(hub.published.values()),
        "rss_mb": round(after.ru_maxrss / 1024, 1),
    }
    for call in calls:
        call.end("hangup")
    for socket in sockets:
        socket.close()
    await media.stop()
    await hub.stop()
    return result


if __name__ == "__main__":
    import uvloop

    from mediaworker.logs import configure

    configure(Settings().log.__class__(level="error"))
    low, high = sys.argv[1].split("-")
    with tempfile.TemporaryDirectory() as folder:
        sys.stdout.write(json.dumps(uvloop.run(main(int(low), int(high), float(sys.argv[2]), folder))))
