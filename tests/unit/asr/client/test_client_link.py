"""The recognizer's end of a link: what it says and when, to an engine, a server, and whoever pretends to be one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asr import greeting, messages
from asr.client.link import CHECKS, SEND_BYTES, EngineLink, RemoteLink
from asr.utterance import Hypothesis
from config.process.framing import Frames, encode
from config.settings import Asr

HANG_S = 8.0
PERIOD_S = HANG_S / CHECKS
SETTINGS = Asr(server_timeout_s=HANG_S)
TOKEN, ENDS = "a token", (("127.0.0.1", 1), ("127.0.0.1", 2))
READY, HEARD = messages.EngineReady("e", ()), messages.Heard(Hypothesis("u", 1, "text", "en", 4, final=True))


def child(*, start_s: float = HANG_S) -> EngineLink:
    link = EngineLink(messages.Withdraw("first"), hang_s=HANG_S, start_s=start_s)
    link.begin(0.0)
    return link


def remote(token: str = TOKEN, asr: Asr = SETTINGS) -> RemoteLink:
    link = RemoteLink(asr, worker="w", engine=1, token=token)
    link.ends = ENDS
    link.begin(0.0)
    return link


def sent(link: EngineLink) -> list[messages.ToEngine]:
    return [messages.decode_to_engine(body) for body in Frames().feed(link.data_to_send())]


def welcome(proof: bytes = b"", version: int = messages.TOKEN_PROTOCOL) -> messages.Welcome:
    return messages.Welcome(version, "s", "e", "", ("en",), proof)


class Server:
    """The other end of a greeting with a token."""

    def __init__(self, link: RemoteLink, token: str = TOKEN) -> None:
        (hello,) = sent(link)
        assert isinstance(hello, messages.WorkerHello) and (hello.worker, hello.engine) == ("w", 1)
        assert hello.version == messages.TOKEN_PROTOCOL and len(hello.nonce) == greeting.NONCE_BYTES
        self.challenge = messages.Challenge(greeting.nonce())
        self.known = greeting.Greeting(token, hello.nonce, self.challenge.nonce, *ENDS)


@given(st.data())
def test_a_server_that_knows_the_token_is_sent_what_waits_however_its_bytes_are_cut(data: st.DataObject) -> None:
    link = remote()
    server = Server(link)
    assert sent(link) == [] and not link.accepts_messages
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
    assert link.accepts_messages and link.answered and link.ready_s == 1.0 and not link.over


def test_a_long_message_right_behind_the_welcome_is_read() -> None:
    link = remote()
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
def test_whoever_does_not_know_the_token_is_sent_nothing(answers: list[messages.FromEngine], why: str) -> None:
    link = remote()
    for answer in answers:
        link.receive_data(encode(answer), 0.0)
        assert not link.accepts_messages
    assert link.over and link.end().startswith(why)
    assert not link.unusable, "it may be another one soon"


@given(st.lists(st.binary(max_size=300), max_size=8))
def test_noise_in_place_of_a_greeting_is_a_reason_and_no_error(noise: list[bytes]) -> None:
    link = remote()
    for data in noise:
        link.receive_data(data, 0.0)
        assert not link.accepts_messages
    assert link.end() and link.events_received() == []


def test_a_stranger_that_says_nothing_or_too_much_is_left() -> None:
    link = remote()
    link.receive_data((1 << 20).to_bytes(4, "big"), 0.0)
    assert link.over and link.end() == "the server does not answer the greeting (a frame of 1048576 bytes)"
    link = remote()
    sent(link)
    for check in range(1, CHECKS + 1):
        assert not link.over and sent(link) == []
        link.check(check * PERIOD_S)
    assert link.over and link.end() == "the server does not answer the greeting (it says nothing)"


def test_behind_tls_the_first_message_is_the_hello_and_the_rest_follows_when_the_engine_is_ready() -> None:
    link = remote(token="")
    (hello,) = sent(link)
    assert isinstance(hello, messages.WorkerHello) and (hello.version, hello.nonce) == (messages.PROTOCOL, b"")
    assert link.end() == (
        "the server has closed the connection without a word: it trusts neither certificate nor token"
    )
    link.receive_data(encode(welcome(version=messages.PROTOCOL)), 0.0)
    assert not link.over and link.end() == "the server has closed the connection" and not link.had_engine
    assert not link.accepts_messages
    link.receive_data(encode(READY), 0.0)
    assert link.accepts_messages and link.had_engine


def test_a_server_is_of_no_use_by_its_engine_but_only_away_by_its_version() -> None:
    link = remote("", Asr(engine="qwen"))
    link.receive_data(encode(welcome(version=messages.PROTOCOL)), 0.0)
    assert link.unusable == "its engine is e, and asr.engine asks for qwen" and link.events_received() == []
    link = remote(token="")
    link.receive_data(encode(welcome(version=messages.PROTOCOL + 1)), 0.0)
    assert link.over and not link.unusable
    link = remote(token="")
    link.receive_data(encode(READY) + encode(messages.Refused("it makes no sense")), 0.0)
    assert link.unusable == "it refuses this worker: it makes no sense", "to try again would do it again"


def test_one_that_was_draining_has_ended_as_it_was_asked_to() -> None:
    link = remote(token="")
    link.receive_data(encode(READY) + encode(messages.Draining()), 0.0)
    assert not link.retired and link.events_received()[-1] == messages.Draining()
    link.end()
    assert link.retired


def test_a_child_is_sent_its_configuration_and_takes_messages_until_it_is_retired() -> None:
    link = child()
    assert sent(link) == [messages.Withdraw("first")] and not link.accepts_messages
    link.receive_data(encode(READY), 0.0)
    assert link.accepts_messages
    while link.accepts_messages:
        link.send(messages.Withdraw("x" * 1000))
    assert SEND_BYTES <= len(link.data_to_send()) < SEND_BYTES + 2000 and link.accepts_messages
    link.send(messages.Withdraw("late"))
    link.retired = True
    assert sent(link) == [] and not link.accepts_messages


def test_a_child_that_is_needed_is_pinged_and_one_that_says_nothing_is_hung() -> None:
    link = child()
    link.receive_data(encode(READY), 0.5)
    sent(link)
    assert link.deadline == PERIOD_S
    link.check(now := link.deadline, needed=True)
    link.check(now := now + PERIOD_S, needed=True)
    assert messages.Ping() in sent(link) and link.deadline == now + PERIOD_S
    link.receive_data(encode(messages.Pong()), now)
    for _ in range(CHECKS):
        assert not link.hung
        link.check(now := now + PERIOD_S, needed=True)
    link.check(now + PERIOD_S, needed=True)
    assert link.end("signal 9") == f"the inference process did not answer for {HANG_S:g} s"


def checked(link: EngineLink, checks: int, *, needed: bool) -> list[str]:
    """What each check has found: a ping, a hang, or nothing."""
    found = []
    for _ in range(checks):
        link.check(0.0, needed=needed)
        found.append("hung" if link.hung else "ping" if sent(link) else "")
    return found


def test_a_load_may_take_its_time_whether_it_is_needed_or_not() -> None:
    link = child(start_s=6 * HANG_S)
    sent(link)
    assert checked(link, 6 * CHECKS, needed=False) == [""] * (6 * CHECKS - 1) + ["hung"]


def test_checks_are_counted_from_the_first_that_expects_an_answer() -> None:
    link = child()
    link.receive_data(encode(READY), 0.0)
    sent(link)
    assert checked(link, 1, needed=True) == ["ping"]
    link.receive_data(encode(messages.Pong()), 0.0)
    assert checked(link, CHECKS, needed=True) == ["ping"] + [""] * (CHECKS - 1)
    link.receive_data(encode(messages.Pong()), 0.0)
    assert checked(link, CHECKS + 1, needed=True) == ["ping"] + [""] * (CHECKS - 1) + ["hung"], "not at the last moment"
    link = child()
    link.receive_data(encode(READY), 0.0)
    sent(link)
    assert checked(link, 100, needed=False) == [""] * 100, "nobody asks while nobody needs it"
    assert checked(link, CHECKS + 1, needed=True)[-1] == "hung"


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
    link = child()
    link.receive_data(answer, 0.0)
    assert link.over is over and link.end("exit status 1") == reason and link.had_engine
