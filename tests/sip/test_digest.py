"""Callers who show credentials: calls of SIPp with digest over UDP and TCP."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from config import ConfigError
from config.load import parse
from lab.sip.endpoint import CODES, PCMU, Recorder, codes, loaded, played, sipp, until, worker
from lab.sip.headers import answer
from lab.sip.sip_peer import SipPeer, sdp
from lab.sip.sipp_caller import Sipp
from lab.worker import peers
from sip.admission.digest import GUESSES

KNOWN = [{"user": "sbc", "password": "secret"}]

__all__ = ["codes", "sipp"]


def test_settings_that_will_not_do(tmp_path: Path) -> None:
    for text, named in (
        ('challenge = "everybody"', "sip.users"),
        ('users = [{user = "a", password = "x"}, {user = "a", password = "y"}]', "sip.users[1].user"),
        ("realm = 'a\"b'", "sip.realm"),
    ):
        with pytest.raises(ConfigError) as caught:
            loaded(tmp_path, text)
        assert caught.value.key == named
    assert "hidden" not in str(parse({"sip": {"users": [{"user": "a", "password": "hidden"}]}}))


@pytest.mark.parametrize("transport", ["u1", "t1"])
async def test_a_caller_from_anywhere_with_credentials(sipp: Sipp, codes: Path, transport: str) -> None:
    handler = Recorder()
    async with worker(handler, trusted=(), users=KNOWN, challenge="everybody", digest=["MD5"]) as endpoint:
        values = {**PCMU, "audio": f"{codes},1,0,PCMU/8000", "talk_ms": 500, "user": "sbc", "password": "secret"}
        await sipp.run("with_digest", f"127.0.0.1:{endpoint.port}", calls=3, transport=transport, **values)
        await until(lambda: handler.log.count(("end", "hangup")) == 3)
        heard = [played(packets)[:1600] for packets in handler.audio.values()]
        assert heard == [CODES[:1600]] * 3
        assert endpoint.admission.counters.challenged == 3
        assert [call.account for call in handler.calls] == ["sbc"] * 3


async def test_the_test_phone_shows_credentials(tmp_path: Path) -> None:
    """PJSIP as the caller takes SHA-256, the first of the challenge."""
    sound = tmp_path / "sound.ulaw"
    sound.write_bytes(b"\xff" * 1600)
    handler = Recorder()
    async with worker(handler, trusted=(), users=[{"user": "ann", "password": "s3cret"}]) as endpoint:
        call = ["call", f"sip:100@127.0.0.1:{endpoint.port}", "--play", str(sound), "--tail", "0", "--from", "ann"]
        assert (await asyncio.to_thread(peers.command, *call)).returncode == 1
        good = await asyncio.to_thread(peers.command, *call, "--password", "s3cret")
        assert good.returncode == 0, good.stderr
        assert [each.account for each in handler.calls] == ["ann"]
        assert endpoint.admission.counters.challenged == 2 and endpoint.admission.counters.credentials_bad == 0


async def test_wrong_credentials_are_refused_and_nothing_is_left(sipp: Sipp) -> None:
    handler = Recorder()
    with capture_logs() as logs:
        async with worker(handler, trusted=(), users=KNOWN, digest=["MD5"]) as endpoint:
            values = {"user": "sbc", "password": "wrong"}
            await sipp.run("with_wrong_digest", f"127.0.0.1:{endpoint.port}", calls=2, **values)
            assert endpoint.admission.counters.credentials_bad == 2 and handler.log == []
            assert endpoint.admission.counters.auth_failures == {"password": 2}
            await until(lambda: endpoint.transactions == endpoint.dialogs == 0)
    lines = [line for line in logs if line["log_level"] == "warning"]
    assert [(line["event"], line["user"], line["reason"]) for line in lines] == [
        ("SIP authentication failed", "sbc", "password")
    ]
    assert "wrong" not in str(lines)


async def test_the_right_password_after_too_many_guesses(sipp: Sipp) -> None:
    """Guessing as fast as the wire allows does not find the password, and the counter says why."""
    handler = Recorder()
    async with worker(handler, trusted=(), users=KNOWN, digest=["MD5"]) as endpoint:
        with contextlib.closing(SipPeer(endpoint.port)) as caller:
            cseq = caller.send("INVITE", sdp(40000))
            challenge = (await caller.answer(cseq, status=401)).header("www-authenticate")
            for number in range(1, 30):
                password = "secret" if number > GUESSES else f"guess{number}"
                shown = answer(challenge, "sbc", password, nc=number, uri=caller.uri)
                caller.send("INVITE", sdp(40000), f"Authorization: {shown}", within=False)
            await until(lambda: endpoint.admission.counters.auth_failures.total() == 29)
            assert (
                endpoint.admission.counters.auth_failures == {"password": GUESSES, "slowed": 19} and handler.log == []
            )
            assert set(sum((caller.statuses(number) for number in range(1, 31)), [])) <= {401, 403}


async def test_a_caller_goes_on_after_a_restart() -> None:
    """It shows what it was asked for before, is asked again without asking anybody for the password, and gets in."""
    challenge = ""
    for number in (1, 2):
        handler = Recorder()
        async with worker(handler, trusted=(), users=KNOWN, digest=["MD5"]) as endpoint:
            with contextlib.closing(SipPeer(endpoint.port)) as caller:
                shown = [f"Authorization: {answer(challenge, 'sbc', 'secret', uri=caller.uri)}"] if challenge else []
                asked = await caller.answer(caller.send("INVITE", sdp(40000), *shown), status=401)
                challenge = asked.header("www-authenticate")
                assert ("stale=true" in challenge) == bool(shown)
                caller.to_tag = ""
                shown = [f"Authorization: {answer(challenge, 'sbc', 'secret', uri=caller.uri)}"]
                cseq = caller.send("INVITE", sdp(40000), *shown)
                await caller.answer(cseq, status=200)
                caller.send("ACK", cseq=cseq)
                await caller.bye()
            assert endpoint.admission.counters.auth_failures == ({"nonce": 1} if number == 2 else {})
