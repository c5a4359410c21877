"""Events by webhook: in order within a call, again until they are taken, and on from there after a restart."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import random
import re
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from standardwebhooks.webhooks import Webhook as Verifier
from standardwebhooks.webhooks import WebhookVerificationError

from config.settings import EventWebhook, Secret
from lab.engine.listener import LISTENER, LISTENER_PATH
from lab.events.samples import ended, final, partial, running_hub, speech, started
from lab.http.receiver import SECRET, Receiver, receiving, told
from lab.patience import timeout, until
from lab.worker.peers import alive, command, launch
from mediaworker.events import feed_place
from mediaworker.events.hub import EventHub
from mediaworker.events.schema import Dtmf
from mediaworker.webhooks import events as module
from mediaworker.webhooks import post as posting
from mediaworker.webhooks.events import EventFeed

PROMPT = Path(__file__).parents[1] / "data" / "digits" / "agent.ulaw"


def hook(receiver: Receiver, **more: Any) -> EventWebhook:
    return EventWebhook(name="crm", url=receiver.url, secret=Secret(SECRET), **more)


@contextlib.asynccontextmanager
async def delivering(hub: EventHub, settings: EventWebhook) -> AsyncIterator[EventFeed]:
    feed = EventFeed(hub, settings)
    await feed.start()
    try:
        yield feed
    finally:
        await feed.stop()


async def true(condition: Callable[[], object], seconds: float = 20.0) -> None:
    async with timeout(seconds):
        while not condition():  # noqa: ASYNC110  what is waited for tells nobody
            await asyncio.sleep(0.02)


def say(hub: EventHub, call: str, digits: int) -> None:
    for number in range(digits):
        hub.publish(call, number, Dtmf("inbound", str(number % 10), number))


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(posting, "WAITS_S", (0.05, 0.1, 0.2))
    monkeypatch.setattr(module, "PAUSE_S", 0.05)
    monkeypatch.setattr(feed_place, "SAVE_S", 0.05)
    monkeypatch.setattr(module, "STOP_S", 0.5)


async def test_what_is_durable_is_posted_as_it_stands_on_the_wire(tmp_path: Path) -> None:
    with receiving(204) as receiver:
        async with running_hub(tmp_path) as hub:
            hub.publish("before", 0, started())
            await hub.flush()
            async with delivering(hub, hook(receiver)) as feed:
                hub.publish("c1", 0, started())
                hub.publish("c1", 100, speech("u1"))
                hub.publish("c1", 300, partial("u1", 1))
                hub.publish("c1", 900, final("u1"))
                hub.publish("c1", 1000, ended())
                await true(lambda: feed.outbox.delivered == 4 and not feed.waiting)
                stored = await hub.read(lambda database: database.page(0, 2**62, 100, call_id="c1", types=None))
                assert told(receiver) == [json.loads(frame) for _, frame in stored]
                store = hub.cursor.store_id
                assert receiver.ids() == [f"evt_{store}_{row}" for row, _ in stored]
                assert (feed.waiting, feed.lag_s, feed.outbox.tries) == (0, 0.0, 4)


async def test_only_the_types_that_are_asked_for(tmp_path: Path) -> None:
    with receiving(200) as receiver:
        async with running_hub(tmp_path) as hub:
            async with delivering(hub, hook(receiver, types=("call.ended", "transcript.final"))) as feed:
                hub.publish("c1", 0, started())
                hub.publish("c1", 100, speech("u1"))
                hub.publish("c1", 900, final("u1"))
                say(hub, "c1", 5)
                hub.publish("c1", 1000, ended())
                await true(lambda: feed.outbox.delivered == 2)
                row = hub.cursor.row
            assert [event["type"] for event in told(receiver)] == ["transcript.final", "call.ended"]
            assert await hub.read(lambda database: database.place("webhook crm")) == row


async def test_a_call_keeps_its_order_while_the_receiver_fails_and_others_go_on(tmp_path: Path) -> None:
    random.seed(7)
    script = [random.choice((500, 503, "close", 200, 200)) for _ in range(150)]
    with receiving(*script, 200) as receiver:
        async with running_hub(tmp_path) as hub, delivering(hub, hook(receiver)) as feed:
            for call in range(6):
                hub.publish(f"c{call}", 0, started())
                say(hub, f"c{call}", 12)
            await true(lambda: feed.outbox.delivered == 6 * 13, 60)
            assert feed.outbox.tries > feed.outbox.delivered and feed.outbox.given_up == 0
            answers = [script[at] if at < len(script) else 200 for at in range(len(receiver.came))]
            taken = [event for event, answer in zip(told(receiver), answers, strict=True) if answer == 200]
            for call in range(6):
                seqs = [event["seq"] for event in taken if event["call_id"] == f"c{call}"]
                assert seqs == list(range(1, 14)), "each once, in order"
            ids = receiver.ids()
            assert len(set(ids)) == 6 * 13 and len(ids) == feed.outbox.tries, "the same id in every try"


async def test_a_receiver_that_is_away_holds_up_only_what_it_has_not_taken(tmp_path: Path) -> None:
    with receiving("silence", 200) as receiver:
        async with running_hub(tmp_path) as hub, delivering(hub, hook(receiver)) as feed:
            hub.publish("stuck", 0, started())
            await true(lambda: receiver.came)
            hub.publish("other", 0, started())
            await true(lambda: feed.outbox.delivered == 1)
            assert feed.waiting == 1 and feed.lag_s > 0
            receiver.over.set()
            await true(lambda: feed.outbox.delivered == 2)


async def test_what_is_refused_for_ever_or_for_too_long_is_given_up(tmp_path: Path) -> None:
    with receiving(410, 200) as receiver:
        async with running_hub(tmp_path) as hub, delivering(hub, hook(receiver)) as feed:
            hub.publish("c1", 0, started())
            say(hub, "c1", 1)
            await true(lambda: feed.outbox.delivered == 1)
            assert (feed.outbox.given_up, feed.outbox.tries) == (1, 2)
    with receiving(500) as receiver:
        async with (
            running_hub(tmp_path / "other") as hub,
            delivering(hub, hook(receiver, retry_hours=5 / 3600)) as feed,
        ):
            hub.publish("c1", 0, started())
            say(hub, "c1", 1)
            await true(lambda: feed.outbox.given_up == 2)
            assert [event["type"] for event in told(receiver)].count("call.started") > 1


async def test_a_message_that_is_refused_as_such_is_given_up_soon_and_its_call_goes_on(tmp_path: Path) -> None:
    with receiving(200) as receiver:
        receiver.judge = lambda event: 422 if event["type"] == "dtmf" else 200
        async with running_hub(tmp_path) as hub, delivering(hub, hook(receiver)) as feed:
            hub.publish("c1", 0, started())
            say(hub, "c1", 2)
            hub.publish("c1", 500, final("u1", "hello"))
            await true(lambda: feed.outbox.delivered == 2)
            kinds = [event["type"] for event in told(receiver)]
            assert kinds == ["call.started", *["dtmf"] * 8, "transcript.final"]
            assert feed.outbox.given_up == 2 and not feed.waiting


async def test_calls_that_are_refused_for_hours_hold_no_other_call_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over a thousand, of which each has all its tries still before it."""
    monkeypatch.setattr(posting, "WAITS_S", (3600.0,))
    with receiving(200) as receiver:
        receiver.judge = lambda event: 500 if event["call_id"].startswith("bad") else 200
        async with running_hub(tmp_path) as hub, delivering(hub, hook(receiver)) as feed:
            for call in range(1100):
                hub.publish(f"bad{call}", 0, started())
            await true(lambda: feed.outbox.tries == 1100, 60)
            hub.publish("good", 0, started())
            say(hub, "good", 20)
            await true(lambda: feed.outbox.delivered == 21)
            assert feed.waiting == 1100 and feed.outbox.given_up == 0


async def test_a_receiver_that_asks_for_a_pause_gets_it_for_all_calls(tmp_path: Path) -> None:
    with receiving(429, 200) as receiver:
        receiver.retry_after = "1"
        async with running_hub(tmp_path) as hub, delivering(hub, hook(receiver)) as feed:
            hub.publish("c1", 0, started())
            await true(lambda: receiver.came and feed.refused)
            hub.publish("c2", 0, started())
            await true(lambda: feed.outbox.delivered == 2)
            first, *later = receiver.times_s
            assert feed.outbox.tries == 3 and min(later) >= first + 1.0


async def test_one_connection_serves_one_call_after_the_other(tmp_path: Path) -> None:
    with receiving(200) as receiver:
        async with running_hub(tmp_path) as hub, delivering(hub, hook(receiver)) as feed:
            hub.publish("c1", 0, started())
            say(hub, "c1", 30)
            await true(lambda: feed.outbox.delivered == 31)
            assert len(receiver.peers) == 1


async def test_a_webhook_that_is_far_behind_says_so_and_why(tmp_path: Path) -> None:
    now_s = 0.0
    with receiving(503) as receiver:
        async with running_hub(tmp_path) as hub:
            feed = EventFeed(hub, hook(receiver), clock=lambda: time.time() + now_s)
            await feed.start()
            hub.publish("c1", 0, started())
            await true(lambda: feed.refused)
            assert feed.warning is None
            now_s = 400.0
            assert re.fullmatch(r"webhook crm is 40\d s behind, 1 events wait: HTTP 503", feed.warning or "")
            receiver.judge = lambda event: 200
            await true(lambda: feed.outbox.delivered)
            assert feed.warning is None
            await feed.stop()


async def test_the_secret_is_rotated_by_a_second_one_while_the_worker_runs(tmp_path: Path) -> None:
    old, new = SECRET, "whsec_" + base64.b64encode(bytes(range(32))).decode()
    with receiving(200) as receiver:
        async with running_hub(tmp_path) as hub, delivering(hub, hook(receiver)) as feed:
            for number, secrets in enumerate(({"secret": old}, {"secret": old, "secret_next": new}, {"secret": new})):
                feed.use(replace(hook(receiver), **{name: Secret(text) for name, text in secrets.items()}))
                hub.publish(f"c{number}", 0, started())
                await true(lambda: feed.outbox.delivered == number + 1)  # noqa: B023
            verified = [
                [good for good in (old, new) if _verifies(good, body, headers)] for headers, body, _ in receiver.came
            ]
            assert verified == [[old], [old, new], [new]]


def _verifies(secret: str, body: bytes, headers: dict[str, str]) -> bool:
    try:
        Verifier(secret).verify(body, headers)
    except WebhookVerificationError:
        return False
    return True


async def test_it_goes_on_after_a_restart_where_it_was(tmp_path: Path) -> None:
    with receiving(*[200] * 3, 500) as receiver:
        async with running_hub(tmp_path) as hub, delivering(hub, hook(receiver)) as feed:
            hub.publish("c1", 0, started())
            say(hub, "c1", 9)
            await true(lambda: feed.outbox.delivered == 3 and feed.outbox.tries > 4)
    with receiving(200) as later:
        async with running_hub(tmp_path) as hub:
            hub.publish("c2", 0, started())
            await hub.flush()
            async with delivering(hub, hook(later)) as feed:
                await true(lambda: [event["call_id"] for event in told(later)].count("c2") == 1)
                await true(lambda: not feed.waiting)
        seqs = [event["seq"] for event in told(later) if event["call_id"] == "c1"]
        # Behind the digits is what the restart owed the call.
        assert seqs == list(range(4, 4 + len(seqs))) and len(seqs) > 7, "neither a gap nor a double"


async def test_more_events_than_memory_wait_in_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WAITING", 16)
    with receiving(*[500] * 20, 200) as receiver:
        async with running_hub(tmp_path) as hub, delivering(hub, hook(receiver)) as feed:
            hub.publish("c1", 0, started())
            say(hub, "c1", 300)
            await hub.flush()
            assert feed.waiting <= 16
            await true(lambda: feed.outbox.delivered == 301, 60)
            taken = [event["seq"] for event in told(receiver)[20:]]
            assert taken[-1] == 301 and sorted(set(taken)) == sorted(taken)


async def test_what_has_been_erased_is_skipped_and_said(tmp_path: Path) -> None:
    with receiving(200, 500) as receiver:
        async with running_hub(tmp_path) as hub, delivering(hub, hook(receiver)) as feed:
            hub.publish("old", 0, started())
            await true(lambda: feed.outbox.delivered == 1)
            hub.publish("old", 1000, ended())
            await true(lambda: feed.outbox.tries > 1)
    with receiving(200) as later:
        async with running_hub(tmp_path) as hub:
            (last,) = [row for _, row in await hub.read(lambda database: database.ended(None, 5))]
            await hub.ended_calls.expire("old", last)
            hub.publish("new", 0, started())
            await hub.flush()
            async with delivering(hub, hook(later)) as feed:
                await true(lambda: feed.outbox.delivered == 1)
                assert feed.skips == 1 and [event["call_id"] for event in told(later)] == ["new"]


async def test_what_is_erased_is_not_sent_any_more(tmp_path: Path) -> None:
    with receiving(*[500] * 4, 200) as receiver:
        async with running_hub(tmp_path) as hub, delivering(hub, hook(receiver)) as feed:
            hub.publish("gone", 0, started())
            hub.publish("gone", 500, final("u1", "a secret"))
            hub.publish("gone", 1000, ended())
            await true(lambda: receiver.came)
            await hub.ended_calls.erase("gone")
            hub.publish("other", 0, started())
            await true(lambda: feed.outbox.delivered and not feed.waiting)
            assert "secret" not in str(told(receiver))
            assert told(receiver)[-1]["call_id"] in ("other", "gone")


async def test_a_place_that_was_never_stored_is_that_before_it(tmp_path: Path) -> None:
    """A kill in the middle of trouble with the disk."""
    with receiving(200) as receiver:
        async with running_hub(tmp_path) as hub:
            async with delivering(hub, hook(receiver)) as feed:
                hub.publish("c1", 0, started())
                await true(lambda: feed.outbox.delivered == 1)
            row = hub.cursor.row
            await hub.store.write(lambda database: database.keep_place("webhook crm", row + 7))
        async with running_hub(tmp_path) as hub:  # and what the start owes the call
            hub.publish("c2", 0, started())
            await hub.flush()
            async with delivering(hub, hook(receiver)) as feed:
                await true(lambda: not feed.waiting and "c2" in [event["call_id"] for event in told(receiver)])
                assert feed.skips == 0
                seqs = [event["seq"] for event in told(receiver) if event["call_id"] == "c1"]
                assert seqs == list(range(1, len(seqs) + 1)) and len(seqs) > 1


async def test_a_fault_of_ours_is_a_failed_try(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    posts = 0
    whole = posting.Poster.post

    async def broken(*arguments: Any) -> Any:
        nonlocal posts
        posts += 1
        if posts < 3:
            raise ZeroDivisionError
        return await whole(*arguments)

    monkeypatch.setattr(posting.Poster, "post", broken)
    with receiving(200) as receiver:
        async with running_hub(tmp_path) as hub, delivering(hub, hook(receiver)) as feed:
            hub.publish("c1", 0, started())
            await true(lambda: feed.outbox.delivered == 1)
            assert feed.outbox.tries == 3


def test_a_call_by_webhook_over_a_kill_of_the_worker(tmp_path: Path) -> None:
    with receiving(200) as receiver:
        settings = {"WEBHOOKS": f'[{{name="crm", url="{receiver.url}", secret="{SECRET}"}}]'}
        running = launch(tmp_path, LISTENER_PATH, **LISTENER, **settings)
        try:
            until(lambda: alive(running), 60)
            assert command("stream", running.twilio, "--play", str(PROMPT)).returncode == 0
            (call,) = running.wait_ended(1)
            until(lambda: [event["type"] for event in told(receiver)][-1:] == ["call.ended"])
            running.process.kill()
            running.process.wait()
            running.start_again()
            until(lambda: alive(running), 60)
            assert command("stream", running.twilio, "--play", str(PROMPT)).returncode == 0
            until(lambda: [event["type"] for event in told(receiver)].count("call.ended") >= 2, 60)
            seen = [event for event in told(receiver) if event["call_id"] == call["call_id"]]
            unique = {event["seq"]: event for event in seen}
            assert list(unique.values()) == running.events(call["call_id"])
            assert SECRET not in running.log.read_text()
        finally:
            assert running.stop() == 0
