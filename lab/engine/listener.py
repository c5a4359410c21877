"""An engine that costs nothing: it names what it has heard, a word for each 250 ms, another word for other bytes.

It is for tests whose subject is not recognition. Nothing is lost, doubled or out of order if the words of a call are
those of the same audio alone, so it is stricter about audio than a model is, and its process starts with a tenth of the
work.

    with worker(folder, LISTENER_PATH, **LISTENER) as running:

`Limit` holds its processes up in the midst of a file for as long as a test needs, whatever the machine's speed.
"""

from __future__ import annotations

import os
import time
import zlib
from collections.abc import Sequence
from pathlib import Path

from asr.engines.interface import BYTES_PER_S, Answer, Capabilities, EngineUnusable, Request, TimedWord, Utterance
from config.settings import Asr, Qwen
from lab.house import ROOT

SITE = Path(__file__).parent / "site"
LISTENER = {"ASR__ENGINE": "listener"}
LISTENER_PATH = {"PYTHONPATH": os.pathsep.join([str(SITE), str(ROOT)])}
"""Of the environment of a worker or a command, which finds the engine there as it finds those of other packages."""
LIMIT = "LISTENER_LIMIT"
PAUSE_S = 0.02
NO_DEVICE = "none"
"""Of `asr.devices`: where the engine does not start, as one whose weights do not load."""
WORD_MS = 250
WORDS = (
    "amber birch cedar delta ember flint grove hazel iris jade kite lemon maple north ocean pearl "
    "quartz river stone tulip umber violet willow xenon yarrow zinc acorn basil coral dune elm fern"
).split()


def words(codes: bytes, bytes_per_s: int = 8000) -> list[str]:
    """What the engine says of this audio. A piece at the end that is shorter than 250 ms has no word yet."""
    size = bytes_per_s * WORD_MS // 1000
    pieces = [codes[at : at + size] for at in range(0, len(codes) - size + 1, size)]
    return [WORDS[zlib.crc32(piece) % len(WORDS)] for piece in pieces]


class Limit:
    """How many finals each inference process may give: a file of which their environment knows, as `environ` says."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._since_ns = self._given = 0
        self._most: int | None = None

    @property
    def _holder(self) -> Path:
        return self._path.with_suffix(".holder")

    def holder(self) -> int | None:
        """The inference process that holds a final back, or was the last one to do so."""
        return int(self._holder.read_text() or 0) if self._holder.exists() else None

    @property
    def environ(self) -> dict[str, str]:
        return LISTENER_PATH | {LIMIT: str(self._path)}

    def set(self, finals: int) -> None:
        """So many from now on; the others wait until it is lifted."""
        fresh = self._path.with_suffix(".new")
        fresh.write_text(str(finals))
        fresh.replace(self._path)

    def lift(self) -> None:
        self._path.unlink(missing_ok=True)

    def read(self) -> None:
        """Called in an inference process before each step, in which the limit stays the same."""
        try:
            since_ns, self._most = self._path.stat().st_mtime_ns, int(self._path.read_text())
        except FileNotFoundError:
            self._most = None
            return
        if since_ns != self._since_ns:
            self._since_ns, self._given = since_ns, 0

    def allows_one(self) -> bool:
        """Asked in an inference process before each final."""
        if self._most is None:
            return True
        if self._given == self._most:
            if self.holder() != os.getpid():
                self._holder.write_text(str(os.getpid()))
            return False
        self._given += 1
        return True


class Listener:
    name = "listener"
    capabilities = Capabilities(batch=64)

    def __init__(self) -> None:
        self._open: dict[str, tuple[Utterance, bytearray]] = {}
        self._limit = Limit(Path(os.environ[LIMIT])) if LIMIT in os.environ else None

    def open(self, utterance: Utterance) -> None:
        self._open[utterance.id] = utterance, bytearray()

    def append(self, utterance_id: str, audio: bytes) -> None:
        self._open[utterance_id][1].extend(audio)

    def close(self, utterance_id: str) -> None:
        del self._open[utterance_id]

    def runnable(self, request: Request) -> bool:
        return True

    def step(self, requests: Sequence[Request]) -> list[Answer]:
        limit = self._limit
        if limit is not None:
            limit.read()
        due = [each for each in requests if limit is None or not each.final or limit.allows_one()]
        if not due:
            time.sleep(PAUSE_S)  # it would be asked again at once
        return [self._answer(request) for request in due]

    def _answer(self, request: Request) -> Answer:
        utterance, audio = self._open[request.utterance_id]
        said = words(bytes(audio[: request.end]), BYTES_PER_S[utterance.format])
        timed = tuple(TimedWord(word, n * WORD_MS, (n + 1) * WORD_MS, 1.0) for n, word in enumerate(said))
        return Answer(request, " ".join(said), utterance.language or "en", timed)

    def warm_up(self) -> None: ...


class ListenerPlugin:
    languages = ("en", "de")
    words = True

    def about(self, asr: Asr) -> str:
        return "a word for each 250 ms"

    def missing(self, asr: Asr) -> str | None:
        """As an engine with weights, when `asr.model` is a path."""
        gone = asr.model.startswith("/") and not Path(asr.model).exists()
        return f"asr.model: {asr.model} is gone" if gone else None

    def create(self, asr: Asr, qwen: Qwen) -> Listener:
        if NO_DEVICE in asr.devices:
            raise EngineUnusable(f"asr.devices: {NO_DEVICE!r} is no device")
        return Listener()


plugin = ListenerPlugin()
