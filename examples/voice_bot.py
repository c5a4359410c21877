"""A voice bot: each thing the customer says goes through `reply`, and what it gives is spoken to them.

For calls of Twilio's <Connect><Stream> (`twilio.mode = "connect"`). espeak-ng speaks here; put your own voice into
`voice`, and your own thoughts into `reply`. Whoever talks over the bot makes it stop.

    python examples/voice_bot.py http://127.0.0.1:8080 --key KEY
    mediaworker stream ws://127.0.0.1:8081/twilio/stream --connect --play hello.wav --save-reply reply.ulaw
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

from mediaworker.client import Client, ClientError, schema

PATIENCE_S = 10.0
Reply = Callable[[str, str], Awaitable[str]]
"""(call_id, what the customer said) → what to say; empty: nothing."""


async def reply(call_id: str, said: str) -> str:
    return f"You said: {said}"


async def voice(text: str) -> bytes:
    """The text as a WAV."""
    speaking = await asyncio.create_subprocess_exec(
        "espeak-ng", "--stdout", "--", text, stdout=asyncio.subprocess.PIPE, stdin=asyncio.subprocess.DEVNULL
    )
    wav, _ = await speaking.communicate()
    return wav


def age_s(event: schema.Event) -> float:
    return (datetime.now(UTC) - datetime.fromisoformat(event.time)).total_seconds()


class Bot:
    """One turn of a call at a time: the next thing said makes an answer that is still being thought of obsolete."""

    def __init__(self, client: Client, reply: Reply) -> None:
        self._client, self._reply = client, reply
        self._turns: dict[str, asyncio.Task[None]] = {}

    async def run(self) -> None:
        types = ["speech.started", "transcript.final", "call.ended"]
        async for event in self._client.events(types=types):
            match event:
                case schema.Event(call_id=str(call_id), body=schema.SpeechStarted()):
                    await self._drop(call_id)
                    with contextlib.suppress(ClientError, OSError):  # not a call that one can speak into, say
                        await self._client.stop_playing(call_id)
                case schema.Event(call_id=str(call_id), body=schema.TranscriptFinal(role=role, text=text)):
                    # After a reconnect comes what was missed: nobody waits for an answer to that.
                    if text and role != "agent" and age_s(event) < PATIENCE_S:
                        await self._drop(call_id)
                        self._turns[call_id] = asyncio.create_task(self._turn(call_id, text))
                case schema.Event(call_id=str(call_id), body=schema.CallEnded()):
                    await self._drop(call_id)

    async def _turn(self, call_id: str, said: str) -> None:
        if answer := await self._reply(call_id, said):
            try:
                seconds = await self._client.play(call_id, await voice(answer))
                print(f"{call_id[-6:]}  {said!r} -> {answer!r} ({seconds:.1f} s)", flush=True)
            except (ClientError, OSError) as error:  # the call is over, the worker away, no espeak-ng here
                print(f"{call_id[-6:]}  {error}", flush=True)

    async def _drop(self, call_id: str) -> None:
        if (turn := self._turns.pop(call_id, None)) is not None:
            turn.cancel()
            await asyncio.gather(turn, return_exceptions=True)


async def main(url: str, key: str) -> None:
    async with Client(url, key=key) as client:
        try:
            await Bot(client, reply).run()
        except ClientError as error:
            raise SystemExit(f"The worker refuses: {error}") from None
        except OSError as error:
            raise SystemExit(f"There is no worker at {url} ({error}): `mediaworker serve` starts one.") from None


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", nargs="?", default="http://127.0.0.1:8080")
    parser.add_argument("--key", default=os.environ.get("MEDIAWORKER_KEY", ""), help="scopes `events` and `admin`")
    arguments = parser.parse_args()
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(main(arguments.url, arguments.key))
