"""The settings of SIP, of its media, and of recording sessions (SIPREC)."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from msgspec import Meta

from config.errors import ConfigError
from config.sections.checks import check_address, check_network, check_registrar, check_tls, check_unique
from config.sections.section import Port, Positive, Reloadable, Role, Seconds, Secret, Section

HOST_PORT = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^\[\]:\s]+)(?::([0-9]{1,5}))?")


class Rtp(Section, frozen=True, kw_only=True):
    port_min: Annotated[int, Meta(ge=1024, le=65534)] = 10000
    """RTP uses even ports from this one upwards."""
    port_max: Annotated[int, Meta(ge=1025, le=65535)] = 19999
    """RTP and RTCP use no port above this one; each stream needs two."""
    jitter_ms: Annotated[int, Meta(ge=0, le=1000)] = 60
    """A missing packet is waited for this many milliseconds before its place is filled with silence."""
    rtcp: bool = True
    """The worker sends RTCP reports (RFC 3550 section 6) about every five seconds, from the port above each RTP
    port."""

    def check(self, key: str) -> None:
        if self.port_max <= self.port_min:
            raise ConfigError(f"{key}.port_max", self.port_max, f"must be above {key}.port_min ({self.port_min})")


class SipAccount(Section, frozen=True, kw_only=True):
    """A registration with a registrar."""

    registrar: str
    """The worker registers at this SIP URI. One without a port has its servers in the NAPTR and SRV records of its name
    (RFC 3263), if there are any."""
    backups: tuple[str, ...] = ()
    """These registrars are tried in order when the first one does not answer or refuses; the one that works is kept."""
    user: str
    """The worker registers under this user name."""
    auth_user: Annotated[str, Meta(pattern=r'^[^"\\\x00-\x1f]*$')] = ""
    """This name goes with the password in the digest (an authentication ID); if it is empty, `user` does."""
    password: Secret = Secret("")
    """This password answers the registrar's digest challenge."""
    proxy: str = ""
    """Registrations are sent through the outbound proxy at this SIP URI, whose addresses may then call; if it is empty,
    they go to the registrars."""
    expires_s: Annotated[int, Meta(ge=30, le=86400)] = 300
    """Each registration is requested for this many seconds and renewed before it expires."""
    name: str = ""
    """Calls and metrics show the account under this name; if it is empty, under its user name. The registrar is added
    where several accounts would have the same name (`100@pbx.example`)."""
    one_worker: bool = False
    """Only one worker of the cluster (`cluster.nats`) registers this account at a time, and another one takes it over
    when that one stops or is gone. This is for a PBX that takes a single contact for each account."""


class SipUser(Section, frozen=True, kw_only=True):
    """A caller who authenticates by digest (RFC 8760) and may then call from any address."""

    user: Annotated[str, Meta(min_length=1)]
    """The caller authenticates with this user name."""
    password: Secret
    """The caller authenticates with this password."""


class Sip(Section, frozen=True, kw_only=True):
    enabled: bool = True
    """The worker accepts SIP calls when this is true."""
    host: str = "0.0.0.0"
    """SIP and RTP listen on this IPv4 address; if it is empty, they use no IPv4."""
    host6: str = ""
    """SIP and RTP also listen on this IPv6 address, at the same ports; `::` means every address, and if it is empty,
    they use no IPv6."""
    port: Port = 5060
    """SIP over UDP and TCP listens on this port."""
    transports: tuple[Literal["udp", "tcp"], ...] = ("udp", "tcp")
    """SIP listens on these transports; TLS is configured by `sip.tls_cert` and `sip.tls_port`."""
    public_address: str = ""
    """SDP and Contact carry this IPv4 address when the worker is behind NAT; if it is empty, they carry the address
    that faces the peer."""
    public_address6: str = ""
    """SDP and Contact carry this IPv6 address when a call or its media uses IPv6; if it is empty, they carry the
    address that faces the peer."""
    stun: str = ""
    """This STUN server (HOST or HOST:PORT) is asked for the public address of each RTP port, and for that of the worker
    if `sip.public_address` is empty."""
    keepalive_s: Annotated[int, Meta(ge=0, le=3600)] = 15
    """NAT bindings are refreshed every this many seconds: those to UDP registrars and, with a public address or a STUN
    server, those of streams that carry nothing else. 0 turns this off."""
    accounts: tuple[SipAccount, ...] = ()
    allow: Reloadable[tuple[str, ...]] = ()
    """These addresses or networks (CIDR) may send INVITEs, in addition to loopback and the registrars."""
    users: Reloadable[tuple[SipUser, ...]] = ()
    """Who may call from any address, with these credentials. Their name is the call's `account`."""
    challenge: Literal["others", "everybody"] = "others"
    """With `others`, only callers outside `sip.allow` are asked for credentials; with `everybody`, all callers except
    this machine."""
    digest: Annotated[tuple[Literal["SHA-256", "MD5"], ...], Meta(min_length=1)] = ("SHA-256", "MD5")
    """The challenge offers these algorithms, the preferred one first; some older equipment considers only the first
    one."""
    realm: Annotated[str, Meta(pattern=r"^[^\"\\\\]+$")] = "mediaworker"
    """The challenge names this realm, which is hashed together with the caller's password."""
    max_calls: Annotated[int, Meta(ge=1, le=1024)] = 200
    """The worker accepts at most this many SIP calls; further ones are refused with 486."""
    max_invites_per_s: Annotated[float, Meta(ge=0)] = 50.0
    """One address may begin this many calls a second, with bursts of twice as many; more are answered with 503. An IPv6
    /64 that is not in `sip.allow` counts as one address. 0 sets no limit."""
    max_tcp: Positive = 512
    """The SIP port accepts at most this many TCP connections, or fewer if the limit on open files requires it. Peers
    that may not call share a quarter of them, 16 for each address or IPv6 /64."""
    codecs: tuple[Literal["PCMU", "PCMA", "G722", "OPUS"], ...] = ("G722", "PCMU", "PCMA", "OPUS")
    """These codecs are accepted; the order in the offer decides between them (RFC 3264 section 6.1)."""
    send_audio: Literal["silence", "none"] = "silence"
    """With `silence`, the worker sends silent RTP in every call; with `none`, it sends no audio at all."""
    srtp: Literal["off", "optional", "mandatory"] = "optional"
    """Media is encrypted with keys from the SDP (SDES, RFC 4568) when the peer offers it (`optional`), always
    (`mandatory`) or never (`off`). The keys are only as safe as the signalling (TLS)."""
    tls_cert: str = ""
    """With this PEM file, the certificate and its chain, `sip.tls_port` is opened. The file is read again at every
    reload."""
    tls_key: str = ""
    """This PEM file contains the certificate's private key; if it is empty, the key is expected in the file of
    `sip.tls_cert`."""
    tls_port: Port = 5061
    """SIP over TLS listens on this port when there is a certificate."""
    tls_ca: str = ""
    """Certificates issued by the authorities in this PEM file are trusted; if it is empty, the system's authorities
    are."""
    tls_verify: bool = True
    """Registrars, and peers that the worker connects to, must present a certificate that is valid for their name."""
    tls_clients: Literal["any", "verified"] = "any"
    """With `verified`, a client must present a certificate issued by an authority in `sip.tls_ca`; with `any`, no
    client is asked for one."""
    headers: tuple[Annotated[str, Meta(pattern=r"^[A-Za-z0-9.!%*_+`'~-]+$")], ...] = (
        "P-Asserted-Identity",
        "Diversion",
        "History-Info",
        "Remote-Party-ID",
        "User-to-User",
        "Session-ID",
        "Cisco-GUID",
    )
    """These headers of the INVITE, and those that begin with `X-`, appear in `custom` of `call.started` with names in
    lower case: at most 64 headers of 2,048 characters. Routes can match every header, listed here or not."""
    answer_delay_s: Annotated[float, Meta(ge=0, le=30)] = 0.0
    """A call rings (180) for this many seconds before it is answered, which leaves time for a person to pick up first.
    Recording sessions (SIPREC) are answered at once."""
    media_timeout_s: Seconds = 3600.0
    """A call that receives no RTP for this many seconds is hung up; a call on hold is given at least an hour. 0 turns
    this off."""
    peer_check_s: Seconds = 30.0
    """A peer that has sent no RTP for this many seconds is asked by an OPTIONS request within the dialog whether the
    call still exists, and again at this interval while it stays silent. Without an answer the call ends 16 s later. 0
    turns this off."""

    def check(self, key: str) -> None:
        for name in ("transports", "codecs"):
            if not getattr(self, name):
                raise ConfigError(f"{key}.{name}", [], "must not be empty")
        for index, network in enumerate(self.allow):
            check_network(f"{key}.allow[{index}]", network)
        for name in ("host", "host6", "public_address", "public_address6"):
            check_address(f"{key}.{name}", getattr(self, name), 6 if name.endswith("6") else 4)
        if self.stun and not ((found := HOST_PORT.fullmatch(self.stun)) and 0 < int(found[2] or 1) < 65536):
            raise ConfigError(f"{key}.stun", self.stun, "expected HOST or HOST:PORT")
        four, six = bool(self.host) or not self.enabled, bool(self.host6) or not self.enabled
        for index, account in enumerate(self.accounts):
            uris = [("registrar", account.registrar), *(("backups", each) for each in account.backups)]
            for name, uri in [*uris, ("proxy", account.proxy or account.registrar)]:
                check_registrar(f"{key}.accounts[{index}].{name}", uri, four=four, six=six)
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
    """The role and the name of a participant in a recorded call; the first matching entry decides."""

    match: Annotated[str, Meta(min_length=1)]
    """This pattern is compared with the participant's URI (`sip:1001@pbx.example`), the user part of the URI (`1001`),
    the display name and the label of the stream; one of them must match, in any case of letters. `*` stands for
    anything, `?` for one character, `[0-9]` for one of these."""
    role: Role
    """The participant is given this role."""
    name: str = ""
    """This name replaces the one in the metadata."""


class Siprec(Section, frozen=True, kw_only=True):
    """Recording sessions (RFC 7866): the recording client forks a call to the worker, one stream for each speaker."""

    ignore_mixed: bool = False
    """A stream that mixes all speakers is refused when each of them also has a stream of their own, because the same
    words would be transcribed twice. A stream counts as mixed if the metadata or its label (`mixed`, `mix`) says so."""
    participants: tuple[SiprecParticipant, ...] = ()
    """The first that fits decides."""
    others: Role = "unknown"
    """Participants that match no entry of `siprec.participants` are given this role."""
