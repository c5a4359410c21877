"""An agent's screen in a terminal: what both sides say, alerts, and a hint when the customer names a topic.

    python examples/agent_assist.py http://127.0.0.1:8080 --key KEY

It goes on where it was when the connection is lost, and over restarts of the worker.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os

from mediaworker.client import Client, ClientError, CursorExpired, schema

HINTS = {
    "refund": "Refunds within 14 days: form R-1.",
    "cancel": "Offer the pause of three months before you cancel.",
    "invoice": "Invoices are sent on the 3rd; a copy is under Billing > Documents.",
}


def printable(text: str) -> str:
    """What strangers say must not steer the terminal."""
    return "".join(char if char.isprintable() else "�" for char in text)


def show(event: schema.Event) -> None:
    at = f"{event.at_ms / 1000:7.1f}"
    match event.body:
        case schema.CallStarted() as call:
            who = printable(f"{call.from_ or '?'} to {call.to or '?'}")
            print(f"{at}  -- {call.source} call from {who} ({event.call_id})")
        case schema.TranscriptFinal(text=text) as final if text:
            print(f"{at}  {final.role:>9}: {printable(text)}")
            if final.role != "agent":
                for word, hint in HINTS.items():
                    if word in text.lower():
                        print(f"{'':>19}> {hint}")
        case schema.Alert() as alert:
            print(f"{at}  !! {alert.severity} {alert.rule} {printable(alert.match)}".rstrip())
        case schema.Metrics(durable=True) as totals:
            shares = ", ".join(f"{leg} {share:.0%}" for leg, share in totals.talk_ratio.items())
            print(f"{at}  -- talk: {shares}; both at once {totals.overtalk_ms / 1000:.1f} s")
        case schema.CallEnded(reason=reason):
            print(f"{at}  -- ended: {reason}")


async def main(url: str, key: str, call: str) -> None:
    def lost(reason: str, seconds: float) -> None:
        print(f"-- connection lost ({reason}); again in {seconds:.1f} s")

    async with Client(url, key=key) as client:
        known = False
        while True:
            try:
                async for event in client.events(call=call, patient=known, on_retry=lost):
                    show(event)
            except CursorExpired:
                known = True
                print("-- some of the past is gone; going on with what comes now")
            except ClientError as error:
                raise SystemExit(f"The worker refuses: {error}") from None
            except OSError as error:
                raise SystemExit(f"There is no worker at {url} ({error}): `mediaworker serve` starts one.") from None


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", nargs="?", default="http://127.0.0.1:8080")
    parser.add_argument("--key", default=os.environ.get("MEDIAWORKER_KEY", ""), help="with the scope `events`")
    parser.add_argument("--call", default="*", metavar="ID", help="only this call")
    arguments = parser.parse_args()
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(main(arguments.url, arguments.key, arguments.call))
