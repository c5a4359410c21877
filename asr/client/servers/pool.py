"""Where the recognizer's engine servers come from: `local_pool.LocalPool` or `server_pool.ServerPool`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from asr import messages
from asr.client.servers.engine_server import EngineServer
from config.settings import Settings


class Pool(Protocol):
    """Some engine servers. Made with the watcher that they report to, and the work that they are to do."""

    @property
    def engine(self) -> str:
        """Its name; empty while it is not known."""

    @property
    def model(self) -> str:
        """The model that it has loaded; empty where the engine has only one."""

    @property
    def languages(self) -> tuple[str, ...]:
        """ISO 639 codes of the languages that can be requested; none while they are not known."""

    @property
    def words(self) -> tuple[str, ...]:
        """Languages whose words can be given timestamps."""

    @property
    def reason(self) -> str:
        """Why this engine serves, in a line."""

    @property
    def preloads(self) -> bool:
        """Whether the servers are wanted from the worker's start to its end."""

    @property
    def lacking(self) -> str | None:
        """What the next start of an engine would lack, although the present one may not need it."""

    @property
    def servers(self) -> Sequence[EngineServer]:
        """Those that serve or are to."""

    @property
    def all(self) -> Sequence[EngineServer]:
        """Those and others that may have a process."""

    @property
    def missing(self) -> str:
        """Why some servers are not known; empty if all are."""

    def start(self, idle_reason: str) -> None:
        """Begin; servers are started by `want`. `idle_reason`: why they are idle while nobody does."""

    async def stop(self) -> None:
        """End them. Utterances get no more answers."""

    def on_ready(self, ready: messages.EngineReady) -> None:
        """One of its servers is ready."""

    def want(self) -> None:
        """Have the servers ready, and keep them, until `rest`."""

    def rest(self) -> None:
        """Let them end."""

    def check(self, settings: Settings) -> None:
        """Raises ConfigError where these settings could not be taken over."""

    def use(self, settings: Settings) -> None:
        """Take over changed settings."""
