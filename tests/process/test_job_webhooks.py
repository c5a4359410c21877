"""Webhooks of jobs at a real receiver: signed, tried again, told once, and never elsewhere than asked."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import numpy as np
import pytest
from msgspec.structs import replace
from standardwebhooks.webhooks import Webhook as Verifier
from standardwebhooks.webhooks import WebhookVerificationError
from uuid_utils import uuid7

from asr.client.recognizer import Recognizer
from config import ConfigError, Settings
from config.load import parse
from config.settings import Secret
from lab.http.receiver import SECRET, receiving, told
from lab.media.material import RATE_HZ, encode
from lab.network.ports import ports
from lab.patience import seconds, timeout, until
from lab.worker.peers import alive, command, launch
from mediaworker.files.options import Options
from mediaworker.files.service import FileService
from mediaworker.jobs import notifier
from mediaworker.jobs.record import Job, Webhook, public
from mediaworker.jobs.service import JobService
from mediaworker.webhooks import post as posting
from mediaworker.webhooks.lanes import OutgoingMessage
from mediaworker.webhooks.outbox import Attempt, WebhookOutbox
from mediaworker.webhooks.post import Poster

# -- a service in this process, without an engine: nobody speaks in its file -------------------------------------------


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    encode(tmp_path / "silent.wav", np.zeros(RATE_HZ // 2, np.int16), "pcm_s16le")
    (tmp_path / "text.wav").write_text("no audio")
    return parse(
        {
            "data_dir": str(tmp_path / "data"),
            "asr": {"engine": "moonshine"},
            "jobs": {"webhook_secret": SECRET, "webhook_allow": ["127.0.0.0/8"], "roots": [str(tmp_path)]},
        }
    )


@contextlib.asynccontextmanager
async def serving(settings: Settings) -> AsyncIterator[JobService]:
    recognizer = Recognizer(settings, on_state=lambda state, why: None)
    service = JobService(settings, FileService(settings, recognizer, in_work=lambda count: None))
    await service.start()
    try:
        yield service
    finally:
        await service.stop()


async def submit(service: JobService, url: str, name: str = "silent.wav") -> str:
    source = service.sources.named(str(Path(service.settings.jobs.roots[0]) / name))
    job = Job(str(uuid7()), "ann", source, Options(), created_s=time.time(), webhook=Webhook(url))
    await service.submit(job)
    return job.id


async def over(service: JobService, job_id: str, state: str) -> Webhook:
    """Of the job's webhook, once it is in this state on the disk."""
    async with timeout(30):
        while True:
            job = await service.get(job_id)
            assert job is not None and job.webhook is not None
            if job.webhook.state == state and not job.active:
                return job.webhook
            await asyncio.sleep(0.02)


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(posting, "WAITS_S", (0.05, 0.1, 0.15))


async def test_an_end_is_told_and_signed(settings: Settings) -> None:
    with receiving(204) as receiver:
        async with serving(settings) as service:
            done, failed = await submit(service, receiver.url), await submit(service, receiver.url, "text.wav")
            for job_id in (done, failed):
                assert (await over(service, job_id, "delivered")).attempts == 1
            assert (service.webhooks.delivered, service.webhooks.tries) == (2, 2)
    by_id = {said["data"]["id"]: said for said in told(receiver)}
    assert set(by_id) == {done, failed} == set(receiver.ids())
    assert (by_id[done]["type"], by_id[failed]["type"]) == ("job.completed", "job.failed")
    assert by_id[failed]["data"]["error"]["code"] == "unreadable"
    assert by_id[done]["timestamp"] == by_id[done]["data"]["ended_at"]
    headers, body, path = receiver.came[0]
    assert (path, headers["content-type"]) == ("/told", "application/json")
    for wrong in (body + b" ", body.replace(b"job.", b"Job.")):
        with pytest.raises(WebhookVerificationError):
            Verifier(SECRET).verify(wrong, headers)
    with pytest.raises(WebhookVerificationError):
        Verifier("whsec_" + "A" * 32).verify(body, headers)


async def test_it_is_tried_until_somebody_takes_it(
    settings: Settings, soon: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(posting, "TIMEOUT_S", seconds(2))
    with receiving(500, "hang up", 302, 404, 429, "silence", 200) as receiver:
        async with serving(settings) as service:
            job_id = await submit(service, receiver.url)
            webhook = await over(service, job_id, "delivered")
            assert (webhook.attempts, service.webhooks.tries) == (7, 7)
    assert set(receiver.ids()) == {job_id} and len(receiver.came) == 7
    assert len({body for _, body, _ in receiver.came}) == 7, "each says how often it was tried before"
    assert {path for _, _, path in receiver.came} == {"/told"}, "no redirect is followed"
    assert [said["data"]["webhook"]["attempts"] for said in told(receiver)] == list(range(7))


async def test_a_webhook_finds_nothing_out(settings: Settings, tmp_path: Path) -> None:
    """Whoever listens on loopback is not reached, and the job looks the same whether anybody does."""
    closed = replace(settings, jobs=replace(settings.jobs, webhook_allow=()))
    (free,) = ports(1)
    with receiving(200) as receiver:
        async with serving(closed) as service:
            seen = []
            for url in (receiver.url, f"http://127.0.0.1:{free}/told", "http://169.254.169.254/latest/meta-data/"):
                job_id = await submit(service, url)
                while not (job := await service.get(job_id)) or not job.webhook or not job.webhook.attempts:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
                assert job.webhook.error.startswith("ForbiddenTarget"), "for the operator"
                seen.append(public(job)["webhook"])
        assert receiver.came == []
    assert [{**webhook, "url": ""} for webhook in seen] == [{"url": "", "status": "waiting", "attempts": 1}] * 3


async def test_one_who_has_gone_is_told_no_more(settings: Settings, soon: None) -> None:
    with receiving(410) as receiver:
        async with serving(settings) as service:
            job_id = await submit(service, receiver.url)
            assert (await over(service, job_id, "failed")).error == "HTTP 410"
        async with serving(settings) as service:  # nor after a restart
            job = await service.get(job_id)
            assert job is not None and job.state == "completed" and job.webhook is not None
            assert service.webhooks.tries == 0
    assert len(receiver.came) == 1


async def test_an_erased_job_is_told_no_more(settings: Settings) -> None:
    with receiving("silence") as receiver:
        async with serving(settings) as service:
            job_id = await submit(service, receiver.url)
            await asyncio.to_thread(until, lambda: receiver.came, 30, "it is about to be told")
            await service.erase(job_id, "somebody")
            assert await service.get(job_id) is None
        async with serving(settings) as service:
            assert await service.get(job_id) is None and service.webhooks.tries == 0


async def test_waits_grow_and_end() -> None:
    """By times that are passed in: nothing is waited for here."""
    (port,) = ports(1)
    now_s = 1000.0

    async def ignore(message: OutgoingMessage, attempt: Attempt) -> None:
        pass

    outbox = WebhookOutbox(
        "test",
        Poster(),
        (Secret(SECRET),),
        parallel=1,
        retry_s=sum(posting.WAITS_S[:5]) * 1.1,
        clock=lambda: now_s,
        on_attempt=ignore,
    )
    message = OutgoingMessage("1", "1", f"http://127.0.0.1:{port}/", lambda: "{}", since_s=now_s)
    attempt, waits = Attempt("waiting"), list[float]()
    try:
        while attempt.state == "waiting":
            attempt = await outbox.attempt(message)
            assert "ConnectError" in attempt.error
            waits.append(attempt.next_s - now_s)
            now_s = attempt.next_s
    finally:
        await outbox.close()
    assert (attempt.state, message.tries, outbox.given_up) == ("failed", len(waits), 1)
    *waits, _ = waits
    for wait, least in zip(waits, posting.WAITS_S, strict=False):
        assert least <= wait <= least * (1 + posting.JITTER)
    assert len(waits) == 5 and waits == sorted(waits), "the sixth would have been too late"


async def test_those_who_do_not_answer_hold_up_nobody_else(settings: Settings) -> None:
    with receiving("silence") as silent, receiving(200) as receiver:
        async with serving(settings) as service:
            for _ in range(3):
                await submit(service, silent.url)
            job_id = await submit(service, receiver.url)
            await over(service, job_id, "delivered")
    assert receiver.ids() == [job_id]


async def test_more_than_are_told_at_once_have_their_turn(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notifier, "AT_ONCE", 2)
    with receiving(500, 500, 500, 200) as receiver:
        monkeypatch.setattr(posting, "WAITS_S", (0.05,))
        async with serving(settings) as service:
            jobs = [await submit(service, receiver.url) for _ in range(4)]
            for job_id in jobs:
                await over(service, job_id, "delivered")
    assert set(receiver.ids()) == set(jobs) and len(receiver.came) == 7


# -- a worker ----------------------------------------------------------------------------------------------------------


def test_a_kill_between_the_end_and_its_telling_changes_nothing(settings: Settings, tmp_path: Path) -> None:
    environ = {
        "ASR__ENGINE": "moonshine", "SIP__ENABLED": "false", "JOBS__WEBHOOK_SECRET": SECRET,
        "JOBS__ROOTS": json.dumps([str(tmp_path)]), "JOBS__WEBHOOK_ALLOW": '["127.0.0.1"]',
    }  # fmt: skip
    (tmp_path / "worker").mkdir()
    running = launch(tmp_path / "worker", **environ)
    try:
        until(lambda: alive(running), 60)
        with receiving("silence", 200) as receiver:
            body = {"path": str(tmp_path / "silent.wav"), "webhook_url": receiver.url}
            answer = httpx.post(f"{running.url}/v1/jobs", json=body)
            assert answer.status_code == 201, answer.text
            job_id = answer.json()["id"]
            until(lambda: receiver.came, 30, "it is about to be told")
            assert running.get(f"/v1/jobs/{job_id}")["webhook"]["status"] == "waiting"
            running.process.kill()
            running.process.wait()
            running.start_again()
            until(lambda: alive(running), 60)
            done = until(lambda: (j := running.get(f"/v1/jobs/{job_id}"))["webhook"]["status"] == "delivered" and j, 30)
            assert done["status"] == "completed"
            assert receiver.ids() == [job_id, job_id]
            assert [said["type"] for said in told(receiver)] == ["job.completed"] * 2
    finally:
        assert running.stop() == 0


def test_a_bad_secret_stops_the_start_and_names_the_key(free_port: int) -> None:
    secret = "too-short"
    for name in ("config", "serve"):
        done = command(name, JOBS__WEBHOOK_SECRET=secret, SIP__ENABLED="false", HTTP__PORT=str(free_port))
        assert done.returncode == 2, done.stderr
        assert "jobs.webhook_secret" in done.stderr and secret not in done.stdout + done.stderr


@pytest.mark.parametrize(
    "secret", ["", SECRET, "0f1e2d3c4b5a69788796a5b4", "whsec_" + base64.b64encode(bytes(24)).decode()]
)
def test_a_good_secret_is_taken(secret: str) -> None:
    notifier.check(parse({"jobs": {"webhook_secret": secret}}))


@pytest.mark.parametrize(
    "secret", ["a" * 23, "whsec_" + base64.b64encode(bytes(23)).decode(), "whsec_a", "whsec_", "whsec_" + "?" * 30]
)
def test_a_bad_one_is_not(secret: str) -> None:
    with pytest.raises(ConfigError):
        notifier.check(parse({"jobs": {"webhook_secret": secret}}))
