"""The AudioSocket port: Asterisk connects, and each connection is a call.

The protocol has neither TLS nor credentials: a list of addresses decides who may connect.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

import structlog

from audio.rtp.silence_ticker import SilenceTicker
from config import Settings
from config.access_list import AccessList
from mediaworker.access.connections import ConnectionLimit
from mediaworker.access.notices import Notices
from mediaworker.calls.registry import CallRefused
from mediaworker.ingress.audiosocket.session import (
    AudioSocketCounters,
    AudioSocketPolicy,
    AudioSocketSession,
    AudioSocketState,
)
from mediaworker.ingress.interfaces import CallOpener

log = structlog.get_logger()

LINGER_S = 5.0
"""How long the peer may take to read our last frame before the connection is cut."""
BACKLOG = 128
MAX_CONNECTIONS = 512
"""Each is a call, so that `max_calls` limits them as well."""
SILENT_S = 3600.0
"""A call without a frame for so long is ended. Asterisk sends nothing while a caller holds."""
MAX_UNREAD = 1 << 16
"""Bytes read from one connection between two media ticks: two seconds of 16 kHz."""


class AudioSocketListener:
    """`refusal` returns why no call is taken now (`CallRegistry.refusal`), or None."""

    def __init__(
        self, settings: Settings, open_call: CallOpener, *, refusal: Callable[[], CallRefused | None] = lambda: None
    ) -> None:
        self._bound = settings.audiosocket
        self.counters = AudioSocketCounters()
        self.lower(MAX_CONNECTIONS)
        self.open_call = open_call
        self.notices = Notices()
        self.held: set[_Connection] = set()
        """Connections that are not read because they are ahead of the VAD."""
        self.due: set[_Connection] = set()
        """Connections of calls that have sent something since the last media tick."""
        self._refusal = refusal
        self._connections: set[_Connection] = set()
        self._gone = asyncio.Event()
        self._server: asyncio.Server | None = None
        self.use(settings)

    def use(self, settings: Settings) -> None:
        """Use these settings for new connections. Raises ConfigError, and then nothing changes."""
        self._access = AccessList(settings.audiosocket.allow, key="audiosocket.allow")
        self.policy = AudioSocketPolicy(
            start_timeout_s=settings.media.start_timeout_s,
            silent_s=SILENT_S,
            sends_silence=settings.audiosocket.send_audio == "silence",
        )

    def lower(self, total: int) -> None:
        """Lower the limit of connections. A PBX is one peer and may have all of them."""
        most = min(total, MAX_CONNECTIONS)
        self.limit = ConnectionLimit(most, most)

    async def start(self) -> None:
        """Raises OSError when the port is taken."""
        loop, section = asyncio.get_running_loop(), self._bound
        self.ticker = SilenceTicker(loop)
        self._server = await loop.create_server(
            lambda: _Connection(self), section.host or None, section.port, backlog=BACKLOG
        )
        log.info("AudioSocket listener", host=section.host, port=self.port)

    async def stop(self) -> None:
        """Close the port and every connection."""
        if self._server is None:
            return
        self._server.close()
        for connection in tuple(self._connections):
            connection.abort()
        while self._connections:
            self._gone.clear()
            await self._gone.wait()
        self._server = None

    @property
    def port(self) -> int:
        """The bound port; of interest when the configured one is 0."""
        assert self._server is not None, "not started"
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    @property
    def connections(self) -> int:
        return len(self._connections)

    def sweep(self) -> None:
        """Process the audio that has arrived since the last media tick, in fewer and larger pieces."""
        due, self.due = self.due, set()
        for connection in due:
            connection.resume()

    def release(self) -> None:
        """The VAD has taken a step: connections that were held back may continue."""
        for connection in tuple(self.held):
            connection.resume()

    def admit(self, peer: str) -> str:
        """Counts the connection and returns "", or returns why it is refused."""
        if not self._access.allows(peer):
            return "not_allowed"
        if self._refusal() is not None:
            return "capacity"
        return "connections" if self.limit.enter(peer) else ""

    def joined(self, connection: _Connection) -> None:
        self._connections.add(connection)

    def left(self, connection: _Connection, peer: str) -> None:
        self._connections.discard(connection)
        self.held.discard(connection)
        self.due.discard(connection)
        self.ticker.remove(connection)
        self.limit.leave(peer)
        self._gone.set()


class _Connection(asyncio.Protocol):
    def __init__(self, listener: AudioSocketListener) -> None:
        self._listener = listener
        self._clock = asyncio.get_running_loop().time
        self._session: AudioSocketSession | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._data = b""
        """Read, and not yet processed."""
        self._eof = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        address = transport.get_extra_info("peername")
        self._peer = address[0] if isinstance(address, tuple) else ""
        listener, now = self._listener, self._clock()
        if why := listener.admit(self._peer):
            listener.counters.refuse(why)
            listener.notices.warn(self._peer, "AudioSocket connection refused", now, why)
            self._transport.abort()
            return
        listener.joined(self)
        self._session = AudioSocketSession(
            listener.policy,
            listener.open_call,
            now,
            counters=listener.counters,
            on_problem=listener.notices.of(self._peer, lambda: self._session.call_id if self._session else None),
            on_change=self._flush,
        )
        self._arm(self._session)
        listener.ticker.add(self)

    def data_received(self, data: bytes) -> None:
        if self._session is None or self._session.closed:
            return  # refused or closing
        if self._session.state is AudioSocketState.WAITING:
            self._receive(data)
        else:
            self._data += data
            self._listener.due.add(self)
            if len(self._data) > MAX_UNREAD:
                self._hold()

    def resume(self) -> None:
        """Process what has been read, which may be more than the leg takes at once."""
        data, self._data = self._data, b""
        self._receive(data)

    def _receive(self, data: bytes) -> None:
        assert self._session is not None
        self._session.receive(data, self._clock())
        self._after()

    def _after(self) -> None:
        session, held = self._session, self._listener.held
        assert session is not None
        if session.is_ahead():
            self._hold()
        elif self._eof:
            self._transport.close()
        elif self in held:
            held.discard(self)
            if not self._transport.is_closing():
                self._transport.resume_reading()
        self._flush()

    def _hold(self) -> None:
        if self not in self._listener.held:
            self._listener.held.add(self)
            if not self._eof:
                self._transport.pause_reading()

    def eof_received(self) -> bool:
        """The end of the stream is a hang-up once everything before it has been processed."""
        self._eof = True
        return self in self._listener.due or self in self._listener.held

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._session is not None:
            # A peer that closes without reading all of our silence resets the connection, which is a hang-up.
            broken = exc is not None and not isinstance(exc, (ConnectionResetError, BrokenPipeError))
            try:
                if self._data and not self._session.closed:
                    self._session.receive(self._data, self._clock())
                self._session.connection_lost(self._clock(), broken=broken)
            finally:
                self._listener.left(self, self._peer)

    def send_silence(self, periods: int) -> None:
        """Implements `SilenceSender`: sends one frame, unless the peer has not read the ones before."""
        assert self._session is not None
        if self._eof or not (frame := self._session.silence(self._clock())) or self._transport.is_closing():
            return
        if self._transport.get_write_buffer_size():
            self._listener.counters.withheld += 1
            return
        self._transport.write(frame)
        self._listener.counters.silence += 1

    def abort(self) -> None:
        self._transport.abort()

    def _flush(self) -> None:
        session = self._session
        if session is None or self._transport.is_closing():
            return
        if data := session.data_to_send():
            self._transport.write(data)
        if session.closed:
            self._listener.ticker.remove(self)
            self._transport.close()
            if self._timer is not None:
                self._timer.cancel()
            self._timer = asyncio.get_running_loop().call_later(LINGER_S, self._transport.abort)

    def _arm(self, session: AudioSocketSession) -> None:
        if (deadline := session.deadline) is not None:
            self._timer = asyncio.get_running_loop().call_at(deadline, self._expire, session)

    def _expire(self, session: AudioSocketSession) -> None:
        session.expire(self._clock())
        self._flush()
        if not session.closed:
            self._arm(session)
