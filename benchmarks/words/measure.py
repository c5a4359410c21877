"""One engine through all that is asked for: a row of the table for each line and condition."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from msgspec.structs import replace

from asr.utterance import Format
from audio.codecs.g711 import ulaw_encode
from benchmarks.words import calls as world
from benchmarks.words import live, offline, prompts, table
from benchmarks.words.calls import LINES, Condition, Line, Plan
from benchmarks.words.prompts import Prompt
from benchmarks.words.score import Piece, Scored, score, taken_back
from config import Settings
from config.settings import Asr
from mediaworker.replay.link import Faults

Step = tuple[str, Condition, float]
"""A line, a condition, and the share of the prompts."""


@dataclass(frozen=True)
class Job:
    """One engine in one language, in a worker of its own."""

    name: str
    """Of the engine, for the table."""
    asr: Asr
    """With the language; empty: the engine detects it."""
    language: str
    """Of the prompts."""
    steps: Sequence[Step]


def measure(job: Job, chosen: Sequence[Prompt], at_once: int, add: Callable[[table.Row], None]) -> None:
    """All rows of one engine in one language. Raises LiveFailed."""
    settings = replace(Settings(), asr=job.asr)
    given = {"ASR__ENGINE": job.asr.engine, "ASR__LANGUAGE": job.asr.language} | (
        {"ASR__MODEL": job.asr.model} if job.asr.engine == "qwen" else {}
    )
    cores = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(os.cpu_count(), mp_context=cores) as pool:
        if job.asr.language:
            some = prompts.sample(chosen, max(share for *_, share in job.steps))
            for form in ("L16", "PCMU"):
                add(_offline(pool, job, settings, form, some))
        with tempfile.TemporaryDirectory() as base, live.worker(Path(base), given) as running:
            for line, condition, share in job.steps:
                some = prompts.sample(chosen, share)
                add(_call(pool, running, job, settings, LINES[line], condition, some, chosen, at_once))


def _offline(
    pool: ProcessPoolExecutor, job: Job, settings: Settings, form: Format, chosen: Sequence[Prompt]
) -> table.Row:
    """The recordings as they are, whole."""
    waiting = [pool.submit(_recognise, settings, form, prompt) for prompt in chosen]
    answers = [each.result() for each in waiting]
    scored = [
        each
        for prompt, (text, _) in zip(chosen, answers, strict=True)
        for each in _score([prompt], [(0, 1)], [text], [], [Piece(0, 1, text)])
    ]
    audio_s = sum(prompt.length_s for prompt in chosen)
    return table.Row(
        job.name,
        "offline",
        "16 kHz" if form == "L16" else "8 kHz, µ-law",
        job.language,
        len(chosen),
        sum(each.words for each in scored),
        sum(each.offline_errors for each in scored),
        mended=_mended(chosen, scored),
        inference_ms=1000 * sum(cpu_s for _, cpu_s in answers) / audio_s,
        scored=tuple(scored),
    )


def _recognise(settings: Settings, form: Format, prompt: Prompt) -> tuple[str, float]:
    wide = form == "L16"
    samples = prompt.samples(16000 if wide else 8000)
    audio = samples.tobytes() if wide else bytes(ulaw_encode(samples))
    offline.warm(settings)
    begun = time.process_time()
    text = offline.recognise(settings, form, audio)
    return text, time.process_time() - begun


def _call(
    pool: ProcessPoolExecutor,
    running: live.Worker,
    job: Job,
    settings: Settings,
    line: Line,
    condition: Condition,
    chosen: Sequence[Prompt],
    others: Sequence[Prompt],
    at_once: int,
) -> table.Row:
    plans = world.plan(chosen, at_once)
    with tempfile.TemporaryDirectory() as base:
        writing = [pool.submit(_write, Path(base), plan, line, condition, list(others)) for plan in plans]
        files = {plan.number: each.result() for plan, each in zip(plans, writing, strict=True)}
        begins = {plan.number: live.STAGGER_S * plan.number for plan in plans}
        run = asyncio.run(live.play(running, line, condition, files, begins))
        reading = [
            pool.submit(offline.hear, settings, line, files[plan.number], _faults(condition, plan), plan.parts)
            for plan in plans
        ]
        heard = [each.result() for each in reading]
    scored = []
    for plan, found in zip(plans, heard, strict=True):
        cut = [
            Piece(each.start + found.begin, each.end + found.begin, each.text, each.lost_ms)
            for each in found.utterances
        ]
        finals = run.calls[plan.number].finals
        # The call's clock begins with its signalling, the samples with the first packet: the first utterance tells.
        shift = cut[0].start - 8 * finals[0].start_ms if cut and finals else 0
        spoken = [Piece(8 * each.start_ms + shift, 8 * each.end_ms + shift, each.text, each.lost_ms) for each in finals]
        windows = [(part.start, part.end) for part in plan.parts]
        scored += _score([part.prompt for part in plan.parts], windows, found.whole, cut, spoken)
    ended = list(run.calls.values())
    finals = [final for call in ended for final in call.finals]
    partials = [taken_back(texts) for call in ended for texts in call.partials]
    audio_s = sum(prompt.length_s for prompt in chosen)
    silence_ms = settings.endpointing.assist.min_silence_ms
    return table.Row(
        job.name,
        line.title,
        condition.title,
        job.language,
        len(chosen),
        sum(each.words for each in scored),
        sum(each.offline_errors for each in scored),
        sum(each.cut_errors for each in scored),
        sum(each.live_errors for each in scored),
        sum(each.added_words for each in scored),
        mended=_mended(chosen, scored),
        detected=None if job.asr.language else _detected(ended, job.language),
        first_partial_ms=_percentiles([ms for call in ended for ms in call.first_partial_ms]),
        final_ms=_percentiles([each.latency_ms - silence_ms for each in finals if each.reason == "endpoint"]),
        partials=sum(count for count, _ in partials),
        taken_back=sum(back for _, back in partials),
        shed_partials=run.shed_partials,
        late_packets=sum(call.late for call in ended),
        failed_finals=sum(final.error is not None for final in finals),
        inference_ms=1000 * run.inference_s / audio_s,
        worker_ms=1000 * run.worker_s / audio_s,
        scored=tuple(scored),
    )


def _score(
    spoken: Sequence[Prompt],
    windows: Sequence[tuple[int, int]],
    whole: Sequence[str],
    cut: Sequence[Piece],
    live: Sequence[Piece],
) -> list[Scored]:
    names, texts, mended = zip(*((prompt.name, prompt.text, prompt.mended) for prompt in spoken), strict=True)
    return score(names, texts, windows, whole, cut, live, mended=mended, language=spoken[0].language)


def _mended(chosen: Sequence[Prompt], scored: Sequence[Scored]) -> tuple[int, int] | None:
    if not any(prompt.mended for prompt in chosen):
        return None
    return sum(each.mended_errors for each in scored), sum(each.mended_words for each in scored)


def _detected(ended: Sequence[live.Call], language: str) -> table.Detected:
    legs = [[final.language for final in call.finals if final.text] for call in ended]
    legs = [told for told in legs if told]
    return table.Detected(
        sum(told.count(language) for told in legs),
        sum(map(len, legs)),
        sum(Counter(told).most_common(1)[0][0] == language for told in legs),
        len(legs),
    )


def _write(folder: Path, plan: Plan, line: Line, condition: Condition, others: list[Prompt]) -> Path:
    samples = world.sound(plan, line.rate_hz, condition, others)
    file = folder / f"{plan.number}.{'jsonl' if line.twilio else 'pcap'}"
    if line.twilio:
        world.write_recording(file, samples, live.call_sid(plan.number))
    else:
        world.write_capture(file, samples, line.codec)
    return file


def _faults(condition: Condition, plan: Plan) -> Faults:
    """As the caller's `mediaworker replay` is told."""
    return Faults(loss=condition.loss, seed=plan.number)


def _percentiles(values: Sequence[float]) -> tuple[float, float] | None:
    return (float(np.percentile(values, 50)), float(np.percentile(values, 95))) if values else None
