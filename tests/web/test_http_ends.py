"""Ends of HTTP connections: a peer that sends no more has its answer, and one that is refused sees why."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator

import pytest

from lab.engine.limits import limit, limited
from lab.engine.listener import LISTENER, Limit
from lab.media import material
from lab.patience import seconds, until
from lab.worker.peers import Worker, worker

__all__ = ["limit", "limited"]

TIMES = {"HTTP__HEADER_TIMEOUT_S": "1", "HTTP__TRANSFER_TIMEOUT_S": "1"}
HOST = b"Host: 127.0.0.1\r\n"
AUDIO = b"POST /v1/audio/transcriptions HTTP/1.1\r\n" + HOST + b"Content-Type: multipart/form-data; boundary=b\r\n"
JOBS = AUDIO.replace(b"/v1/audio/transcriptions", b"/v1/jobs")
FILE = b'--b\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\n'
GET = b"GET /healthz HTTP/1.1\r\n" + HOST


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, limited: Limit) -> Iterator[Worker]:
    environ = LISTENER | TIMES | {"SIP__ENABLED": "false"}
    with worker(tmp_path_factory.mktemp("ends"), limited.environ, **environ) as made:
        yield made


@pytest.fixture
def peer(running: Worker) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", running.http_port), seconds(30)) as made:
        yield made


@pytest.fixture(scope="module")
def speech(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("speech") / "a.wav"
    material.splice(path, 5.0, seed=3)
    return path.read_bytes()


def upload(audio: bytes) -> bytes:
    body = FILE + audio + b"\r\n--b--\r\n"
    return AUDIO + b"Content-Length: %d\r\n\r\n" % len(body) + body


def rest(peer: socket.socket) -> bytes:
    """All that comes, to the end. Raises ConnectionResetError."""
    answer = b""
    while data := peer.recv(65536):
        answer += data
    return answer


def answers(data: bytes) -> list[tuple[int, bytes]]:
    """Statuses and bodies of final answers, in order."""
    found = []
    while data:
        head, _, data = data.partition(b"\r\n\r\n")
        status = int(head.split(b" ")[1])
        if status == 100:
            continue
        lengths = [line.split(b":")[1] for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")]
        size = int(lengths[0]) if lengths else len(data)
        found.append((status, data[:size]))
        data = data[size:]
    return found


# -- a peer that sends no more -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sent", "statuses"),
    [
        (GET + b"\r\n", [200]),
        (GET + b"Connection: close\r\n\r\n", [200]),
        (b"GET /healthz HTTP/1.0\r\n\r\n", [200]),
        (b"GET /v1/calls?limit=3 HTTP/1.1\r\n" + HOST + b"\r\n", [200]),
        ((GET + b"\r\n") * 3, [200, 200, 200]),
        (b"GET /nothing HTTP/1.1\r\n" + HOST + b"\r\n", [404]),
        (b"PATCH /v1/calls/x HTTP/1.1\r\n" + HOST + b"Content-Length: 2\r\n\r\n{}", [404]),
        (b"PATCH /v1/calls/x HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n", [404]),
        (upload(b"no audio at all"), [400]),
        (GET + b"\r\n" + GET, [200]),
        (GET, []),
        (AUDIO + b"Content-Length: 100000\r\n\r\n" + FILE, []),
        (b"", []),
    ],
)
def test_a_peer_that_closes_its_side_has_the_answers_to_all_it_has_asked(
    peer: socket.socket, sent: bytes, statuses: list[int]
) -> None:
    peer.sendall(sent)
    peer.shutdown(socket.SHUT_WR)
    assert [status for status, _ in answers(rest(peer))] == statuses


@pytest.mark.parametrize("pause", [False, True])
def test_an_answer_that_takes_long_comes_to_a_half_closed_peer(
    running: Worker, peer: socket.socket, limit: Limit, speech: bytes, pause: bool
) -> None:
    """Whether its end comes with the request or while the engine is at work."""
    limit.set(0)
    peer.sendall(upload(speech))
    if pause:
        until(lambda: running.metric("mediaworker_asr_open_utterances") > 0)
    peer.shutdown(socket.SHUT_WR)
    until(lambda: running.metric("mediaworker_asr_open_utterances") > 0)
    threading.Timer(1.2, limit.lift).start()  # the connection has been looked at by then
    ((status, body),) = answers(rest(peer))
    assert status == 200 and json.loads(body)["text"]


@pytest.mark.parametrize("half_first", [False, True])
def test_the_work_for_a_peer_that_is_gone_ends(running: Worker, limit: Limit, speech: bytes, half_first: bool) -> None:
    limit.set(0)
    with socket.create_connection(("127.0.0.1", running.http_port), seconds(30)) as peer:
        peer.sendall(upload(speech))
        if half_first:
            peer.shutdown(socket.SHUT_WR)
        until(lambda: running.metric("mediaworker_asr_open_utterances") > 0)
        if half_first:
            asked = b"HTTP/1.1 100 Continue\r\n\r\n"  # again and again
            assert peer.recv(len(asked), socket.MSG_WAITALL) == asked, "it is asked whether it is there"
    for name in ("mediaworker_files_open", "mediaworker_asr_open_utterances"):
        until(lambda name=name: running.metric(name) == 0)


# -- a peer that is refused --------------------------------------------------------------------------------------------

BAD = b"Transfer-Encoding: chunked\r\n\r\nZZ\r\n"


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (AUDIO + b"Content-Length: 1000\r\n\r\n--b", 408),
        (AUDIO + b"Transfer-Encoding: chunked\r\n\r\n5\r\n--b", 408),
        (AUDIO + BAD, 400),
        (AUDIO.replace(b"POST", b"GET").replace(b"audio/transcriptions", b"models") + BAD, 400),
        (AUDIO.replace(b" HTTP", b"/stream HTTP") + b"Content-Length: 9\r\n\r\n", 408),
        (JOBS + b"Content-Length: 1000\r\n\r\n--b", 408),
        (JOBS + BAD, 400),
    ],
)
def test_what_the_connection_refuses_has_the_form_of_its_route(peer: socket.socket, sent: bytes, status: int) -> None:
    peer.sendall(sent)
    answer = rest(peer)
    ((found, body),) = answers(answer)
    assert found == status
    if b"/v1/jobs" in sent:
        assert b"application/problem+json" in answer and json.loads(body)["status"] == status
    else:
        assert b"application/json" in answer
        error = json.loads(body)["error"]
        assert set(error) == {"message", "type", "param", "code"} and error["message"]


@pytest.mark.parametrize(
    ("sent", "more", "status"),
    [
        (GET + b"X: ", b"y" * 4_000_000, 431),
        (GET + b"Y: 1\r\n" * 4000, b"Y: 1\r\n" * 400_000, 431),
        (AUDIO + BAD, b"y" * 4_000_000, 400),
        (JOBS + b"Transfer-Encoding: gzip\r\n\r\n", b"y" * 4_000_000, 501),
        (b"nonsense\r\n\r\n", b"y" * 4_000_000, 400),
    ],
)
def test_a_refusal_is_there_for_a_peer_that_sends_everything_first(
    peer: socket.socket, sent: bytes, more: bytes, status: int
) -> None:
    peer.sendall(sent + more)
    ((found, _),) = answers(rest(peer))
    assert found == status


def test_what_follows_a_refusal_is_not_read_for_ever(peer: socket.socket) -> None:
    peer.sendall(AUDIO + BAD)
    sent = 0
    with pytest.raises(ConnectionError):
        while sent < 100_000_000:
            sent += peer.send(bytes(65536))
    assert sent < 30_000_000
