"""SIP, its media, and recording sessions."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from config.errors import ConfigError
from config.sections.checks import check_address, check_network, check_tls, check_unique
from config.sections.section import Port, Positive, Role, Seconds, Secret, Section


class Rtp(Section, frozen=True, kw_only=True):
    port_min: Annotated[int, Meta(ge=1024, le=65534)] = 10000
    """RTP takes even ports from this one on."""
    port_max: Annotated[int, Meta(ge=1025, le=65535)] = 19999
    """RTP and RTCP take no port above this one; each stream needs two."""
    jitter_ms: Annotated[int, Meta(ge=0, le=1000)] = 60
    """A window waits this many milliseconds for a missing packet before it goes on as silence."""
    rtcp: bool = True
    """The worker reports what arrives (RFC 3550 section 6) every five seconds or so, from the port above each RTP
    port."""

    def check(self, key: str) -> None:
        if self.port_max <= self.port_min:
            raise ConfigError(f"{key}.port_max", self.port_max, f"must be above {key}.port_min ({self.port_min})")


class SipAccount(Section, frozen=True, kw_only=True):
    """One registration: `registrar` is a SIP URI, `user` and `password` its digest credentials."""

    registrar: str
    """The worker registers at this SIP URI."""
    backups: tuple[str, ...] = ()
    """These registrars are tried in this order when the first does not answer or refuses; the one that works is
    kept."""
    user: str
    """The worker registers under this user name."""
    password: Secret = Secret("")
    """This password answers the registrar's digest challenge."""
    expires_s: Annotated[int, Meta(ge=30, le=86400)] = 300
    """A registration is asked for this many seconds and renewed before they are over."""
    name: str = ""
    """Calls and metrics name the account so; empty stands for its user name."""


class SipUser(Section, frozen=True, kw_only=True):
    """Digest credentials of somebody who calls the worker (RFC 8760)."""

    user: Annotated[str, Meta(min_length=1)]
    """The caller gives this user name."""
    password: Secret
    """The caller's digest is made with this password."""


class Sip(Section, frozen=True, kw_only=True):
    enabled: bool = True
    """The worker takes SIP calls when this is on."""
    host: str = "0.0.0.0"
    """SIP and RTP listen on this IPv4 address; empty means on none."""
    host6: str = ""
    """SIP and RTP listen on this IPv6 address as well, at the same ports; `::` means any and empty none."""
    port: Port = 5060
    """SIP over UDP and TCP listens on this port."""
    transports: tuple[Literal["udp", "tcp"], ...] = ("udp", "tcp")
    """SIP listens on these transports; TLS has `sip.tls_cert` and `sip.tls_port`."""
    public_address: str = ""
    """This IPv4 address is written into SDP and Contact when the worker is behind NAT; empty means the address that
    faces the peer."""
    public_address6: str = ""
    """This IPv6 address is written into SDP and Contact where a call, or its media, comes by IPv6; empty means the
    address that faces the peer."""
    stun: str = ""
    """This STUN server, HOST or HOST:PORT, is asked where each RTP port appears outside a NAT, and for the public
    address where that is not given."""
    keepalive_s: Annotated[int, Meta(ge=0, le=3600)] = 15
    """Every so many seconds something is sent to keep a NAT open: to UDP registrars, and, with a public address or a
    STUN server, on streams that carry nothing else. 0 sends none."""
    accounts: tuple[SipAccount, ...] = ()
    allow: tuple[str, ...] = ()
    """These addresses or networks (CIDR) may send INVITEs, beside loopback and the registrars."""
    users: tuple[SipUser, ...] = ()
    """Who may call from any address, with these credentials. Their name is the call's `account`."""
    challenge: Literal["others", "everybody"] = "others"
    """Credentials are asked of those who may not call anyway (`others`), or of everybody but this machine
    (`everybody`)."""
    digest: Annotated[tuple[Literal["SHA-256", "MD5"], ...], Meta(min_length=1)] = ("SHA-256", "MD5")
    """The challenge offers these algorithms, the preferred one first; some old equipment looks at the first one
    only."""
    realm: Annotated[str, Meta(pattern=r"^[^\"\\\\]+$")] = "mediaworker"
    """The challenge names this realm, which is part of what the caller's password is hashed with."""
    max_calls: Annotated[int, Meta(ge=1, le=1024)] = 200
    """A SIP call beyond this many is refused with 486."""
    max_invites_per_s: Annotated[float, Meta(ge=0)] = 50.0
    """One address, or one IPv6 /64 where it is not on the list, may begin this many calls a second; more, beyond a
    burst of two seconds' worth, are answered 503. 0 sets no limit."""
    max_tcp: Positive = 512
    """The SIP port takes this many TCP connections, bounded by open files too; those who may not call share a quarter
    of them, 16 for each address or IPv6 /64."""
    codecs: tuple[Literal["PCMU", "PCMA", "G722", "OPUS"], ...] = ("G722", "PCMU", "PCMA", "OPUS")
    """These codecs are accepted; the order of the offer decides between them (RFC 3264 section 6.1)."""
    send_audio: Literal["silence", "none"] = "silence"
    """`silence` sends silent RTP in every call; `none` sends no audio at all."""
    srtp: Literal["off", "optional", "mandatory"] = "optional"
    """Media is encrypted with keys from the SDP (SDES, RFC 4568) when the peer offers it (`optional`), always
    (`mandatory`) or never (`off`); the keys are safe where the signalling is (TLS)."""
    tls_cert: str = ""
    """A PEM file with the certificate and its chain opens `sip.tls_port`; it is read again at every reload."""
    tls_key: str = ""
    """The certificate's private key is in this PEM file; empty means that it is in the file of `sip.tls_cert`."""
    tls_port: Port = 5061
    """SIP over TLS listens on this port when there is a certificate."""
    tls_ca: str = ""
    """Certificates of the authorities in this PEM file are believed; empty means those of the system."""
    tls_verify: bool = True
    """Registrars, and peers that the worker has to connect to, need a certificate for the name that they go by."""
    tls_clients: Literal["any", "verified"] = "any"
    """`verified` takes only connections with a certificate of an authority in `sip.tls_ca`; `any` asks nobody for
    one."""
    headers: tuple[Annotated[str, Meta(pattern=r"^[A-Za-z0-9.!%*_+`'~-]+$")], ...] = (
        "P-Asserted-Identity",
        "Diversion",
        "History-Info",
        "Remote-Party-ID",
        "User-to-User",
        "Session-ID",
        "Cisco-GUID",
    )
    """These headers of the INVITE appear in `custom` of `call.started`, in lower case, beside those that begin with
    `X-`: 64 headers of 2,048 characters at most. Routes match any header, whether it is in this list or not."""
    answer_delay_s: Annotated[float, Meta(ge=0, le=30)] = 0.0
    """A call is told that it rings (180) and answered this many seconds later, so that a person's phone may be quicker;
    recording sessions (SIPREC) are answered at once."""
    media_timeout_s: Seconds = 3600.0
    """A call without a single RTP packet for this many seconds is hung up; 0 never does so, and a call on hold is given
    an hour at least."""
    peer_check_s: Seconds = 30.0
    """A peer that has sent no RTP for this many seconds is asked, by an OPTIONS within the call, whether it still has
    the call, and again as often while it stays silent; without an answer the call ends 16 s later. 0 never asks."""

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
    """This is held to the participant's URI (`sip:1001@pbx.example`), the URI's user (`1001`), its display name and its
    stream's label, in any case of letters: one must fit. `*` stands for anything, `?` for one character, `[0-9]` for
    one of these."""
    role: Role
    """The participant has this role."""
    name: str = ""
    """This name is shown instead of the one in the metadata."""


class Siprec(Section, frozen=True, kw_only=True):
    """Recording sessions (RFC 7866): the recording client forks a call to the worker, one stream for each speaker."""

    ignore_mixed: bool = False
    """A stream in which all speakers are mixed is refused when each of them has a stream of their own as well, for the
    same words would be transcribed twice. It counts as mixed when the metadata says so, or by its label (`mixed`,
    `mix`)."""
    participants: tuple[SiprecParticipant, ...] = ()
    """The first that fits decides."""
    others: Role = "unknown"
    """Participants whom no entry of `siprec.participants` fits have this role."""
