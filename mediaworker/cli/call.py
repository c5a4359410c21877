"""`mediaworker call`: a test phone that places a SIP call to any SIP peer, plays a file into it, and hangs up.

Places a SIP call, plays a file into it in real time, and hangs up.

Exit code: 0 played, 1 refused, broken off or not answered, 2 wrong arguments.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import socket
from typing import TYPE_CHECKING, Any

from config.log.text import printable
from config.settings import Log
from mediaworker.cli.terminal.output import OK, CommandError, print_error
from mediaworker.ops import logs
from sip.protocol.errors import NO_PJSUA2, SipError

if TYPE_CHECKING:
    from sip.phone import PhoneCall, PhoneResult, SipPhone

QUIET_S = 3.0
"""After this time without a response the command prints how long it may still take."""
UDP_PORT = 5060
_TOKEN = re.compile(r"[A-Za-z0-9.!%*_+`'~-]+")
"""A token of RFC 3261 section 25.1."""
_PLACE = re.compile(r"sips?:(?:[^@]+@)?(\[[^\]]+\]|[^:;?]+)(?::([0-9]+))?", re.IGNORECASE)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("uri", type=_uri, help="sip:USER@HOST:PORT")
    parser.add_argument("--play", required=True, metavar="FILE", help="WAV, or raw .ulaw .alaw .sln .sln16 .g722")
    parser.add_argument("--codec", choices=["PCMU", "PCMA", "G722", "OPUS"], default="PCMU")
    parser.add_argument("--transport", choices=["udp", "tcp", "tls"], default="udp")
    parser.add_argument("--ca", default="", metavar="FILE", help="authorities that the peer's certificate is held to")
    parser.add_argument("--insecure", action="store_true", help="take any certificate of the peer's")
    parser.add_argument("--from", dest="user", default="mediaworker", metavar="USER", help="the calling user")
    parser.add_argument("--password", default="", help="of that user, when the peer asks for it")
    parser.add_argument(
        "--header", dest="headers", type=_header, action="append", default=[], metavar="NAME:VALUE",
        help="of the INVITE, as a PBX would send it: what routes match, and what says who speaks; may be repeated",
    )  # fmt: skip
    parser.add_argument("--tail", type=float, default=1.0, metavar="S", help="silence after the file (default 1 s)")
    parser.add_argument(
        "--answer-timeout", type=float, default=30.0, metavar="S", help="give up without an answer (default 30 s)"
    )


def _uri(text: str) -> str:
    if not re.match(r"sip:[^\s]+", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not sip:USER@HOST:PORT")
    return text


def _header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not (colon and _TOKEN.fullmatch(name.strip()) and value.strip().isprintable()):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME:VALUE")
    return name.strip(), value.strip()


def run(args: argparse.Namespace) -> int:
    import numpy as np

    from audio import Codec
    from mediaworker.cli.play import load_pcm

    try:
        from sip.phone import SipPhone, encode
        from sip.pjsip.stack import TlsFiles
    except ImportError as error:
        raise CommandError(f"{NO_PJSUA2} ({error})") from None
    logs.configure(Log(level="error"))
    codec = Codec[args.codec]
    rate_hz = 16000 if codec.wide else 8000
    samples = np.concatenate([load_pcm(args.play, rate_hz), np.zeros(int(args.tail * rate_hz), np.int16)])

    async def place() -> PhoneResult:
        phone = SipPhone(
            codec=codec,
            transport=args.transport,
            tls=TlsFiles(ca=args.ca, verify=not args.insecure),
            user=args.user,
            password=args.password,
            headers=args.headers,
        )
        return await _talk(phone, args, encode(samples, codec))

    try:
        result = asyncio.run(place())
    except SipError as error:
        raise CommandError(f"{args.uri}: {error}") from None
    if result.hung_up_by_peer:
        raise CommandError(f"{args.uri}: hung up before the file had been played")
    if not result.ok:
        raise CommandError(f"{args.uri}: {result.status} {result.reason}")
    print(
        f"{result.status} {printable(result.reason)}: {len(samples) / rate_hz:.1f} s of {codec.rtp_name}, "
        f"{result.packets_sent} packets sent, {result.packets_received} received"
    )
    return OK


async def _talk(phone: SipPhone, args: argparse.Namespace, packets: list[bytes]) -> PhoneResult:
    """Place the call and play the packets. Raises SipError, and CommandError at once if nothing listens there."""
    from sip.phone import play

    loop = asyncio.get_running_loop()
    answered = False

    async def speak(line: PhoneCall) -> None:
        nonlocal answered
        answered = True
        quiet.cancel()
        await play(line, packets)

    quiet = loop.call_later(QUIET_S, print_error, f"{args.uri}: no answer yet; {args.answer_timeout:g} s at most")
    calling = loop.create_task(phone.talk(args.uri, speak, answer_s=args.answer_timeout))
    tasks: list[asyncio.Task[Any]] = [calling]
    if args.transport == "udp":
        tasks.append(loop.create_task(_refused(args.uri, loop)))
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if not calling.done() and tasks[1].result() and not answered:
            raise CommandError(f"{args.uri}: nothing listens on that UDP port")
        return await calling
    finally:
        quiet.cancel()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _refused(uri: str, loop: asyncio.AbstractEventLoop) -> bool:
    """Whether the peer's machine reports that nothing listens on the URI's UDP port (ICMP port unreachable).

    PJSIP ignores that report, and repeats the INVITE for half a minute. So this sends an empty datagram, which a SIP
    listener ignores. It returns only when the report has arrived, or when the machine cannot be probed.
    """
    found = _PLACE.match(uri)
    # DNS may have another port for a host name without one (RFC 3263 section 4.2).
    if found is None or not (found[2] or found[1].strip("[]").replace(".", "").isdigit()) or "transport=" in uri:
        return False
    host, port = found[1].strip("[]"), int(found[2] or UDP_PORT)
    try:
        places = await loop.getaddrinfo(host, port, type=socket.SOCK_DGRAM)
        # IPv4 first, as the phone does.
        family, *_, place = min(places, key=lambda entry: entry[0] != socket.AF_INET)
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.setblocking(False)
            probe.connect(place)
            probe.send(b"")
            await loop.sock_recv(probe, 1)
    except ConnectionRefusedError:
        return True
    except (OSError, OverflowError):
        return False  # the phone reports the error of such an address
    return False
