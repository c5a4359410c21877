"""Qwen3-ASR over many calls: one step is one pass of the encoder and one packed forward of the text model."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from asr.engines.interface import Answer, Capabilities, Collect, EngineError, EngineExhausted, first_line
from asr.engines.qwen.device import memory, selfcheck
from asr.engines.qwen.device.execution import Direct, for_device
from asr.engines.qwen.device.interface import PAGE, Execution
from asr.engines.qwen.encoder import Encoder, Settling
from asr.engines.qwen.eviction import Victims
from asr.engines.qwen.kv_cache import KvCache
from asr.engines.qwen.model.fused import fuse
from asr.engines.qwen.model.loader import LoadedModel
from asr.engines.qwen.model.mel import FrontEnd
from asr.engines.qwen.packed import Packed, PackedRow
from asr.engines.qwen.prompt import Prompts
from asr.engines.qwen.session import QwenSession
from asr.engines.qwen.sound import Pages, look
from asr.engines.runtime import Runtime
from asr.server.scheduler import LIVE, Request
from asr.utterance import Utterance
from audio.codecs.g711 import ulaw_encode

WARM_UP_S = 9
"""Longer than a window."""
POSITIONS = 1024
"""Of an utterance: 30 s of audio (390), the longest context (256) and an answer of 16 tokens a second fit in."""
NOT_CHECKED = "not needed"
"""On a CPU nothing could be simpler than what is used."""


@dataclass(frozen=True, slots=True)
class Shape:
    """How much is done at once, and how much is kept."""

    slots: int = 16
    """Utterances of full length whose keys and values are kept; of shorter ones more."""
    positions: int = POSITIONS
    """Of an utterance at most: the prompt with its context, 13 a second of audio, and the answer."""
    page: int = PAGE
    """Positions in a page of keys and values: on a GPU this many, or a multiple."""
    batch: int = 16
    """Requests in a step."""
    batch_tokens: int = 128
    """New positions of the batch lane in a step, all together: a live request waits for no more than that."""
    live_tokens: int = 1024
    """New positions of one live utterance in a step."""
    captured_positions: int = 2048
    """Of a forward whose shape is fixed: larger ones are done in parts."""
    window_s: float | None = None
    """Seconds of audio that attend to each other; None: as published."""
    settling: Settling = Settling.FROZEN
    """Of partials; finals are exact."""


class QwenEngine:
    """See `asr.engines.interface.Engine`. Used from one thread."""

    name = "qwen"

    _front_class: type[FrontEnd] = FrontEnd
    _encoder_class: type[Encoder] = Encoder
    _packed_class: type[Packed] = Packed

    def __init__(self, loaded: LoadedModel, shape: Shape, execution: Execution | None = None) -> None:
        """Takes the model over: nobody else can use it any more. `execution`: other than what suits its device."""
        self.shape = shape
        model = loaded.model
        weight = model.get_input_embeddings().weight
        text = model.config.get_text_config()
        self.kv_cache = KvCache(
            text, pages=shape.slots * -(-shape.positions // shape.page), positions=shape.positions, page=shape.page,
            device=weight.device, dtype=weight.dtype,
        )  # fmt: skip
        self.prompts = Prompts(loaded.tokenizer, ends=loaded.ends)
        fuse(model)
        self._model, self._extractor = model, loaded.extractor
        self.execution = execution if execution is not None else for_device(weight.device)
        self.capabilities = Capabilities(
            # Each request of a step must be able to have its pages.
            batch=min(shape.batch, shape.slots),
            pipelined=self.execution.staging.asynchronous,
        )
        self.checked = NOT_CHECKED
        """What the self check has found."""
        self.warnings: tuple[str, ...] = ()
        self._make(self.execution)
        self._sessions: dict[str, QwenSession] = {}
        self._used: dict[str, QwenSession] = {}
        """Owners of pages, the one that nothing was done for for longest first."""
        self._files = 0
        """How many of them are no calls."""
        self._launched: set[str] = set()
        """Utterances in a step that has not been collected: nobody gets their pages."""

    def _make(self, means: Execution) -> tuple[Encoder, Packed]:
        """The parts that compute, so from now on."""
        device = self.kv_cache.keys.device
        self.front = self._front_class(self._extractor, device, means.staging)
        self.encoder = self._encoder_class(
            self._model, means.kernels, means.graphs, means.staging, window_s=self.shape.window_s
        )
        self.pages = Pages(self.encoder.chunk, self.front.bins, device, means.staging)
        self.packed = self._packed_class(
            self._model, self.kv_cache, means.kernels, means.graphs, means.staging,
            never=self.prompts.never, rows=self.capabilities.batch, positions=self.shape.captured_positions,
        )  # fmt: skip
        means.staging.settle()  # the front end does not wait for what has been started here
        return self.encoder, self.packed

    def runtime(self) -> Runtime:
        keys = self.kv_cache.keys
        device, cuda = keys.device, keys.device.type == "cuda"
        free, whole = torch.cuda.mem_get_info(device) if cuda else (0, 0)
        means = self.execution
        wrong = () if self.checked in ("passed", NOT_CHECKED) else (f"self check of the engine: {self.checked}",)
        return Runtime(
            device=str(device),
            device_name=torch.cuda.get_device_name(device) if cuda else "",
            dtype=str(keys.dtype).removeprefix("torch."),
            attention=means.kernels.name,
            graphs=means.graphs.fixed,
            self_check=self.checked,
            torch=str(torch.__version__),
            cuda=torch.version.cuda or "",
            memory_bytes=whole,
            free_bytes=free,
            slots_bytes=2 * keys.nbytes,
            slots=self.shape.slots,
            batch=self.capabilities.batch,
            warnings=(*self.warnings, *wrong),
        )

    # -- utterances -------------------------------------------------------------------------------------------------

    def open(self, utterance: Utterance) -> None:
        assert utterance.id not in self._sessions, f"{utterance.id} is open"
        prompt = self.prompts.build(context=utterance.context, language=utterance.language)
        self._sessions[utterance.id] = QwenSession(utterance, prompt)

    def append(self, utterance_id: str, audio: bytes) -> None:
        self._sessions[utterance_id].sound.append(audio)

    def close(self, utterance_id: str) -> None:
        self._sessions.pop(utterance_id).sound.close(self.pages)
        self._give(utterance_id)

    def has(self, utterance_id: str) -> bool:
        return utterance_id in self._sessions

    def said(self, utterance_id: str) -> list[int]:
        """The tokens of its last answer."""
        return self._sessions[utterance_id].drafted

    def suggest(self, utterance_id: str, tokens: Sequence[int]) -> None:
        """What its next answer may be; wrong ones cost a little time and change nothing."""
        self._sessions[utterance_id].drafted = list(tokens)

    # -- pages ------------------------------------------------------------------------------------------------------

    def runnable(self, request: Request) -> bool:
        session = self._sessions[request.utterance_id]
        if session.utterance.live or (missing := self._missing(session, request) - self.kv_cache.free) <= 0:
            return True
        return self._room(self._victims((session.utterance.id,)), missing, live=False) is not None

    def _missing(self, session: QwenSession, request: Request) -> int:
        """Pages that its answer may need and it does not have."""
        if session.has_begun(request):  # with its pages; it is given up when it loses them
            return 0
        positions = session.most_positions(request, self.front.frames(session.end(request)))
        return self.kv_cache.missing(session.utterance.id, min(positions, self.shape.positions))

    def _room(self, victims: Victims, missing: int, *, live: bool) -> list[str] | None:
        """Whose pages make room for so many more; None: nobody's do."""
        names: list[str] = []
        while missing > 0:
            name = victims.take(live=live)
            if name is None:
                return None
            names.append(name)
            missing -= len(self.kv_cache.of(name))
        return names

    def _victims(self, working: Collection[str]) -> Victims:
        owners = [owner for name, owner in self._used.items() if name not in self._launched]
        files = [owner for owner in owners if not owner.utterance.live] if self._files else []
        return Victims(owners, files, working, only=self.shape.slots == 1)

    def _place(self, requests: Sequence[Request]) -> list[bool]:
        """Whether each has the pages of its answer, or gets them."""
        victims = None
        working = frozenset(request.utterance_id for request in requests)
        found = []
        for request in requests:
            name, session = request.utterance_id, self._sessions[request.utterance_id]
            live, missing = session.utterance.live, self._missing(session, request)
            if missing > self.kv_cache.free:
                victims = victims or self._victims(working)
                for victim in self._room(victims, missing - self.kv_cache.free, live=live) or ():
                    self._sessions[victim].evict()
                    self._give(victim)
            found.append(missing <= self.kv_cache.free)
            if missing and found[-1]:
                self.kv_cache.take(name, missing)
                if name not in self._used:
                    self._used[name] = session
                    self._files += not live
                if victims is not None and not live:
                    victims.add_file(session)
        return found

    def _give(self, name: str) -> None:
        self.kv_cache.give(name)
        if (owner := self._used.pop(name, None)) is not None:
            self._files -= not owner.utterance.live

    # -- steps ------------------------------------------------------------------------------------------------------

    def step(self, requests: Sequence[Request]) -> list[Answer]:
        return self.launch(requests)()

    @torch.inference_mode()
    def launch(self, requests: Sequence[Request]) -> Collect:
        try:
            return self._launch(requests)
        except (MemoryError, RuntimeError) as error:
            if not memory.exhausted(error):
                raise
            # Nothing has been taken yet from what the models said, so everything can be asked of them again.
            raise EngineExhausted(first_line(error)) from None

    def _launch(self, requests: Sequence[Request]) -> Collect:
        working: list[QwenSession] = []
        for request, placed in zip(requests, self._place(requests), strict=True):
            if placed:
                session = self._sessions[request.utterance_id]
                session.begin(request)
                working.append(session)
        # What files may have of a step goes first to the one that has had nothing of it for longest.
        if self._files:
            turns = {name: turn for turn, name in enumerate(self._used)}
            working.sort(key=lambda each: 0 if each.utterance.live else 1 + turns[each.utterance.id])
        self._encode(working)
        speaking, rows = self._rows(working)
        said = self._start(speaking, rows) if rows else list[list[int]]
        names = {session.utterance.id for session in working}
        self._launched |= names

        def collect() -> list[Answer]:
            self._launched -= names
            return self._answers(speaking, rows, said())

        return collect

    def _encode(self, sessions: Sequence[QwenSession]) -> None:
        """Bring their audio through the encoder: of live ones all of it, of one of the batch lane a window."""
        unseen = [session for session in sessions if session.work.encoding is None]
        live = [session for session in unseen if session.utterance.live]
        # The frames of thirty seconds take as long as some steps: a file's, and only one at a time.
        self._look(live + [session for session in unseen if not session.utterance.live][:1])
        encodings = [
            (session, session.work.encoding)
            for session in sessions
            if session.work.input is None and session.work.encoding is not None
        ]
        todo, batch = [], 1
        for session, encoding in encodings:
            missing = self.encoder.missing(encoding)
            if not session.utterance.live:
                missing = min(missing, batch)
                batch -= missing
            if missing:
                self._used_now(session)
            todo.append((encoding, missing))
        self.encoder.run(todo, self.pages.frames)
        for (session, _), (encoding, _) in zip(encodings, todo, strict=True):
            if self.encoder.missing(encoding):
                continue
            try:
                session.prefill(self.encoder.finish(encoding), self.shape.positions)
            except ValueError as error:
                session.drop()
                raise EngineError(session.utterance.id, str(error)) from error

    def _look(self, sessions: Sequence[QwenSession]) -> None:
        """Make the frames of what they have been asked about, all of them together."""
        wanted = [(session.sound, session.end(session.work.request)) for session in sessions]
        staging = self.execution.staging
        with staging.beside():
            views = look(self.front, self.pages, staging, wanted)
        for session, view in zip(sessions, views, strict=True):
            settling = Settling.EXACT if session.work.request.final else self.shape.settling
            session.work.encoding = self.encoder.begin(session.audio, view, settling)

    def _rows(self, working: Sequence[QwenSession]) -> tuple[list[QwenSession], list[PackedRow]]:
        """The next positions of those whose audio is through the encoder."""
        rows, speaking = [], []
        batch_tokens = self.shape.batch_tokens
        for session in working:
            live, pages = session.utterance.live, self.kv_cache.of(session.utterance.id)
            limit = self.shape.live_tokens if live else batch_tokens
            if session.work.input is None or limit <= 0:
                continue
            row = session.row(pages, limit)
            if not live and len(row) > limit:
                if limit < self.shape.batch_tokens:
                    continue  # until it is the first file of a step
                self._cut(session, limit)
                row = session.row(pages, limit)
            if not live:
                batch_tokens -= len(row)
            self._used_now(session)
            rows.append(row)
            speaking.append(session)
        return speaking, rows

    def _answers(
        self, speaking: Sequence[QwenSession], rows: Sequence[PackedRow], said: Sequence[Sequence[int]]
    ) -> list[Answer]:
        answers = []
        for session, row, heard in zip(speaking, rows, said, strict=True):
            request = session.work.request
            tokens = session.take(row, heard, self.prompts)
            if tokens is not None:
                language, text = self.prompts.read(tokens, session.prompt)
                answers.append(Answer(request, text, language))
        return answers

    def _start(
        self, sessions: Sequence[QwenSession], rows: Sequence[PackedRow]
    ) -> Callable[[], Sequence[Sequence[int]]]:
        """The most likely token at each of the wanted positions of each row, once somebody waits for them."""
        return self.packed.launch(rows)

    def _used_now(self, session: QwenSession) -> None:
        name = session.utterance.id
        self._used[name] = self._used.pop(name)

    def _cut(self, session: QwenSession, limit: int) -> None:
        """A draft is verified in one piece, of at most `limit` positions; the rest of it is said anew."""
        work = session.work
        assert work.input is not None
        spare = len(work.draft) + 1 - limit
        work.draft, work.input = work.draft[:-spare], work.input[:-spare]

    @torch.inference_mode()
    def warm_up(self) -> None:
        """One utterance of speech-like sound through every stage, at the shapes that calls will have. Raises
        EngineUnusable."""
        try:
            self._warm_up()
        except (EngineExhausted, MemoryError, RuntimeError) as error:
            if not isinstance(error, EngineExhausted) and not memory.exhausted(error):
                raise
            shape = self.shape
            raise memory.too_large(shape.slots, shape.positions, shape.batch, error) from None

    def _warm_up(self) -> None:
        if self.kv_cache.keys.device.type != "cpu" or not self.execution.plain:
            selfcheck.hear(self.front, FrontEnd(self._extractor, torch.device("cpu"), Direct()))
            settled = selfcheck.settle(self._make, self.execution, self.kv_cache.keys.dtype)
            self.execution, self.checked = settled.execution, settled.sentence
        utterance = Utterance("warm-up", "PCMU", live=True)
        rng = np.random.default_rng(0)
        seconds = np.arange(WARM_UP_S * 8000) / 8000
        envelope = (0.5 + 0.5 * np.sin(2 * np.pi * 4 * seconds)) ** 2
        sound = envelope * (np.sin(2 * np.pi * 220 * seconds) + 0.3 * rng.standard_normal(len(seconds)))
        self.open(utterance)
        self.append(utterance.id, ulaw_encode((3000 * sound).astype(np.int16)))
        for revision, final in enumerate((False, True)):
            request = Request(utterance.id, revision, LIVE[-1], final, WARM_UP_S * 8000, 0.0)
            while not self.step([request]):
                pass
        self.close(utterance.id)
