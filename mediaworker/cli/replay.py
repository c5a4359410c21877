"""`mediaworker replay`: a capture or a recorded stream through the real path, with a network's faults added.

Runs the RTP of a capture, or a recorded Twilio stream (.jsonl), through the worker's own path: in this process on a
simulated clock, or live at a running worker (--to).

Exit code: 0 done, 1 refused or broken off, 2 wrong arguments or configuration, or a broken capture.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from config import load as load_settings
from config.log.text import printable, printable_json
from config.settings import Log
from mediaworker.cli.terminal import trust
from mediaworker.cli.terminal.output import OK, CommandError, UsageError, print_now
from mediaworker.events import schema as events
from mediaworker.events.frame import encode
from mediaworker.ops import logs
from mediaworker.ops.blas import one_thread

if TYPE_CHECKING:
    from mediaworker.replay.lab import LegResult
    from mediaworker.replay.source import Messages, Packets


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("capture", metavar="CAPTURE", help="pcap or pcapng, or .jsonl: a message a line; also gzipped")
    faults = parser.add_argument_group("faults on the way (shares from 0 to 1)")
    faults.add_argument("--loss", type=float, default=0.0, metavar="P", help="share of the packets that is lost")
    faults.add_argument("--burst", type=float, default=1.0, metavar="N", help="mean length of a burst of losses")
    faults.add_argument("--jitter", type=float, default=0.0, metavar="MS", help="a packet takes up to so much longer")
    faults.add_argument("--reorder", type=float, default=0.0, metavar="P", help="share overtaken by the next two")
    faults.add_argument("--duplicate", type=float, default=0.0, metavar="P", help="share that comes twice")
    faults.add_argument("--drift", type=float, default=0.0, metavar="PPM", help="how fast the sender's clock is")
    faults.add_argument("--delay", type=float, default=0.0, metavar="MS", help="everything takes so much longer")
    faults.add_argument("--inject", type=float, default=0.0, metavar="N", help="a stranger's packets for each (RTP)")
    faults.add_argument("--seed", type=int, default=0, metavar="N", help="the same seed gives the same faults")
    parser.add_argument("--codec", choices=["PCMU", "PCMA", "G722", "OPUS"], help="instead of what the capture says")
    parser.add_argument("--payload-type", type=int, metavar="PT", help="of the codec, instead of what the capture says")
    parser.add_argument("--speed", type=float, default=0.0, metavar="X", help="times real time; 0: at once (default)")
    parser.add_argument("--to", metavar="URI", help="sip:USER@HOST:PORT or ws://…: live at a worker, in real time")
    parser.add_argument("--leg", type=int, default=0, metavar="N", help="with --to sip: the stream to send, from 0")
    parser.add_argument("--auth-token", metavar="T", help="with --to ws: sign the upgrade as Twilio does")
    trust.add_arguments(parser)
    parser.add_argument("--save", metavar="FILE", help="write what arrives: pcap, or .jsonl for a recorded stream")
    parser.add_argument("--json", action="store_true", help="every event as a line of JSON, and no table")
    parser.add_argument("--config", metavar="FILE", help="the worker's configuration (engine, endpointing, …)")


def run(args: argparse.Namespace) -> int:
    one_thread()  # as in the worker
    from audio import Codec
    from mediaworker.replay.link import Faults
    from mediaworker.replay.pcap import CaptureError
    from mediaworker.replay.source import load, save

    try:
        faults = Faults(
            loss=args.loss, burst=args.burst, jitter_ms=args.jitter, reorder=args.reorder, duplicate=args.duplicate,
            drift_ppm=args.drift, delay_ms=args.delay, inject=args.inject, seed=args.seed,
        )  # fmt: skip
        if not 0 <= args.speed <= 1000:
            raise ValueError(f"--speed {args.speed:g}: expected 0 to 1000")
        codec = Codec[args.codec] if args.codec else None
        source = load(args.capture, faults, codec=codec, payload_type=args.payload_type)
        if args.save:
            save(args.save, source)
    except (CaptureError, ValueError) as error:
        raise UsageError(str(error)) from None
    except OSError as error:
        raise UsageError(f"{args.save}: {error.strerror or error}") from None
    logs.configure(Log(level="error"))
    return _live(args, source) if args.to else _lab(args, source)


def _lab(args: argparse.Namespace, source: Packets | Messages) -> int:
    from mediaworker.calls.registry import CallRefused
    from mediaworker.replay.lab import Lab
    from mediaworker.replay.source import Packets

    settings = load_settings(args.config)

    def tell(event: events.Event) -> None:
        if args.json:
            print_now(printable_json(encode(event)))
        elif isinstance(event.body, events.TranscriptFinal):
            print_now(f"{event.body.start_ms / 1000:9.2f}  {event.body.leg:8}  {printable(event.body.text)}")

    with tempfile.TemporaryDirectory() as folder:
        unix_s = source.begin_s if isinstance(source, Packets) else 0.0
        lab = Lab(replace(settings, data_dir=folder), tell, unix_s=unix_s)
        try:
            results = asyncio.run(lab.run(source, args.speed))
        except CallRefused as refused:
            raise CommandError(refused.reason) from None
        except TimeoutError:
            raise CommandError("the engine does not answer") from None
    if not args.json:
        print(printable(table(results), keep="\n"))
    return OK


def _live(args: argparse.Namespace, source: Packets | Messages) -> int:
    from mediaworker.cli import live
    from mediaworker.replay.source import Packets

    if isinstance(source, Packets) != args.to.startswith("sip:"):
        raise UsageError(f"--to {args.to}: a capture goes to sip:USER@HOST:PORT, a recorded stream to ws://…")
    if isinstance(source, Packets):
        sending = live.to_sip(args.to, source, args.leg)
    else:
        sending = live.to_websocket(args.to, source, args.auth_token, trust.context(args))
    try:
        print(printable(asyncio.run(sending)))
    except ValueError as error:
        raise UsageError(str(error)) from None
    return OK


def table(results: Sequence[LegResult]) -> str:
    lines = ["leg codec packets lost late twice foreign jitter position utterances words".split()]
    for each in results:
        media = each.media or events.LegMedia(each.leg, 0, 0, 0, 0.0)
        cells = (
            each.leg, each.codec, media.packets, media.lost, media.late, each.duplicates,
            each.discarded + each.wrong_source, f"{media.jitter_ms:.1f} ms", f"{each.position_s:.2f} s",
            each.utterances, each.words,
        )  # fmt: skip
        lines.append([*map(str, cells)])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    rows = ["  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in lines]
    return "\n".join([*rows, *(f"{result.leg}: {' '.join(result.texts)}" for result in results)])
