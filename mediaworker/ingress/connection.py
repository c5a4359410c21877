"""One WebSocket of the media port: an asyncio protocol above the sans-I/O `ServerProtocol` of the websockets library.

A connection is CONNECTING until its upgrade has been answered, then OPEN while a session runs, CLOSING once either side
has sent a close frame, and CLOSED when the TCP connection is gone. The library knows the protocol (RFC 6455); this file
moves the bytes, queues the messages, and bounds every wait.

Once a session streams, its connection is read in batches: the transport stays paused, and the media tick reads the
socket (`read_batch`) and cuts the plain frames out in one go. Reading each message as it comes would cost a wake-up of
the event loop, a task switch and a system call for each.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

import structlog
from websockets.frames import Frame, Opcode
from websockets.http11 import Request, Response
from websockets.protocol import State
from websockets.server import ServerProtocol

from config.settings import Media
from mediaworker.access.local_trust import is_direct
from mediaworker.access.refusals import PROBLEM, refusal_body, refusal_headers
from mediaworker.calls.registry import CallRefused
from mediaworker.ingress.frames import split
from mediaworker.ingress.interfaces import MediaEndpoint, SessionFactory, Upgrade
from mediaworker.ingress.port import MediaPort, PortConnection
from mediaworker.ingress.runner import Backlog, OnMessages, PeerHeartbeat

log = structlog.get_logger()

CLOSE_TIMEOUT_S = 2.0
"""The timeout for the peer's part of a close; a peer that reads nothing gets twice as long."""
READ_AGAIN_BYTES = 1 << 17
"""The room in the backlog that must have become free before the socket is read again."""
MAX_FRAGMENTS = 4096
"""The most frames of one message. Without this limit a peer could send empty frames for ever."""
WRITE_BYTES = 1 << 15
"""The unsent output from which on the session, and reading, wait for the peer."""

# The library logs a traceback for every port scanner's half handshake. This file logs what matters itself.
_quiet = logging.getLogger("mediaworker.ingress.websockets")
_quiet.addHandler(logging.NullHandler())
_quiet.propagate = False


class MediaConnection(PortConnection):
    """One WebSocket; implements `runner.MediaSocket`.

    `task` answers the upgrade and runs the session; it is None until the whole request has arrived.

    Args:
        batched: the connections that the media tick reads, with their file descriptors.
        rejected: the port's counter of upgrades that did not become a session, by HTTP status.
    """

    def __init__(
        self,
        port: MediaPort[Any],
        settings: Media,
        endpoints: Mapping[str, MediaEndpoint],
        *,
        heartbeat_s: float,
        batched: dict[MediaConnection, int],
        rejected: Counter[int],
    ) -> None:
        super().__init__(port)
        self.websocket = ServerProtocol(
            max_size=settings.max_message_bytes,
            select_subprotocol=lambda _, offered: next((name for name in offered if name in self._spoken), None),
            logger=_quiet,
        )
        self._settings, self._endpoints, self._batched, self._rejected = settings, endpoints, batched, rejected
        self._spoken: tuple[str, ...] = ()
        self._text_as_bytes = False
        self._timer: asyncio.TimerHandle | None = None
        """The timer that aborts the connection when the handshake, or later the close, takes too long."""
        self._heartbeat = PeerHeartbeat(heartbeat_s, self._beat)
        self._closing = False
        self._messages = Backlog[tuple[bool, bytes]](port.throttle)
        """The messages that wait for the session: (is text, payload)."""
        self._fragments: list[bytes] = []
        self._is_text = False
        """Whether the message in `_fragments` is text."""
        self._framed = False
        """Whether all input so far was plain frames, so that `_rest` begins with a frame."""
        self._rest = b""

    # -- asyncio.Protocol ---------------------------------------------------------------------------------------------

    def begin(self) -> None:
        self.transport.set_write_buffer_limits(WRITE_BYTES)
        self._abort_after(self._settings.start_timeout_s or None)

    def data_received(self, data: bytes) -> None:
        self._heartbeat.alive = True
        if not self._framed or self.websocket.state is State.CONNECTING:
            self._feed(data)
            return
        data = self._rest + data
        texts, control, self._rest, self._framed = split(data, self._settings.max_message_bytes)
        if self._on_messages is None or self.websocket.state is not State.OPEN:
            texts, control = [], data[: len(data) - len(self._rest)]
        if texts and self._on_messages is not None and not self._on_messages(texts):
            self.disable_batch_reads()
        if not self._framed:
            control, self._rest, self._on_messages = control + self._rest, b"", None
            self.disable_batch_reads()
        if control:
            self._feed(control)

    def eof_received(self) -> None:
        self.websocket.receive_eof()
        self._flush()

    def connection_lost(self, exc: Exception | None) -> None:
        self._batched.pop(self, None)
        self._port.leave(self)
        self.websocket.receive_eof()  # from here on the state is CLOSED in any case
        self._abort_after(None)
        self._heartbeat.stop()
        for event in (self._lost, self._arrived, self._writable):
            event.set()

    # -- runner.MediaSocket -------------------------------------------------------------------------------------------

    async def receive(self) -> str | bytes | None:
        while not self._messages and not self._lost.is_set():
            self._arrived.clear()
            await self._arrived.wait()
        if self._given_up:
            await self.close()
        if not self._messages or self._given_up:
            return None
        is_text, data = self._messages.popleft()
        self._update_reading()
        if not is_text or self._text_as_bytes:
            return data
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            self._fail(1007, f"{error.reason} at position {error.start}")
            await self.close()
            return None

    async def send(self, output: str | bytes) -> None:
        if self.websocket.state is State.OPEN:  # else the next `receive` returns None
            if isinstance(output, str):
                self.websocket.send_text(output.encode())
            else:
                self.websocket.send_binary(output)
            self._flush()
            await self._writable.wait()

    async def close(self, code: int = 1000, reason: str = "") -> None:
        """Close with this code, unless a close has begun already; returns when the TCP connection is gone."""
        self.disable_batch_reads()
        if self.websocket.state is State.OPEN:
            self.websocket.send_close(code, reason)
            self._flush()
        elif self.websocket.state is State.CONNECTING:
            self.transport.abort()
        self._drop_given_up()
        await self._lost.wait()

    def enable_batch_reads(self, on_messages: OnMessages, is_ahead: Callable[[], bool]) -> None:
        """Pass plain text directly to `on_messages` from now on, read once per media tick unless `is_ahead`.

        This does nothing while messages wait, and for clients that have sent other than plain frames. With TLS,
        messages are passed directly to `on_messages` as well, but whenever they arrive.
        """
        if not self._framed or self._on_messages is not None or self._messages:
            return
        self._on_messages, self._is_ahead = on_messages, is_ahead
        if self.transport.get_extra_info("sslcontext") is None:
            self._batched[self] = self.transport.get_extra_info("socket").fileno()
            self._update_reading()

    def disable_batch_reads(self) -> None:
        """Let the event loop read this connection again."""
        if self._batched.pop(self, None) is not None:
            self._update_reading()

    def read_batch(self, fd: int, room: bytearray) -> int:
        """Read and process the bytes that have arrived; returns their number."""
        if not self._writable.is_set() or self._is_ahead():
            return 0
        try:
            count = os.readv(fd, [room])
        except BlockingIOError:
            return 0
        except OSError:
            count = 0
        if not count:
            self.disable_batch_reads()  # the transport will detect the end of the stream, or the error, itself
            return 0
        self.data_received(bytes(memoryview(room)[:count]))
        return count

    # -- between the library and the transport ------------------------------------------------------------------------

    @property
    def _given_up(self) -> bool:
        """Whether we closed first, or failed the connection, so that further messages are dropped."""
        return self.websocket.close_sent is not None and self.websocket.close_rcvd_then_sent is not True

    def _feed(self, data: bytes) -> None:
        if self.task is not None and self.websocket.state is State.CONNECTING:
            self._framed = False  # the client sends frames without waiting for the response to its upgrade
        self.websocket.receive_data(data)
        self._flush()
        for event in self.websocket.events_received():
            if isinstance(event, Request):
                self._framed = data.endswith(b"\r\n\r\n")
                self.task = self._loop.create_task(self._run(event))
            elif isinstance(event, Frame) and event.opcode in (Opcode.TEXT, Opcode.BINARY, Opcode.CONT):
                self._assemble(event)
        if self.websocket.state is not State.OPEN:
            self.disable_batch_reads()

    def _assemble(self, frame: Frame) -> None:
        if self._given_up:
            return
        if frame.opcode is not Opcode.CONT:
            self._is_text = frame.opcode is Opcode.TEXT
        self._fragments.append(bytes(frame.data))
        if frame.fin:
            data = b"".join(self._fragments)
            self._messages.append((self._is_text, data), len(data))
            self._fragments.clear()
            self._arrived.set()
            self._update_reading()
        elif len(self._fragments) > MAX_FRAGMENTS:
            self._fail(1009, "too many fragments")

    def _fail(self, code: int, reason: str) -> None:
        self.websocket.fail(code, reason)
        self._flush()
        self._drop_given_up()

    def _drop_given_up(self) -> None:
        """Drop waiting messages after our close: a full backlog would keep the peer's close from being read."""
        if self._given_up:
            self._messages.clear()
            self._fragments.clear()
            self._update_reading()

    def _flush(self) -> None:
        """Write the library's output, and set the closing timeout if that was the last of it."""
        for data in self.websocket.data_to_send():
            if self.transport.is_closing():
                break
            if data:
                self.transport.write(data)
            elif self.transport.can_write_eof():
                self.transport.write_eof()
            else:
                self.transport.close()
        if self.websocket.close_expected() and not self._closing:
            self._closing = True
            self._abort_after(CLOSE_TIMEOUT_S if self._writable.is_set() else 2 * CLOSE_TIMEOUT_S)

    def _abort_after(self, timeout_s: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if timeout_s is None else self._loop.call_later(timeout_s, self.transport.abort)

    def _update_reading(self) -> None:
        full = self._messages.full(READ_AGAIN_BYTES if self._paused else 0)
        pause = full or not self._writable.is_set() or self in self._batched
        if pause != self._paused:
            self._read_on(not pause)

    def _beat(self) -> None:
        if self.websocket.state is not State.OPEN:
            return
        batched, writable = self in self._batched, self._writable.is_set()
        held_back = self._is_ahead() if batched else self._paused and writable
        if self._heartbeat.is_peer_gone(self.transport.get_write_buffer_size(), held_back=held_back):
            self._fail(1011, "the peer does not answer pings")
        elif writable:
            self.websocket.send_ping(b"")
            self._flush()

    # -- the upgrade and the session ----------------------------------------------------------------------------------

    async def _run(self, request: Request) -> None:
        path = urlsplit(request.path).path
        response, opens = await self._answer(path, request)
        if self._lost.is_set() or self.websocket.eof_sent:
            return
        self.websocket.send_response(response)
        self._abort_after(None)
        self._flush()
        if opens is None or self.websocket.state is not State.OPEN:
            return
        self._heartbeat.start()
        try:
            await self.serve(opens(self._loop.time()))
        finally:
            self._messages.clear()

    async def _answer(self, path: str, request: Request) -> tuple[Response, SessionFactory | None]:
        """The response to an upgrade, and the function that opens the session if it is 101."""
        try:
            endpoint = self._endpoints.get(path)
            if endpoint is None:
                raise CallRefused(404, "nothing here")
            if "upgrade" not in request.headers:
                raise CallRefused(426, "this is a WebSocket: ask for an upgrade")
            opens = endpoint.admit(self._upgrade(path, request))
        except CallRefused as refused:
            if refused.delay_s:
                await asyncio.sleep(refused.delay_s)
            return self._refusal(refused), None
        except Exception:
            log.exception("media upgrade failed", path=path)
            return self._refusal(CallRefused(500, "the worker failed to answer; its log says why")), None
        self._spoken, self._text_as_bytes = endpoint.subprotocols, endpoint.text_as_bytes
        return self.websocket.accept(request), opens

    def _upgrade(self, path: str, request: Request) -> Upgrade:
        peer, here = (
            address[:2] if isinstance(address, tuple) else None
            for address in (self.transport.get_extra_info("peername"), self.transport.get_extra_info("sockname"))
        )
        return Upgrade(
            path=path,
            headers=tuple(request.headers.raw_items()),
            peer=peer[0] if peer else "",
            direct=is_direct("1.1", peer, here),  # the library refuses older versions
        )

    def _refusal(self, refused: CallRefused) -> Response:
        status = refused.status
        self._rejected[status] += 1
        response = self.websocket.reject(status, refusal_body(status, refused.reason).decode())
        del response.headers["Content-Type"]
        for name, value in [("Content-Type", PROBLEM), *refusal_headers(status, refused.challenge)]:
            response.headers[name] = value
        if status == 426:  # RFC 9110 section 15.5.22
            response.headers["Upgrade"] = "websocket"
        return response
