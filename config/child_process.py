"""Child processes that are reached over sockets: the inference process and the decoder of a file.

The parent runs one by `running`, and calls `kill`, `end` and `how`; the child calls `end_with_parent`. Any process may
call `forbid_tracing`.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import resource
import signal
import socket
import sys
from asyncio.subprocess import DEVNULL, Process
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass

import structlog

log = structlog.get_logger("asr")

END_S = 5.0
"""How long a child gets to end by itself, and once more after a kill."""
PR_SET_PDEATHSIG, PR_SET_DUMPABLE = 1, 4
"""linux/prctl.h"""


@dataclass(slots=True)
class ChildProcess:
    """A child process with one channel each way.

    With a channel for both, a child that dies with requests unread would take its last answers with it, which say what
    it was working on.
    """

    process: Process
    writer: asyncio.StreamWriter
    reader: asyncio.StreamReader
    code: int | None = None
    """Its exit status, once `running` has been left."""


@contextlib.asynccontextmanager
async def running(
    module: str, *arguments: str, descriptors: Sequence[int] = (), env: Mapping[str, str] | None = None
) -> AsyncIterator[ChildProcess]:
    """Run the module with its copies of these descriptors and of its two sockets, requests and then answers.

    The numbers of all of them are its first arguments; its log goes to our stderr. At the end its requests are closed,
    which ends it unless it hangs, and it is waited for. Raises OSError when no process is to be had.
    """
    async with contextlib.AsyncExitStack() as stack:
        with contextlib.ExitStack() as theirs:
            pairs = []
            for _ in ("requests", "answers"):
                one, other = socket.socketpair()
                pairs.append((stack.enter_context(one), theirs.enter_context(other)))
            (requests, reads), (answers, writes) = pairs
            process = await spawn(module, (*descriptors, reads.fileno(), writes.fileno()), *arguments, env=env)
        try:
            async with contextlib.AsyncExitStack() as streams:
                reader, answering = await asyncio.open_connection(sock=answers)
                streams.push_async_callback(_close, answering)
                _, writer = await asyncio.open_connection(sock=requests)
                streams.push_async_callback(_close, writer)
                child = ChildProcess(process, writer, reader)
                yield child
        finally:
            requests.close()
            code = await end(process)
        child.code = code


async def spawn(
    module: str, descriptors: Sequence[int], *arguments: str, env: Mapping[str, str] | None = None
) -> Process:
    # A session of its own: Ctrl-C at the terminal is for the parent, which wants its last finals first.
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        module,
        *map(str, descriptors),
        *arguments,
        stdin=DEVNULL,
        stdout=DEVNULL,
        pass_fds=descriptors,
        start_new_session=True,
        env=env,
    )


async def _close(stream: asyncio.StreamWriter) -> None:
    stream.close()
    with contextlib.suppress(ConnectionError):
        await stream.wait_closed()


def kill(process: Process) -> None:
    """Does nothing if the process has ended."""
    with contextlib.suppress(ProcessLookupError):
        process.kill()


async def end(process: Process) -> int:
    """Wait for a process that is about to end, kill it if it hangs, and return its exit status."""
    for last_resort in (False, True):
        if last_resort:
            kill(process)
        try:
            async with asyncio.timeout(END_S):
                return await process.wait()
        except TimeoutError:
            pass
    # It is stuck in a driver and no signal reaches it. Callers wait for the next process, not for this one.
    log.critical("a child process cannot be ended", pid=process.pid)
    return -signal.SIGKILL


def how(code: int) -> str:
    """How it ended, from its exit status."""
    return f"signal {-code}" if code < 0 else f"exit status {code}"


def resident_bytes(pid: int | str = "self") -> float:
    """The resident memory of a process of this machine; 0 for one that has ended."""
    try:
        with open(f"/proc/{pid}/statm") as file:
            return float(int(file.read().split()[1]) * resource.getpagesize())
    except FileNotFoundError:
        return 0.0


def end_with_parent() -> None:
    """Called first thing in a child: it ends with its parent, and not before.

    Ctrl-C and a service manager's SIGTERM reach the whole group, while the parent still wants its last finals. A parent
    that has died before this call has closed the child's sockets.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def forbid_tracing() -> None:
    """Keep this process's memory from other processes of the same user: none may trace it or read /proc/PID/mem.

    It leaves no core dump either, unless the kernel is told to write those of protected processes for root alone
    (`fs.suid_dumpable=2`, proc(5)). Root may still trace it.
    """
    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
