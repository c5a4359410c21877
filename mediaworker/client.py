"""An asyncio client of a worker: live events without gaps across reconnects, and the routes of calls and jobs.

    async with Client("https://worker.example", key="…") as client:
        async for event in client.events(types=["transcript.final"]):
            if isinstance(event.body, schema.TranscriptFinal):
                print(event.body.role, event.body.text)

After a lost connection, the stream begins with the events that were missed, also across a restart of the worker; no
event is missing and none comes twice. To continue after a restart of your own program, store `event.cursor` and pass it
as `after`.
"""

from __future__ import annotations

import asyncio
import random
import ssl
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import quote, urlencode, urlsplit, urlunsplit

import msgspec
import websockets
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus

from config.network.addresses import is_loopback
from mediaworker.errors import MediaworkerError
from mediaworker.events import schema
from mediaworker.events.frame import decode
from mediaworker.events.schema import CallRecord, Event

if TYPE_CHECKING:
    import httpx

__all__ = ["CallRecord", "Client", "ClientError", "CursorExpired", "Event", "EventStream", "schema"]

LOCAL = "http://127.0.0.1:8080"
RETRY_S = (0.2, 0.5, 1.0, 2.0, 5.0)
JITTER = 0.3
"""The random part of each pause: without it, all clients of a restarted worker would reconnect at once."""
PING_S = 20.0
EXPIRED = 4009
EVENTS = "/v1/events"
_PAGE = 50
Format = Literal["json", "txt", "srt", "vtt"]


class ClientError(MediaworkerError):
    """The worker has refused a request, and a retry does not help. `status` is the HTTP status."""

    def __init__(self, status: int, detail: str) -> None:
        self.status, self.detail = status, detail
        super().__init__(f"{status} {detail}".rstrip())


class CursorExpired(MediaworkerError):
    """The worker does not have the events after the cursor, or no longer. Begin a new stream without a cursor; `calls`
    returns the calls that are stored."""


class EventStream:
    """An asynchronous iterator of events; `frames` yields their JSON instead. Made by `Client.events`.

    Iteration raises ClientError when the worker refuses the request (a wrong key), and CursorExpired. It raises OSError
    when the first connection fails and the stream is not `patient`; later connections are retried for ever.
    """

    def __init__(
        self,
        url: str,
        *,
        key: str = "",
        call: str = "*",
        types: Iterable[str] | None = None,
        after: str | None = None,
        patient: bool = False,
        tls: ssl.SSLContext | None = None,
        on_retry: Callable[[str, float], None] = lambda reason, seconds: None,
    ) -> None:
        self.cursor = after
        """The cursor after the latest event, from which another stream can continue."""
        self._url, self._key, self._tls = url, key, tls
        self._query = {"call": call} | ({"types": ",".join(types)} if types else {})
        self._connected, self._on_retry = patient, on_retry

    async def __aiter__(self) -> AsyncGenerator[Event, None]:
        async with aclosing(self.frames()) as frames:  # closing this iterator closes the connection
            async for frame in frames:
                try:
                    yield decode(frame)
                except schema.EventError:
                    continue  # the type of the event is unknown to this version

    async def frames(self) -> AsyncGenerator[str, None]:
        """Yield each event as the JSON text that the worker sent."""
        attempt = 0
        while True:
            try:
                async with self._connection() as socket:
                    self._connected = True
                    async for message in socket:
                        frame = message if isinstance(message, str) else message.decode()
                        event = _head.decode(frame)
                        # `hello` is a snapshot at its own cursor. Without `after` a later resumption begins there. With
                        # `after` the missed events are still to come, so the cursor stays until they have.
                        if event.type != "hello" or self.cursor is None:
                            self.cursor = event.cursor
                        if event.type != "hello":
                            # Not reset by `hello`: a worker that accepts connections and closes them at once must not
                            # be asked again without a growing pause.
                            attempt = 0
                        yield frame
                reason = "the worker has closed the connection"
            except ConnectionClosed as closed:
                if closed.rcvd is not None and closed.rcvd.code == EXPIRED:
                    raise CursorExpired(closed.rcvd.reason) from None
                reason = str(closed)
            except InvalidStatus as error:
                if error.response.status_code < 500 and error.response.status_code != 429:
                    raise _refused(error.response.status_code, error.response.body or b"") from None
                reason = self._reason(error)
            except (OSError, InvalidHandshake) as error:
                reason = self._reason(error)
            wait_s = RETRY_S[min(attempt, len(RETRY_S) - 1)] * (1 + JITTER * random.random())
            attempt += 1
            self._on_retry(reason, wait_s)
            await asyncio.sleep(wait_s)

    def _connection(self) -> connect:
        query = self._query | ({"after": self.cursor} if self.cursor else {})
        url = events_url(self._url, query)
        return connect(
            url,
            subprotocols=[websockets.Subprotocol("bearer"), websockets.Subprotocol(self._key)] if self._key else None,
            ssl=(self._tls or True) if url.startswith("wss:") else None,  # True: the system's authorities
            proxy=None if is_loopback(urlsplit(url).hostname or "") else True,
            max_size=None,
            compression=None,
            ping_interval=PING_S,
        )

    def _reason(self, error: Exception) -> str:
        """Return the reason of a failed connection; raise it if the stream has never been connected."""
        if not self._connected:
            raise error if isinstance(error, OSError) else ConnectionError(str(error)) from error
        return str(error) or type(error).__name__


class _Head(msgspec.Struct):
    type: str
    cursor: str


_head = msgspec.json.Decoder(_Head)


class Client:
    """A client of one worker. `url` is its address, `https://host[:port]`, with a path if a proxy serves it under one.

    `tls` is the context of `https` connections; without one, the certificate is checked against the authorities that
    the system trusts. Every method may raise ClientError and OSError.
    """

    def __init__(self, url: str = LOCAL, *, key: str = "", tls: ssl.SSLContext | None = None) -> None:
        self.url, self._key, self._tls = url, key, tls
        self._http: httpx.AsyncClient | None = None

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        if self._http is not None:
            await self._http.aclose()

    def events(
        self,
        *,
        call: str = "*",
        types: Iterable[str] | None = None,
        after: str | None = None,
        patient: bool = False,
        on_retry: Callable[[str, float], None] = lambda reason, seconds: None,
    ) -> EventStream:
        """Return a stream of the events of one call or of all, of some types or of all, from now on or after a cursor.

        `patient`: the first connection is retried as well, so the worker may start later. `on_retry(reason, seconds)`
        is called before each pause.
        """
        return EventStream(
            self.url, key=self._key, call=call, types=types, after=after, patient=patient, tls=self._tls,
            on_retry=on_retry,
        )  # fmt: skip

    async def calls(
        self, *, limit: int = 50, after: str | None = None, text: str | None = None
    ) -> tuple[list[CallRecord], str | None]:
        """Return a page of calls, newest first, and the `after` of the next page, None on the last one. `text`: only
        calls with these words."""
        query = {"limit": str(limit)} | {key: value for key, value in (("after", after), ("text", text)) if value}
        page = msgspec.json.decode(await self._ask("GET", f"/v1/calls?{urlencode(query)}"), type=_Page)
        return page.items, page.next

    async def call(self, call_id: str) -> CallRecord:
        return msgspec.json.decode(await self._ask("GET", f"/v1/calls/{call_id}"), type=CallRecord)

    async def transcript(self, call_id: str, format: Format = "txt") -> str:
        """Return the transcript of a call as text in this format."""
        return (await self._ask("GET", f"/v1/calls/{call_id}/transcript?format={format}")).decode()

    async def rename(self, call_id: str, names: dict[str, str]) -> CallRecord:
        """Set the names of legs."""
        return await self._patch(call_id, names=names)

    async def set_language(self, call_id: str, language: str) -> CallRecord:
        """Set the language of later utterances; empty: the engine detects it."""
        return await self._patch(call_id, language=language)

    async def hangup(self, call_id: str, *, after_playback: bool = False) -> None:
        """Hang up a call. It returns at once; `call.ended` follows the last finals.

        `after_playback`: the call ends only after all queued sound has been played to the caller.
        """
        await self._ask("POST", f"/v1/calls/{call_id}/hangup{'?after=playback' if after_playback else ''}")

    async def play(self, call_id: str, wav: bytes, *, mark: str = "") -> float:
        """Play a PCM WAV to the caller, after sound that is queued already; return its length in seconds.

        The event `playback.marked` with this `mark` reports that it has been played. Only calls that accept sound can
        play it, such as Twilio streams of `<Connect>`; others raise ClientError 409.
        """
        query = f"?{urlencode({'mark': mark})}" if mark else ""
        answer = await self._ask("POST", f"/v1/calls/{call_id}/audio{query}", content=wav)
        return float(msgspec.json.decode(answer)["duration_ms"]) / 1000

    async def stop_playing(self, call_id: str) -> None:
        """Stop playing and drop all queued sound, for instance because the caller has begun to speak."""
        await self._ask("DELETE", f"/v1/calls/{call_id}/audio")

    async def erase(self, call_id: str) -> None:
        """Erase an ended call with its events and its transcript."""
        await self._ask("DELETE", f"/v1/calls/{call_id}")

    async def jobs(self, *, limit: int = 50) -> list[dict[str, Any]]:
        """Return file jobs, newest first, as docs/openapi.yaml describes them: those of this key, or with the scope
        `admin` those of all keys."""
        found: list[dict[str, Any]] = []
        after = None
        while len(found) < limit:
            query = {"limit": str(min(limit - len(found), _PAGE))} | ({"after": after} if after else {})
            page = msgspec.json.decode(await self._ask("GET", f"/v1/jobs?{urlencode(query)}"), type=_JobPage)
            found += page.items
            if (after := page.next) is None:
                break
        return found

    async def job(self, job_id: str) -> dict[str, Any]:
        return msgspec.json.decode(await self._ask("GET", f"/v1/jobs/{quote(job_id, safe='')}"), type=dict[str, Any])

    async def job_result(self, job_id: str, format: Format = "txt") -> str:
        """Return the transcript of a completed job as text in this format."""
        return (await self._ask("GET", f"/v1/jobs/{quote(job_id, safe='')}/result?format={format}")).decode()

    async def cancel_job(self, job_id: str) -> dict[str, Any] | None:
        """Cancel a job and return it; a job that had ended already is erased, and None is returned."""
        answer = await self._ask("DELETE", f"/v1/jobs/{quote(job_id, safe='')}")
        return msgspec.json.decode(answer, type=dict[str, Any]) if answer else None

    async def _patch(self, call_id: str, **changes: Any) -> CallRecord:
        return msgspec.json.decode(await self._ask("PATCH", f"/v1/calls/{call_id}", changes), type=CallRecord)

    async def _ask(
        self, method: str, path: str, body: dict[str, Any] | None = None, *, content: bytes | None = None
    ) -> bytes:
        import httpx

        if self._http is None:
            headers = {"Authorization": f"Bearer {self._key}"} if self._key else {}
            # By default httpx trusts its own list of authorities; the WebSocket of the events trusts the system's.
            verify = self._tls or (ssl.create_default_context() if self.url.startswith("https:") else False)
            self._http = httpx.AsyncClient(base_url=self.url, headers=headers, verify=verify, trust_env=False)
        try:
            kind = {"Content-Type": "audio/wav"} if content is not None else {}
            answer = await self._http.request(method, path, json=body, content=content, headers=kind)
        except httpx.TransportError as error:
            raise ConnectionError(str(error) or type(error).__name__) from error
        if not answer.is_success:
            raise _refused(answer.status_code, answer.content)
        return answer.content


class _Page(msgspec.Struct):
    items: list[CallRecord]
    next: str | None


class _JobPage(msgspec.Struct):
    items: list[dict[str, Any]]
    next: str | None


def _refused(status: int, body: bytes | bytearray) -> ClientError:
    """Return the error of a refused request, with the `detail` of its problem document (RFC 9457) if there is one."""
    try:
        return ClientError(status, str(msgspec.json.decode(body, type=dict[str, Any]).get("detail", "")))
    except msgspec.DecodeError:
        return ClientError(status, "")


def events_url(url: str, query: dict[str, str]) -> str:
    """Return the WebSocket URL of the events with a query. `url` is the worker's address (`http:`, `https:`) or that of
    the events (`ws:`, `wss:`). Raises ValueError.
    """
    if "://" not in url:
        url = f"ws://{url}"
    parts = urlsplit(url)
    scheme = {"http": "ws", "https": "wss"}.get(parts.scheme, parts.scheme)
    if scheme not in ("ws", "wss") or not parts.hostname:
        raise ValueError("not a WebSocket or HTTP URL")
    path, folder = parts.path, parts.path.rstrip("/")
    if not folder or parts.scheme in ("http", "https") and not folder.endswith(EVENTS):
        path = folder + EVENTS
    return urlunsplit((scheme, parts.netloc, path, urlencode(query, safe="*:,"), ""))
