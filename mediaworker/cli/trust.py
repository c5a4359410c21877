"""The options `--ca` and `--insecure` of each command that connects to a worker, and why TLS has failed, in words."""

from __future__ import annotations

import argparse
import ssl


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--ca",
        default="",
        metavar="FILE",
        help="certificate authorities to trust, in PEM form, instead of the system's",
    )
    parser.add_argument("--insecure", action="store_true", help="accept any certificate: only for tests")


def context(args: argparse.Namespace) -> ssl.SSLContext:
    """The TLS context of a client with these options. Raises ValueError when the file of `--ca` cannot be used."""
    if args.insecure:
        return unverified()
    try:
        return ssl.create_default_context(cafile=args.ca or None)
    except ssl.SSLError:
        raise ValueError(f"--ca {args.ca}: the file holds no certificate in PEM form") from None
    except OSError as error:
        raise ValueError(f"--ca {args.ca}: {error.strerror or error}") from None


def unverified() -> ssl.SSLContext:
    """A context that accepts any certificate of any host."""
    accepting = ssl.create_default_context()
    accepting.check_hostname = False
    accepting.verify_mode = ssl.CERT_NONE
    return accepting


def reason(error: BaseException) -> str:
    """Why a connection failed, in words for its user."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return (
            f"the server's certificate is refused: {error.verify_message.rstrip('.')} "
            "(--ca FILE names the authority that signed it, --insecure accepts any)"
        )
    if isinstance(error, ssl.SSLError):
        name = (error.reason or str(error)).lower().replace("_", " ")
        plain = " (does the server speak TLS on this port?)" if error.reason in _NO_TLS else ""
        return f"TLS failed: {name}{plain}"
    return (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__


_NO_TLS = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST", "UNEXPECTED_EOF_WHILE_READING")
