"""Runs the `asr.processes` inference processes of this machine, and replaces them when settings or weights change."""

from __future__ import annotations

import asyncio
import contextlib
import socket

import structlog

from asr import messages
from asr.client.engine_health import ProcessRestarts
from asr.client.engine_server import EngineOwner, EngineServer
from asr.client.link import EngineLink
from asr.engines import weights
from asr.engines.devices import has_gpu, shares
from asr.engines.plugin import find
from asr.engines.selection import DETECTING, missing, select, select_words
from asr.engines.whisper import plugin as whisper
from config.process import child_process, framing
from config.process.tasks import end_tasks
from config.settings import Settings

MOST_NAMED = 40
"""Languages that a line of the log names; of more it says only how many they are."""
log = structlog.get_logger("asr")


class InferenceProcess(EngineServer):
    """One inference process over all its lives; each of them is a child of this process."""

    kind = "inference process"

    def __init__(self, name: str, engines: EngineOwner, first: messages.Configure) -> None:
        """`first`: the message that configures the next process."""
        super().__init__(name, engines, ProcessRestarts())
        self._passes_links = engines.relays
        self._links: socket.socket | None = None
        """The socket over which the links of workers are passed to the process."""
        self.configure(first)

    def configure(self, first: messages.Configure) -> None:
        """Set the message that configures the process from its next life on."""
        self.first, self.planned_device = first, ",".join(first.asr.devices)

    def attach(self, attach: messages.Attach, link: socket.socket) -> None:
        """Pass the far end of a worker's link to the process. Raises OSError."""
        assert self._links is not None
        socket.send_fds(self._links, [framing.encode(attach)[4:]], [link.fileno()])

    def _new_link(self) -> EngineLink:
        return EngineLink(self.first, hang_s=self.first.asr.hang_s, start_s=self.first.asr.start_timeout_s)

    async def _live(self, link: EngineLink) -> str:
        try:
            return link.end(child_process.how(await self._serve(link)))
        except OSError as error:  # there is no free process, memory or file descriptor at the moment
            return f"the inference process cannot be started ({error.strerror or error})"

    async def _serve(self, link: EngineLink) -> int:
        """Run a process until it has closed its answers, and return its exit status. Raises OSError.

        The answers are read to the end before the stack is left, which waits for the process. A process that has died
        may have written answers that are still in the socket, so its death alone does not end the reading.
        """
        try:
            async with contextlib.AsyncExitStack() as stack:
                theirs = []
                if self._passes_links:
                    pair = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                    self._links, end = map(stack.enter_context, pair)
                    self._links.setblocking(False)
                    theirs = [end.fileno()]
                running = child_process.running("asr.inference.process", descriptors=theirs)
                child = await stack.enter_async_context(running)
                self.pid = child.process.pid
                await self.exchange(
                    link,
                    child.reader,
                    child.writer,
                    end_s=child_process.END_S,
                    end=lambda: child_process.kill(child.process),
                )
        finally:
            self.pid = None
        assert child.code is not None
        return child.code


class LocalPool:
    """The inference processes behind `asr.client.engines.Engines`, which documents the methods not documented here."""

    missing = ""
    """Why the addresses of some servers are not known. Always empty here: processes of this machine have none."""

    def __init__(self, settings: Settings, engines: EngineOwner) -> None:
        """Raises ConfigError when the engine that the settings name cannot run on this machine."""
        self._asr, self._engines = settings.asr, engines
        selection = select(settings.asr)
        self.engine, self.reason = selection.engine, selection.reason
        """The engine's name, and why it was selected, in a line."""
        plugin = find(self.engine)
        self.languages = plugin.languages
        self._timing = select_words(settings.asr, self.engine)
        self.words = self._timing.languages
        self._times_words = plugin.words
        self._built_from = builds_from(self.engine, settings)
        first = configurations(self.engine, settings)
        count = len(first)
        places = [InferenceProcess(str(each % count), engines, first[each % count]) for each in range(max(2, count))]
        self.servers, self._spares = places[:count], places[count:]
        """With a single process, `_spares` holds a second one, which starts at a renewal before the first is ended."""
        self._renewal: asyncio.Task[None] | None = None

    @property
    def model(self) -> str:
        return self._asr.model if self.engine == "qwen" else ""

    @property
    def preloads(self) -> bool:
        """Whether the engine starts with the worker.

        With "auto" it does on a GPU, where the start takes up to a minute. It also does in an engine server, whose
        predecessor ends only once this one is ready.
        """
        preload = self._asr.preload
        if preload != "auto":
            return preload
        if self._asr.listen:
            return True
        return self.engine == "qwen" and set(self._asr.devices) != {"cpu"} and has_gpu()

    @property
    def lacking(self) -> str | None:
        error = missing(self.engine, self._asr)
        return str(error) if error is not None else None

    @property
    def all(self) -> list[InferenceProcess]:
        """All servers, including the spare one, which may have a process during a renewal."""
        return [*self.servers, *self._spares]

    def start(self, idle_reason: str) -> None:
        """Log the engine and begin; `want` starts the processes. `idle_reason`: the reason shown while none is
        wanted."""
        known = ", ".join(sorted(self.languages)) if len(self.languages) <= MOST_NAMED else f"{len(self.languages)}"
        log.info("engine", engine=self.engine, languages=known, reason=self.reason)
        if self.words:
            log.info("times of words", reason=self._timing.reason)
        elif self._timing.reason:
            log.warning("no times of words", reason=self._timing.reason)
        for server in self.all:
            server.start(idle_reason)

    async def stop(self) -> None:
        await end_tasks(self._renewal, *(server.running for server in self.all))

    def want(self) -> None:
        """Start the servers and keep them running until `rest`."""
        for server in self.servers:
            server.want()

    def rest(self) -> None:
        for server in self.all:
            server.rest()

    def on_ready(self, ready: messages.EngineReady) -> None:
        if not self._times_words:
            self.words = ready.words

    def check(self, settings: Settings) -> None:
        """Raises ConfigError if a model is named that differs from the present one and cannot be loaded. The files of
        the present model are not checked: if they are gone, other settings can still be changed."""
        new, old = settings.asr, self._asr
        models = [(each.model, each.partials_model, each.whisper_model) for each in (old, new)]
        if models[0] != models[1] and (lacking := missing(self.engine, new)) is not None:
            raise lacking

    def use(self, settings: Settings) -> None:
        """Apply the settings, and replace the processes if anything that an engine is built from has changed. They are
        replaced one by one, while the others serve the calls. A single process goes on until its successor is ready."""
        self._asr = settings.asr
        before, self._built_from = self._built_from, builds_from(self.engine, settings)
        first = configurations(self.engine, settings)
        for server in self.all:
            server.configure(first[int(server.name)])
        if self._built_from != before:
            self._renewal = asyncio.create_task(self._renew(self._renewal), name="asr-renewal")

    async def _renew(self, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await asyncio.wait([before])
        if not any(server.wanted for server in self.servers):
            return  # no process is running, and the next ones start with the new configuration
        log.info("renewing the inference processes", processes=len(self.servers))
        failed = await self._replace_the_only_one() if self._spares else await self._replace_one_by_one()
        if failed is not None:
            log.error("renewal stopped: processes not replaced yet go on", server=failed.name, reason=failed.reason)
        else:
            log.info("inference processes renewed")

    async def _replace_one_by_one(self) -> EngineServer | None:
        """Returns the first server whose new process does not start; None if all do."""
        for server in self.servers:
            if not await server.renew():
                return server
        return None

    async def _replace_the_only_one(self) -> EngineServer | None:
        """Returns the spare server if its process does not start; None if it has replaced the old one."""
        (old,), (new,) = self.servers, self._spares
        new.want()
        if not await new.ready():
            new.rest()
            return new
        self.servers, self._spares = [new], [old]
        self._engines.on_state(new.reason, new.last_end)
        await old.drain(replaced=True)
        old.rest()
        return None


def configurations(engine: str, settings: Settings) -> list[messages.Configure]:
    """The message that configures each process. Their number is fixed at the worker's start."""
    return [
        messages.Configure(engine, asr, settings.qwen, settings.log.level, settings.log.format)
        for asr in shares(settings.asr, engine)
    ]


def builds_from(engine: str, settings: Settings) -> tuple[object, ...]:
    """The settings and the fingerprints of model files that an engine is built from. A change renews the processes."""
    asr = settings.asr
    models = [model for model in (asr.model, asr.partials_model) if model] if engine == "qwen" else []
    files = [weights.fingerprint(weights.find(model)) for model in models]
    if engine in DETECTING:
        files.append(weights.fingerprint(whisper.folder(asr)))
    remote = asr.url, asr.url_key, asr.url_route, asr.url_parallel, asr.url_timeout_s, asr.url_partials
    own = asr.model, asr.partials_model, asr.whisper_model, asr.languages, asr.attention, asr.threads
    return own, remote, settings.qwen, files
