"""Asterisk and the worker over TLS, with encrypted audio; registered, by a trunk, and certificates that will not do."""

from __future__ import annotations

import json
import re
import urllib.error
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.asterisk.calls import heard
from lab.asterisk.dialled import dialled, extension, hold_and_say_again, wait_ended, wait_said
from lab.asterisk.pbx import ADDRESS, Asterisk
from lab.events.story import check_story
from lab.network.authority import Authority, Pair
from lab.patience import until
from lab.worker.peers import Worker, worker
from lab.worker.qwen import QWEN, SAID
from lab.worker.readiness import ready

USER, OTHER = "worker-tls", "worker"


@pytest.fixture(scope="module")
def secure(asterisk: Asterisk, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    """Registered over TLS, without a certificate of its own, and takes no audio that is not encrypted."""
    options = QWEN | {"ASR__PRELOAD": "true", "PRIVACY__CARDS": "false", "SIP__SRTP": "mandatory"}
    with worker(tmp_path_factory.mktemp("worker"), **options, **asterisk.account(USER, "tls")) as started:
        until(lambda: ready(started), 60, "registered")
        yield started


def reasons(worker: Worker) -> str:
    """Why it is not ready; "" when it is."""
    try:
        worker.get("/readyz")
    except urllib.error.HTTPError as refused:
        return "\n".join(json.load(refused)["reasons"])
    return ""


def shown(pair: Pair, port: int) -> dict[str, str]:
    """The worker's own certificate, and where it listens with it."""
    return {"SIP__TLS_CERT": str(pair.cert), "SIP__TLS_KEY": str(pair.key), "SIP__TLS_PORT": str(port)}


def check_encrypted(asterisk: Asterisk, external_id: str, suite: str = "AES_CM_128_HMAC_SHA1_80") -> None:
    """Its INVITE went over TLS, and both sides gave a key of that suite, each its own."""
    offer, *_ = asterisk.messages("INVITE sip:", external_id, "v=0")
    answer, *_ = asterisk.messages("SIP/2.0 200 OK", external_id, "v=0")
    keys = []
    for message in (offer, answer):
        assert "SIP/2.0/TLS " in message and "RTP/SAVP " in message and "RTP/AVP " not in message
        keys += re.findall(rf"a=crypto:1 {suite} inline:(\S+)", message)
        assert message.count("a=crypto:") == 1
    assert len(set(keys)) == 2


# -- registered --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("peer", "codec", "suite"), [(USER, "PCMU", "80"), (f"{USER}-g722", "G722", "32")])
def test_what_is_said_over_an_encrypted_call(
    asterisk: Asterisk, secure: Worker, peer: str, codec: str, suite: str
) -> None:
    reports = secure.metric("mediaworker_rtp_rtcp_total")
    events = heard(asterisk, secure, peer, "customer")
    finals = check_story(events)
    started, ended = events[0], events[-1]
    assert [(leg["leg"], leg["role"], leg["codec"]) for leg in started["legs"]] == [("main", "customer", codec)]
    assert (ended["reason"], ended["legs"][0]["lost"], ended["legs"][0]["late"]) == ("hangup", 0, 0)
    assert [final["text"] for final in finals] == SAID["customer"], "though nothing was lost"
    check_encrypted(asterisk, started["external_id"], f"AES_CM_128_HMAC_SHA1_{suite}")
    assert asterisk.dialled().startswith("ANSWER")
    (answer,) = asterisk.messages("SIP/2.0 200 OK", started["external_id"], "v=0")
    assert ("a=rtcp-mux" in answer) == (codec == "G722")
    assert secure.metric("mediaworker_rtp_rtcp_total") > reports, "which are encrypted too"
    assert secure.metric("mediaworker_rtp_rtcp_malformed_total") == 0


def test_a_digit_is_encrypted_as_well(asterisk: Asterisk, secure: Worker) -> None:
    events = heard(asterisk, secure, USER, "keys")
    assert [event["digit"] for event in events if event["type"] == "dtmf"] == list("159#")
    check_encrypted(asterisk, events[0]["external_id"])


def test_hold_and_resume_keep_the_audio_encrypted(asterisk: Asterisk, secure: Worker, tmp_path: Path) -> None:
    """The re-INVITEs have keys again, and words are understood before and after."""
    with extension(asterisk, tmp_path, "alice", again_s=7) as caller:
        call_id = dialled(asterisk, secure, caller, f"{USER}-hold")
        wait_said(secure, call_id, SAID["customer"])
        hold_and_say_again(secure, call_id, caller, SAID["customer"])
        caller.do("hangup")
        events = wait_ended(secure, call_id)
    held = [event["type"] for event in events if event["type"] in ("call.held", "call.resumed")]
    assert held == ["call.held", "call.resumed"]
    external_id = events[0]["external_id"]
    check_encrypted(asterisk, external_id)
    for answer in asterisk.messages("SIP/2.0 200 OK", external_id, "v=0"):
        assert "RTP/SAVP " in answer and "a=crypto:" in answer


def test_the_worker_hangs_up_over_tls(asterisk: Asterisk, secure: Worker) -> None:
    known = {call["call_id"] for call in secure.calls()}
    asterisk.call(USER, "stay")
    (call,) = until(lambda: [each for each in secure.calls() if each["call_id"] not in known], 20, "a call")
    secure.hang_up(call["call_id"])
    assert until(asterisk.dialled) == "ANSWER 16"
    (request,) = asterisk.messages("BYE sip:", call["external_id"])
    assert "SIP/2.0/TLS " in request
    assert wait_ended(secure, call["call_id"])[-1]["reason"] == "api"


def test_audio_that_is_not_encrypted_is_refused(asterisk: Asterisk, secure: Worker) -> None:
    calls = len(secure.calls())
    asterisk.call(f"{USER}-plain", "stay")
    assert until(asterisk.dialled) == "CHANUNAVAIL 58"
    assert len(secure.calls()) == calls
    assert asterisk.messages("SIP/2.0 488 ")


# -- certificates ------------------------------------------------------------------------------------------------------


def test_an_asterisk_with_a_certificate_of_another_authority_is_told_nothing(
    asterisk: Asterisk, tmp_path: Path
) -> None:
    requests = len(asterisk.messages("REGISTER sip:"))
    trusted = {"SIP__TLS_CA": str(Authority(tmp_path, "other").cert)}
    with worker(tmp_path, **asterisk.account(OTHER, "tls") | trusted) as wary:
        until(lambda: wary.metric("mediaworker_sip_registrations_failed_total"), 20)
        assert "certificate verification" in reasons(wary)
        assert not asterisk.contact(OTHER)
    assert len(asterisk.messages("REGISTER sip:")) == requests


@pytest.mark.parametrize("certificate", ["its own", "none", "another authority's"])
def test_an_asterisk_that_wants_a_certificate(asterisk: Asterisk, tmp_path: Path, certificate: str) -> None:
    """By TLS 1.3, in which the worker's side of the handshake is over before Asterisk has looked at it."""
    signs = asterisk.authority if certificate == "its own" else Authority(tmp_path, "other")
    pair = signs.issue("client", f"IP:{ADDRESS}")
    account = asterisk.account(OTHER, "tls")
    account["SIP__ACCOUNTS"] = account["SIP__ACCOUNTS"].replace(str(asterisk.tls_port), str(asterisk.verified_port))
    own = {} if certificate == "none" else shown(pair, 0)
    with worker(tmp_path, **account, **own) as registering:
        if certificate == "its own":
            until(lambda: ready(registering), 20, "registered")
            until(lambda: "Avail" in asterisk.contact(OTHER), 20, "an answer to OPTIONS")
            return
        until(lambda: registering.metric("mediaworker_sip_registrations_failed_total"), 20)
        # Asterisk says what is wrong with none at all, and just closes over a wrong one.
        why = {"none": "certificate required", "another authority's": "End of file|reset by peer"}
        assert re.search(why[certificate], reasons(registering))
        assert not asterisk.contact(OTHER)


# -- a trunk -----------------------------------------------------------------------------------------------------------


def test_a_trunk_over_tls_both_sides_of_which_show_a_certificate(asterisk: Asterisk, tmp_path: Path) -> None:
    own = shown(asterisk.authority.issue("worker", f"IP:{ADDRESS}"), asterisk.trunk_tls_port)
    checked = {"SIP__TLS_CA": str(asterisk.authority.cert), "SIP__TLS_CLIENTS": "verified", "SIP__SRTP": "mandatory"}
    with worker(tmp_path, **QWEN, ASR__PRELOAD="true", **own, **checked) as trunk:
        until(lambda: ready(trunk), 60)
        until(lambda: "Avail" in asterisk.contact("trunk-tls"), 20, "an answer to OPTIONS")
        events = heard(asterisk, trunk, "900123", "customer", "phones")
    assert [final["text"] for final in check_story(events)] == SAID["customer"]
    assert events[0]["to"] == "900123"
    check_encrypted(asterisk, events[0]["external_id"])


@pytest.mark.parametrize(
    ("name", "trusted", "why"),
    [(f"IP:{ADDRESS}", False, "is untrusted"), ("DNS:elsewhere.example", True, "identity does not match")],
)
def test_a_trunk_with_a_certificate_that_will_not_do_is_not_called(
    asterisk: Asterisk, tmp_path: Path, name: str, trusted: bool, why: str
) -> None:
    signs = asterisk.authority if trusted else Authority(tmp_path, "other")
    with worker(tmp_path, **shown(signs.issue("worker", name), asterisk.trunk_tls_port)) as trunk:
        until(lambda: "SIP is listening" in trunk.log.read_text())
        asterisk.cli("pjsip qualify trunk-tls")
        until(lambda: why in asterisk.log(), 20, "it has looked at the certificate")
        asterisk.call("900123", "stay", "phones")
        assert until(asterisk.dialled) == "CHANUNAVAIL 3"
        assert not trunk.calls() and "Avail" not in asterisk.contact("trunk-tls")
