"""The AudioSocket port: Asterisk connects, and each connection is a call. It has neither TLS nor credentials: a list of
addresses decides who may connect.

A connection's bytes wait here and are given to its session once per media tick, in fewer and larger pieces than they
come in. They are read by the event loop as they come, unlike those of the media port: a peer that closes without having
read what it was sent resets the connection, and what then waited in the kernel would be lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from audio.rtp.silence_ticker import SilenceTicker
from config import Settings
from config.metrics.registry import MetricsRegistry
from config.network.access_list import AccessList
from mediaworker.access.connections import ConnectionLimit
from mediaworker.calls.registry import CallRegistry
from mediaworker.ingress.audiosocket.session import AudioSocketCounters, AudioSocketSession
from mediaworker.ingress.outbox import LINGER_S
from mediaworker.ingress.port import MediaPort, PortConnection
from mediaworker.ingress.runner import OnMessages, Throttle

MAX_CONNECTIONS = 512
"""Each is a call, so that `max_calls` limits them as well. One peer may have as many as all: a PBX is one peer."""
MAX_UNREAD = 1 << 16
"""Bytes read from one connection between two media ticks: two seconds of 16 kHz."""


class AudioSocketConnection(PortConnection):
    """Implements `runner.MediaSocket`; each message is whatever bytes have come."""

    def __init__(self, port: AudioSocketListener) -> None:
        super().__init__(port)
        self.session: AudioSocketSession | None = None
        """None: the connection has been refused."""
        self.held = False
        """The connection is not read, because its session is ahead of the VAD."""
        self._due = port.due
        self._open_session, self._counters = port.open_session, port.counters
        self._data: bytes | None = None
        """Read, and not yet given to the session; empty: the session may have kept something and is asked to go on."""
        self._eof = self._closing = False

    # -- asyncio.Protocol ---------------------------------------------------------------------------------------------

    def begin(self) -> None:
        self.session = self._open_session(self, self._loop.time())
        self.task = self._loop.create_task(self.serve(self.session))
        self.task.add_done_callback(lambda _: self._port.leave(self))

    def data_received(self, data: bytes) -> None:
        if self._closing:
            return
        self._data = (self._data or b"") + data
        if self._on_messages is None:
            self._arrived.set()
        else:
            self._due.add(self)
        self._update_reading()

    def eof_received(self) -> bool:
        """The connection stays until everything before has been taken, which the VAD may hold back."""
        self._eof = True
        self.disable_batch_reads()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        # A peer that closes without reading all that it was sent resets the connection, which is a hang-up.
        self.broken = exc is not None and not isinstance(exc, (ConnectionResetError, BrokenPipeError))
        for event in (self._lost, self._writable):
            event.set()
        self.disable_batch_reads()

    # -- runner.MediaSocket -------------------------------------------------------------------------------------------

    async def receive(self) -> bytes | None:
        while self._data is None and not self.over:
            self._arrived.clear()
            await self._arrived.wait()
        data, self._data = self._data, None
        self._update_reading()
        return data

    async def send(self, output: str | bytes) -> None:
        if not self.transport.is_closing():  # else the next `receive` says that it is over
            self.transport.write(output.encode() if isinstance(output, str) else output)
            await self._writable.wait()

    async def close(self, code: int, reason: str) -> None:
        """TCP has neither code nor reason. Returns when the connection is gone."""
        if not self._closing:
            self._closing, self._data = True, None
            self.transport.close()
            cut = self._loop.call_later(LINGER_S, self.transport.abort)
            await self._lost.wait()
            cut.cancel()
        await self._lost.wait()

    def enable_batch_reads(self, on_messages: OnMessages, is_ahead: Callable[[], bool]) -> None:
        if self._on_messages is None and self._data is None and not self.over:
            self._on_messages, self._is_ahead = on_messages, is_ahead

    def disable_batch_reads(self) -> None:
        """The session is given what comes as it comes, beginning with what waits."""
        if self._on_messages is not None:
            self._on_messages, self.held = None, False
            self._due.discard(self)
            self._data = self._data or b""
        self._arrived.set()
        self._update_reading()

    def read_batch(self) -> None:
        """Give the session what has come since the last media tick, or, when it is ahead, nothing yet."""
        assert self._on_messages is not None
        if not self._is_ahead():
            data, self._data = self._data or b"", None
            if not self._on_messages([data]):
                self.disable_batch_reads()
                return
        self.held = self._is_ahead()
        if not self.held:
            self._due.discard(self)
        self._update_reading()

    def send_silence(self, periods: int) -> None:
        """Implements `SilenceSender`: sends one frame, unless the peer has not read the ones before."""
        assert self.session is not None
        if self.over or not (frame := self.session.silence(self._loop.time())) or self.transport.is_closing():
            return
        if self.transport.get_write_buffer_size():
            self._counters.withheld += 1
            return
        self.transport.write(frame)
        self._counters.silence += 1

    # -- inside -------------------------------------------------------------------------------------------------------

    @property
    def over(self) -> bool:
        """Nothing more comes."""
        return self._eof or self._lost.is_set()

    def _update_reading(self) -> None:
        pause = self.held or (self._data is not None and len(self._data) > MAX_UNREAD)
        if pause != self._paused and not self.over:
            self._read_on(not pause)


class AudioSocketListener(MediaPort[AudioSocketConnection]):
    name = "AudioSocket"

    def __init__(self, settings: Settings, registry: CallRegistry, throttle: Throttle) -> None:
        bound, limit = settings.audiosocket, ConnectionLimit(MAX_CONNECTIONS, MAX_CONNECTIONS)
        super().__init__(bound.host, bound.port, limit, throttle)
        self.counters = AudioSocketCounters()
        self.due: set[AudioSocketConnection] = set()
        """Connections of calls that have sent something since the last media tick, or are held back."""
        self._registry = registry
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

    def make_connection(self) -> AudioSocketConnection:
        return AudioSocketConnection(self)

    def open_session(self, connection: AudioSocketConnection, now: float) -> AudioSocketSession:
        session = AudioSocketSession(
            self._settings,
            self._registry,
            now,
            counters=self.counters,
            on_problem=self.notices.of(connection.peer, lambda: session.call_id),
        )
        self.ticker.add(connection)
        return session

    def lower(self, total: int) -> None:
        """Lower the limit of connections."""
        most = min(total, MAX_CONNECTIONS)
        self.limit = ConnectionLimit(most, most)

    @property
    def connections(self) -> int:
        return len(self._connections)

    def sweep(self) -> None:
        """Process the audio that has arrived since the last media tick."""
        for connection in tuple(self.due):
            connection.read_batch()

    def admit(self, peer: str) -> str:
        if not self._access.allows(peer):
            why = "not_allowed"
        elif self._registry.refusal() is not None:
            why = "capacity"
        else:
            why = "connections" if self.limit.enter(peer) else ""
        if why:
            self.counters.refuse(why)
        return why

    def leave(self, connection: AudioSocketConnection) -> None:
        self.ticker.remove(connection)
        super().leave(connection)
        self.due.discard(connection)
        self.limit.leave(connection.peer)
