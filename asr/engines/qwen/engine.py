"""Qwen3-ASR over many calls: one step is one pass of the encoder and one packed forward of the text model.

A step is `_schedule` (pages and turns), `_encode` (audio tower), `_forward` (text model) and `_answers`. `launch` does
the first three, and the function that it returns does the last: on a GPU the caller launches the step of another cohort
of utterances before it collects this one, so that host and device work at the same time. The package's docstring walks
one request through a step, with its shapes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from asr.engines.interface import Answer, Capabilities, Collect, EngineError, EngineExhausted, first_line
from asr.engines.qwen import selfcheck
from asr.engines.qwen.allocation import PageAllocator
from asr.engines.qwen.device import memory
from asr.engines.qwen.device.execution import Execution, Staging, for_device
from asr.engines.qwen.device.memory import Shape
from asr.engines.qwen.encoder import Encoder
from asr.engines.qwen.model.fused import fuse
from asr.engines.qwen.model.kv_cache import KvCache
from asr.engines.qwen.model.loader import LoadedModel
from asr.engines.qwen.model.mel import FrontEnd
from asr.engines.qwen.model.prompt import Prompts
from asr.engines.qwen.packed import Packed, PackedRow
from asr.engines.qwen.session import QwenSession
from asr.engines.qwen.sound import FramePages, compute_views
from asr.runtime import Runtime
from asr.scheduling.request import LIVE, Request
from asr.utterance import Utterance
from audio.codecs.g711 import ulaw_encode

WARM_UP_S = 9
"""The warm-up is longer than a window of the encoder."""
NOT_CHECKED = "not needed"
"""On a CPU the engine uses torch's own operations, and there is nothing simpler to compare them with."""


TokenRows = Sequence[Sequence[int]]
"""The tokens of each row of a forward: the most likely one after each of its last `logits_count` positions."""


class QwenEngine:
    """Implements `asr.engines.interface.PipelinedEngine`. One thread uses it."""

    name = "qwen"

    _front_class: type[FrontEnd] = FrontEnd
    _encoder_class: type[Encoder] = Encoder
    _packed_class: type[Packed] = Packed

    def __init__(self, loaded: LoadedModel, shape: Shape, execution: Execution | None = None) -> None:
        """Take over `loaded`, which nothing else can use any more.

        `execution` replaces what suits the model's device.
        """
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
            # A step must be able to give each of its requests the pages of a full utterance.
            batch=min(shape.batch, shape.slots),
            pipelined=self.execution.staging.asynchronous,
        )
        self.checked = NOT_CHECKED
        """`passed`, `NOT_CHECKED`, or a sentence about what the self check has found."""
        self.warnings: tuple[str, ...] = ()
        self._make(self.execution)
        self._sessions: dict[str, QwenSession] = {}
        self.allocator = PageAllocator(self.kv_cache, lambda samples: self.front.frames(samples), only=shape.slots == 1)

    def _make(self, means: Execution) -> tuple[Encoder, Packed]:
        """Replace the parts that compute by ones that use these kernels, graphs and staging."""
        device = self.kv_cache.keys.device
        self.front = self._front_class(self._extractor, device, means.staging)
        self.encoder = self._encoder_class(
            self._model, means.kernels, means.graphs, means.staging, window_s=self.shape.window_s
        )
        self.pages = FramePages(self.encoder.chunk, self.front.bins, device, means.staging)
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
        wrong = (
            () if self.checked in (selfcheck.PASSED, NOT_CHECKED) else (f"self check of the engine: {self.checked}",)
        )
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
        self._sessions[utterance_id].sound.audio += audio

    def close(self, utterance_id: str) -> None:
        self._sessions.pop(utterance_id).sound.close(self.pages)
        self.allocator.release(utterance_id)

    def has(self, utterance_id: str) -> bool:
        return utterance_id in self._sessions

    def last_tokens(self, utterance_id: str) -> list[int]:
        """The tokens of the last answer to an utterance, which are the draft of its next one."""
        return self._sessions[utterance_id].drafted

    def suggest(self, utterance_id: str, tokens: Sequence[int]) -> None:
        """Set the draft of the next answer. Wrong tokens cost a little time and change nothing."""
        self._sessions[utterance_id].drafted = list(tokens)

    def runnable(self, request: Request) -> bool:
        return self.allocator.can_allocate(self._sessions[request.utterance_id], request)

    # -- steps ------------------------------------------------------------------------------------------------------

    def step(self, requests: Sequence[Request]) -> list[Answer]:
        """Schedule, encode, forward, answer. See the module for the shapes."""
        return self.launch(requests)()

    @torch.inference_mode()
    def launch(self, requests: Sequence[Request]) -> Collect:
        """Do all of a step but its answers, which the returned function waits for.

        Raises:
            EngineError: the prompt of an utterance does not fit onto its pages.
            EngineExhausted: the device has too little memory. No session has changed by what the models computed.
        """
        try:
            sessions = self._schedule(requests)
            self._encode(sessions)
            decoding, rows = self._rows(sessions)
            tokens = self._forward(decoding, rows)
        except (MemoryError, RuntimeError) as error:
            if not memory.exhausted(error):
                raise
            # Only `_answers` changes what has been decoded, so everything can be asked again with less in the step.
            raise EngineExhausted(first_line(error)) from None
        names = {session.utterance.id for session in sessions}
        self.allocator.in_flight |= names

        def collect() -> list[Answer]:
            self.allocator.in_flight -= names
            return self._answers(decoding, rows, tokens())

        return collect

    def _schedule(self, requests: Sequence[Request]) -> list[QwenSession]:
        """The sessions that this step works on: those that have their pages, in the order of their turns."""
        work = [(self._sessions[request.utterance_id], request) for request in requests]
        sessions: list[QwenSession] = []
        for (session, request), allocated in zip(work, self.allocator.allocate(work), strict=True):
            if allocated:
                session.begin(request)
                sessions.append(session)
        self.allocator.order(sessions)
        return sessions

    def _encode(self, sessions: Sequence[QwenSession]) -> None:
        """Bring audio through the encoder: all of each call's, and one window of one file's.

        A file's window takes the encoder as long as a step of calls may take altogether.
        """
        unseen = [session for session in sessions if session.work.encoding is None]
        live = [session for session in unseen if session.utterance.live]
        # The frames of thirty seconds take as long as some steps: a file's, and only one at a time.
        self._begin_encodings(live + [session for session in unseen if not session.utterance.live][:1])
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
                self.allocator.touch(session)
            todo.append((encoding, missing))
        self.encoder.run(todo, self.pages.frames)
        for session, encoding in encodings:
            if self.encoder.missing(encoding):
                continue
            try:
                session.prefill(self.encoder.finish(encoding), self.shape.positions)
            except ValueError as error:
                session.drop()
                raise EngineError(session.utterance.id, str(error)) from error

    def _begin_encodings(self, sessions: Sequence[QwenSession]) -> None:
        """Compute the frames of the audio that each session is asked about, all of them together."""
        ends = [(session.sound, session.end(session.work.request)) for session in sessions]
        staging = self.execution.staging
        with staging.beside():
            views = compute_views(self.front, self.pages, staging, ends)
        for session, view in zip(sessions, views, strict=True):
            exact = session.work.request.final or self.shape.exact_partials
            session.work.encoding = self.encoder.begin(session.audio, view, exact=exact)

    def _rows(self, sessions: Sequence[QwenSession]) -> tuple[list[QwenSession], list[PackedRow]]:
        """The sessions whose audio is through the encoder and that have room in this step, and the row of each."""
        rows, decoding = [], []
        batch_tokens = self.shape.batch_tokens
        for session in sessions:
            live, pages = session.utterance.live, self.kv_cache.of(session.utterance.id)
            limit = self.shape.live_tokens if live else batch_tokens
            if session.work.input is None or limit <= 0:
                continue
            row = session.row(pages, limit)
            if not live and len(row) > limit:
                if limit < self.shape.batch_tokens:
                    continue  # until it is the first file of a step
                session.shorten_draft(limit)
                row = session.row(pages, limit)
            if not live:
                batch_tokens -= len(row)
            self.allocator.touch(session)
            rows.append(row)
            decoding.append(session)
        return decoding, rows

    def _forward(self, sessions: Sequence[QwenSession], rows: Sequence[PackedRow]) -> Callable[[], TokenRows]:
        """Launch the forward of the text model. The returned function waits for the most likely token at each of the
        last `logits_count` positions of each row."""
        return self.packed.launch(rows) if rows else lambda: []

    def _answers(self, sessions: Sequence[QwenSession], rows: Sequence[PackedRow], tokens: TokenRows) -> list[Answer]:
        """The answers that are complete with these tokens."""
        answers = []
        for session, row, row_tokens in zip(sessions, rows, tokens, strict=True):
            request = session.work.request
            decoded = session.accept(row, row_tokens, self.prompts)
            if decoded is not None:
                language, text = self.prompts.read(decoded, session.prompt)
                answers.append(Answer(request, text, language))
        return answers

    # -- warm-up ----------------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def warm_up(self) -> None:
        """Check the device, then take one utterance of speech-like sound through every stage at the shapes of calls.

        Raises:
            EngineUnusable: the device computes wrong results, or has too little memory for `shape`.
        """
        with memory.needed_by(self.shape):
            self._warm_up()

    def _warm_up(self) -> None:
        if self.kv_cache.keys.device.type != "cpu" or not self.execution.plain:
            selfcheck.check_frames(self.front, FrontEnd(self._extractor, torch.device("cpu"), Staging()))
            self.execution, self.checked = selfcheck.settle(self._make, self.execution, self.kv_cache.keys.dtype)
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
