"""Who may use the API: with keys, without them, and from this machine."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from config.settings import ApiKey, Secret
from mediaworker.access.keys import decide

KEYS = (
    ApiKey(name="screen", key=Secret("aaaaaaaa"), scopes=("events",)),
    ApiKey(name="ops", key=Secret("bbbbbbbb"), scopes=("admin",)),
)

HOST = ("Host", "localhost:8080")

UPGRADE = (("Host", "worker.example"), ("Upgrade", "websocket"), ("Connection", "Upgrade"))


def offer(*tokens: str) -> tuple[tuple[str, str], ...]:
    return (*UPGRADE, ("Sec-WebSocket-Protocol", ", ".join(tokens)))


@pytest.mark.parametrize(
    ("headers", "scope", "status", "name", "subprotocol"),
    [
        ([("authorization", "Bearer aaaaaaaa")], "events", 200, "screen", None),
        ([("Authorization", "bearer   aaaaaaaa ")], "events", 200, "screen", None),
        ([("Authorization", "Bearer aaaaaaaa"), ("Origin", "https://crm.example")], "events", 200, "screen", None),
        ([("Authorization", "Bearer aaaaaaaa")], "admin", 403, "screen", None),
        ([("Authorization", "Bearer bbbbbbbb")], "events", 403, "ops", None),
        ([("Authorization", "Bearer cccccccc")], "events", 401, "", None),
        ([("Authorization", "Bearer aaaaaaa")], "events", 401, "", None),
        ([("Authorization", "Bearer aaaaaaaab")], "events", 401, "", None),
        ([("Authorization", "Bearer ")], "events", 401, "", None),
        ([("Authorization", "Basic aaaaaaaa")], "events", 401, "", None),
        ([("Authorization", "aaaaaaaa")], "events", 401, "", None),
        ([("Authorization", "Bearer ключ")], "events", 401, "", None),
        ([("Authorization", "Bearer aaaaaaaa"), ("Authorization", "Bearer bbbbbbbb")], "events", 401, "", None),
        ([], "events", 401, "", None),
        ([HOST], "events", 401, "", None),
        (offer("bearer", "aaaaaaaa"), "events", 200, "screen", "bearer"),
        (offer("media", "bearer", "aaaaaaaa"), "events", 200, "screen", "bearer"),
        ([*UPGRADE, ("Sec-WebSocket-Protocol", "bearer"), ("Sec-WebSocket-Protocol", "aaaaaaaa")],
         "events", 200, "screen", "bearer"),
        (offer("bearer", "bbbbbbbb"), "events", 403, "ops", None),
        (offer("bearer", "cccccccc"), "events", 401, "", None),
        (offer("aaaaaaaa", "bearer"), "events", 401, "", None),
        (offer("aaaaaaaa"), "events", 401, "", None),
        (offer("bearer"), "events", 401, "", None),
        ([*offer("bearer", "aaaaaaaa"), ("Authorization", "Bearer cccccccc")], "events", 401, "", None),
        # The pair is for upgrades: a plain request has a header for this.
        ([("Sec-WebSocket-Protocol", "bearer, aaaaaaaa")], "events", 401, "", None),
    ],
)  # fmt: skip
def test_with_keys(headers: list[tuple[str, str]], scope: str, status: int, name: str, subprotocol: str | None) -> None:
    for peer in ("127.0.0.1", "203.0.113.9"):
        access = decide(headers, peer, KEYS, scope)  # type: ignore[arg-type]
        assert (access.status, access.name, access.subprotocol) == (status, name, subprotocol)
        assert bool(access.challenge) == bool(access.reason) == (access.status != 200)


@given(st.lists(st.tuples(st.sampled_from(["Authorization", "Upgrade", "Sec-WebSocket-Protocol", "Host"]), st.text())))
def test_no_header_raises_or_opens(headers: list[tuple[str, str]]) -> None:
    assert decide(headers, "127.0.0.1", KEYS, "events").status != 200
    decide(headers, "127.0.0.1", (), "events")


@pytest.mark.parametrize(
    ("peer", "headers", "allowed"),
    [
        ("127.0.0.1", [HOST], True),
        ("127.8.9.1", [HOST], True),
        ("::1", [("Host", "[::1]:8080")], True),
        ("::ffff:127.0.0.1", [("Host", "127.0.0.1:8080")], True),
        ("127.0.0.1", [HOST, ("Origin", "http://localhost:8080")], True),
        ("127.0.0.1", [HOST, ("Authorization", "Bearer whatever")], True),
        ("203.0.113.9", [HOST], False),
        ("::ffff:203.0.113.9", [HOST], False),
        ("", [HOST], False),
        ("127.0.0.1", [], False),
        ("127.0.0.1", [HOST, ("Host", "evil.example")], False),
        ("127.0.0.1", [("Host", "evil.example")], False),
        ("127.0.0.1", [("Host", "localhost.evil.example")], False),
        ("127.0.0.1", [("Host", "evil@localhost")], True),  # no browser sends it, and it is this host
        ("127.0.0.1", [HOST, ("Origin", "http://localhost:3000")], False),
        ("127.0.0.1", [HOST, ("Origin", "https://evil.example")], False),
        ("127.0.0.1", [HOST, ("Origin", "null")], False),
        ("127.0.0.1", [HOST, ("Forwarded", "for=1.2.3.4")], False),
        ("127.0.0.1", [HOST, ("X-Forwarded-For", "127.0.0.1")], False),
        ("127.0.0.1", [HOST, ("x-forwarded-proto", "https")], False),
    ],
)
def test_without_keys_only_this_machine_passes(peer: str, headers: list[tuple[str, str]], allowed: bool) -> None:
    access = decide(headers, peer, (), "admin")
    assert access.status == (200 if allowed else 401)
    assert access.name == ("loopback" if allowed else "")


def test_without_keys_an_offer_is_answered_all_the_same() -> None:
    headers = [("Host", "localhost"), ("Upgrade", "websocket"), ("Sec-WebSocket-Protocol", "bearer, any-key-1")]
    assert decide(headers, "127.0.0.1", (), "events").subprotocol == "bearer"


def test_without_keys_the_workers_own_page_is_let_in_and_nobody_else() -> None:
    def asked(token: str | None, *sessions: str) -> tuple[int, str]:
        headers = [("Host", "worker.example")]
        headers += [("Authorization", f"Bearer {token}")] if token is not None else []
        found = decide(headers, peer="192.0.2.1", scope="admin", keys=(), direct=False, sessions=sessions)
        return found.status, found.name

    assert asked("session-key-1", "session-key-0", "session-key-1") == (200, "page")
    assert asked("session-key-2", "session-key-0", "session-key-1") == (401, "")
    assert asked("session-key-2") == (401, "") and asked(None, "session-key-1") == (401, "")
    found = decide([HOST], peer="192.0.2.1", scope="admin", keys=(), direct=False, sessions=())
    assert (found.status, found.challenge) == (401, "Bearer") and "configure auth.api_keys" in found.reason
