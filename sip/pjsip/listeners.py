"""The listeners for SIP: UDP, TCP and TLS, by IPv4 and IPv6."""

from __future__ import annotations

from dataclasses import replace

import structlog

from config.network.addresses import LOCALHOST, Family
from config.settings import Sip
from sip.media.own_addresses import OwnAddresses
from sip.pjsip.stack import Stack, TlsFiles
from sip.protocol.errors import SipError

log = structlog.get_logger("sip")


class Listeners:
    """The SIP listeners, which are opened once; those for TLS are restarted when their certificate is renewed."""

    def __init__(self, settings: Sip, addresses: OwnAddresses, *, connects_by_tls: bool) -> None:
        """`connects_by_tls`: a registrar is reached by TLS, for which PJSIP needs a local TLS port."""
        self._settings, self._addresses, self._connects_by_tls = settings, addresses, connects_by_tls
        self.port = 0
        """The SIP port in use; differs from the configured one only when that is 0."""
        self.tls_port = 0
        """The TLS port; 0 if TLS is off."""
        self._tls: dict[Family, int] = {}
        """The TLS transport of each family."""

    @property
    def transports(self) -> tuple[str, ...]:
        """The transports by which requests can be sent."""
        by_tls = self._settings.tls_cert or self._connects_by_tls
        return (*self._settings.transports, *(("tls",) if by_tls else ()))

    def open(self, stack: Stack) -> None:
        """Open all listeners. Raises SipError if an address is in use."""
        self.port = self._settings.port
        for family, host in self._addresses.hosts.items():
            for kind in self._settings.transports:
                _, self.port = stack.listen(kind, host, self.port, public_address=self._addresses.public(family))
        if self._settings.tls_cert or self._connects_by_tls:
            self._open_tls(stack)

    def renew_certificate(self, stack: Stack) -> None:
        """Read the files of `sip.tls_cert` and `sip.tls_key` again; open connections are kept."""
        if not self.tls_port:
            return
        for family, transport in self._tls.items():
            host = self._addresses.hosts[family]
            try:
                stack.renew(transport, host)
            except SipError as error:
                consequence = "nobody can call over TLS at this address until the worker is started again"
                log.error(consequence, address=host, problem=str(error))

    def _open_tls(self, stack: Stack) -> None:
        settings = self._settings
        files = TlsFiles(
            cert=settings.tls_cert,
            key=settings.tls_key,
            ca=settings.tls_ca,
            verify=settings.tls_verify,
            clients=settings.tls_clients == "verified",
        )
        port = settings.tls_port if settings.tls_cert else 0
        for family, host in self._addresses.hosts.items():
            public = self._addresses.public(family)
            self._tls[family], bound = stack.listen("tls", host, port, public_address=public, files=files)
            port = self.tls_port = bound if settings.tls_cert else 0
        if self._connects_by_tls and "IP4" not in self._addresses.hosts:
            # PJSIP requires an IPv4 TLS port before it uses a registrar's address. This one accepts no connection.
            stack.listen("tls", LOCALHOST["IP4"], 0, files=replace(files, cert="", key=""))
