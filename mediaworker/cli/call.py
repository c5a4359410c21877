"""`mediaworker call`: a test phone that places a SIP call to any SIP peer, plays a file into it, and hangs up."""

from __future__ import annotations

import argparse
import re
from typing import Any

from config.log_text import printable
from mediaworker.cli.terminal import print_error

OK, FAILED, USAGE = 0, 1, 2


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "call",
        help="a test phone: place a SIP call and play a file into it",
        description="Places a SIP call, plays a file into it in real time, and hangs up. "
        "Exit code: 0 played, 1 refused or broken off, 2 wrong arguments.",
    )
    parser.add_argument("uri", type=_uri, help="sip:USER@HOST:PORT")
    parser.add_argument("--play", required=True, metavar="FILE", help="WAV, or raw .ulaw .alaw .sln .sln16 .g722")
    parser.add_argument("--codec", choices=["PCMU", "PCMA", "G722", "OPUS"], default="PCMU")
    parser.add_argument("--transport", choices=["udp", "tcp", "tls"], default="udp")
    parser.add_argument("--ca", default="", metavar="FILE", help="authorities that the peer's certificate is held to")
    parser.add_argument("--insecure", action="store_true", help="take any certificate of the peer's")
    parser.add_argument("--from", dest="user", default="mediaworker", metavar="USER", help="the calling user")
    parser.add_argument("--password", default="", help="of that user, when the peer asks for it")
    parser.add_argument("--tail", type=float, default=1.0, metavar="S", help="silence after the file (default 1 s)")
    parser.add_argument("--answer-timeout", type=float, default=30.0, metavar="S")


def _uri(text: str) -> str:
    if not re.match(r"sip:[^\s]+", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not sip:USER@HOST:PORT")
    return text


def run(args: argparse.Namespace) -> int:
    import asyncio

    import numpy as np

    from audio import Codec
    from config.settings import Log
    from mediaworker.cli.play import PlayError, load_pcm
    from mediaworker.ops import logs
    from sip.errors import NO_PJSUA2, SipError

    try:
        from sip.phone import SipPhone
        from sip.pjsip.stack import TlsFiles
    except ImportError as error:
        print_error(f"{NO_PJSUA2} ({error})")
        return FAILED
    logs.configure(Log(level="error"))
    codec = Codec[args.codec]
    rate_hz = 16000 if codec.wide else 8000
    try:
        samples = load_pcm(args.play, rate_hz)
    except PlayError as error:
        print_error(str(error))
        return USAGE
    samples = np.concatenate([samples, np.zeros(int(args.tail * rate_hz), np.int16)])

    async def place() -> int:
        tls = TlsFiles(ca=args.ca, verify=not args.insecure)
        phone = SipPhone(codec=codec, transport=args.transport, tls=tls, user=args.user, password=args.password)
        result = await phone.call(args.uri, samples, answer_s=args.answer_timeout)
        if result.hung_up_by_peer:
            print_error(f"{args.uri}: hung up before the file had been played")
            return FAILED
        if not result.ok:
            print_error(f"{args.uri}: {result.status} {result.reason}")
            return FAILED
        print(
            f"{result.status} {printable(result.reason)}: {len(samples) / rate_hz:.1f} s of {codec.rtp_name}, "
            f"{result.packets_sent} packets sent, {result.packets_received} received"
        )
        return OK

    try:
        return asyncio.run(place())
    except SipError as error:
        print_error(f"{args.uri}: {error}")
        return FAILED
