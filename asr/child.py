"""Starting and ending the inference process."""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
from asyncio.subprocess import DEVNULL, Process

import structlog

log = structlog.get_logger("asr")

END_S = 5.0
"""It gets so long to go by itself, and as long again after a kill."""


async def spawn(channel: socket.socket) -> Process:
    """Start `asr.process` with `channel` as its socket; its log goes to our stderr."""
    # A session of its own: Ctrl-C at the terminal is for the parent, which wants its last finals first.
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "asr.process",
        str(channel.fileno()),
        stdin=DEVNULL,
        stdout=DEVNULL,
        pass_fds=[channel.fileno()],
        start_new_session=True,
    )


async def end(process: Process) -> int:
    """Wait until it is gone; its socket is closed, which ends it unless it hangs."""
    for last_resort in (False, True):
        if last_resort:
            process.kill()
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
