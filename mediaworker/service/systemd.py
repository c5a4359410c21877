"""What the service manager is told: ready, alive, stopping (sd_notify(3)). Without one nothing happens."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Mapping


class ServiceManager:
    """Reads `NOTIFY_SOCKET` and `WATCHDOG_USEC`, which systemd sets for services of `Type=notify`."""

    def __init__(self, environ: Mapping[str, str] | None = None) -> None:
        environ = os.environ if environ is None else environ
        path = environ.get("NOTIFY_SOCKET", "")
        # A leading @ stands for the abstract namespace.
        self._address = f"\0{path[1:]}" if path.startswith("@") else path
        mine = environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        self._period_s = int(environ.get("WATCHDOG_USEC", "0") or 0) / 2_000_000 if mine else 0.0
        self._timer: asyncio.TimerHandle | None = None

    def ready(self) -> None:
        """Started; from now on the event loop shows twice per watchdog period that it turns."""
        self._tell("READY=1")
        if self._address and self._period_s:
            self._alive()

    def stopping(self) -> None:
        self._tell("STOPPING=1")

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _alive(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._period_s, self._alive)
        self._tell("WATCHDOG=1")

    def _tell(self, state: str) -> None:
        if not self._address:
            return
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
            channel.setblocking(False)
            try:
                channel.sendto(state.encode(), self._address)
            except OSError:
                pass  # it is gone, or has no room: the next one will tell
