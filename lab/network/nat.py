"""A STUN server, and a NAT: who sends through it appears outside at another address, with another port."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import subprocess
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from lab.network.ports import ports
from lab.patience import until

Address = tuple[str, int]
OUTSIDE = "127.0.0.2"


@contextlib.contextmanager
def stun_server(folder: Path) -> Iterator[Address]:
    """coturn, which answers Binding requests and nothing else."""
    (port,) = ports(1)
    command = [
        "turnserver", "-n", "--stun-only", "--no-tls", "--no-dtls", "--no-cli",
        "--listening-ip", "127.0.0.1", "--listening-port", str(port), "--pidfile", str(folder / "turnserver.pid"),
        "--log-file", "stdout", "--userdb", str(folder / "turndb"),
    ]  # fmt: skip
    log = folder / "turnserver.log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, cwd=folder)
    try:
        until(lambda: process.poll() is not None or _answers(port), 20, "coturn answers")
        assert process.poll() is None, log.read_text()
        yield "127.0.0.1", port
    finally:
        process.terminate()
        process.wait(10)


def _answers(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as own:
        own.settimeout(0.2)
        own.sendto(b"\x00\x01\x00\x00\x21\x12\xa4\x42" + bytes(12), ("127.0.0.1", port))
        with contextlib.suppress(OSError):
            return own.recv(1000)[:2] == b"\x01\x01"
    return False


@dataclass
class Nat:
    """Everything that is sent to `inside` goes to `server`, from a port of OUTSIDE for each sender: a full-cone NAT.

    What comes back to such a port from anywhere goes to the sender that it belongs to.
    """

    server: Address
    inside: Address = ("", 0)
    doors: dict[Address, Door] = field(default_factory=dict)
    """By the address inside."""
    silent: bool = False
    """Nothing gets through."""

    def forget(self) -> None:
        """As when it is started again: what is sent next has new ports."""
        for door in self.doors.values():
            door.close()
        self.doors.clear()


class Door(asyncio.DatagramProtocol):
    """One mapping. `owner` is inside; the last who wrote to it from outside is written back to."""

    def __init__(self, nat: Nat, owner: Address, place: Address, inner: asyncio.DatagramTransport) -> None:
        self.nat, self.owner, self.place, self.inner = nat, owner, place, inner
        self.peers: list[Address] = []
        self.transport: asyncio.DatagramTransport | None = None

    def close(self) -> None:
        if self.transport is not None:
            self.transport.close()

    def connection_made(self, transport: asyncio.DatagramTransport) -> None:  # type: ignore[override]
        self.transport = transport

    def datagram_received(self, data: bytes, addr: Address) -> None:
        if addr != self.nat.server:
            self.peers.append(addr)
        self.inner.sendto(data, self.owner)


class _Inside(asyncio.DatagramProtocol):
    def __init__(self, nat: Nat) -> None:
        self.nat = nat
        self.transport: asyncio.DatagramTransport

    def connection_made(self, transport: asyncio.DatagramTransport) -> None:  # type: ignore[override]
        self.transport = transport

    def datagram_received(self, data: bytes, addr: Address) -> None:
        if self.nat.silent:
            return
        stun = len(data) >= 20 and data[4:8] == b"\x21\x12\xa4\x42"
        door = self.nat.doors.get(addr)
        if door is None:
            own = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            own.setblocking(False)
            own.bind((OUTSIDE, 0))
            door = self.nat.doors[addr] = Door(self.nat, addr, own.getsockname(), self.transport)
            self._opening = asyncio.ensure_future(self._open(door, own, data))
        elif door.transport is None:
            pass
        elif stun:
            door.transport.sendto(data, self.nat.server)
        elif door.peers:
            door.transport.sendto(data, door.peers[-1])

    async def _open(self, door: Door, own: socket.socket, data: bytes) -> None:
        await asyncio.get_running_loop().create_datagram_endpoint(lambda: door, sock=own)
        assert door.transport is not None
        door.transport.sendto(data, self.nat.server)


@contextlib.asynccontextmanager
async def nat(server: Address) -> AsyncIterator[Nat]:
    """Ask at `inside` for what is asked of the server."""
    made = Nat(server)
    transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(
        lambda: _Inside(made), local_addr=("127.0.0.1", 0)
    )
    made.inside = transport.get_extra_info("sockname")
    try:
        yield made
    finally:
        transport.close()
        for door in made.doors.values():
            door.close()
