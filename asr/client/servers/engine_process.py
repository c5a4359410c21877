"""One life of the inference process: a child of this process, which ends with it."""

from __future__ import annotations

import contextlib
import socket

from asr import messages
from asr.client.servers.link_shell import LinkShell, Owner
from asr.link.client import ClientLink
from asr.link.watchdog import Watchdog
from config import child_process, framing


class EngineProcess(LinkShell):
    """One life of the inference process.

    Args:
        configure: the first message.
        relays: it is passed links of workers by `attach`.
    """

    def __init__(self, configure: messages.Configure, owner: Owner, *, relays: bool = False) -> None:
        watchdog = Watchdog(hang_s=configure.asr.hang_s, start_s=configure.asr.start_timeout_s)
        super().__init__(ClientLink(owner, configure, watchdog), owner)
        self._relays = relays
        self._links: socket.socket | None = None

    def attach(self, attach: messages.Attach, link: socket.socket) -> None:
        """Pass on the end of a link of a worker. Raises OSError."""
        assert self._links is not None
        socket.send_fds(self._links, [framing.encode(attach)[4:]], [link.fileno()])

    async def run(self) -> str:
        try:
            how = child_process.how(await self._serve())
        except OSError as error:  # no process, memory or file descriptor to be had just now
            return f"the inference process cannot be started ({error.strerror or error})"
        return self.link.end(how)

    async def _serve(self) -> int:
        """Until there are no more answers; its exit status. Raises OSError."""
        try:
            async with contextlib.AsyncExitStack() as stack:
                theirs = []
                if self._relays:
                    self._links, end = map(
                        stack.enter_context, socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                    )
                    self._links.setblocking(False)
                    theirs = [end.fileno()]
                child = await stack.enter_async_context(child_process.running("asr.process", descriptors=theirs))
                self.pid = child.process.pid
                await self._exchange(
                    child.reader,
                    child.writer,
                    end_s=child_process.END_S,
                    end=lambda: child_process.kill(child.process),
                )
        finally:
            self.pid = None
        assert child.code is not None
        return child.code
