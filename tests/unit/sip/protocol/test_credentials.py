"""Digest credentials: what a challenge is worth, for whom, and how long."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.sip.headers import URI, answer
from sip.admission.digest import GUESSES, NONCE_S, Challenger, Reason, Verdict, same_target
from sip.admission.request_filter import DROP, PASS, Credentials, RequestFilter, RequestHead

USERS = {"sbc": "secret", "ann": "tr:icky \u00e4"}


def checked(
    challenger: Challenger, credentials: str, now: float, *, uri: str = URI, source: str = ""
) -> tuple[Verdict, str, Reason]:
    return challenger.check(credentials, "INVITE", now, uri=uri, source=source)


def test_the_examples_of_rfc_7616() -> None:
    """Section 3.9.1, of both algorithms: what the hashes are made of."""
    nonce, cnonce = "7ypf/xlj9XXwfDPEoM4URrv/xwf94BcCAzFZH4GiTo0v", "f2/wE4q74E6zIJEtWaHKaf5wv/H5QzzpXusqGemxURZJ"
    challenger = Challenger({"Mufasa": "Circle of Life"}, "http-auth@example.org")
    challenger._stamp = lambda nonce: "0.0"  # type: ignore[method-assign]
    challenger._sign = lambda text: nonce  # type: ignore[method-assign]
    for algorithm, response in (
        ("MD5", "8ca523f5e9506fed4657c9700eebdbec"),
        ("SHA-256", "753927fa0e85d155564e2e272a28d1802ca10daf4496794697cf8db5856cb6c1"),
    ):
        value = (
            f'Digest username="Mufasa", realm="http-auth@example.org", uri="/dir/index.html", algorithm={algorithm}, '
            f'nonce="{nonce}", nc=00000001, cnonce="{cnonce}", qop=auth, response="{response}", opaque="FQhe"'
        )
        page = "/dir/index.html"
        assert challenger.check(value, "GET", 0.0, uri=page)[0] == "good"
        wrong = value.replace(response[:4], "0000")
        assert challenger.check(wrong, "GET", 0.0, uri=page) == ("bad", "Mufasa", "password")
        challenger._counts.clear()


@pytest.mark.parametrize("index", [0, 1])
@pytest.mark.parametrize("qop", [True, False])
def test_credentials_are_good_once_and_for_a_while(index: int, qop: bool) -> None:
    challenger = Challenger(USERS, "mediaworker")
    challenge = challenger.challenge(100.0)[index]
    for user, password in USERS.items():
        challenge = challenger.challenge(100.0)[index]
        good = answer(challenge, user, password, qop=qop)
        assert checked(challenger, good, 101.0) == ("good", user, "")
        assert checked(challenger, good, 101.0) == ("stale", user, "replayed"), "a repetition of it, by whomever"
    if qop:
        assert checked(challenger, answer(challenge, "ann", USERS["ann"], nc=7), 102.0)[0] == "good"
        assert checked(challenger, answer(challenge, "ann", USERS["ann"], nc=5), 102.0)[0] == "stale"
    else:
        again = answer(challenge, "ann", USERS["ann"], qop=False) + ", nc=00000002"
        assert checked(challenger, again, 102.0)[0] == "stale", "a count that no hash covers is none"
    assert checked(challenger, answer(challenge, "sbc", "secret", nc=9), 100.0 + NONCE_S + 1)[0] == "stale"
    for wrong, reason in (
        (answer(challenge, "sbc", "Secret", nc=20), "password"),
        (answer(challenge, "bob", "secret", nc=20), "user"),
        (answer(challenge, "sbc", "secret", nc=20, method="BYE"), "password"),
        (answer(challenge.replace("mediaworker", "other"), "sbc", "secret", nc=20), "realm"),
        (answer(challenge, "sbc", "secret", nc=20).replace("algorithm=", "algorithm=X"), "algorithm"),
        (answer(challenge, "sbc", "secret", nc=20, uri="sip:2000@worker"), "uri"),
        ("Basic c2JjOnNlY3JldA==", "malformed"), ("", "malformed"), ("Digest", "malformed"),
    ):  # fmt: skip
        verdict, _, given = checked(challenger, wrong, 102.0)
        assert (verdict, given) == ("bad", reason), wrong
    for password in ("secret", "wrong"):  # which of them it is, is not looked at
        foreign = answer(challenge.replace('nonce="', 'nonce="1'), "sbc", password, nc=20)
        assert checked(challenger, foreign, 102.0) == ("stale", "sbc", "nonce")
    assert "secret" not in str(vars(challenger)), "passwords are kept as hashes"


@pytest.mark.parametrize(
    "count", ["1", "0x000001", "0000_001", "+0000001", " 0000001", "000000001", "0000000g", "\u0661" * 8]
)
def test_a_count_is_eight_hex_digits(count: str) -> None:
    challenger = Challenger(USERS, "mediaworker")
    credentials = answer(challenger.challenge(0.0)[0], "sbc", "secret", count=count)
    assert checked(challenger, credentials, 1.0) == ("bad", "sbc", "malformed")
    assert checked(challenger, answer(challenger.challenge(0.0)[0], "sbc", "secret"), 1.0)[0] == "good"


def test_credentials_are_for_one_target() -> None:
    same = [
        ("sip:1000@worker", "sip:1000@WORKER:5060;transport=tcp"), ("sip:1000@worker;user=phone", "sip:1000@worker"),
        ("sip:%31000@worker", "sip:1000@worker"), ("sip:worker:5080", "sip:1000@worker:5080"), ("tel:+1", "tel:+1"),
        ("sip:1000@[::1]:5060", "sip:1000@[::1]"),
    ]  # fmt: skip
    other = [
        ("sip:2000@worker", "sip:1000@worker"), ("sip:1000@other", "sip:1000@worker"), ("", "sip:1000@worker"),
        ("sip:1000@worker:5061", "sip:1000@worker"), ("sips:1000@worker", "sip:1000@worker"), ("tel:+2", "tel:+1"),
        ("sip:1000@worker", "sip:worker"), ("sip:other", "sip:1000@worker"), ("sip:@worker", "sip:1000@worker"),
    ]  # fmt: skip
    assert all(same_target(*pair) for pair in same) and not any(same_target(*pair) for pair in other)


@given(st.text(), st.text())
def test_any_two_texts_are_one_target_or_two(one: str, other: str) -> None:
    assert same_target(one, one)
    assert same_target(f"sip:{one}", other) in (True, False)


def test_guesses_are_slowed_and_nobody_else_is() -> None:
    """Ten wrong passwords, then one in five seconds; the right one among them is not looked at."""
    challenger = Challenger(USERS, "mediaworker")
    mine, home = (challenger.challenge(0.0, source=source)[0] for source in ("203.0.113.5", "198.51.100.7"))

    def guess(password: str, nc: int, now: float, *, user: str = "sbc", source: str = "203.0.113.5") -> Reason:
        challenge = mine if source == "203.0.113.5" else home
        return checked(challenger, answer(challenge, user, password, nc=nc), now, source=source)[2]

    assert [guess(f"guess{number}", number, 1.0) for number in range(GUESSES)] == ["password"] * GUESSES
    assert guess("secret", 100, 1.0) == "slowed"
    assert guess(USERS["ann"], 101, 1.0, user="ann") == "", "another user at the same address"
    assert guess("secret", 1, 1.0, source="198.51.100.7") == "", "the same user at another one"
    assert guess("secret", 102, 7.0) == ""
    assert guess("nobody", 103, 7.0, user="eve") == "user"
    # With a source that was made up there is no nonce for it: that costs the source nothing, and tells nothing.
    for number in range(100):
        forged = answer(mine, "sbc", f"guess{number}", nc=200 + number)
        assert checked(challenger, forged, 7.0, source="198.51.100.7") == ("stale", "sbc", "")
    assert guess("secret", 2, 7.0, source="198.51.100.7") == ""


def test_a_stale_challenge_says_so() -> None:
    challenger = Challenger(USERS, "mediaworker")
    assert all(", stale=true" in value for value in challenger.challenge(0.0, stale=True))
    assert not any("stale" in value for value in challenger.challenge(0.0))
    assert [re.search(r"algorithm=([\w-]+)", value)[1] for value in challenger.challenge(0.0)] == ["SHA-256", "MD5"]


FIELD = st.tuples(st.sampled_from(["username", "realm", "nonce", "nc", "qop", "response", "algorithm"]), st.text())


@given(st.text() | st.lists(FIELD).map(lambda pairs: "Digest " + ", ".join(f'{k}="{v}"' for k, v in pairs)))
def test_any_header_is_bad_or_good(text: str) -> None:
    assert checked(Challenger(USERS, "mediaworker"), text, 0.0)[0] == "bad"


def test_who_is_asked_and_how_often() -> None:
    filter_ = RequestFilter(lambda source: source == "192.0.2.1", lambda: 0, invites_per_s=50.0)
    shown: list[Credentials] = ["none"]

    def check(number: int, source: str = "203.0.113.5", method: str = "INVITE", tag: str = "") -> int:
        request = RequestHead(method, f"call{number}", f"z9hG4bK{number}{shown[0]}", tag, source)
        return filter_.check(request, 0.0, lambda: (shown[0], "sbc"))

    assert [check(number) for number in range(12)] == [401] * 10 + [DROP] * 2, "who is not known is told a few times"
    shown[0] = "good"
    assert check(20) == PASS and filter_.user_of("call20", "203.0.113.5") == "sbc"
    assert check(20) == PASS, "a repetition"
    assert check(20, method="CANCEL") == check(20, method="BYE", tag="x") == PASS
    assert check(21, method="CANCEL") == DROP
    shown[0] = "none"
    assert [check(number) for number in range(30, 60)] == [401] * 30, "who is known may call often"
    shown[0] = "bad"
    assert check(70) == DROP and check(70, "203.0.113.6") == 403
    shown[0] = "none"
    assert check(80, "192.0.2.1") == 401, "everybody is asked"
    shown[0] = "unasked"
    assert check(81, "192.0.2.1") == PASS
