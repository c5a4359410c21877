"""The recognizer's end of a link: what it says and when, to an engine, a server, and whoever pretends to be one."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asr import greeting, messages
from asr.client.link import CHECKS, ClientLink, RemoteLink, Watchdog
from asr.utterance import Hypothesis
from config.framing import Frames, encode

HANG_S = 8.0
PERIOD_S = HANG_S / CHECKS
TOKEN, ENDS = "a token", (("127.0.0.1", 1), ("127.0.0.1", 2))
READY, HEARD = messages.EngineReady("e", ()), messages.Heard(Hypothesis("u", 1, "text", "en", 4, final=True))


class Owner:
    def __init__(self) -> None:
        self.messages: deque[messages.ToEngine] = deque()
        self.needed = True

    def next_message(self) -> messages.ToEngine | None:
        return self.messages.popleft() if self.messages else None


def child(owner: Owner) -> ClientLink:
    link = ClientLink(owner, messages.Withdraw("first"), Watchdog(hang_s=HANG_S, start_s=HANG_S))
    link.begin(0.0)
    return link


def remote(owner: Owner, token: str = TOKEN, why_not: str = "") -> RemoteLink:
    link = RemoteLink(
        owner, Watchdog(hang_s=HANG_S, start_s=HANG_S), worker="w", engine=1, token=token,
        accepts=lambda welcome: why_not,
    )  # fmt: skip
    link.ends = ENDS
    link.begin(0.0)
    return link


def sent(link: ClientLink) -> list[messages.ToEngine]:
    return [messages.decode_to_engine(body) for body in Frames().feed(link.data_to_send())]


def welcome(proof: bytes = b"", version: int = messages.TOKEN_PROTOCOL) -> messages.Welcome:
    return messages.Welcome(version, "s", "e", "", ("en",), proof)


class Server:
    """The other end of a greeting with a token."""

    def __init__(self, link: RemoteLink, token: str = TOKEN) -> None:
        (hello,) = sent(link)
        assert isinstance(hello, messages.Hello) and (hello.worker, hello.engine) == ("w", 1)
        assert hello.version == messages.TOKEN_PROTOCOL and len(hello.nonce) == greeting.NONCE_BYTES
        self.challenge = messages.Challenge(greeting.nonce())
        self.known = greeting.Greeting(token, hello.nonce, self.challenge.nonce, *ENDS)


@given(st.data())
def test_a_server_that_knows_the_token_is_sent_what_waits_however_its_bytes_are_cut(data: st.DataObject) -> None:
    owner = Owner()
    owner.messages.append(messages.Release("leg"))
    link = remote(owner)
    server = Server(link)
    assert sent(link) == []
    for byte in encode(server.challenge):
        link.receive_data(bytes((byte,)), 0.0)
    (proof,) = sent(link)
    assert isinstance(proof, messages.Proof) and server.known.proves("worker", proof.proof)
    answer = b"".join(map(encode, (welcome(server.known.proof("server")), READY, HEARD)))
    while answer:
        size = data.draw(st.integers(1, len(answer)))
        link.receive_data(answer[:size], 1.0)
        answer = answer[size:]
    assert [type(each).__name__ for each in link.events_received()] == ["Welcome", "EngineReady", "Heard"]
    assert sent(link) == [messages.Release("leg")] and link.answered and link.ready_s == 1.0 and not link.over


def test_a_long_message_right_behind_the_welcome_is_read() -> None:
    link = remote(Owner())
    server = Server(link)
    link.receive_data(encode(server.challenge), 0.0)
    long = messages.EngineReady("e" * 2 * greeting.MAX_BYTES, ())
    link.receive_data(encode(welcome(server.known.proof("server"))) + encode(long), 0.0)
    assert link.events_received()[-1] == long


NOT_ASKED = "whoever listens there does not ask for a proof of cluster.token: it is told nothing"
UNKNOWN = "whoever listens there does not know cluster.token: it is told nothing"


@pytest.mark.parametrize(
    ("answers", "why"),
    [
        ([welcome()], NOT_ASKED),
        ([READY], NOT_ASKED),
        ([messages.Challenge(b"n"), messages.Challenge(b"n")], NOT_ASKED),
        ([messages.Challenge(b"n"), welcome(bytes(32))], UNKNOWN),
        ([messages.Refused("full")], "it refuses this worker: full"),
        ([messages.Challenge(b"n"), messages.Refused("full")], "it refuses this worker: full"),
        ([welcome(version=9)], "it speaks version 9 of the protocol between workers and engine servers"),
    ],
)
def test_whoever_does_not_know_the_token_is_sent_nothing_of_the_owner(
    answers: list[messages.FromEngine], why: str
) -> None:
    owner = Owner()
    owner.messages.append(messages.Release("a secret"))
    link = remote(owner)
    out = link.data_to_send()
    for answer in answers:
        link.receive_data(encode(answer), 0.0)
        out += link.data_to_send()
    assert link.over and link.end().startswith(why) and b"secret" not in out and owner.messages
    assert not link.unusable, "it may be another one soon"


@given(st.lists(st.binary(max_size=300), max_size=8))
def test_noise_in_place_of_a_greeting_is_a_reason_and_no_error(noise: list[bytes]) -> None:
    owner = Owner()
    owner.messages.append(messages.Release("a secret"))
    link = remote(owner)
    for data in noise:
        link.receive_data(data, 0.0)
        assert b"secret" not in link.data_to_send()
    assert link.end() and link.events_received() == []


def test_a_stranger_that_says_nothing_or_too_much_is_left() -> None:
    link = remote(Owner())
    link.receive_data((1 << 20).to_bytes(4, "big"), 0.0)
    assert link.over and link.end() == "the server does not answer the greeting (a frame of 1048576 bytes)"
    link = remote(Owner())
    sent(link)
    for check in range(1, CHECKS + 1):
        assert not link.over and sent(link) == []
        link.check(check * PERIOD_S)
    assert link.over and link.end() == "the server does not answer the greeting (it says nothing)"


def test_behind_tls_the_first_message_is_the_hello_and_the_rest_follows_when_the_engine_is_ready() -> None:
    owner = Owner()
    owner.messages.append(messages.Release("leg"))
    link = remote(owner, token="")
    (hello,) = sent(link)
    assert isinstance(hello, messages.Hello) and (hello.version, hello.nonce) == (messages.PROTOCOL, b"")
    assert link.end() == (
        "the server has closed the connection without a word: it trusts neither certificate nor token"
    )
    link.receive_data(encode(welcome(version=messages.PROTOCOL)), 0.0)
    assert not link.over and link.end() == "the server has closed the connection" and not link.had_engine
    assert sent(link) == []
    link.receive_data(encode(READY), 0.0)
    assert sent(link) == [messages.Release("leg")] and link.had_engine


def test_a_server_is_of_no_use_by_its_engine_but_only_away_by_its_version() -> None:
    link = remote(Owner(), token="", why_not="its engine is another one")
    link.receive_data(encode(welcome(version=messages.PROTOCOL)), 0.0)
    assert link.unusable == "its engine is another one" and link.events_received() == []
    link = remote(Owner(), token="")
    link.receive_data(encode(welcome(version=messages.PROTOCOL + 1)), 0.0)
    assert link.over and not link.unusable
    link = remote(Owner(), token="")
    link.receive_data(encode(READY) + encode(messages.Refused("it makes no sense")), 0.0)
    assert link.unusable == "it refuses this worker: it makes no sense", "to try again would do it again"


def test_one_that_was_draining_has_ended_as_it_was_asked_to() -> None:
    link = remote(Owner(), token="")
    link.receive_data(encode(READY) + encode(messages.Draining()), 0.0)
    assert not link.retired and link.events_received()[-1] == messages.Draining()
    link.end()
    assert link.retired


def test_a_child_is_sent_its_configuration_then_what_its_owner_has_until_it_is_retired() -> None:
    owner = Owner()
    link = child(owner)
    owner.messages.extend(messages.Withdraw(str(number)) for number in range(3))
    assert link.due and sent(link) == [messages.Withdraw("first")] and not link.due
    link.receive_data(encode(READY), 0.0)
    assert sent(link) == [messages.Withdraw(str(number)) for number in range(3)]
    owner.messages.append(messages.Withdraw("late"))
    link.retired = True
    assert sent(link) == [] and owner.messages


def test_a_child_that_is_needed_is_pinged_and_one_that_says_nothing_is_hung() -> None:
    owner = Owner()
    link = child(owner)
    link.receive_data(encode(READY), 0.5)
    sent(link)
    assert link.deadline == PERIOD_S
    link.check(now := link.deadline)
    link.check(now := now + PERIOD_S)
    assert messages.Ping() in sent(link) and link.deadline == now + PERIOD_S
    link.receive_data(encode(messages.Pong()), now)
    for _ in range(CHECKS):
        assert not link.hung
        link.check(now := now + PERIOD_S)
    link.check(now + PERIOD_S)
    assert link.end("signal 9") == f"the inference process did not answer for {HANG_S:g} s"


@pytest.mark.parametrize(
    ("answer", "reason", "over"),
    [
        (encode(messages.EngineFailed("no weights")), "no weights", True),
        (encode(messages.EngineCrashed("oh")), "the inference process died (oh)", False),
        (b"\xff\xff\xff\xff", "the inference process died (exit status 1)", True),
        (b"\x00\x00\x00\x01\xc0", "the inference process died (exit status 1)", True),
        (b"", "the inference process died (exit status 1)", False),
    ],
)
def test_how_a_child_has_ended_is_a_sentence(answer: bytes, reason: str, over: bool) -> None:
    link = child(Owner())
    link.receive_data(answer, 0.0)
    assert link.over is over and link.end("exit status 1") == reason and link.had_engine
