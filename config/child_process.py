"""Starting and ending a child process that is spoken to over sockets: the inference process, the reader of a file."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Mapping, Sequence

import structlog

log = structlog.get_logger("asr")

END_S = 5.0
"""It gets so long to go by itself, and as long again after a kill."""


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
