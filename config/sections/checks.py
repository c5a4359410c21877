"""Checks of values that several sections share; each raises ConfigError."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from typing import Literal
from urllib.parse import urlsplit

from config.errors import ConfigError
from config.network.addresses import is_loopback, parse_registrar, parse_tcp

_IPV4 = re.compile(r"[0-9]+(\.[0-9]+){3}")
MAX_VERBS_BYTES = 4000
"""The longest `twilio.then`: Twilio refuses TwiML beyond 64 kB."""


def check_tls(key: str, cert: str, private_key: str) -> None:
    """Check that a private key comes with a certificate."""
    if private_key and not cert:
        raise ConfigError(f"{key}.tls_cert", "", f"is required with {key}.tls_key")


def check_unique(key: str, values: Sequence[str], reason: str) -> None:
    """Check that no value occurs twice. `key` has `[]` in place of the entry's number."""
    for index, value in enumerate(values):
        if value in values[:index]:
            raise ConfigError(key.replace("[]", f"[{index}]"), value, reason)


def check_network(key: str, network: str) -> None:
    try:
        ipaddress.ip_network(network, strict=False)
    except ValueError:
        raise ConfigError(key, network, "expected an IP address or a network") from None


def check_address(key: str, text: str, version: Literal[4, 6]) -> None:
    """Check an IP address of this version.

    Mapped IPv4 (`::ffff:…`) is refused, because it belongs to the IPv4 socket, and so is a scope, which SDP cannot
    express.
    """
    if not text:
        return
    try:
        address = ipaddress.ip_address(text)
        fits = address.version == version and "%" not in text and getattr(address, "ipv4_mapped", None) is None
    except ValueError:
        fits = False
    if not fits:
        raise ConfigError(key, text, f"expected an IPv{version} address")


def check_url(key: str, text: str) -> None:
    """Check an `http` or `https` URL: it needs a host, and no user, query or fragment, which would be lost."""
    try:
        url = urlsplit(text)
        fits = url.scheme in ("http", "https") and url.hostname and not (url.query or url.fragment or url.username)
        fits = fits and url.port != 0 and text.isascii() and text.isprintable() and " " not in text
    except ValueError:
        fits = False
    if not fits:
        raise ConfigError(key, text, "expected http:// or https://, a host and a path")


def check_nats(key: str, text: str) -> None:
    """Check `nats://HOST:PORT` or `tls://HOST:PORT`; a user is refused, because URLs are shown."""
    try:
        url = urlsplit(text)
        fits = url.scheme in ("nats", "tls") and bool(url.hostname) and bool(url.port) and not url.username
        fits = fits and not (url.path or url.query or url.fragment)
    except ValueError:
        fits = False
    if not fits:
        raise ConfigError(key, text, "expected nats://HOST:PORT or tls://HOST:PORT")
    if url.scheme == "nats" and not is_loopback(url.hostname or ""):
        raise ConfigError(key, text, "is another machine: what is said in calls goes there, so it takes tls://")


def check_verbs(key: str, text: str) -> None:
    """Check that the text consists of well-formed TwiML verbs."""
    from xml.etree import ElementTree as Xml

    if len(text.encode()) > MAX_VERBS_BYTES:
        raise ConfigError(key, text[:40] + "…", f"longer than {MAX_VERBS_BYTES} bytes")
    if "<!" in text or "<?" in text:
        raise ConfigError(key, text, "only TwiML verbs: no document type, comment or processing instruction")
    try:
        root = Xml.fromstring(f"<Response>{text}</Response>")
    except Xml.ParseError as error:
        raise ConfigError(key, text, f"not well-formed XML: {error}") from None
    if (root.text or "").strip() or any((child.tail or "").strip() for child in root):
        raise ConfigError(key, text, "text outside of a TwiML verb")


def check_tcp(key: str, text: str) -> None:
    """Check an address in the form that `config.network.addresses.parse_tcp` reads."""
    try:
        parse_tcp(text)
    except ValueError:
        raise ConfigError(key, text, "expected tcp://HOST:PORT") from None


def check_registrar(key: str, text: str, *, four: bool, six: bool) -> None:
    """Check the SIP URI of a registrar or a proxy. `four`, `six`: addresses of IPv4, of IPv6 can be reached."""
    try:
        host, _, _ = parse_registrar(text)
    except ValueError as error:
        raise ConfigError(key, text, str(error)) from None
    if not six and ":" in host:
        raise ConfigError(key, text, "cannot be reached without sip.host6")
    if not four and _IPV4.fullmatch(host):
        raise ConfigError(key, text, "cannot be reached without sip.host")
