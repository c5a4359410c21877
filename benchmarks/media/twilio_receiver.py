"""Twilio streams through the media listener: `python -m benchmarks.media.twilio_receiver PORT STREAMS SECONDS`."""

from __future__ import annotations

import asyncio
import sys

from benchmarks.media.harness import Figures, Harness, run
from mediaworker.ingress.listener import MediaListener
from mediaworker.ingress.runner import Throttle
from mediaworker.ingress.twilio import routes


async def main(harness: Harness, port: int, streams: int, seconds: float) -> Figures:
    settings = harness.settings
    throttle = Throttle()
    twilio = routes.TwilioIngress(settings, harness.calls)
    media = type(settings.media)(host="127.0.0.1", port=port)
    listener = MediaListener(media, {routes.STREAM: twilio}, throttle)
    await listener.start()

    async def connected() -> None:
        while twilio.counters.started < streams:  # noqa: ASYNC110
            await asyncio.sleep(0.01)

    figures = await harness.measure(
        seconds + 2, sweep=lambda now, turn: listener.sweep(turn), stepped=throttle.release, ready=connected
    )
    await listener.stop()
    return {"packets": twilio.counters.media, **figures}


if __name__ == "__main__":
    run(lambda harness: main(harness, int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])))
