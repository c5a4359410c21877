"""The AudioSocket port: Asterisk connects, and each connection is a call."""

from __future__ import annotations

import asyncio
from typing import cast

from audio.rtp.silence_ticker import SilenceTicker
from config import Settings
from config.access_list import AccessList
from config.metrics.registry import MetricsRegistry
from mediaworker.calls.registry import CallRegistry
from mediaworker.ingress.audiosocket.session import AudioSocketCounters, AudioSocketSession
from mediaworker.ingress.runner import Throttle
from mediaworker.ingress.tcp import TcpConnection, TcpListener

MAX_CONNECTIONS = 512
"""Each is a call, so that `max_calls` limits them as well."""


class AudioSocketListener(TcpListener):
    name = "AudioSocket"

    def __init__(self, settings: Settings, registry: CallRegistry, throttle: Throttle) -> None:
        bound, self.counters = settings.audiosocket, AudioSocketCounters()
        super().__init__(bound.host, bound.port, throttle, registry, self.counters, max_connections=MAX_CONNECTIONS)
        self.use(settings)

    def add_metrics(self, metrics: MetricsRegistry) -> None:
        metrics.counters("audiosocket", self.counters)
        metrics.gauge(
            "audiosocket_connections", "Shows how many AudioSocket connections are open.", lambda: self.connections
        )

    def use(self, settings: Settings) -> None:
        """Use these settings for new connections."""
        self._settings, self._access = settings, AccessList(settings.audiosocket.allow)

    async def start(self) -> None:
        self.ticker = SilenceTicker(asyncio.get_running_loop())
        await super().start()

    def make_connection(self) -> TcpConnection:
        return AudioSocketConnection(self)

    def open_session(self, connection: TcpConnection, now: float) -> AudioSocketSession:
        session = AudioSocketSession(
            self._settings,
            self._registry,
            now,
            counters=self.counters,
            on_problem=self.notices.of(connection.peer, lambda: session.call_id),
        )
        self.ticker.add(cast(AudioSocketConnection, connection))
        return session

    def leave(self, connection: TcpConnection) -> None:
        self.ticker.remove(cast(AudioSocketConnection, connection))
        super().leave(connection)


class AudioSocketConnection(TcpConnection):
    """Sends silence as well, as the phones of SIP are sent it."""

    def __init__(self, port: AudioSocketListener) -> None:
        super().__init__(port)
        self._counters = port.counters

    def send_silence(self, periods: int) -> None:
        """Implements `SilenceSender`: sends one frame, unless the peer has not read the ones before."""
        session = cast(AudioSocketSession, self.session)
        if self.over or not (frame := session.silence(self._loop.time())) or self.transport.is_closing():
            return
        if self.transport.get_write_buffer_size():
            self._counters.withheld += 1
            return
        self.transport.write(frame)
        self._counters.silence += 1
