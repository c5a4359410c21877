"""Starting and ending the inference process."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import sys
from asyncio.subprocess import DEVNULL, Process

import structlog

log = structlog.get_logger("asr")

END_S = 5.0
"""It gets so long to go by itself, and as long again after a kill."""


async def spawn(requests: socket.socket, answers: socket.socket) -> Process:
    """Start `asr.process`, which reads from `requests` and writes to `answers`; its log goes to our stderr."""
    descriptors = [requests.fileno(), answers.fileno()]
    # A session of its own: Ctrl-C at the terminal is for the parent, which wants its last finals first.
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "asr.process",
        *map(str, descriptors),
        stdin=DEVNULL,
        stdout=DEVNULL,
        pass_fds=descriptors,
        start_new_session=True,
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
    log.critical("the inference process cannot be ended", pid=process.pid)
    return -signal.SIGKILL


def how(code: int) -> str:
    """How it ended, from its exit status."""
    return f"signal {-code}" if code < 0 else f"exit status {code}"
