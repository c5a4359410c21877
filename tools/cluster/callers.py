"""The callers: half of them by SIP through Kamailio, half as Twilio through HAProxy. Each calls, says four numbers,
hangs up, and calls again."""

from __future__ import annotations

import asyncio
import random
import ssl
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from audio import Codec
from lab.engine.offline import packets, utterances
from lab.sip.sipp_caller import Sipp
from mediaworker.cli.stream import StreamError, StreamTarget, stream
from mediaworker.ingress.twilio.sender import ULAW_SILENCE, StreamWriter, new_sid, schedule
from mediaworker.ingress.twilio.webhook import sign
from tools.cluster.network import OUTSIDE
from tools.cluster.parts import PROXY_ADDRESS, ROOT, TOKEN

DIGITS = ROOT / "tests" / "data" / "digits"
PAUSE_S = 1.0
"""Longer than an endpoint, so that the last final belongs to the call and not to its end."""
AWAY_S = 14.0
"""Between two calls of a caller, at most."""
AGAIN_S = 0.5
"""After a refusal."""
FIRST_PORT = 40_000
STREAM = f"wss://{PROXY_ADDRESS}:8443/twilio/stream"


@dataclass(frozen=True)
class Script:
    """What everybody says, and what a worker makes of it if nothing happens meanwhile."""

    codes: bytes
    """µ-law at 8 kHz."""
    texts: tuple[str, ...]

    @classmethod
    def make(cls) -> Script:
        codes = b"".join(
            part
            for name in ("agent", "customer")
            for part in ((DIGITS / f"{name}.ulaw").read_bytes(), _silence(PAUSE_S))
        )
        codes += ULAW_SILENCE * (-len(codes) % 160)
        return cls(codes, tuple(each.text for each in utterances(Codec.PCMU, packets(codes))))

    @property
    def seconds(self) -> float:
        return len(self.codes) / 8000

    @property
    def packets(self) -> int:
        """Of 20 ms."""
        return len(self.codes) // 160


@dataclass(frozen=True)
class Attempt:
    """One try to call."""

    began: float
    """Unix time, as all times here."""
    ended: float
    problem: str
    """Empty: the call was played to its end and hung up."""


@dataclass
class Callers:
    script: Script
    folder: Path
    tls: ssl.SSLContext
    seed: int
    attempts: list[Attempt] = field(default_factory=list)
    calling: bool = True
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)

    def start(self, sip: int, twilio: int) -> None:
        self._random = random.Random(self.seed)
        self._sipp = Sipp(self.folder)
        self._sound = self.folder / "script.raw"
        self._sound.write_bytes(self.script.codes)
        self._tasks += [asyncio.create_task(self._again_and_again(self._by_sip, number)) for number in range(sip)]
        self._tasks += [asyncio.create_task(self._again_and_again(self._by_twilio, number)) for number in range(twilio)]

    async def stop(self) -> None:
        """Calls that are being made go on to their end."""
        self.calling = False
        await asyncio.gather(*self._tasks)

    def between(self, began: float, ended: float) -> Iterable[Attempt]:
        return (each for each in self.attempts if began <= each.began < ended)

    async def _again_and_again(self, call: Callable[[int], Awaitable[None]], number: int) -> None:
        await asyncio.sleep(self._random.uniform(0, self.script.seconds))
        while self.calling:
            began = time.time()
            try:
                await call(number)
                problem = ""
            except (StreamError, AssertionError) as error:
                problem = str(error).strip() or type(error).__name__
            self.attempts.append(Attempt(began, time.time(), problem))
            await asyncio.sleep(self._random.uniform(0, AGAIN_S if problem else AWAY_S))

    async def _by_sip(self, number: int) -> None:
        await self._sipp.run(
            "call",
            PROXY_ADDRESS,
            source=OUTSIDE,
            port=FIRST_PORT + number,
            timeout_s=round(self.script.seconds) + 40,
            audio=f"{self._sound},1,0,PCMU/8000",
            talk_ms=round(1000 * self.script.seconds) + 100,
            payload_type=0,
            rtpmap="PCMU/8000",
        )

    async def _by_twilio(self, number: int) -> None:
        writer = StreamWriter(new_sid("MZ"), new_sid("CA"), new_sid("AC"))
        messages = schedule(writer, {"inbound": self.script.codes}, {"mw_from": f"+1555{number:07}"})
        target = StreamTarget(STREAM, STREAM, {}, False, tls=self.tls)
        await stream(target, {"X-Twilio-Signature": sign(TOKEN, STREAM)}, writer, messages)


def _silence(seconds: float) -> bytes:
    return ULAW_SILENCE * round(8000 * seconds)
