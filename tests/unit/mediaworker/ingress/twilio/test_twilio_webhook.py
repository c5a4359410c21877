"""Signatures, tokens and TwiML, held against Twilio's own library."""

from __future__ import annotations

import json
from urllib.parse import urlencode
from xml.etree import ElementTree as Xml

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.applications import Starlette
from twilio.request_validator import RequestValidator
from twilio.twiml.voice_response import VoiceResponse

from config import ConfigError
from config.load import parse
from lab.calls.recording_call import Desk
from mediaworker.access.auth_failures import AuthFailures
from mediaworker.access.local_trust import is_local
from mediaworker.access.notices import Notices
from mediaworker.calls.registry import CallRefused
from mediaworker.ingress.interfaces import Upgrade
from mediaworker.ingress.twilio.routes import TwilioIngress, webhook_routes
from mediaworker.ingress.twilio.webhook import CallTokens, sign, twiml, verify

TOKEN, NEXT = "12345", "67890"
PUBLIC = "https://calls.example.com"
FORM = {
    "CallSid": "CA41d7ca1be5ed0b3c8cbcc9e7c2c3f7d2",
    "AccountSid": "AC6a1dbd4bd7e8f5f3f4b0b1a2c3d4e5f6",
    "From": "+14155550100",
    "To": "+14155550199",
    "Direction": "inbound",
    "CallStatus": "ringing",
    "CallerName": "Ann & Bob <\u00e9t\u00e9>",
    "Digits": "",
}

# -- signatures -------------------------------------------------------------------------------------------------------


def test_the_example_of_twilios_documentation():
    url = "https://mycompany.com/myapp.php?foo=1&bar=2"
    form = {
        "CallSid": "CA1234567890ABCDE",
        "Caller": "+14158675310",
        "Digits": "1234",
        "From": "+14158675310",
        "To": "+18005551212",
    }
    assert sign("12345", url, form.items()) == "GvWf1cFY/Q7PnoempGyD5oXAezc="


text = st.text(st.characters(exclude_categories=("Cs",)), max_size=12)


@given(text.filter(bool), st.dictionaries(text, text, max_size=6))
def test_signatures_equal_those_of_the_library(token, form):
    url = "https://calls.example.com/twilio/voice?tenant=1"
    signature = RequestValidator(token).compute_signature(url, form)
    assert sign(token, url, form.items()) == signature
    assert verify([token], signature, url, form.items())
    assert not verify([token + "x"], signature, url, form.items())
    assert not verify([token], signature, url, {**form, "Extra": "1"}.items())


@pytest.mark.parametrize(
    ("url", "signed"),
    [
        ("https://h.example/twilio/voice", "https://h.example:443/twilio/voice"),
        ("https://h.example:443/twilio/voice", "https://h.example/twilio/voice"),
        ("https://h.example:8443/twilio/voice", "https://h.example/twilio/voice"),
        ("http://h.example/a?b=c", "http://h.example:80/a?b=c"),
        ("wss://h.example/twilio/stream", "wss://h.example:443/twilio/stream"),
        ("wss://h.example:8081/twilio/stream", "wss://h.example/twilio/stream"),
        ("ws://[::1]:8081/twilio/stream", "ws://[::1]/twilio/stream"),
        ("https://ann:secret@h.example/twilio/voice", "https://ann:secret@h.example:443/twilio/voice"),
    ],
)
def test_a_url_may_be_signed_with_or_without_its_port(url, signed):
    assert verify([TOKEN], sign(TOKEN, url), url)
    assert verify([TOKEN], sign(TOKEN, signed), url)
    assert not verify([TOKEN], sign(TOKEN, url.replace("h.example", "elsewhere").replace("::1", "::2")), url)
    assert not verify([TOKEN], sign(TOKEN, url + "/"), url)


def test_either_token_of_a_rotation_is_right():
    url = "wss://h.example/twilio/stream"
    assert verify([TOKEN, NEXT], sign(TOKEN, url), url)
    assert verify([TOKEN, NEXT], sign(NEXT, url), url)
    assert not verify([TOKEN, NEXT], sign("", url), url)


@pytest.mark.parametrize("signature", ["", "x", "\u00e9", "=" * 10_000, "\ud800"])
def test_no_signature_and_no_token_verify_nothing(signature):
    assert not verify([TOKEN], signature, "https://h.example/")
    assert not verify([], signature, "https://h.example/")
    assert not verify([""], sign("", "https://h.example/"), "https://h.example/")


# -- tokens -----------------------------------------------------------------------------------------------------------


def test_a_token_is_for_one_call_one_stream_and_a_while():
    tokens = CallTokens([TOKEN], ttl_s=60)
    token = tokens.issue("CA1", 1000.0)
    assert not tokens.check(token, "CA2", "MZ1", 1001.0)
    assert tokens.check(token, "CA1", "MZ1", 1001.0)
    assert tokens.check(token, "CA1", "MZ1", 1002.0), "the same stream, connected again"
    assert not tokens.check(token, "CA1", "MZ2", 1003.0)
    assert not tokens.check(token, "CA1", "MZ1", 1061.0)


def test_a_repeated_webhook_gets_another_token():
    tokens = CallTokens(ttl_s=60)
    first, second = tokens.issue("CA1", 0.0), tokens.issue("CA1", 0.0)
    assert first != second
    assert tokens.check(first, "CA1", "MZ1", 1.0)
    assert tokens.check(second, "CA1", "MZ2", 1.0)


def test_workers_with_the_same_auth_token_accept_each_others_tokens():
    token = CallTokens([TOKEN], ttl_s=60).issue("CA1", 0.0)
    assert CallTokens([TOKEN], ttl_s=60).check(token, "CA1", "MZ1", 1.0)
    assert CallTokens([NEXT, TOKEN], ttl_s=60).check(token, "CA1", "MZ1", 1.0), "rotated meanwhile"
    assert not CallTokens([NEXT], ttl_s=60).check(token, "CA1", "MZ1", 1.0)
    assert not CallTokens(ttl_s=60).check(CallTokens(ttl_s=60).issue("CA1", 0.0), "CA1", "MZ1", 1.0)


def test_used_tokens_are_forgotten_when_they_expire():
    tokens = CallTokens(ttl_s=60)
    for second in range(0, 1000, 10):
        assert tokens.check(tokens.issue("CA1", float(second)), "CA1", "MZ1", second + 0.5)
    assert len(tokens._used) <= 7


@given(st.data())
def test_no_other_text_is_a_token(data):
    tokens = CallTokens([TOKEN], ttl_s=60)
    token = tokens.issue("CA1", 0.0)
    index = data.draw(st.integers(0, len(token)))
    letter = data.draw(st.characters())
    for other in (token[:index] + letter + token[index + 1 :], token[:index] + letter + token[index:], token[:index]):
        # The last base64 character of 32 bytes carries two unused bits; compared as text, even those count.
        assert other == token or not tokens.check(other, "CA1", "MZ1", 1.0)


# -- TwiML ------------------------------------------------------------------------------------------------------------


awkward = st.text("<>&\"'\u00e9\U0001f600 \n+1", max_size=9)


def library_twiml(mode, parameters, then=""):
    response = VoiceResponse()
    stream_url, status_url = "wss://calls.example.com/twilio/stream", f"{PUBLIC}/twilio/status"
    if mode == "start":
        verb = response.start()
        stream = verb.stream(url=stream_url, track="both_tracks", status_callback=status_url)
    else:
        verb = response.connect()
        stream = verb.stream(url=stream_url, status_callback=status_url)
    for name, value in parameters.items():
        stream.parameter(name=name, value=value)
    return Xml.canonicalize(str(response).replace("</Response>", then + "</Response>"))


@pytest.mark.parametrize("mode", ["start", "connect"])
@given(parameters=st.dictionaries(st.sampled_from(["mw_from", "mw_to", "a"]), awkward))
def test_twiml_is_what_the_library_writes(mode, parameters):
    then = '<Dial timeout="20"><Number>+14155550123</Number></Dial><Pause length="3600"/>'
    stream_url, status_url = "wss://calls.example.com/twilio/stream", f"{PUBLIC}/twilio/status"
    expected = library_twiml(mode, parameters, then if mode == "start" else "")
    assert Xml.canonicalize(twiml(stream_url, status_url, mode, then, parameters.items()).decode()) == expected


@given(st.text(st.characters(exclude_categories=("Cs",))))
def test_any_value_leaves_twiml_well_formed(value):
    stream = Xml.fromstring(twiml("wss://h/s", "", "start", "", [("mw_from", value)])).find("Start/Stream")
    assert stream.attrib == {"url": "wss://h/s", "track": "both_tracks"}
    kept = stream.find("Parameter").get("value")
    assert kept == "".join(c for c in value if c in "\t\n\r" or (c >= " " and c not in "\ufffe\uffff"))


@pytest.mark.parametrize(
    ("then", "reason"),
    [
        ("<Dial>", "not well-formed"),
        ("<Dial></Pause>", "not well-formed"),
        ("</Response><Response>", "not well-formed"),
        ("Hello", "text outside"),
        ("<Pause/>and more", "text outside"),
        ("<!-- hidden --><Pause/>", "only TwiML verbs"),
        ('<?xml version="1.0"?><Pause/>', "only TwiML verbs"),
        ("<Say>" + "x" * 5000 + "</Say>", "longer than"),
        ("<Say>&nbsp;</Say>", "not well-formed"),
    ],
)
def test_a_wrong_then_stops_the_start(then, reason):
    with pytest.raises(ConfigError, match=reason) as caught:
        parse({"twilio": {"then": then}})
    assert str(caught.value).startswith("twilio.then = ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("url", ["https://", "https://[half", "https://h:99999"])
def test_a_public_url_that_is_none_stops_the_start(url):
    with pytest.raises(ConfigError, match=r"^twilio\.public_url"):
        parse({"twilio": {"public_url": url}})


# -- over HTTP --------------------------------------------------------------------------------------------------------


def client(ingress, *, peer="127.0.0.1", base="http://127.0.0.1:8080"):
    app = Starlette(routes=webhook_routes(ingress))
    return httpx.AsyncClient(transport=httpx.ASGITransport(app, client=(peer, 5000)), base_url=base)


def signed_ingress(**twilio):
    settings = {"auth_token": TOKEN, "auth_token_next": NEXT, "public_url": PUBLIC, **twilio}
    return TwilioIngress(parse({"twilio": settings}), Desk(), unix_time=lambda: 1000.0)


def signature_of(form, path, token=TOKEN):
    return {"X-Twilio-Signature": RequestValidator(token).compute_signature(PUBLIC + path, form)}


@pytest.mark.parametrize("token", [TOKEN, NEXT])
async def test_a_signed_webhook_is_answered_with_twiml_and_a_token(token):
    ingress = signed_ingress()
    async with client(ingress, peer="54.172.60.1", base="http://calls.example.com") as http:
        answer = await http.post("/twilio/voice", data=FORM, headers=signature_of(FORM, "/twilio/voice", token))
    assert (answer.status_code, answer.headers["content-type"]) == (200, "text/xml; charset=utf-8")
    response = Xml.fromstring(answer.content)
    stream = response.find("Start/Stream")
    assert stream.get("url") == "wss://calls.example.com/twilio/stream"
    assert stream.get("statusCallback") == f"{PUBLIC}/twilio/status"
    given = {item.get("name"): item.get("value") for item in stream}
    call_token = given.pop("mw_token")
    assert given == {
        "mw_mode": "start",
        "mw_from": "+14155550100",
        "mw_to": "+14155550199",
        "mw_direction": "inbound",
    }
    assert CallTokens([TOKEN], ttl_s=60).check(call_token, FORM["CallSid"], "MZ1", 1001.0)
    assert [child.tag for child in response] == ["Start", "Pause"]


async def test_the_query_of_a_webhook_is_signed_too():
    ingress = signed_ingress()
    async with client(ingress) as http:
        path = "/twilio/voice?tenant=a%20b"
        assert (await http.post(path, data=FORM, headers=signature_of(FORM, path))).status_code == 200
        assert (await http.post(path + "c", data=FORM, headers=signature_of(FORM, path))).status_code == 403


async def test_a_number_that_is_set_to_get_is_answered_as_one_that_posts():
    """Twilio's own validator signs: over the URL with its query, in the spelling in which it was sent."""
    ingress = signed_ingress()
    form = {**FORM, "CallerName": "Jane Doe & \u00e9+"}
    path = f"/twilio/voice?tenant=a%20b&{urlencode(form)}"
    signed = signature_of({}, path)
    async with client(ingress, peer="54.172.60.1", base="http://calls.example.com") as http:
        answer = await http.get(path, headers=signed)
        assert (answer.status_code, answer.headers["content-type"]) == (200, "text/xml; charset=utf-8")
        assert answer.headers["cache-control"] == "no-store", "Twilio keeps answers to GET, and the token is good once"
        given = {item.get("name"): item.get("value") for item in Xml.fromstring(answer.content).find("Start/Stream")}
        assert given["mw_from"] == FORM["From"]
        assert CallTokens([TOKEN], ttl_s=60).check(given["mw_token"], FORM["CallSid"], "MZ1", 1001.0)
        for wrong in (path + "&From=1900", path.replace("%20", "+"), "/twilio/voice?CallSid=CA1"):
            assert (await http.get(wrong, headers=signed)).status_code == 403, wrong
        assert (await http.get(path)).status_code == 403
        refused = await http.put(path, headers=signed)
        assert refused.status_code == 405 and set(refused.headers["allow"].split(", ")) == {"GET", "HEAD", "POST"}
    assert (ingress.counters.webhooks, ingress.counters.forbidden) == (1, 4)


@pytest.mark.parametrize("required", [True, False])
async def test_the_call_token_can_be_required(required):
    failures = AuthFailures()
    settings = {"auth_token": TOKEN, "public_url": PUBLIC, "require_token": required}
    ingress = TwilioIngress(parse({"twilio": settings}), Desk(), unix_time=lambda: 1000.0, failures=failures)
    signature = RequestValidator(TOKEN).compute_signature("wss://calls.example.com/twilio/stream", {})
    upgrade = Upgrade("/twilio/stream", (("X-Twilio-Signature", signature),), "")

    def start(parameters):
        body = {"callSid": "CA1", "tracks": ["inbound"], "customParameters": parameters}
        session = ingress.admit(upgrade)(0.0)
        session.receive(json.dumps({"event": "start", "streamSid": "MZ1", "start": body}), 0.0)
        return session.streaming

    token = CallTokens([TOKEN], ttl_s=60).issue("CA1", 1000.0)
    assert start({}) is not required
    assert not start({"mw_token": "wrong"})
    assert start({"mw_token": token})
    assert failures.counts["call_token"] == 1 + required


@pytest.mark.parametrize("path", ["/twilio/voice", "/twilio/status"])
async def test_posts_that_are_not_signed_are_refused_even_from_this_machine(path):
    ingress = signed_ingress()
    right = signature_of(FORM, path)
    async with client(ingress) as http:
        answers = [
            await http.post(path, data=FORM),
            await http.post(path, data=FORM, headers={"X-Twilio-Signature": "AAAA"}),
            await http.post(path, data={**FORM, "From": "+1900"}, headers=right),
            await http.post(path, data=FORM, headers=signature_of(FORM, "/twilio/other")),
            await http.post(path, data=FORM, headers=signature_of(FORM, path, "other token")),
        ]
    assert [answer.status_code for answer in answers] == [403] * 5
    assert answers[0].headers["content-type"] == "application/problem+json"
    assert answers[0].json()["status"] == 403
    assert ingress.counters.forbidden == 5
    assert ingress.counters.webhooks == 0


async def test_without_a_token_only_this_machine_gets_twiml():
    ingress = TwilioIngress(parse({}), Desk())
    async with client(ingress) as http:
        answer = await http.post("/twilio/voice", data=FORM)
        assert answer.status_code == 200
        stream = Xml.fromstring(answer.content).find("Start/Stream")
        assert stream.get("url") == "ws://127.0.0.1:8080/twilio/stream"
        assert stream.get("statusCallback") == "http://127.0.0.1:8080/twilio/status"
        for headers in ({"X-Forwarded-For": "1.2.3.4"}, {"Host": "evil.example"}, {"Origin": "https://evil.example"}):
            assert (await http.post("/twilio/voice", data=FORM, headers=headers)).status_code == 403
    async with client(ingress, peer="192.0.2.1") as http:
        assert (await http.post("/twilio/voice", data=FORM)).status_code == 403


async def test_connect_mode_and_a_stream_url_of_its_own():
    ingress = signed_ingress(mode="connect", stream_url="wss://media.example.com/twilio/stream")
    async with client(ingress) as http:
        answer = await http.post("/twilio/voice", data=FORM, headers=signature_of(FORM, "/twilio/voice"))
    response = Xml.fromstring(answer.content)
    assert [child.tag for child in response] == ["Connect"]
    stream = response.find("Connect/Stream")
    assert stream.get("url") == "wss://media.example.com/twilio/stream"
    assert stream.get("track") is None
    assert stream.find("Parameter[@name='mw_mode']").get("value") == "connect"


async def test_a_full_worker_answers_503_and_busy():
    ingress = TwilioIngress(parse({}), Desk(CallRefused(503, "all calls are taken")))
    async with client(ingress) as http:
        answer = await http.post("/twilio/voice", data=FORM)
    assert answer.status_code == 503
    assert int(answer.headers["retry-after"]) > 0
    assert Xml.fromstring(answer.content).find("Reject").get("reason") == "busy"
    assert ingress.counters.refused == {"capacity": 1}


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (b"CallSid=", 400),
        (b"\xff\xfe", 400),
        (b"&".join(b"a%d=1" % i for i in range(300)), 400),
        (b"CallSid=CA1&x=" + b"y" * 70_000, 413),
        (b"CallSid=CA1&From=%00%ff%zz", 200),
    ],
)
async def test_odd_forms(body, status):
    ingress = TwilioIngress(parse({}), Desk())
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    async with client(ingress) as http:
        answer = await http.post("/twilio/voice", content=body, headers=headers)
    assert answer.status_code == status


async def test_stream_status_is_counted():
    ingress = TwilioIngress(parse({}), Desk())
    async with client(ingress) as http:
        for event in ("stream-started", "stream-error", "stream-error", "stream-stopped", "made up", ""):
            form = {"CallSid": "CA1", "StreamSid": "MZ1", "StreamEvent": event, "StreamError": "31920"}
            answer = await http.post("/twilio/status", data=form)
            assert (answer.status_code, answer.content) == (204, b"")
        assert (await http.get("/twilio/status")).status_code == 405
    assert ingress.statuses == {"stream-started": 1, "stream-error": 2, "stream-stopped": 1, "other": 2}


# -- upgrades and loopback --------------------------------------------------------------------------------------------

STREAM_URL = "wss://calls.example.com/twilio/stream"


async def test_an_upgrade_must_be_signed_when_there_is_a_token():
    ingress = signed_ingress()
    for token in (TOKEN, NEXT):
        ingress.admit(Upgrade("/twilio/stream", (("X-Twilio-Signature", sign(token, STREAM_URL)),), "54.172.60.1"))
    twice = (("X-Twilio-Signature", sign(TOKEN, STREAM_URL)),) * 2
    for headers in ((), (("x-twilio-signature", sign("other", STREAM_URL)),), twice):
        with pytest.raises(CallRefused) as caught:
            ingress.admit(Upgrade("/twilio/stream", (("Host", "localhost"), *headers), "127.0.0.1"))
        assert caught.value.status == 403


LOCAL = [("Host", "127.0.0.1:8081")]


@pytest.mark.parametrize(
    ("headers", "peer"),
    [
        (LOCAL, "127.0.0.1"),
        ([("host", "localhost")], "127.9.9.9"),
        ([("Host", "LOCALHOST:1")], "::1"),
        ([("Host", "[::1]:8081")], "::ffff:127.0.0.1"),
        ([*LOCAL, ("Origin", "http://127.0.0.1:8081")], "127.0.0.1"),
    ],
)
def test_this_machine_is_local(headers, peer):
    assert is_local(headers, peer)


@pytest.mark.parametrize(
    ("headers", "peer"),
    [
        (LOCAL, "10.0.0.1"),
        (LOCAL, ""),
        (LOCAL, "localhost.evil.example"),
        ([], "127.0.0.1"),
        (LOCAL * 2, "127.0.0.1"),
        ([("Host", "evil.example")], "127.0.0.1"),
        ([("Host", "127.0.0.1.evil.example")], "127.0.0.1"),
        ([("Host", "localhost@evil.example")], "127.0.0.1"),
        ([("Host", "[half")], "127.0.0.1"),
        ([*LOCAL, ("Origin", "https://evil.example")], "127.0.0.1"),
        ([*LOCAL, ("Origin", "http://127.0.0.1:3000")], "127.0.0.1"),
        ([*LOCAL, ("Origin", "null")], "127.0.0.1"),
        ([*LOCAL, ("Origin", "http://[half")], "127.0.0.1"),
        ([*LOCAL, ("Forwarded", "for=1.2.3.4")], "127.0.0.1"),
        ([*LOCAL, ("x-forwarded-proto", "https")], "127.0.0.1"),
        ([*LOCAL, ("X-Real-IP", "1.2.3.4")], "127.0.0.1"),
    ],
)
def test_everybody_else_is_not(headers, peer):
    assert not is_local(headers, peer)


def test_trouble_is_said_once_per_source_and_minute():
    notices = Notices(period_s=60, max_sources=3)
    assert notices.warn("a", "malformed", 0.0)
    assert not notices.warn("a", "malformed", 59.0)
    assert notices.warn("a", "unknown", 1.0)
    assert notices.warn("b", "malformed", 1.0)
    assert not notices.warn("c", "malformed", 2.0), "full: silence instead of growth"
    assert notices.warn("a", "malformed", 60.0)
    assert notices.warn("c", "malformed", 200.0)
