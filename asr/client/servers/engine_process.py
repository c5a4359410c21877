"""One life of the inference process: a child of this process, which ends with it."""

from __future__ import annotations

from asr import messages
from asr.client.servers.engine_life import EngineLife, Owner
from asr.client.servers.watchdog import Watchdog
from config import child_process


class EngineProcess(EngineLife):
    """One life of the inference process.

    Args:
        configure: the first message.
    """

    what = "the inference process"
    beginning = "starting the inference process"

    def __init__(self, configure: messages.Configure, owner: Owner) -> None:
        super().__init__(owner, Watchdog(hang_s=configure.asr.hang_s, start_s=configure.asr.start_timeout_s))
        self._configure = configure

    async def run(self) -> str:
        try:
            how = child_process.how(await self._serve())
        except OSError as error:  # no process, memory or file descriptor to be had just now
            return f"the inference process cannot be started ({error.strerror or error})"
        return self.unusable or self.hung or f"the inference process died ({self.raised or how})"

    async def _serve(self) -> int:
        """Until there are no more answers; its exit status. Raises OSError."""
        try:
            async with child_process.running("asr.process") as child:
                self.pid = child.process.pid
                await self._exchange(
                    child.reader,
                    child.writer,
                    self._configure,
                    end_s=child_process.END_S,
                    end=lambda: child_process.kill(child.process),
                )
        finally:
            self.pid = None
        assert child.code is not None
        return child.code
