"""What the inference process does with answers that nobody reads just now."""

from __future__ import annotations

import socket
import threading

from asr import messages
from asr.inference import process
from asr.inference.inference import Inference
from asr.inference.links import ServedLink, ServedLinks
from asr.inference.process import EngineLoop, LinkSocket
from config.process.framing import Frames
from lab.engine.hash_engine import HashEngine

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
        parent, inbox = LinkSocket(ServedLink(), ours), process.Inbox()
        loop = EngineLoop(parent, inbox, ServedLinks(Inference(HashEngine()), parent.link))
        parent.write()
        read(theirs, 1)
        for number in range(MANY):
            parent.link.send(messages.Working((f"utterance-{number}",)))
            parent.write()
        assert parent.link.outgoing
        reader = threading.Thread(target=lambda: inbox.put((parent, 1.0, 0, [_last(read(theirs, MANY))])))
        reader.start()
        (event,) = loop.drain(wait=True)
        assert event[3] == [messages.Withdraw(f"utterance-{MANY - 1}")]
        reader.join()
        assert not parent.link.outgoing, "they were written while there was nothing else to do"


def _last(heard: list[messages.FromEngine]) -> messages.ToEngine:
    """What a media process asks for that has read all answers in their order."""
    assert [each.utterance_ids[0] for each in heard if isinstance(each, messages.Working)] == [
        f"utterance-{number}" for number in range(MANY)
    ]
    return messages.Withdraw(heard[-1].utterance_ids[0])  # type: ignore[union-attr]


def test_the_last_answer_and_what_is_too_much_are_waited_for() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        answers = LinkSocket(ServedLink(), ours)
        reason = "x" * 1_000_000
        count = process.MAX_WAITING_BYTES // len(reason) + 4
        found: list[messages.FromEngine] = []
        reader = threading.Thread(target=lambda: found.extend(read(theirs, count)))
        for number in range(count):
            if number == count - 4:
                reader.start()  # without it nobody would come back from here
            answers.link.send(messages.EngineFailed(f"{number} {reason}"))
            answers.write()
        answers.write(0)
        assert not answers.link.outgoing
        reader.join()
        assert [int(each.reason.split()[0]) for each in found] == list(range(count))  # type: ignore[union-attr]
