"""Child processes with socket channels to their parent: the inference process and the decoder of a file.

The parent calls `running` to run a child, and `kill`, `end` and `how`. The child calls `end_with_parent`. Any process
may call `forbid_tracing`.
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
"""The time that a child has to end by itself, and again after a kill."""
PR_SET_PDEATHSIG, PR_SET_DUMPABLE = 1, 4
"""linux/prctl.h"""


@dataclass(slots=True)
class ChildProcess:
    """A child process with one channel in each direction.

    If both directions shared a socket, the kernel would reset it when a child dies with unread requests. That would
    destroy the child's last responses, which show what it was working on.
    """

    process: Process
    writer: asyncio.StreamWriter
    reader: asyncio.StreamReader
    code: int | None = None
    """The exit status; None until `running` has been left."""


@contextlib.asynccontextmanager
async def running(
    module: str, *arguments: str, descriptors: Sequence[int] = (), env: Mapping[str, str] | None = None
) -> AsyncIterator[ChildProcess]:
    """Run a module as a child process that inherits these descriptors and two sockets, for requests and responses.

    The numbers of all descriptors are the module's first arguments; its log goes to our stderr. On exit the request
    socket is closed, which ends the child unless it hangs, and the parent waits for it. Raises OSError if no process
    can be started.
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
    # A new session, so that Ctrl-C at the terminal reaches only the parent, which still needs the last finals.
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
    """Kill the process, unless it has ended."""
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
    # The process is stuck in a driver, where no signal reaches it. Callers need the next process, not this one.
    log.critical("a child process cannot be ended", pid=process.pid)
    return -signal.SIGKILL


def how(code: int) -> str:
    """The words for an exit status: a signal's number, or the status."""
    return f"signal {-code}" if code < 0 else f"exit status {code}"


def resident_bytes(pid: int | str = "self") -> float:
    """The resident memory of a process of this machine; 0 for one that has ended."""
    try:
        with open(f"/proc/{pid}/statm") as file:
            return float(int(file.read().split()[1]) * resource.getpagesize())
    except FileNotFoundError:
        return 0.0


def end_with_parent() -> None:
    """Make this child process end with its parent, and not before; the child calls it first.

    Ctrl-C and a service manager's SIGTERM reach the whole group while the parent still needs the last finals, so the
    child ignores them. If the parent died before this call, the child ends because its sockets are closed.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def forbid_tracing() -> None:
    """Keep this process's memory from other processes of the same user: none may trace it or read /proc/PID/mem.

    The process leaves no core dump either, unless the kernel is configured to write those of protected processes for
    root alone (`fs.suid_dumpable=2`, proc(5)). Root may still trace it.
    """
    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
