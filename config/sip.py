"""SIP, its media, and recording sessions."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from config.checks import check_address, check_network, check_tls, check_unique
from config.errors import ConfigError
from config.section import Port, Positive, Role, Seconds, Secret, Section


class Rtp(Section, frozen=True, kw_only=True):
    port_min: Annotated[int, Meta(ge=1024, le=65534)] = 10000
    port_max: Annotated[int, Meta(ge=1025, le=65535)] = 19999
    jitter_ms: Annotated[int, Meta(ge=0, le=1000)] = 60
    """How long a window waits for a missing packet before it goes on as silence."""
    rtcp: bool = True
    """Report what arrives (RFC 3550 section 6), every five seconds or so, from the port above each RTP port."""

    def check(self, key: str) -> None:
        if self.port_max <= self.port_min:
            raise ConfigError(f"{key}.port_max", self.port_max, f"must be above {key}.port_min ({self.port_min})")


class SipAccount(Section, frozen=True, kw_only=True):
    """One registration: `registrar` is a SIP URI, `user` and `password` its digest credentials."""

    registrar: str
    backups: tuple[str, ...] = ()
    """Registrars for when that one does not answer or refuses, in this order. The one that works is kept."""
    user: str
    password: Secret = Secret("")
    realm: str = "*"
    expires_s: Annotated[int, Meta(ge=30, le=86400)] = 300
    name: str = ""


class SipUser(Section, frozen=True, kw_only=True):
    """Digest credentials of somebody who calls the worker (RFC 8760)."""

    user: Annotated[str, Meta(min_length=1)]
    password: Secret


class Sip(Section, frozen=True, kw_only=True):
    enabled: bool = True
    host: str = "0.0.0.0"
    """IPv4 address to listen on; empty: none."""
    host6: str = ""
    """IPv6 address to listen on as well, at the same ports, for signalling and media; `::`: any; empty: none."""
    port: Port = 5060
    transports: tuple[Literal["udp", "tcp"], ...] = ("udp", "tcp")
    public_address: str = ""
    """Address to write into SDP and Contact when the worker is behind NAT; empty: the address facing the peer."""
    public_address6: str = ""
    """The same where a call, or its media, comes by IPv6."""
    stun: str = ""
    """STUN server, HOST or HOST:PORT, that is asked where each RTP port appears outside a NAT, and for the public
    address where that is not given."""
    keepalive_s: Annotated[int, Meta(ge=0, le=3600)] = 15
    """How often something is sent to keep a NAT open: to UDP registrars, and, with a public address or a STUN server,
    on streams on which nothing else is. 0: never."""
    accounts: tuple[SipAccount, ...] = ()
    allow: tuple[str, ...] = ()
    """Addresses or networks (CIDR) that may send INVITEs, beside loopback and the registrars."""
    users: tuple[SipUser, ...] = ()
    """Who may call from any address, with these credentials. Their name is the call's `account`."""
    challenge: Literal["others", "everybody"] = "others"
    """Who is asked for credentials: those who may not call anyway, or everybody but this machine."""
    digest: Annotated[tuple[Literal["SHA-256", "MD5"], ...], Meta(min_length=1)] = ("SHA-256", "MD5")
    """Algorithms of the challenge, the preferred one first. Some old equipment looks at the first one only."""
    realm: Annotated[str, Meta(pattern=r"^[^\"\\\\]+$")] = "mediaworker"
    """Named in the challenge; it is part of what the caller's password is hashed with."""
    max_calls: Annotated[int, Meta(ge=1, le=1024)] = 200
    max_invites_per_s: Annotated[float, Meta(ge=0)] = 50.0
    """New calls from one address, or one IPv6 /64 where it is not on the list; more, beyond a burst of two seconds'
    worth, are answered 503. 0: no limit."""
    max_tcp: Positive = 512
    """TCP connections to the SIP port, bounded by open files too; a quarter of them for who may not call, 16 each (one
    address, or one IPv6 /64)."""
    codecs: tuple[Literal["PCMU", "PCMA", "G722", "OPUS"], ...] = ("G722", "PCMU", "PCMA", "OPUS")
    """Codecs accepted; the order of the offer decides (RFC 3264 section 6.1), this is what is left of it."""
    send_audio: Literal["silence", "none"] = "silence"
    srtp: Literal["off", "optional", "mandatory"] = "optional"
    """Media encrypted with keys from the SDP (SDES, RFC 4568); the keys are safe where the signalling is (TLS)."""
    tls_cert: str = ""
    """PEM file with the certificate and its chain: `tls_port` is then open. Read again at every reload."""
    tls_key: str = ""
    """PEM file with the certificate's private key; empty: it is in the same file."""
    tls_port: Port = 5061
    tls_ca: str = ""
    """PEM file of the authorities whose certificates are believed; empty: those of the system."""
    tls_verify: bool = True
    """Registrars, and peers that the worker has to connect to, need a certificate for the name that they go by."""
    tls_clients: Literal["any", "verified"] = "any"
    """`verified`: who connects needs a certificate of an authority in `tls_ca`. `any`: nobody is asked for one."""
    headers: tuple[Annotated[str, Meta(pattern=r"^[A-Za-z0-9.!%*_+`'~-]+$")], ...] = (
        "P-Asserted-Identity",
        "Diversion",
        "History-Info",
        "Remote-Party-ID",
        "User-to-User",
        "Session-ID",
        "Cisco-GUID",
    )
    """Headers of the INVITE that appear in `custom` of `call.started`, in lower case, beside those that begin with
    `X-`: 64 headers of 2,048 characters at most. Routes match any header, whether it is in this list or not."""
    answer_delay_s: Annotated[float, Meta(ge=0, le=30)] = 0.0
    """A call is told that it rings (180) and answered so much later: a person's phone may be quicker. Not SIPREC."""
    media_timeout_s: Seconds = 3600.0
    """A call without a single RTP packet for so long is hung up; 0: never. A call on hold is given an hour at least."""
    peer_check_s: Seconds = 30.0
    """A peer that has sent no RTP for so long is asked, by an OPTIONS within the call, whether it still has the call,
    and again as often while it stays silent; without an answer the call ends 16 s later. 0: it is never asked."""
    log_level: Annotated[int, Meta(ge=0, le=6)] = 1

    def check(self, key: str) -> None:
        for name in ("transports", "codecs"):
            if not getattr(self, name):
                raise ConfigError(f"{key}.{name}", [], "must not be empty")
        for index, network in enumerate(self.allow):
            check_network(f"{key}.allow[{index}]", network)
        for name in ("host", "host6", "public_address", "public_address6"):
            check_address(f"{key}.{name}", getattr(self, name), 6 if name.endswith("6") else 4)
        if self.enabled and not (self.host or self.host6):
            raise ConfigError(f"{key}.host", "", f"must not be empty without {key}.host6")
        check_tls(key, self.tls_cert, self.tls_key)
        check_unique(f"{key}.users[].user", [entry.user for entry in self.users], "is there twice")
        if self.challenge == "everybody" and not self.users:
            raise ConfigError(f"{key}.users", [], f"are required with {key}.challenge = everybody: nobody could call")
        if self.tls_clients == "verified" and not self.tls_ca:
            raise ConfigError(
                f"{key}.tls_ca", "", f"is required with {key}.tls_clients = verified: the system's are anybody's"
            )


class SiprecParticipant(Section, frozen=True, kw_only=True):
    """Which role, and which name, a participant of a recorded call has."""

    match: Annotated[str, Meta(min_length=1)]
    """Held to its URI (`sip:1001@pbx.example`), the URI's user (`1001`), its display name and its stream's label, in
    any case of letters: one must fit. `*` stands for anything, `?` for one character, `[0-9]` for one of these."""
    role: Role
    name: str = ""
    """Shown instead of the one in the metadata."""


class Siprec(Section, frozen=True, kw_only=True):
    """Recording sessions (RFC 7866): the recording client forks a call to the worker, one stream for each speaker."""

    max_streams: Annotated[int, Meta(ge=1, le=16)] = 8
    """Audio streams of one session that are taken; more are refused, and the session goes on."""
    ignore_mixed: bool = False
    """Refuse a stream in which all speakers are mixed when each of them has a stream of their own as well: the same
    words would be transcribed twice. It counts as mixed when the metadata says so, or by its label (`mixed`, `mix`)."""
    participants: tuple[SiprecParticipant, ...] = ()
    """The first that fits decides."""
    others: Role = "unknown"
    """Of participants that none fits."""
