"""A TCP proxy that cuts connections when it is told to, in the middle of whatever they carry, or swallows them."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct


class CuttingProxy:
    """`target` may change while it runs; without one, connections are refused as by a worker that is away."""

    def __init__(self, target: int | None = None, *, listens: bool = False) -> None:
        """`listens`: it keeps what clients say."""
        self.target = target
        self.said: list[bytearray] | None = [] if listens else None
        """In each connection."""
        self.port = 0
        self.connections = 0
        self.answers = asyncio.Event()
        """While it is cleared, what the target says is held back."""
        self.answers.set()
        self.swallows = False
        """A connection that is made while it is set is never answered, also afterwards: a network that hangs."""
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> CuttingProxy:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        self.answers.set()
        self.cut()
        await self._server.wait_closed()

    def cut(self) -> int:
        """Reset every connection; how many there were."""
        count = len(self._writers)
        for writer in tuple(self._writers):
            # Linger 0: what is on its way is lost, as when a cable is pulled.
            peer = writer.get_extra_info("socket")
            with contextlib.suppress(OSError):
                peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()
        return count // 2

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        if self.swallows:
            await self._swallow(reader, writer)
            return
        try:
            if self.target is None:
                raise ConnectionRefusedError
            there, onward = await asyncio.open_connection("127.0.0.1", self.target)
        except OSError:
            writer.transport.abort()
            return
        pair = (writer, onward)
        self._writers.update(pair)
        try:
            said = bytearray()
            if self.said is not None:
                self.said.append(said)
            await asyncio.gather(
                _pass_on(reader, onward, said=None if self.said is None else said),
                _pass_on(there, writer, self.answers),
            )
        finally:
            self._writers.difference_update(pair)
            for each in pair:
                each.transport.abort()

    async def _swallow(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            with contextlib.suppress(ConnectionError):
                while await reader.read(4096):
                    pass
        finally:
            self._writers.discard(writer)
            writer.transport.abort()


async def _pass_on(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    opened: asyncio.Event | None = None,
    *,
    said: bytearray | None = None,
) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(4096):
            if said is not None:
                said += data
            if opened is not None:
                await opened.wait()
            writer.write(data)
            await writer.drain()
    writer.transport.abort()
