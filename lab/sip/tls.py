"""SIP over TLS by hand: settings with a certificate, and an OPTIONS request with its answer."""

from __future__ import annotations

import asyncio
import ssl
import time

from lab.network.authority import Authority, Pair
from lab.network.ports import free_port
from lab.patience import timeout


def secured(pair: Pair, authority: Authority, **more: object) -> dict[str, object]:
    """Keys of `[sip]`."""
    files = {"tls_cert": str(pair.cert), "tls_key": str(pair.key), "tls_ca": str(authority.cert)}
    return {**files, "tls_port": free_port(), **more}


def options(transport: str = "TLS", uri: str = "sip:worker@127.0.0.1") -> bytes:
    return (
        f"OPTIONS {uri} SIP/2.0\r\n"
        f"Via: SIP/2.0/{transport} 127.0.0.1:5999;branch=z9hG4bK{time.monotonic_ns()};rport\r\n"
        "From: <sip:a@127.0.0.1>;tag=1\r\nTo: <sip:worker@127.0.0.1>\r\nMax-Forwards: 70\r\n"
        f"Call-ID: {time.monotonic_ns()}\r\nCSeq: 1 OPTIONS\r\nContent-Length: 0\r\n\r\n"
    ).encode()


async def ask(port: int, context: ssl.SSLContext, host: str = "127.0.0.1") -> tuple[str, bytes]:
    """The first line that the worker answers an OPTIONS with, and its certificate (DER)."""
    reader, writer = await asyncio.open_connection(host, port, ssl=context, server_hostname="localhost")
    try:
        shown = writer.get_extra_info("ssl_object").getpeercert(True)
        writer.write(options())
        async with timeout(10):
            return (await reader.readline()).decode().strip(), shown
    finally:
        writer.transport.abort()
