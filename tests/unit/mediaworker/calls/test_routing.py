"""Which route a call takes, and what may speak over it."""

from __future__ import annotations

from config import Settings
from config.load import parse
from mediaworker.calls.routing import plan

ROUTES = [
    {"source": "sip", "called": "bot-*", "profile": "bot", "language": "de"},
    {"source": "sip", "account": "trunk", "roles": {"main": "customer"}, "names": {"main": "Caller"}},
    {"source": "twilio", "calling": "+15550100", "context": "Acme", "roles": {"inbound": "agent"}},
]


def settings() -> Settings:
    return parse({"routes": ROUTES, "asr": {"language": "en"}})


def test_the_first_route_that_fits() -> None:
    bot = plan(settings(), source="sip", calling="100", called="bot-7", account="trunk")
    assert (bot.profile, bot.language, dict(bot.roles)) == ("bot", "de", {})
    assert bot.endpointing.min_silence_ms == 320
    trunk = plan(settings(), source="sip", calling="100", called="7", account="trunk")
    assert (trunk.profile, trunk.language, dict(trunk.roles)) == ("assist", "en", {"main": "customer"})
    assert dict(trunk.names) == {"main": "Caller"}


def test_an_exact_number_is_not_a_prefix() -> None:
    assert plan(settings(), source="twilio", calling="+15550100", called="").context == "Acme"
    assert plan(settings(), source="twilio", calling="+155501001", called="").context == ""
    assert plan(settings(), source="sip", calling="+15550100", called="").context == ""


def test_headers_and_participants_of_a_call() -> None:
    routes = [
        {"headers": {"X-Tenant": "acme*", "Diversion": "*"}, "language": "de"},
        {"headers": {"p-asserted-identity": "*<sip:+49[0-9]*@*"}, "language": "fr"},
        {"participant": "SIP:47??@*", "language": "es"},
        {"headers": {"X-Tenant": "*"}, "participant": "Ann", "language": "it"},
    ]
    given = parse({"routes": routes, "asr": {"language": "en"}})

    def language(*participants: str, **headers: str) -> str:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        made = plan(given, source="siprec", calling="", called="", headers=named, participants=participants)
        return made.language

    assert language(x_tenant="ACME Ltd", diversion="") == "de"
    assert language(x_tenant="acme") == "en", "a header that is not there fits nothing"
    assert language(p_asserted_identity='"A" <sip:+49301@x>, <tel:+49301>') == "fr"
    assert language("sip:100@pbx", "sip:4711@pbx") == "es" and language("sip:100@pbx") == "en"
    assert language("ann", x_tenant="") == "it" and language("ann") == "en"


def test_overrides_speak_over_routes_and_nonsense_is_left_out() -> None:
    overrides = {
        "profile": "dictation",
        "language": "fr",
        "role.main": "agent",
        "role.other": "boss",
        "name.main": "Ann",
        "context": "Zürich",
    }
    got = plan(settings(), source="sip", calling="1", called="2", account="trunk", overrides=overrides)
    assert (got.profile, got.language, got.context) == ("dictation", "fr", "Zürich")
    assert dict(got.roles) == {"main": "agent"} and dict(got.names) == {"main": "Ann"}
    assert plan(settings(), source="sip", calling="", called="", overrides={"profile": "loud"}).profile == "assist"


def test_a_header_that_is_no_utf8_becomes_text_that_can_be_written() -> None:
    overrides = {"context": b"caf\xe9".decode("utf-8", "surrogateescape"), "name.main": "\udce9"}
    got = plan(settings(), source="sip", calling="", called="", overrides=overrides)
    assert (got.context, got.names["main"]) == ("caf?", "?")
