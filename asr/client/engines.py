"""The engines behind a recognizer or an engine server: it starts them when calls need them, and reports their state.

It loads no engine and knows no utterance. Everything here runs on one asyncio loop; nothing blocks, and only `start`
and `stop` wait. `engine_server.EngineServer` is one engine over all its lives; `local_pool` has the inference processes
of this machine, `server_pool` the connections to `asr.servers`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from asr import messages
from asr.client.engine_server import EngineOwner, EngineServer
from asr.client.local_pool import LocalPool
from asr.engines.plugin import partial_languages
from asr.runtime import Runtime
from asr.utterance import EngineStatus
from config.settings import Settings

if TYPE_CHECKING:
    from asr.client.server_pool import ServerPool


class Engines(EngineOwner):
    """The engines, and the timer that ends them when nobody has needed them for `asr.idle_s`.

    Args:
        on_state: receives the engine's new state and a line with the reason.
    """

    def __init__(self, settings: Settings, *, on_state: Callable[[EngineStatus, str], None]) -> None:
        """Raises ConfigError when the engine that the settings name cannot run on this machine."""
        self._settings = settings
        self._on_state = on_state
        self.state = EngineStatus.IDLE
        self._pool = self._make_pool(settings)
        self._busy = False
        self._idle: asyncio.TimerHandle | None = None

    def _make_pool(self, settings: Settings) -> LocalPool | ServerPool:
        if settings.asr.servers:
            from asr.client.server_pool import ServerPool

            return ServerPool(settings, self)
        return LocalPool(settings, self)

    async def start(self) -> None:
        """Log the engine's name. The engine starts with the first call, or at once with `asr.preload`."""
        self._pool.start(f"no call or job for {self._settings.asr.idle_s:g} s")
        self.keep_alive(self._busy)

    async def stop(self) -> None:
        """End the engine; open utterances get no more answers."""
        if self._idle is not None:
            self._idle.cancel()
        await self._pool.stop()

    # -- the engines and their state ----------------------------------------------------------------------------------

    @property
    def engine(self) -> str:
        """The engine's name; empty until the first engine server has sent it."""
        return self._pool.engine

    @property
    def shared(self) -> bool:
        """Whether the engine runs in engine servers and not in processes of this worker."""
        return bool(self._settings.asr.servers)

    @property
    def model(self) -> str:
        """The model that the engine has loaded; empty where it has only one."""
        return self._pool.model

    @property
    def languages(self) -> tuple[str, ...]:
        """ISO 639 codes of the languages that can be requested; none until the first engine server has sent them."""
        return self._pool.languages

    @property
    def partials(self) -> tuple[str, ...]:
        """Languages whose partials come as often as `asr.partial_ms` says."""
        known = partial_languages(self.engine, self._settings.asr) if self.engine else ()
        return tuple(code for code in self.languages if code in known)

    @property
    def words(self) -> tuple[str, ...]:
        """Languages whose words can be given timestamps."""
        return self._pool.words

    @property
    def servers(self) -> Sequence[EngineServer]:
        """The inference processes of this machine or the engine servers, whether they run or not."""
        return self._pool.servers

    def keep_alive(self, busy: bool) -> None:
        """Keep the engines running while `busy`. Once it is False, they end after `asr.idle_s`, unless preloaded."""
        self._busy = busy or self.preloads
        if self._busy:
            self._want()
        else:
            self._rest()

    @property
    def preloads(self) -> bool:
        """Whether the engine starts with the worker and stays."""
        return self._pool.preloads

    @property
    def trouble(self) -> str | None:
        """Why a new call is likely to get no text, or None."""
        if not self.servers:
            return f"asr.servers: {self._pool.missing}"
        if self.state is EngineStatus.FAILED:
            return "the recognition engine does not start"
        if self.state is not EngineStatus.READY and (lacking := self.lacking) is not None:
            return lacking
        return None

    @property
    def lacking(self) -> str | None:
        """The reason why the next start of an inference process would fail, such as missing model files; None if it
        would not. The present process goes on all the same."""
        return self._pool.lacking

    @property
    def runtime(self) -> Runtime | None:
        """The device and libraries of the first process that has been ready; None while there is none."""
        return next((server.runtime for server in self.servers if server.runtime is not None), None)

    @property
    def pids(self) -> tuple[int, ...]:
        """The process ids of the inference processes that are running."""
        return tuple(server.pid for server in self._pool.all if server.pid is not None)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings of the engines that are ready, and of processes that do not start while others serve."""
        found = dict.fromkeys(
            warning for server in self.servers if server.runtime is not None for warning in server.runtime.warnings
        )
        if self.state is EngineStatus.READY:
            for server in self.servers:
                if server.state is EngineStatus.FAILED:
                    found[f"{server.kind} {server.name} does not start: {server.reason}"] = None
        if self._pool.missing:
            found[f"asr.servers: {self._pool.missing}"] = None
        return tuple(found)

    # -- changed settings -------------------------------------------------------------------------------------------

    def check(self, settings: Settings) -> None:
        """Raises ConfigError if the engine could not start with these settings, or if their certificate is unusable."""
        self._pool.check(settings)

    def use(self, settings: Settings) -> None:
        """Apply settings that `check` has accepted."""
        self._settings = settings
        self._pool.use(settings)

    # -- life of the servers ------------------------------------------------------------------------------------------

    @property
    def needed(self) -> bool:
        """Whether calls, jobs or utterances are open."""
        return self._busy

    def _want(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        self._pool.want()

    def _rest(self) -> None:
        """Start counting `asr.idle_s` if nobody needs the engine."""
        if self.needed or self._idle is not None or not any(server.wanted for server in self.servers):
            return
        self._idle = asyncio.get_running_loop().call_later(self._settings.asr.idle_s, self._retire)

    def _retire(self) -> None:
        self._idle = None
        if self.needed:
            return
        self._pool.rest()

    # -- from the servers -------------------------------------------------------------------------------------------

    def on_ready(self, ready: messages.EngineReady) -> None:
        self._pool.on_ready(ready)

    def on_state(self, reason: str, last_end: str) -> None:
        """Derive the engine's state from all servers: one that is ready is enough, and FAILED needs all of them."""
        states = {each.state for each in self.servers}
        order = (EngineStatus.READY, EngineStatus.WARMING_UP, EngineStatus.IDLE, EngineStatus.FAILED)
        state = next((each for each in order if each in states), EngineStatus.FAILED)
        if state is not self.state:
            self.state = state
            self._on_state(state, self._pool.reason if state is EngineStatus.READY else reason)
        if state is EngineStatus.FAILED:
            self.on_failed(last_end)

    def on_failed(self, reason: str) -> None:  # noqa: B027
        """Every server has failed. They are still retried."""
