"""What the inference process does with answers that nobody reads just now."""

from __future__ import annotations

import socket
import threading

from asr import messages
from asr.server import process
from asr.server.process import Answers, _drain
from config.framing import Frames

MANY = 50_000
"""More answers than a socket holds, and less than `MAX_WAITING_BYTES`."""


def read(channel: socket.socket, count: int) -> list[messages.FromEngine]:
    frames, found = Frames(), list[messages.FromEngine]()
    while len(found) < count:
        found += map(messages.decode_from_engine, frames.feed(channel.recv(1 << 20)))
    return found


def test_a_media_process_that_stands_still_does_not_hold_the_engine_up() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        answers = Answers(ours)
        for number in range(MANY):
            answers.send(messages.Working((f"utterance-{number}",)))
        assert answers.waiting
        inbox: process.Inbox = process.SimpleQueue()
        reader = threading.Thread(target=lambda: inbox.put((1.0, _last(read(theirs, MANY)))))
        reader.start()
        assert list(_drain(inbox, answers, wait=True)) == [(1.0, messages.Withdraw(f"utterance-{MANY - 1}"))]
        reader.join()
        assert not answers.waiting, "they were written while there was nothing else to do"


def _last(heard: list[messages.FromEngine]) -> messages.ToEngine:
    """What a media process asks for that has read all answers in their order."""
    assert [each.utterance_ids[0] for each in heard if isinstance(each, messages.Working)] == [
        f"utterance-{number}" for number in range(MANY)
    ]
    return messages.Withdraw(heard[-1].utterance_ids[0])  # type: ignore[union-attr]


def test_the_last_answer_and_what_is_too_much_are_waited_for() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        answers = Answers(ours)
        reason = "x" * 1_000_000
        count = process.MAX_WAITING_BYTES // len(reason) + 4
        found: list[messages.FromEngine] = []
        reader = threading.Thread(target=lambda: found.extend(read(theirs, count)))
        for number in range(count):
            if number == count - 4:
                reader.start()  # without it nobody would come back from here
            answers.send(messages.EngineFailed(f"{number} {reason}"), last=number == count - 1)
        assert not answers.waiting
        reader.join()
        assert [int(each.reason.split()[0]) for each in found] == list(range(count))  # type: ignore[union-attr]
