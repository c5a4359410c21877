"""What an HTTP connection waits for, by times that are passed in, and fragments counted by the heads of frames."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.frames import Frame, Opcode

from mediaworker.http import request_watch
from mediaworker.http.fragments import FragmentCounter
from mediaworker.http.request_watch import BadRequest, RequestWatch

GET = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
POST = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\n"


def watching() -> RequestWatch:
    return RequestWatch(0.0, header_timeout_s=2, stall_s=3)


def test_a_connection_that_says_nothing_is_silent_and_half_a_head_is_late() -> None:
    watch = watching()
    assert (watch.overdue(1.9), watch.overdue(2.0)) == ("", "silent")
    watch = watching()
    watch.receive(GET[:5], 1.0)
    watch.receive(GET[5:9], 1.9)
    assert (watch.overdue(1.9), watch.overdue(2.0)) == ("", "late")


def test_a_body_has_its_grace_and_a_least_rate() -> None:
    watch = watching()
    watch.receive(POST.replace(b"4", b"99999"), 1.0)
    assert watch.overdue(3.9) == ""
    watch.receive(b"x" * 2000, 3.9)
    assert (watch.overdue(5.9), watch.overdue(6.1)) == ("", "late")
    watch = watching()
    watch.receive(POST, 1.0)
    watch.postpone(100.0)
    assert (watch.overdue(102.9), watch.overdue(103.0)) == ("", "late"), "while we do not read, the peer is not slow"


def test_a_body_behind_its_answer_is_read_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_watch, "UNREAD_BYTES", 1000)
    watch = watching()
    watch.receive(POST.replace(b"4", b"9999999"), 1.0)
    assert watch.answered(1.5) == b""
    assert (watch.overdue(6.4), watch.overdue(6.5)) == ("", "silent")
    for second in range(4, 32, 4):
        watch.receive(b"x", float(second))
    assert (watch.overdue(31.4), watch.overdue(31.5)) == ("", "silent"), "however steadily it comes"
    watch.receive(b"x" * 993, 2.0)
    assert not watch.floods
    watch.receive(b"x", 2.0)
    assert watch.floods


def test_of_a_body_that_may_have_no_end_less_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_watch, "UNREAD_CHUNKED_BYTES", 100)
    watch = watching()
    watch.receive(b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n", 1.0)
    assert watch.answered(1.0) == b"" and watch.unread
    watch.receive(b"5e\r\n" + b"x" * 94 + b"\r\n", 1.0)
    assert not watch.floods
    watch.receive(b"1\r\nx\r\n", 1.0)
    assert watch.floods


@pytest.mark.parametrize(
    "request_bytes",
    [
        GET,
        POST + b"abcd",
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nabcd\r\n0\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n",
    ],
)
@pytest.mark.parametrize("before", [0, 1, 20])
def test_a_request_that_is_refused_is_read_to_its_end(request_bytes: bytes, before: int) -> None:
    watch = watching()
    if before:
        assert watch.receive(request_bytes[:before], 1.0) == request_bytes[:before]
    watch.refuse(1.0)
    for byte in request_bytes[before:]:
        assert watch.unread
        assert watch.receive(bytes([byte]), 1.0) == b""
    assert not watch.unread and not watch.floods


def test_what_is_refused_and_has_no_end_is_read_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_watch, "UNREAD_CHUNKED_BYTES", 1000)
    watch = watching()
    watch.refuse(1.0)
    assert (watch.overdue(5.9), watch.overdue(6.0)) == ("", "silent")
    watch.receive(b"nonsense\r\n\r\n", 2.0)
    for _ in range(4):
        watch.receive(GET * 9, 2.0)
        assert watch.unread, "nothing that comes behind it is taken for a request"
    assert not watch.floods
    watch.receive(b"x" * 100, 2.0)
    assert watch.floods


def test_one_request_is_passed_on_at_a_time() -> None:
    watch = watching()
    assert watch.receive(GET + POST + b"abcd" + GET[:4], 1.0) == GET
    assert (watch.later, watch.overdue(1e9)) == (POST + b"abcd" + GET[:4], "")
    assert watch.receive(GET[4:], 2.0) == b""
    assert watch.answered(3.0) == POST + b"abcd"
    assert watch.answered(4.0) == GET
    assert watch.answered(5.0) == b"" and watch.overdue(1e9) == "", "between requests the server has its own timer"


def test_a_request_that_is_answered_before_it_has_come_is_followed_by_the_next() -> None:
    watch = watching()
    assert watch.receive(POST + b"ab", 1.0) == POST + b"ab"
    watch.answer_begun = True
    assert watch.answered(1.0) == b""
    assert watch.receive(b"cd" + GET + GET, 1.5) == b"cd" + GET
    assert not watch.answer_begun and watch.later == GET


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"y" * 20000 + b"\r\n\r\n", 431),
        (b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\n\r\n", 501),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
        (b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
        (b"GET / HTTP/1.0\r\nUpgrade: websocket\r\n\r\n", 426),
        (b"PRI * HTTP/2.0\r\n\r\n", 505),
    ],
)
@pytest.mark.parametrize("pipelined", [False, True])
def test_what_is_not_http_has_its_status(request_bytes: bytes, status: int, pipelined: bool) -> None:
    watch = watching()
    with pytest.raises(BadRequest) as refused:
        if pipelined:
            assert watch.receive(GET + request_bytes, 1.0) == GET
            watch.answered(2.0)
        else:
            watch.receive(request_bytes, 1.0)
    assert refused.value.status == status


sizes = st.sampled_from((0, 1, 125, 126, 65535, 65536))
message = st.tuples(sizes, st.integers(0, 5), st.booleans())


@given(st.lists(message, min_size=1, max_size=5), st.integers(1, 70000))
def test_fragments_are_counted_however_the_bytes_come(messages: list[tuple[int, int, bool]], step: int) -> None:
    data, most = b"", 0
    for size, more, ping in messages:
        frames = [Frame(Opcode.TEXT, b"x" * size, fin=not more)]
        frames += [Frame(Opcode.CONT, b"", fin=at == more - 1) for at in range(more)]
        if ping:
            frames.insert(1, Frame(Opcode.PING, b"p"))
        data += b"".join(frame.serialize(mask=True) for frame in frames)
        most = max(most, 1 + more)
    counter = FragmentCounter()
    assert max(counter.feed(data[at : at + step]) for at in range(0, len(data), step)) == most
