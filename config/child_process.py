"""Child processes that are reached over sockets: the inference process and the decoder of a file.

The parent calls `spawn`, `kill`, `end` and `how`; the child calls `end_with_parent`. Any process may call
`forbid_tracing`.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import signal
import sys
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Mapping, Sequence

import structlog

log = structlog.get_logger("asr")

END_S = 5.0
"""How long a child gets to end by itself, and once more after a kill."""
PR_SET_PDEATHSIG, PR_SET_DUMPABLE = 1, 4
"""linux/prctl.h"""


async def spawn(
    module: str, descriptors: Sequence[int], *arguments: str, env: Mapping[str, str] | None = None
) -> Process:
    """Run the module with its copies of these descriptors, named by their numbers; its log goes to our stderr."""
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


def kill(process: Process) -> None:
    """Nothing happens if it has ended."""
    with contextlib.suppress(ProcessLookupError):
        process.kill()


async def end(process: Process) -> int:
    """Wait until it is gone; its requests are closed, which ends it unless it hangs."""
    for last_resort in (False, True):
        if last_resort:
            kill(process)
        try:
            async with asyncio.timeout(END_S):
                return await process.wait()
        except TimeoutError:
            pass
    # It sits in a driver and no signal reaches it. Callers wait for the next one, not for this.
    log.critical("a child process cannot be ended", pid=process.pid)
    return -signal.SIGKILL


def how(code: int) -> str:
    """How it ended, from its exit status."""
    return f"signal {-code}" if code < 0 else f"exit status {code}"


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
