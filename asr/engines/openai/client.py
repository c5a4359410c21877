"""Connections to a transcription server: requests run in a thread of their own and can be cancelled at any time."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from queue import Empty, SimpleQueue

import httpx

from asr.engines.interface import EngineUnusable, described
from asr.engines.openai import wire
from asr.scheduling.request import Lane
from asr.utterance import Utterance
from config.certificates import system_authorities
from config.settings import Asr

MAX_ANSWER_BYTES = 1024 * 1024


class TranscriptionClient:
    """The connections to one server. `wait` collects the answers in the thread that asked."""

    def __init__(self, asr: Asr) -> None:
        self._url, self._model, self._timeout_s = asr.url.rstrip("/"), asr.model, asr.url_timeout_s
        self._route = asr.url_route
        self._http = httpx.AsyncClient(
            headers={"authorization": f"Bearer {asr.url_key.reveal()}"} if asr.url_key else {},
            limits=httpx.Limits(max_connections=asr.url_parallel),
            timeout=asr.url_timeout_s,
            verify=system_authorities() or True,
        )
        self._dialect = wire.Dialect()
        self._done: SimpleQueue[tuple[object, wire.Outcome]] = SimpleQueue()
        self._loop = asyncio.new_event_loop()

    def now_s(self) -> float:
        return time.monotonic()

    def start(self) -> None:
        """Find the server. Raises EngineUnusable."""
        threading.Thread(target=self._loop.run_forever, name="http", daemon=True).start()
        if why := asyncio.run_coroutine_threadsafe(self._find(), self._loop).result():
            raise EngineUnusable(f"asr.url = {self._url!r}: {why}")

    def send(self, mark: object, utterance: Utterance, audio: bytes, lane: Lane) -> Callable[[], object]:
        """Send a request; `wait` returns `mark` with its outcome. The returned function cancels it."""
        future: Future[None] = asyncio.run_coroutine_threadsafe(self._send(mark, utterance, audio, lane), self._loop)
        return future.cancel

    def wait(self, timeout_s: float) -> list[tuple[object, wire.Outcome]]:
        """The outcomes that have come, after at most this long."""
        found = []
        try:
            found.append(self._done.get(timeout=timeout_s))
            while True:
                found.append(self._done.get_nowait())
        except Empty:
            return found

    async def _find(self) -> str:
        try:
            answer = await self._http.get(f"{self._url}/models")
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            return f"the server cannot be reached ({described(error)})"
        return wire.recognise(self._dialect, self._route, self._model, answer.status_code, answer.content)

    async def _send(self, mark: object, utterance: Utterance, audio: bytes, lane: Lane) -> None:
        try:
            async with asyncio.timeout(self._timeout_s):
                outcome = await self._answer(utterance, audio, lane)
        except TimeoutError:
            outcome = wire.RequestFailed(f"no answer within {self._timeout_s:g} s", again=True)
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout) as error:
            outcome = wire.ServerBusy(f"the server cannot be reached ({described(error)})")
        except httpx.HTTPError as error:
            outcome = wire.ServerBusy(f"the connection to the server was lost ({described(error)})", lost=True)
        self._done.put((mark, outcome))

    async def _answer(self, utterance: Utterance, audio: bytes, lane: Lane) -> wire.Outcome:
        sent = wire.build_request(self._dialect, self._model, utterance, audio, lane)
        files = {"file": ("speech.wav", sent.file, "audio/wav")} if sent.file else None
        url = f"{self._url}{sent.path}"
        request = self._http.build_request("POST", url, json=sent.body, data=sent.form, files=files)
        answer = await self._http.send(request, stream=True)
        try:
            body = bytearray()
            async for piece in answer.aiter_bytes():
                body += piece
                if len(body) > MAX_ANSWER_BYTES:
                    return wire.RequestFailed("the server's answer is too long", again=False)
        finally:
            await answer.aclose()
        headers = {name.lower(): value for name, value in answer.headers.items()}
        return wire.parse_response(self._dialect, sent, utterance, answer.status_code, headers, bytes(body))
