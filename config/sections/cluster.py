"""Several machines: how they know each other."""

from __future__ import annotations

from config.errors import ConfigError
from config.sections.checks import check_tls
from config.sections.section import Secret, Section


class Cluster(Section, frozen=True, kw_only=True):
    """The identity of this machine towards the workers and engine servers of other machines."""

    tls_cert: str = ""
    """This PEM file contains the certificate, and its chain, that this machine shows to the others. Connections between
    workers and engine servers are encrypted if it is set, and both sides must show one."""
    tls_key: str = ""
    """This PEM file contains the certificate's private key; if it is empty, the key is expected in the file of
    `cluster.tls_cert`."""
    tls_ca: str = ""
    """Certificates are trusted if an authority in this PEM file has issued them. Give it to nobody else: whoever has a
    certificate of that authority is let in."""
    token: Secret = Secret("")
    """On one machine, over loopback and without certificates, an engine server takes the workers that know this
    token."""

    def check(self, key: str) -> None:
        check_tls(key, self.tls_cert, self.tls_key)
        if bool(self.tls_cert) != bool(self.tls_ca):
            lacking, present = ("tls_ca", "tls_cert") if self.tls_cert else ("tls_cert", "tls_ca")
            raise ConfigError(
                f"{key}.{lacking}", "", f"is required with {key}.{present}: both sides show a certificate"
            )
