"""The connection to NATS, which reconnects after every loss, and the settings of the cluster's stream and buckets."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import ssl
from collections.abc import Awaitable, Callable
from typing import Any

import nats
import nats.errors
import structlog
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js import JetStreamContext
from nats.js.api import DiscardPolicy, StorageType, StreamConfig, StreamInfo
from nats.js.errors import APIError, BadRequestError, BucketNotFoundError, NotFoundError
from nats.js.kv import KeyValue
from nats.js.object_store import ObjectStore

from config.certificates import client_context, on_handshake, renew
from config.errors import ConfigError
from config.process.tasks import cancellable, end_tasks, lasting
from config.settings import Cluster, Settings
from mediaworker.errors import MediaworkerError

RETRY_S = 1.0
ANSWER_S = 5.0
"""The timeout of requests to JetStream."""
CONNECT_S = 3.0
PING_S = 2
"""The interval of pings; the client drops the connection after two pings without an answer."""
PLAIN = "the server does not encrypt, and tls:// asks for that"
DUPLICATES_S = 600.0
"""How long JetStream remembers message ids: a message that is published again within this time is no duplicate."""
OVERWRITE_DAYS = 1.0
"""How long before JetStream would expire an event the workers overwrite it (`cluster.erasure`)."""
BUCKET_DUPLICATES_S = 120.0
log = structlog.get_logger("cluster")


class ClusterUnreachable(MediaworkerError):
    """NATS, or its stream, cannot be reached now. The message is a clause, to be used after a colon."""


TROUBLE = (ClusterUnreachable, nats.errors.Error, OSError)
"""The errors that a request to NATS or JetStream may raise; the caller retries later."""


class CancellableClient(Client):
    """A client whose `request` can be cancelled at any time."""

    async def request(self, *arguments: Any, **options: Any) -> Msg:
        with cancellable():
            return await super().request(*arguments, **options)


class NatsConnection:
    """The worker's connection to NATS.

    Args:
        on_ready: called when the stream is there, at the start and after each loss of the connection.
    """

    def __init__(self, settings: Cluster, *, worker: str, on_ready: Callable[[], Awaitable[None]]) -> None:
        self.trouble = "NATS has not been reached yet"
        """Why the cluster cannot be reached; empty while it can."""
        self.stream = f"{settings.name.upper()}_EVENTS"
        self.reconnects = 0
        self._settings, self._worker, self._on_ready = settings, worker, on_ready
        self._context: ssl.SSLContext | None = None
        self._shaken = self._proven = False
        """A TLS handshake has succeeded on this connection; and, in `_proven`, the password was sent after one."""
        self._client: Client | None = None
        self._listening: set[str] = set()
        """The subjects of the present client's subscriptions. A new client, after a refused connection, has none."""
        self._js: JetStreamContext | None = None
        self._task: asyncio.Task[None] | None = None
        self._again = asyncio.Event()
        self._stopping = False
        """The worker is stopping, so the end of the connection is not reported as trouble."""

    @property
    def client(self) -> Client:
        """Raises ClusterUnreachable."""
        if self._client is None or not self._client.is_connected:
            raise ClusterUnreachable(self.trouble or "the connection to NATS was lost")
        return self._client

    @property
    def js(self) -> JetStreamContext:
        """Raises ClusterUnreachable."""
        self.client  # noqa: B018 - raises
        assert self._js is not None
        return self._js

    async def listen(self, subject: str, answer: Callable[[Msg], Awaitable[None]]) -> None:
        """Subscribe to the subject: `answer` is called for each message. A second subscription changes nothing."""
        if subject not in self._listening:
            listening = self._listening
            await self.client.subscribe(subject, cb=answer)
            listening.add(subject)

    def check(self, settings: Settings) -> None:
        """Raises ConfigError if these certificates cannot be used for the next connection."""
        if self._context is not None:
            client_context(settings.cluster)

    def use(self, settings: Settings) -> None:
        """Read the certificates again for the next connection. Raises ConfigError."""
        if self._context is not None:
            renew(self._context, settings.cluster)

    def start(self) -> None:
        self._task = lasting(self._run, "cluster-nats")

    async def stop(self) -> None:
        self._stopping = True
        await end_tasks(self._task)
        if self._client is not None:
            # uvloop raises RuntimeError if the client still writes to a lost connection.
            with contextlib.suppress(nats.errors.Error, OSError, TimeoutError, RuntimeError):
                await self._client.close()

    def subject(self, *tokens: str) -> str:
        return ".".join((self._settings.name, *tokens))

    def bucket_name(self, name: str) -> str:
        return f"{self._settings.name.upper()}_{name}"

    async def bucket(self, name: str, *, ttl_s: float = 0, history: int = 1) -> KeyValue:
        """The key-value bucket, which is created if it does not exist. `history` is the number of values kept per key.

        Raises ClusterUnreachable, APIError, nats.errors.Error.
        """
        js, bucket = self.js, self.bucket_name(name)
        try:
            return await js.key_value(bucket)
        except BucketNotFoundError:
            with contextlib.suppress(BadRequestError):  # another worker was faster
                await js.add_stream(self._bucket_config(bucket, ttl_s, history))
            return await js.key_value(bucket)

    def _bucket_config(self, bucket: str, ttl_s: float, history: int) -> StreamConfig:
        """A bucket's stream as NATS's ADR-8 defines it, except that messages can be deleted, and so overwritten.

        The client's `create_key_value` sets `deny_delete`.
        """
        return StreamConfig(
            name=f"KV_{bucket}",
            subjects=[f"$KV.{bucket}.>"],
            allow_rollup_hdrs=True,
            discard=DiscardPolicy.NEW,
            duplicate_window=min(BUCKET_DUPLICATES_S, ttl_s or BUCKET_DUPLICATES_S),
            max_age=ttl_s or None,
            max_msgs_per_subject=history,
            num_replicas=self._settings.replicas,
            storage=StorageType.FILE,
        )

    async def object_store(self, name: str) -> ObjectStore:
        """The object store, which is created if it does not exist. Objects expire after `cluster.keep_days`.

        Raises as `bucket`.
        """
        js, bucket = self.js, self.bucket_name(name)
        try:
            return await js.object_store(bucket)
        except BucketNotFoundError:
            with contextlib.suppress(BadRequestError):
                ttl_s = self._settings.keep_days * 86400
                return await js.create_object_store(bucket, ttl=ttl_s, replicas=self._settings.replicas)
            return await js.object_store(bucket)

    async def stream_id(self) -> str:
        """The id of the stream, with which cursors begin. The stream is created if it does not exist.

        Raises ClusterUnreachable.
        """
        try:
            try:
                info = await self.js.stream_info(self.stream)
            except NotFoundError:
                info = await self._make()
            wanted = self._config(info.config.description or "")
            if (info.config.num_replicas, info.config.max_age) != (wanted.num_replicas, wanted.max_age):
                info = await self.js.update_stream(wanted)
        except (nats.errors.Error, OSError) as error:
            raise ClusterUnreachable(f"JetStream: {why(error)}") from None
        return str(info.config.description)

    async def _make(self) -> StreamInfo:
        js = self.js
        try:
            return await js.add_stream(self._config(secrets.token_hex(8)))
        except APIError:
            with contextlib.suppress(NotFoundError):  # another worker was faster
                return await js.stream_info(self.stream)
            raise

    def _config(self, id: str) -> StreamConfig:
        settings = self._settings
        return StreamConfig(
            name=self.stream,
            description=id,
            subjects=[self.subject("events", ">")],
            storage=StorageType.FILE,
            num_replicas=settings.replicas,
            max_age=(settings.keep_days + OVERWRITE_DAYS) * 86400,
            duplicate_window=DUPLICATES_S,
        )

    async def _run(self) -> None:
        while True:
            try:
                await self._connect()
                while True:
                    await self._use()
                    self._again.clear()
                    await self._again.wait()
            except ClusterUnreachable as error:
                self._report(str(error))
            await asyncio.sleep(RETRY_S)

    async def _connect(self) -> None:
        if self._client is not None:
            return
        settings = self._settings
        client = CancellableClient()

        async def changed() -> None:
            self.reconnects += 1
            if self._plain:
                self._client = None
                await client.close()
            self._again.set()

        async def lost() -> None:
            self._shaken = self._proven = False
            self._report("the connection to NATS was lost")

        problems: list[str] = []

        async def failed(error: Exception) -> None:
            problems[:] = [why(error)]
            log.debug("nats", error=str(error))

        try:
            if self._wants_tls and self._context is None:
                self._context = client_context(settings)
                on_handshake(self._context, self._on_handshake)
            self._shaken = self._proven = False
            async with asyncio.timeout(CONNECT_S):
                await client.connect(
                    list(settings.nats),
                    name=self._worker,
                    tls=self._context,
                    tls_handshake_first=self._wants_tls and settings.nats_tls_first,
                    user=self._user if settings.nats_user else None,
                    password=settings.nats_password.reveal() or None,
                    no_echo=True,  # its own partials need not come back
                    allow_reconnect=True,
                    max_reconnect_attempts=-1,
                    reconnect_time_wait=1,
                    connect_timeout=2,
                    ping_interval=PING_S,
                    max_outstanding_pings=2,
                    reconnected_cb=changed,
                    disconnected_cb=lost,
                    error_cb=failed,
                )
        except ConfigError as error:  # a certificate that is just being renewed may be half written
            raise ClusterUnreachable(str(error)) from None
        except (nats.errors.Error, OSError, ssl.SSLError, TimeoutError) as error:
            with contextlib.suppress(nats.errors.Error, OSError, TimeoutError):
                await client.close()
            raise ClusterUnreachable(f"cluster.nats cannot be reached: {(problems or [why(error)])[0]}") from None
        if self._plain:
            await client.close()
            raise ClusterUnreachable(f"cluster.nats: {PLAIN}")
        self._client, self._js, self._listening = client, client.jetstream(timeout=ANSWER_S), set()

    @property
    def _wants_tls(self) -> bool:
        return any(url.startswith("tls://") for url in self._settings.nats)

    @property
    def _plain(self) -> bool:
        """Whether the new connection is unencrypted although the settings demand TLS."""
        return self._wants_tls and not (self._shaken or self._proven)

    def _on_handshake(self) -> None:
        self._shaken = True

    def _user(self) -> str:
        """The user name, for which the client asks on each connection right before it sends the password.

        So this is the last moment at which a password can be kept from an unencrypted connection. Raises
        nats.errors.Error.
        """
        if self._wants_tls and not self._shaken:
            raise nats.errors.Error(PLAIN)
        self._shaken, self._proven = False, True
        return self._settings.nats_user

    async def _use(self) -> None:
        await self._on_ready()
        if self.trouble:
            log.info("cluster joined", nats=[_plain(url) for url in self._settings.nats], stream=self.stream)
        self.trouble = ""

    def _report(self, trouble: str) -> None:
        if trouble != self.trouble and not self._stopping:
            log.warning("the cluster is not there: calls go on", problem=trouble)
        self.trouble = trouble


def why(error: BaseException) -> str:
    return str(getattr(error, "description", "") or error) or type(error).__name__


def _plain(url: str) -> str:
    """The URL without its password."""
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{rest.rpartition('@')[2]}"
