"""One inference process with several links, over real sockets: what each is answered, and what none may cost."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import AsyncIterator

import pytest

from asr import messages
from asr.client.local_pool import configurations
from asr.utterance import Utterance
from config.process import child_process, framing
from lab.engine.listener import words
from lab.engine.recognizer import PROMPT, codes, install_listener, of_listener
from lab.patience import wait_for

AUDIO = codes(PROMPT)
WORDS = " ".join(words(AUDIO))


@pytest.fixture(autouse=True)
def found(monkeypatch: pytest.MonkeyPatch) -> None:
    install_listener(monkeypatch)


class End:
    """One end of a link."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.heard: list[messages.FromEngine] = []
        self._frames = framing.Frames()

    def send(self, *sent: messages.ToEngine) -> None:
        for message in sent:
            self.writer.write(framing.encode(message))

    def say(self, name: str, *, revision: int = 1) -> None:
        self.send(
            messages.Open(Utterance(name, "PCMU", stream="leg")),
            messages.Append(name, 0, AUDIO),
            messages.FinalRequest(name, revision, len(AUDIO), commit=True),
        )

    async def until(self, *kinds: type[messages.FromEngine]) -> messages.FromEngine:
        """-> the next message of one of these kinds. Raises EOFError."""
        while True:
            while self.heard:
                if isinstance(message := self.heard.pop(0), kinds):
                    return message
            data = await wait_for(self.reader.read(65536), 60)
            if not data:
                raise EOFError
            self.heard += map(messages.decode_from_engine, self._frames.feed(data))

    async def final(self, name: str) -> str:
        message = await self.until(messages.Heard)
        assert isinstance(message, messages.Heard) and message.hypothesis.final
        assert (message.hypothesis.utterance_id, message.hypothesis.error) == (name, None)
        return message.hypothesis.text


class Process:
    """An inference process, and its parent's end of the socket that passes links on."""

    def __init__(self, parent: End, links: socket.socket, pid: int) -> None:
        self.parent, self.pid, self._links = parent, pid, links
        self.ends: list[End] = []
        self._numbers = 0

    async def attach(self, worker: str = "a worker") -> End:
        self._numbers += 1
        ours, theirs = socket.socketpair()
        with theirs:
            body = framing.encode(messages.Attach(self._numbers, worker))[4:]
            socket.send_fds(self._links, [body], [theirs.fileno()])
        self.ends.append(end := End(*await asyncio.open_connection(sock=ours)))
        return end


@contextlib.asynccontextmanager
async def process() -> AsyncIterator[Process]:
    """One that is ready."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    (configure,) = configurations("listener", of_listener())
    with ours:
        with theirs:
            running = child_process.running("asr.inference.process", descriptors=(theirs.fileno(),))
            child = await running.__aenter__()
        try:
            made = Process(End(child.reader, child.writer), ours, child.process.pid)
            made.parent.send(configure)
            await made.parent.until(messages.EngineReady)
            yield made
        finally:
            for end in made.ends:
                end.writer.transport.abort()
            await running.__aexit__(None, None, None)


async def test_the_same_names_of_two_workers_are_told_apart() -> None:
    async with process() as made:
        one, two = await made.attach(), await made.attach()
        for end in (one, two):
            assert isinstance(await end.until(messages.EngineReady), messages.EngineReady)
            end.say("leg/1")
        assert [await end.final("leg/1") for end in (one, two)] == [WORDS] * 2


async def test_a_worker_that_makes_no_sense_loses_its_link_and_the_others_notice_nothing() -> None:
    async with process() as made:
        good = await made.attach()
        for noise in (framing.encode(messages.WorkerHello(1)), b"\xff\xff\xff\xff", b"\x00\x00\x00\x01\xc0" * 1000):
            bad = await made.attach()
            bad.say("leg/1")
            bad.writer.write(noise)
            assert isinstance(await bad.until(messages.Refused), messages.Refused)
            with pytest.raises(EOFError):
                await bad.until(messages.Pong)
            assert isinstance(await made.parent.until(messages.LinkClosed), messages.LinkClosed)
        good.say("leg/1")
        assert await good.final("leg/1") == WORDS
        await _emptied(made)


async def test_a_worker_that_is_gone_leaves_nothing() -> None:
    async with process() as made:
        for number in range(20):
            gone = await made.attach()
            gone.send(messages.Open(Utterance(f"u{number}", "PCMU", stream="leg")), messages.Append("u", 0, AUDIO))
            if number % 2:
                await gone.until(messages.EngineReady)
            gone.writer.transport.abort()
        stays = await made.attach()
        stays.say("u")
        assert await stays.final("u") == WORDS
        stays.send(messages.Release("leg"))
        await _emptied(made)


async def _emptied(made: Process) -> None:
    """Nothing is left of those that are gone."""
    while True:
        usage = await made.parent.until(messages.Usage)
        assert isinstance(usage, messages.Usage)
        if usage.open_utterances == usage.audio_bytes == 0:
            return


async def test_one_that_does_not_read_does_not_hold_the_others_up() -> None:
    """Nor does one that writes far more at once than it is read."""
    async with process() as made:
        silent, other = await made.attach(), await made.attach()
        for _ in range(200_000):
            silent.send(messages.Ping())
        other.say("u")
        assert await other.final("u") == WORDS
        os.kill(made.pid, signal.SIGSTOP)
        silent.writer.write(framing.encode(messages.Append("nobody", 0, bytes(1 << 18))) * 200)
        os.kill(made.pid, signal.SIGCONT)
        other.say("v")
        assert await other.final("v") == WORDS


async def test_what_was_answered_can_be_read_when_the_process_has_died() -> None:
    async with process() as made:
        worker = await made.attach()
        worker.say("u")
        while (await made.parent.until(messages.Usage)).counters.finals < 1:  # type: ignore[union-attr]
            pass
        os.kill(made.pid, signal.SIGKILL)
        assert await worker.final("u") == WORDS
        with pytest.raises(EOFError):
            await worker.until(messages.Pong)
