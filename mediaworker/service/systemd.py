"""Notifications to the service manager: ready, alive, stopping (sd_notify(3)). Without a manager nothing is sent."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Mapping


class ServiceManager:
    """The service manager, found by `NOTIFY_SOCKET` and `WATCHDOG_USEC`, which systemd sets for `Type=notify`."""

    def __init__(self, environ: Mapping[str, str] | None = None) -> None:
        environ = os.environ if environ is None else environ
        path = environ.get("NOTIFY_SOCKET", "")
        # A leading @ stands for the abstract namespace.
        self._address = f"\0{path[1:]}" if path.startswith("@") else path
        for_this_process = environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        self._period_s = int(environ.get("WATCHDOG_USEC", "0") or 0) / 2_000_000 if for_this_process else 0.0
        self._timer: asyncio.TimerHandle | None = None

    def ready(self) -> None:
        """Report readiness; from now on the event loop reports twice per watchdog period that it is alive."""
        self._notify("READY=1")
        if self._address and self._period_s:
            self._alive()

    def stopping(self) -> None:
        self._notify("STOPPING=1")

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _alive(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._period_s, self._alive)
        self._notify("WATCHDOG=1")

    def _notify(self, state: str) -> None:
        if not self._address:
            return
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
            channel.setblocking(False)
            try:
                channel.sendto(state.encode(), self._address)
            except OSError:
                pass  # the manager is gone or its socket is full: the next notification will follow
