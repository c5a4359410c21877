"""The options `--ca` and `--insecure` of commands that connect to a worker, and descriptions of failed connections and
requests."""

from __future__ import annotations

import argparse
import errno
import os
import re
import socket
import ssl
import urllib.error

import msgspec

from mediaworker.cli.terminal.output import UsageError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    help = "certificate authorities to trust, in PEM form, instead of the system's"
    parser.add_argument("--ca", default="", metavar="FILE", help=help)
    parser.add_argument("--insecure", action="store_true", help="accept any certificate: only for tests")


def context(args: argparse.Namespace) -> ssl.SSLContext:
    """The TLS context of a client with these options. Raises UsageError when the file of `--ca` cannot be used."""
    if args.insecure:
        return unverified()
    try:
        return ssl.create_default_context(cafile=args.ca or None)
    except ssl.SSLError:
        raise UsageError(f"--ca {args.ca}: the file holds no certificate in PEM form") from None
    except OSError as error:
        raise UsageError(f"--ca {args.ca}: {error.strerror or error}") from None


def unverified() -> ssl.SSLContext:
    """A context that accepts any certificate of any host."""
    accepting = ssl.create_default_context()
    accepting.check_hostname = False
    accepting.verify_mode = ssl.CERT_NONE
    return accepting


def reason(error: BaseException) -> str:
    """The reason why a connection failed, in words for the user."""
    error = _root(error)
    if isinstance(error, ssl.SSLCertVerificationError):
        return (
            f"the server's certificate is refused: {error.verify_message.rstrip('.')} "
            "(--ca FILE names the authority that signed it, --insecure accepts any)"
        )
    if isinstance(error, ssl.SSLError):
        name = (error.reason or str(error)).lower().replace("_", " ")
        plain = " (does the server speak TLS on this port?)" if error.reason in _NO_TLS else ""
        return f"TLS failed: {name}{plain}"
    if isinstance(error, socket.gaierror):
        return "there is no such host" if error.errno in _NO_HOST else str(error.strerror).lower()
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if (number := _number(error)) is not None:
        return _PLAIN.get(number) or os.strerror(number).lower()
    return str(error) or type(error).__name__


def _root(error: BaseException) -> BaseException:
    """The error of the operating system or of OpenSSL beneath the exceptions of libraries."""
    inner: BaseException | None = error
    while inner is not None:
        if isinstance(inner, ssl.SSLError | socket.gaierror | TimeoutError) or _number(inner) is not None:
            return inner
        below = inner.reason if isinstance(inner, urllib.error.URLError) else None
        inner = below if isinstance(below, BaseException) else inner.__cause__ or inner.__context__
    return error


def refusal(status: int, body: bytes | bytearray | str) -> str:
    """A response other than success in words: the status, and the server's explanation."""
    explanation = detail(body)
    return f"refused with status {status}{f': {explanation}' if explanation else ''}"


def detail(body: bytes | bytearray | str) -> str:
    """The explanation in a response: RFC 9457's detail, OpenAI's message, or a short plain text; empty if none."""
    text = (body if isinstance(body, str) else bytes(body).decode(errors="replace")).strip()
    try:
        problem = msgspec.json.decode(text, type=_ErrorBody)
    except msgspec.DecodeError:
        line = text.partition("\n")[0]
        return line[:_LINE] if line and line[0] not in "<{[" else ""
    return problem.detail or problem.error.message or problem.title


class _OpenAiError(msgspec.Struct, frozen=True):
    message: str = ""


class _ErrorBody(msgspec.Struct):
    detail: str = ""
    title: str = ""
    error: _OpenAiError = _OpenAiError()


def _number(error: BaseException) -> int | None:
    """The errno, also of errors that asyncio composes, such as `Multiple exceptions: [Errno 111] …`."""
    if not isinstance(error, OSError):
        return None
    found = re.search(r"\[Errno (\d+)\]", str(error))
    return error.errno or (int(found[1]) if found else None)


_LINE = 200
_NO_HOST = (socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME))
_PLAIN = {errno.ECONNREFUSED: "connection refused: nothing listens there"}
_NO_TLS = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST", "UNEXPECTED_EOF_WHILE_READING")
