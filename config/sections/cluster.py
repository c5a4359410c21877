"""The settings of several machines: certificates, tokens and NATS, by which they know each other."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from config.errors import ConfigError
from config.sections.checks import check_nats, check_tls
from config.sections.section import Secret, Section, Switch, Switched


class Cluster(Section, frozen=True, kw_only=True):
    """The identity of this machine towards the workers and engine servers of other machines."""

    tls_cert: Switch[str] = ""
    """This PEM file contains the certificate, and its chain, that this machine shows to the others. Connections between
    workers and engine servers are encrypted if it is set, and both sides must show one."""
    tls_key: Switched[str] = ""
    """This PEM file contains the certificate's private key; if it is empty, the key is expected in the file of
    `cluster.tls_cert`."""
    tls_ca: Switched[str] = ""
    """Certificates are trusted if an authority in this PEM file has issued them. Give it to nobody else: whoever has a
    certificate of that authority is let in."""
    token: Secret = Secret("")
    """On one machine, over loopback and without certificates, a worker and an engine server prove each other that they
    know this token, without sending it."""

    nats: tuple[str, ...] = ()
    """Workers that share these NATS servers with JetStream know each other's calls: `tls://nats-1.example.com:4222`,
    with the certificates above, or `nats://127.0.0.1:4222` on this machine (docs/how-to/nats.md)."""
    nats_tls_first: bool = False
    """With `tls://`, the connection to NATS is encrypted before the server says anything: set `handshake_first` at the
    servers, of version 2.10.4 or later. Otherwise each says first that it wants TLS, and one that does not is
    refused."""
    nats_user: str = ""
    """NATS knows this worker by this user name."""
    nats_password: Secret = Secret("")
    """NATS expects this password of the user."""
    name: Annotated[str, Meta(pattern=r"^[a-z][a-z0-9_-]{0,31}$")] = "mediaworker"
    """Streams and subjects of this cluster begin with this name, so that several can share the NATS servers."""
    replicas: Annotated[int, Meta(ge=1, le=5)] = 3
    """NATS keeps this many copies of what it stores; with a single NATS server it must be 1."""
    keep_days: Annotated[float, Meta(gt=0, le=365)] = 7.0
    """NATS keeps events for this many days: for so long may a worker be away and miss nothing."""

    def check(self, key: str) -> None:
        for index, url in enumerate(self.nats):
            check_nats(f"{key}.nats[{index}]", url)
        if any(url.startswith("tls://") for url in self.nats) and not self.tls_cert:
            raise ConfigError(f"{key}.tls_cert", "", f"is required with tls:// in {key}.nats")
        check_tls(key, self.tls_cert, self.tls_key)
        if bool(self.tls_cert) != bool(self.tls_ca):
            lacking, present = ("tls_ca", "tls_cert") if self.tls_cert else ("tls_cert", "tls_ca")
            raise ConfigError(
                f"{key}.{lacking}", "", f"is required with {key}.{present}: both sides show a certificate"
            )
