"""The arguments of `mediaworker bench`, and its tables."""

from __future__ import annotations

import argparse
import json
import platform
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.engine.costs import COSTS
from benchmarks.engine.limit import CHIPS, PUBLISHED

SECONDS = 20.0
"""Of a run of an engine, by default."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    kinds = parser.add_subparsers(dest="kind", required=True, metavar="KIND")
    media = kinds.add_parser("media", help="legs of RTP on loopback through VAD, endpointing and events")
    twilio = kinds.add_parser("twilio", help="Twilio streams of two tracks through the same")
    twilio.add_argument(
        "--streams", type=_counts, default=[50], metavar="N[,N…]", help="streams at once, two legs each (default 50)"
    )
    sip = kinds.add_parser("sip", help="recording sessions (SIPREC) of two streams through SIP endpoint and the same")
    sip.add_argument(
        "--calls", type=_counts, default=[50], metavar="N[,N…]", help="sessions at once, two legs each (default 50)"
    )
    media.add_argument("--legs", type=_counts, default=[100], metavar="N[,N…]", help="legs at once (default 100)")
    media.add_argument("--silence", action="store_true", help="send silence back, as SIP calls do by default")
    engine = kinds.add_parser("engine", help="an engine on one core, beside two usual ways to use its model")
    engine.add_argument("--engine", choices=("qwen", "moonshine"), default="qwen", help="default: qwen, Qwen3-ASR")
    calls = "legs that speak at once (default 1,8,32; moonshine 1,8,16,32; with --random-weights: the objective's)"
    engine.add_argument("--calls", type=_counts, metavar="N[,N…]", help=calls)
    weights = engine.add_mutually_exclusive_group()
    weights.add_argument(
        "--model", default="", metavar="FOLDER-OR-NAME", help="default: the tiny one of a checkout, in models/"
    )
    weights.add_argument(
        "--random-weights", choices=("0.6B", "1.7B", "tiny"), help="a model of these dimensions, its answers driven"
    )
    weights.add_argument(
        "--host", action="store_true", help="what the host does for each answer, without the models' arithmetic"
    )
    engine.add_argument(
        "--predict", choices=tuple(COSTS), help="streams at the objective, by virtual time and a cost model of this GPU"
    )
    said = "what is said (default: tests/data/digits of a checkout; for moonshine Asterisk's prompts if installed)"
    engine.add_argument("--audio", nargs="+", default=[], metavar="FILE", help=said)
    pieces = "pieces of it in one utterance (default 1)"
    engine.add_argument("--join", type=int, choices=range(1, 9), metavar="N", help=pieces)
    engine.add_argument(
        "--clock",
        choices=("real", "cpu"),
        help="what a step took: time, or CPU time, which others on the machine change less (default real)",
    )
    engine.add_argument(
        "--processes", type=_counts, metavar="N[,N…]", help="inference processes that share the calls, in real time"
    )
    engine.add_argument("--threads", type=_number, metavar="N", help="moonshine: as asr.threads (default 1)")
    cadence = "between partials (default 500); moonshine: 0 for finals alone; else with --random-weights"
    engine.add_argument("--partial-ms", type=_cadence, metavar="MS", help=cadence)
    _add_random(engine)
    files = _add_files(kinds)
    events = _add_events(kinds)
    cluster = kinds.add_parser("cluster", help="a final from an engine server; the events of another worker")
    cluster.add_argument("--calls", type=_number, metavar="N", help="tell another worker the events of N calls")
    cluster.add_argument("--seconds", type=_seconds, default=20.0, metavar="S", help="with --calls (default 20)")
    cluster.add_argument("--finals", type=_number, default=1500, metavar="N", help="in each run (default 1500)")
    cluster.add_argument("--json", metavar="FILE", help="write the figures to this file as well")
    _add_scale(kinds)
    for kind in (media, twilio, sip):
        kind.add_argument("--noise", action="store_true", help="noise in the pauses instead of digital silence")
    for kind, seconds in ((media, 20), (twilio, 20), (sip, 20), (engine, SECONDS), (files, 60), (events, 20)):
        length = f"length of each run (default {seconds})"
        kind.add_argument("--seconds", type=_seconds, default=float(seconds), metavar="S", help=length)
        kind.add_argument("--json", metavar="FILE", help="write the figures to this file as well")
        kind.add_argument("--no-baseline", action="store_true", help="leave out the usual design")


_HOST = ("batch", "slots", "utterance_s", "context")
_NOT_HOST = ("audio", "join", "clock", "threads", "partial_ms", "processes")
_NOT_PROCESSES = ("join", "clock", "threads")
_RANDOM = (
    "device", "dtype", "chip", "objective_final_ms", "objective_partial_ms", "utterance_s", "context", "partial_ms",
    "window_s", "start", "bound", "limit_s", "files", "slots", "batch", "batch_tokens",
    "graphs", "quantise",
)  # fmt: skip
"""Options that only --random-weights has."""
_PREDICT = (
    "objective_final_ms", "objective_partial_ms", "utterance_s", "context", "partial_ms", "start", "bound", "files",
)  # fmt: skip
_NOT_PREDICT = (
    *(name for name in _RANDOM if name not in _PREDICT),
    "random_weights", "host", "calls", "audio", "join", "clock", "threads", "processes",
)  # fmt: skip
_NOT_RANDOM = ("audio", "join", "threads", "processes")
_NOT_MOONSHINE = ("model", "random_weights", "host", "join", *(name for name in _RANDOM if name != "partial_ms"))


def _add_random(engine: argparse.ArgumentParser) -> None:
    group = engine.add_argument_group("with --random-weights")
    group.add_argument("--device", choices=("auto", "cpu", "cuda"), help="default auto: a GPU when there is one")
    group.add_argument(
        "--dtype", choices=("auto", "float32", "bfloat16", "float16"), help="default: bfloat16 on a GPU, else float32"
    )
    group.add_argument(
        "--chip", choices=tuple(CHIPS), help="whose computed limit to show (default: by the device's name)"
    )
    group.add_argument("--objective-final-ms", type=_positive, metavar="MS", help="p99 of finals (default 150)")
    group.add_argument("--objective-partial-ms", type=_positive, metavar="MS", help="p99 of partials (default 300)")
    group.add_argument(
        "--utterance-s", type=_utterance, metavar="S", help="mean length of an utterance, which vary (default 5)"
    )
    group.add_argument(
        "--context", type=_number, metavar="N", help="words that each gives the engine beside what is said (default 0)"
    )
    group.add_argument(
        "--window-s",
        type=_positive,
        metavar="S",
        help="of the encoder (default: as published, 8; short_windows of qwen.experimental has 2)",
    )
    group.add_argument("--start", type=_number, metavar="N", help="streams that the search begins with")
    group.add_argument("--bound", type=_number, metavar="N", help="streams at which it ends")
    group.add_argument("--limit-s", type=_positive, metavar="S", help="time for each search (default: no limit)")
    group.add_argument("--files", type=_number, metavar="N", help="read at once in the batch lane")
    group.add_argument("--slots", type=_number, metavar="N", help="as qwen.slots (default: as memory allows)")
    group.add_argument("--batch", type=_number, metavar="N", help="as qwen.batch (default 128 on a GPU, else 16)")
    group.add_argument("--graphs", choices=("on", "off"), help="as qwen.graphs (default on)")
    group.add_argument(
        "--quantise", choices=("none", "int8", "fp8"), help="8 bits, as in qwen.experimental (default none)"
    )
    group.add_argument("--batch-tokens", type=_number, metavar="N", help="as qwen.batch_tokens (default 128)")


def _add_files(kinds: Any) -> argparse.ArgumentParser:
    files: argparse.ArgumentParser = kinds.add_parser("files", help="files through the engine, alone and beside calls")
    files.add_argument("--files", type=_number, default=8, metavar="N", help="so many different ones (default 8)")
    files.add_argument("--minutes", type=_positive, default=1.0, metavar="M", help="length of each (default 1)")
    files.add_argument("--calls", type=_number, default=4, metavar="C", help="that speak at once (default 4)")
    files.add_argument(
        "--rows", type=int, choices=range(1, 65), default=8, metavar="N", help="files.parallel_segments (default 8)"
    )
    files.add_argument("--model", default="", metavar="FOLDER-OR-NAME", help="as for engine")
    files.add_argument("--audio", nargs="+", default=[], metavar="FILE", help="what is said, as for engine")
    return files


def _add_events(kinds: Any) -> argparse.ArgumentParser:
    events: argparse.ArgumentParser = kinds.add_parser("events", help="subscribers of live calls")
    events.add_argument("--calls", type=_number, default=50, metavar="C", help="live calls (default 50)")
    events.add_argument("--subscribers", type=_number, default=1000, metavar="N", help="who read (default 1000)")
    events.add_argument("--all", type=_number, default=20, metavar="N", help="of them, on all calls (default 20)")
    events.add_argument("--stalled", type=_number, default=50, metavar="N", help="who never read (default 50)")
    return events


def _add_scale(kinds: Any) -> None:
    scale = kinds.add_parser("scale", help="thousands of calls, simulated over the real placement and scheduler")
    scenarios = ("steady", "machine-lost", "worker-lost", "region-lost", "monday")
    scale.add_argument("scenario", choices=scenarios, help="what happens; see docs/measurements/simulation.md")
    scale.add_argument("--calls", type=_number, default=10_000, metavar="N", help="at once (default 10000)")
    scale.add_argument(
        "--engine", choices=("gpu", "moonshine"), default="gpu",
        help="costs of a step: estimated for Qwen3-ASR 0.6B on an H100 (default), or measured for Moonshine on a core",
    )  # fmt: skip
    scale.add_argument(
        "--seconds", type=_seconds, default=60.0, metavar="S", help="after 15 s of warm-up; monday: all (default 60)"
    )
    scale.add_argument("--simulated", type=int, choices=range(1, 6), metavar="N", help="regions (default: all)")
    servers = "engine servers of each region (default: as many as the calls need, and a machine of four more)"
    scale.add_argument("--servers", type=_number, metavar="N", help=servers)
    scale.add_argument("--seed", type=_number, default=1, metavar="N", help="(default 1)")
    scale.add_argument("--json", metavar="FILE", help="write the figures to this file as well")


def _number(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 100_000:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a whole number, at least 1")
    return int(text)


def _cadence(text: str) -> int:
    if text == "0":
        return 0
    value = _number(text)
    if not 100 <= value <= 10_000:
        raise argparse.ArgumentTypeError(f"{text!r}: expected 100 to 10000 ms")
    return value


def _positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e6:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a number above 0")
    return value


def _utterance(text: str) -> float:
    value = _positive(text)
    if not 1 <= value <= 30:
        raise argparse.ArgumentTypeError(f"{text!r}: expected 1 to 30 seconds")
    return value


def _counts(text: str) -> list[int]:
    try:
        counts = [int(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number or a list of numbers") from None
    if any(not 1 <= count <= 5000 for count in counts):
        raise argparse.ArgumentTypeError("between 1 and 5000")
    return counts


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 1 <= seconds <= 3600:
        raise argparse.ArgumentTypeError(f"{text!r}: expected 1 to 3600 seconds")
    return seconds


def run(args: argparse.Namespace) -> int:
    kinds = {"engine": _engine, "events": _events, "files": _files, "cluster": _cluster, "scale": _scale}
    return kinds.get(args.kind, _legs)(args)


def _engine(args: argparse.Namespace) -> int:
    if args.engine == "moonshine":
        others, reason = _NOT_MOONSHINE, "does not go with --engine moonshine"
    elif args.predict:
        others, reason = _NOT_PREDICT, "does not go with --predict"
    elif args.host:
        others = tuple(name for name in (*_RANDOM, *_NOT_HOST) if name not in _HOST)
        reason = "does not go with --host"
    elif args.random_weights is None:
        others, reason = (*_RANDOM, "threads"), "goes with --random-weights only"
    else:
        others, reason = _NOT_RANDOM, "does not go with --random-weights"
    given = [name for name in others if getattr(args, name)]
    if args.engine != "moonshine" and args.partial_ms == 0:
        given, reason = ["partial_ms"], "may be 0 with --engine moonshine only"
    if given:
        reason = "goes with --engine moonshine only" if given[0] == "threads" else reason
        print(f"mediaworker: --{given[0].replace('_', '-')} {reason}", file=sys.stderr)
        return 2
    if args.predict:
        return _predict(args)
    if args.processes:
        return _processes(args)
    if args.engine == "moonshine":
        return _moonshine(args)
    if args.host:
        return _host(args)
    return _recorded(args) if args.random_weights is None else _random(args)


def _moonshine(args: argparse.Namespace) -> int:
    from benchmarks.engine import run as engine

    partial_ms = 500 if args.partial_ms is None else args.partial_ms
    threads, rows = args.threads or 1, list[dict[str, Any]]()
    if threads > 1 and args.clock == "cpu":
        print("mediaworker: --clock cpu measures one thread: it does not go with --threads", file=sys.stderr)
        return 2
    try:
        audio = engine.clips(args.audio or engine.prompts())
        designs = engine.moonshine_designs(threads=threads, baseline=not args.no_baseline)
    except engine.BenchError as error:
        print(f"mediaworker: {error}", file=sys.stderr)
        return 2
    if not args.no_baseline and (lacking := engine.lacks_package()):
        needs = f"moonshine_voice's transcriber is left out: pip install {' '.join(lacking)}"
        print(f"mediaworker: {needs}", file=sys.stderr)
    for count in args.calls or [1, 8, 16, 32]:
        print(f"{count} calls for {args.seconds:g} s …", file=sys.stderr, flush=True)
        rows += designs.measure(count, args.seconds, audio, partial_ms=partial_ms, cpu_clock=args.clock == "cpu")
    cadence = f"partials every {partial_ms} ms" if partial_ms else "finals alone"
    print(f"people who all talk → {cadence}, threads: {threads}, {_machine()}; a final's wait begins at its endpoint")
    print(_aligned(engine.moonshine_table(rows)), end="\n\n")
    _write(args.json, rows, top=rows[0])
    return 0


def _processes(args: argparse.Namespace) -> int:
    from benchmarks.engine import processes
    from benchmarks.engine import run as engine
    from config.settings import Asr, Settings

    model = args.model or ("" if args.engine == "moonshine" else str(engine.MODEL))
    asr = Asr(engine=args.engine, model=model, devices=("cpu",) if args.engine == "qwen" else ())
    try:
        rows = processes.measure(
            Settings(asr=asr),
            engine.clips(args.audio or (engine.prompts() if args.engine == "moonshine" else [])),
            processes=args.processes,
            calls=args.calls or [4, 8, 12, 16],
            seconds=args.seconds,
            partial_ms=args.partial_ms or 500,
            progress=lambda line: print(line, file=sys.stderr, flush=True),
        )
    except engine.BenchError as error:
        print(f"mediaworker: {error}", file=sys.stderr)
        return 2
    print(f"people who all talk → recognizer → inference processes of one thread each, {_machine()}, in real time")
    print(_aligned(processes.table(rows)))
    for count in args.processes:
        print(
            f"{count} inference processes: {processes.followed(rows, count)} people, "
            "99 in 100 finals in 500 ms and 95 in 100 partials"
        )
    _write(args.json, rows, top={})
    return 0


def _cluster(args: argparse.Namespace) -> int:
    from benchmarks.cluster import engine_servers, worker_events

    def progress(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    try:
        if args.calls:
            row = worker_events.measure(args.calls, args.seconds, progress)
            print(f"somebody speaks in every call, one NATS server, {_machine()}")
            print(_aligned(worker_events.table(row)))
            _write(args.json, [row], top={})
            return 0
        rows = engine_servers.measure(args.finals, progress)
    except engine_servers.BenchError as error:
        print(f"mediaworker: {error}", file=sys.stderr)
        return 2
    print(f"an engine that answers at once, {_machine()}")
    print(_aligned(engine_servers.table(rows)))
    _write(args.json, rows, top={})
    return 0


def _scale(args: argparse.Namespace) -> int:
    from benchmarks.engine.run import BenchError
    from benchmarks.scale import run as scale
    from benchmarks.scale.scenarios import scenario

    chosen = scenario(
        args.scenario,
        calls=args.calls,
        engine=args.engine,
        seconds=args.seconds,
        simulated=args.simulated or 0,
        servers=args.servers or 0,
    )
    plan = chosen.plan
    print(f"{plan.seconds:g} s of {args.calls:,} calls …", file=sys.stderr, flush=True)
    try:
        row = scale.measure(chosen, scale.speech(args.seed), seed=args.seed)
    except BenchError as error:
        print(f"mediaworker: {error}", file=sys.stderr)
        return 2
    print(f"{chosen.about}; {plan.simulated} of {plan.regions} regions simulated, costs of the engine {row['costs']}")
    print(_aligned(list(zip(*scale.table([row]), strict=True))))
    _write(args.json, [row], top=row)
    return 0


def _host(args: argparse.Namespace) -> int:
    from benchmarks.engine import run as engine

    rows, options = [], {name: value for name in _HOST if (value := getattr(args, name)) is not None}
    for streams in args.calls or [1000]:
        print(f"{streams} streams for {args.seconds:g} s …", file=sys.stderr, flush=True)
        try:
            rows.append(engine.host(streams=streams, seconds=args.seconds, **options))
        except engine.BenchError as error:
            print(f"mediaworker: {error}", file=sys.stderr)
            return 2
    print(f"people who never pause, a partial every 0.5 s → the host's part of the engine, one core, {_machine()}")
    print(_aligned(engine.host_table(rows)))
    _write(args.json, rows, top=rows[0])
    return 0


def _predict(args: argparse.Namespace) -> int:
    from benchmarks.engine import run as engine
    from benchmarks.engine.objective import Objective

    model = args.model or "0.6B"
    if model not in PUBLISHED:
        print(f"mediaworker: --model {model}: with --predict one of {', '.join(PUBLISHED)}", file=sys.stderr)
        return 2
    wanted = {"final_ms": args.objective_final_ms, "partial_ms": args.objective_partial_ms}
    options = {name: getattr(args, name) for name in _PREDICT if not name.startswith("objective")}
    options = {name: value for name, value in options.items() if value is not None}
    options["objective"] = Objective(**{name: value for name, value in wanted.items() if value is not None})
    if args.seconds != SECONDS:  # which is for what is measured; here each takes two or more
        options["seconds"] = args.seconds
    try:
        figures = engine.predicted(chip=args.predict, model=model, **options)
    except engine.BenchError as error:
        print(f"mediaworker: {error}", file=sys.stderr)
        return 2
    print(f"{model} on one {args.predict.upper()}, predicted: people who never pause, {figures['files']} files beside")
    print(_aligned(engine.predicted_table(figures)))
    print(f"{figures['streams']} streams at the objective; the limit by arithmetic is {figures['limit']}")
    _write(args.json, figures["runs"], top=figures)
    return 0


def _random(args: argparse.Namespace) -> int:
    from benchmarks.engine import run as engine
    from benchmarks.engine.objective import Objective

    wanted = {"final_ms": args.objective_final_ms, "partial_ms": args.objective_partial_ms}
    options = {name: getattr(args, name) for name in _RANDOM if not name.startswith("objective")}
    options |= {
        "clock": args.clock,
        "seconds": args.seconds,
        "streams": tuple(args.calls or ()),
        "baseline": not args.no_baseline,
    }
    options = {name: value for name, value in options.items() if value is not None}
    options["objective"] = Objective(**{name: value for name, value in wanted.items() if value is not None})

    def keep(figures: dict[str, Any]) -> None:
        if args.json:
            Path(args.json).write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")

    try:
        figures = engine.random_weights({"weights": args.random_weights, **options}, keep)
    except engine.BenchError as error:
        print(f"mediaworker: {error}", file=sys.stderr)
        return 2
    print(
        f"{args.random_weights} with random weights, {figures['driven_tokens_per_s']} tokens per second of speech, "
        f"{figures['device']}, {figures['dtype']}\nre-feed and rollback: one request at a time, searched without files"
    )
    for lines in engine.random_tables(figures):
        print(_aligned(lines), end="\n\n")
    print(engine.limit_line(figures["limit"]))
    return 0


def _recorded(args: argparse.Namespace) -> int:
    from benchmarks.engine import run as engine

    calls, join = args.calls or [1, 8, 32], args.join or 1
    rows: list[dict[str, Any]] = []
    try:
        audio = engine.clips(args.audio)
        designs = engine.designs(args.model, baseline=not args.no_baseline)
    except engine.BenchError as error:
        print(f"mediaworker: {error}", file=sys.stderr)
        return 2
    for count in calls:
        print(f"{count} calls for {args.seconds:g} s …", file=sys.stderr, flush=True)
        rows += designs.measure(count, args.seconds, audio, join=join, cpu_clock=args.clock == "cpu")
    print(f"utterances in → partials and finals, one core, {_machine()}; a file in the batch lane all the time")
    for lines in engine.tables(rows):
        print(_aligned(lines), end="\n\n")
    # The engine's figures of a single number of calls stand at the top level as well.
    _write(args.json, rows, top=rows[0] if len(calls) == 1 else {})
    return 0


def _files(args: argparse.Namespace) -> int:
    from benchmarks.engine import run as engine
    from benchmarks.files import run as files

    names = ("files", "minutes", "calls", "seconds", "rows", "model", "audio")
    options = files.Options(**{name: getattr(args, name) for name in names}, baseline=not args.no_baseline)
    try:
        alone, live = files.measure(options, lambda line: print(line, file=sys.stderr, flush=True))
    except engine.BenchError as error:
        print(f"mediaworker: {error}", file=sys.stderr)
        return 2
    print(f"files → stretches of speech → batch lane → text, {_machine()}; a final's wait begins when it is asked for")
    for lines in files.tables(alone, live):
        print(_aligned(lines), end="\n\n")
    _write(args.json, live, top=alone)
    return 0


def _events(args: argparse.Namespace) -> int:
    from benchmarks.events import run as events

    options = events.Options(
        args.calls, args.subscribers, args.all, args.stalled, args.seconds, baseline=not args.no_baseline
    )
    rows = events.measure(options, lambda line: print(line, file=sys.stderr, flush=True))
    print(f"events of {args.calls} calls → store → WebSockets, one core, {_machine()}; usual: one after the other")
    print(_aligned(events.table(rows)))
    _write(args.json, rows, top=rows[-1] if len(rows) <= 2 else rows[1])
    return 0


def _legs(args: argparse.Namespace) -> int:
    from benchmarks.media import run as media

    baseline = not args.no_baseline
    if baseline and not media.has_baseline():
        print("mediaworker: aiortc and onnxruntime are not installed, so there is no baseline", file=sys.stderr)
        baseline = False
    rows = []
    kinds: dict[str, tuple[Callable[..., dict[str, Any]], str, str, str]] = {
        "media": (media.measure_rtp, "legs", "RTP", "aiortc"),
        "twilio": (media.measure_twilio, "streams", "Twilio streams", "a web framework's WebSocket, json"),
        "sip": (media.measure_sip, "calls", "recording sessions", "aiortc, no signalling"),
    }
    measure, unit, what, usual = kinds[args.kind]
    for count in getattr(args, unit):
        print(f"{count} {unit} for {args.seconds:g} s …", file=sys.stderr, flush=True)
        options = {"silence": args.silence} if args.kind == "media" else {}
        rows.append(measure(count, args.seconds, baseline=baseline, noise=args.noise, **options))
    print(f"{what} in → VAD → endpointing → events, one core, {_machine()}; usual: {usual}, one ONNX call per leg")
    print(_table(rows))
    for row in rows if args.kind == "sip" else []:
        print(
            f"{row['calls']} calls: set up in {row['setup_s']:.1f} s for {row['setup_cpu_ms_per_call']:.1f} ms of CPU "
            f"each, {row['repeated']} requests repeated, {row['refused']} refused; {row['dropped']} datagrams that the "
            "kernel had no room for"
        )
    # One run: its figures stand at the top level as well.
    _write(args.json, rows, top=rows[0] if len(rows) == 1 else {})
    return 0


def _machine() -> str:
    return platform.processor() or platform.machine()


def _write(file: str | None, rows: list[dict[str, Any]], *, top: dict[str, Any]) -> None:
    if file:
        Path(file).write_text(json.dumps(top | {"runs": rows}, indent=2) + "\n", encoding="utf-8")


def _table(rows: list[dict[str, Any]]) -> str:
    costs = ("legs", "received", "CPU", "µs/leg·s", "usual", "ratio", "RSS")
    lines = [(*costs, "stall p99", "VAD lag p99", "max", "at full speed", "slowed")]
    for row in rows:
        usual, steady_ms = row["baseline_cpu_s_per_leg_s"], row["vad_lag_steady_p99_ms"]
        lines.append(
            (
                str(row["legs"]),
                f"{100 * row['packets_received'] / row['packets_sent']:.2f} %",
                f"{100 * row['cpu_share']:.1f} %",
                f"{1e6 * row['cpu_s_per_leg_s']:.0f}",
                "-" if usual is None else f"{1e6 * usual:.0f} at {row['baseline_legs']}",
                "-" if usual is None else f"{row['ratio']}",
                f"{row['rss_mb']:.0f} MB",
                f"{row['loop_stall_p99_ms']:.1f} ms",
                f"{row['vad_lag_p99_ms']:.1f} ms",
                f"{row['vad_lag_max_ms']:.1f} ms",
                "-" if steady_ms is None else f"{steady_ms:.1f} ms",
                f"{100 * row['slowed_share']:.0f} %",
            )
        )
    return _aligned(lines)


def _aligned(lines: Sequence[tuple[str, ...]]) -> str:
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in lines)
