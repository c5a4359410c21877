"""The typed configuration: one frozen struct per section, each field with its allowed range.

Times carry their unit in the name. Every key can be set in the TOML file or as `MEDIAWORKER_<SECTION>__<KEY>`;
`config.load` reads both and `docs/configuration.md` is generated from these classes.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

Port = Annotated[int, Meta(ge=0, le=65535)]
Seconds = Annotated[float, Meta(ge=0)]
Millis = Annotated[int, Meta(ge=0)]
Probability = Annotated[float, Meta(ge=0, le=1)]
Positive = Annotated[int, Meta(ge=1)]
Name = Annotated[str, Meta(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9._-]+$")]
Scope = Literal["events", "admin", "batch", "stream"]
Role = Literal["agent", "customer", "unknown"]


class Secret(str):
    """A string that prints as `***`; `str.__str__(secret)` or plain use in an expression gives the value."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "'***'" if self else "''"


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of every section: immutable, and an unknown key is an error."""


class Http(Section, frozen=True, kw_only=True):
    """The HTTP port: routes, `/v1/events`, the page, and the media WebSockets for one-tunnel users."""

    host: str = ""
    """Address to listen on. Empty: 0.0.0.0 (every IPv4 address) when there are API keys, else 127.0.0.1. Without keys
    an address that is not loopback is an error."""
    port: Port = 8080
    tls_cert: str = ""
    """PEM file with the certificate and its chain: the port then speaks HTTPS. Read again at every reload."""
    tls_key: str = ""
    """PEM file with the certificate's private key; empty: it is in the same file."""
    max_connections: Positive = 4096
    """Beyond it a connection is answered 503 and closed. A third of what the limit on open files leaves, if less."""
    max_per_peer: Positive = 2048
    """Of these, from one IPv4 address or one IPv6 /64. A proxy in front is one peer."""
    cors_origins: tuple[str, ...] = ()
    """Web pages of other origins that may use the HTTP routes from a browser: `https://crm.example`, or `*` for any.
    They need a key as everybody does. WebSockets are not bound by it (docs/events.md)."""
    header_timeout_s: Annotated[float, Meta(gt=0)] = 10.0
    """A request whose head has not come by then is answered 408."""
    stall_s: Annotated[float, Meta(gt=0)] = 30.0
    """A body that comes more slowly than 1 kB/s, or an answer that is not read, is given up after so long."""


class Media(Section, frozen=True, kw_only=True):
    """The media listener: Twilio and other WebSocket media, without a web framework in between."""

    host: str = ""
    """Address to listen on. Empty: 0.0.0.0 (every IPv4 address) when there are API keys or `twilio.auth_token`, else
    127.0.0.1. Without either an address that is not loopback is an error."""
    port: Port = 8081
    tls_cert: str = ""
    """As `http.tls_cert`, for `wss` without a proxy in front."""
    tls_key: str = ""
    stall_s: Seconds = 2.0
    """TCP media: how long a silent leg waits before its timeline goes on as silence."""
    start_timeout_s: Seconds = 5.0
    """A media WebSocket that has not said who it is by then is closed."""
    max_message_bytes: Positive = 65536
    shed_lag_ms: Annotated[int, Meta(ge=32)] = 100
    """Overload: when the media tick is so late on average over two seconds, no partials are asked for."""
    refuse_lag_ms: Annotated[int, Meta(ge=32)] = 500
    """And from here on no call is taken (503) until it has fallen to half."""
    max_connections: Positive = 4096
    max_per_peer: Positive = 2048
    """As those of `http`."""


class Stream(Section, frozen=True, kw_only=True):
    """Programs and browsers that send audio and read its words: `/ws/asr` and `/ws/transcribe`, on both ports."""

    max_sessions: Positive = 100
    """Open at once; beyond it an upgrade is answered 503. Each is a call as well (`max_calls`)."""
    max_sessions_per_key: Positive = 50
    """Of these, with one API key; beyond it 429."""
    idle_s: Annotated[float, Meta(gt=0)] = 60.0
    """A session without audio or a command for so long is ended, its finals sent."""
    max_s: Annotated[float, Meta(gt=0)] = 14400.0
    """The longest that a session lasts; it is then ended in the same way."""


class Rtp(Section, frozen=True, kw_only=True):
    port_min: Annotated[int, Meta(ge=1024, le=65534)] = 10000
    port_max: Annotated[int, Meta(ge=1025, le=65535)] = 19999
    jitter_ms: Annotated[int, Meta(ge=0, le=1000)] = 60
    """How long a window waits for a missing packet before it goes on as silence."""
    rtcp: bool = True
    """Report what arrives (RFC 3550 section 6), every five seconds or so, from the port above each RTP port."""


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


class Twilio(Section, frozen=True, kw_only=True):
    auth_token: Secret = Secret("")
    """Signs webhooks and upgrades. Empty: only programs on this machine that run as the worker's user may connect."""
    auth_token_next: Secret = Secret("")
    """A second accepted token, for rotation."""
    public_url: str = ""
    """The URL that Twilio posts to, as Twilio sees it, without the path: `https://host`."""
    stream_url: str = ""
    """The media URL as Twilio sees it: `wss://host/twilio/stream`. Empty: derived from `public_url`."""
    mode: Literal["start", "connect"] = "start"
    """`start` forks the call and goes on with `then`; `connect` hands the call to the worker."""
    then: str = '<Pause length="3600"/>'
    """TwiML after `<Start>`; without a next verb Twilio hangs up. Agent assist wants `<Dial>…</Dial>` here."""
    token_ttl_s: Seconds = 60.0
    """How long the call-bound token of a webhook answer is accepted."""
    require_token: bool = False
    """A stream becomes a call only with the token of a webhook answer (`mw_token`), so a signed upgrade that somebody
    repeats opens nothing. Off: TwiML that the worker has not written may lead here as well."""


class AudioSocket(Section, frozen=True, kw_only=True):
    """Asterisk's AudioSocket (docs/asterisk.md): a TCP port without TLS or credentials."""

    enabled: bool = False
    host: str = "127.0.0.1"
    port: Port = 9092
    allow: tuple[str, ...] = ()
    """Addresses or networks (CIDR) that may connect, beside loopback. `host` has to be one that they can reach."""
    max_connections: Positive = 512
    """Each is a call. A fourth of what the limit on open files leaves, if less."""
    send_audio: Literal["silence", "none"] = "silence"
    """`silence`: 20 ms at a time, of the kind that comes. Asterisk's application gives up after 2 s of nothing."""
    silent_s: Seconds = 3600.0
    """A call without a frame from Asterisk for so long is ended; 0: never. Nothing comes while a caller holds."""


class Asterisk(Section, frozen=True, kw_only=True):
    """Asterisk's WebSocket channels (docs/asterisk.md), at `/asterisk/media` on both ports."""

    answer: bool = True
    """Answer a channel that Asterisk has not answered itself (option `n` of the dial string)."""


class Endpointing(Section, frozen=True, kw_only=True):
    """Turns speech probabilities into utterances. A window is 32 ms."""

    enter: Probability = 0.5
    exit: Probability = 0.35
    min_speech_ms: Millis = 120
    min_silence_ms: Millis = 500
    pre_roll_ms: Annotated[int, Meta(ge=0, le=1000)] = 300
    speculate_ms: Annotated[int, Meta(ge=32)] = 160
    max_utterance_s: Annotated[float, Meta(ge=1, le=30)] = 30.0


class BotEndpointing(Endpointing, frozen=True, kw_only=True):
    min_silence_ms: Millis = 320


class DictationEndpointing(Endpointing, frozen=True, kw_only=True):
    min_silence_ms: Millis = 1000


class Profiles(Section, frozen=True, kw_only=True):
    """Endpointing by use: a bot answers fast, an agent's screen wants whole sentences, dictation has long pauses."""

    bot: BotEndpointing = BotEndpointing()
    assist: Endpointing = Endpointing()
    dictation: DictationEndpointing = DictationEndpointing()
    files: Endpointing = Endpointing()
    """Where files are cut."""


class Asr(Section, frozen=True, kw_only=True):
    engine: Name = "auto"
    """`auto`: Qwen3-ASR when the weights of `model` are on this machine, else Moonshine; nothing is downloaded. `qwen`,
    `moonshine` or the name of an engine that another package brings (docs/engines.md): that one. The worker does not
    start when its engine cannot run on this machine."""
    model: str = "Qwen/Qwen3-ASR-0.6B"
    """qwen: a name on the Hugging Face hub whose files `mediaworker models pull` has brought, or a folder."""
    partials_model: str = ""
    """qwen: another, smaller model for partials; `model` then makes finals and files alone. Both are loaded, each with
    `qwen.slots` of its own."""
    language: str = ""
    """ISO 639-1 code forced on every call without a language of its own; empty: the engine detects. The worker does not
    start with a language that its engine does not know; Moonshine knows English alone."""
    attention: Literal["auto", "flash", "varlen", "sdpa"] = "auto"
    """qwen: `sdpa` runs on every device and in any precision, and `auto` means it. `varlen` reads keys and values where
    they are, on GPUs from Ampere on in 16 bits and with torch from 2.13 on; `flash` does so with the package
    FlashAttention-3 or 4, where it is installed."""
    partial_ms: Annotated[int, Meta(ge=100, le=10000)] = 500
    idle_s: Seconds = 300.0
    """The inference process ends after so long without a call or job, unless it is preloaded."""
    preload: Literal["auto"] | bool = "auto"
    """Start the inference process with the worker and keep it: no call waits for the model, and the worker is ready
    only when it is. `auto`: for Qwen3-ASR on a machine with a GPU, where a start takes up to a minute."""
    threads: Annotated[int, Meta(ge=0, le=256)] = 0
    """moonshine: threads that recognise, each one utterance at a time. 0: one for each core of this machine, or of
    its container's CPU limit, but one, which is left to the calls themselves."""
    max_backlog_mb: Positive = 256
    """Audio of utterances without their final, in memory. Beyond it partial refreshes stop and audio goes to disk."""
    max_spill_mb: Annotated[int, Meta(ge=0)] = 2048
    """Of that audio on disk, in a file without a name in `data_dir`; beyond it utterances end with `failed`."""
    hang_s: Annotated[float, Meta(gt=0)] = 20.0
    """An inference process that does not answer for so long while it is needed is replaced."""
    start_timeout_s: Annotated[float, Meta(gt=0)] = 120.0
    """So long it may take to load its model; then the engine counts as failed, and is tried again."""
    words: bool = False
    """Say when each word of a final was said (`transcript.words`), in the languages that `aligner` knows, or in those
    of the engine when it times words itself."""
    words_wait_s: Seconds = 5.0
    """So long the end of a call waits for times that are still to come, once its last final is out."""
    aligner: str = "Qwen/Qwen3-ForcedAligner-0.6B"
    """The model for that: a name or a folder, as `model`. It takes as much memory again as the smaller recogniser."""


class Qwen(Section, frozen=True, kw_only=True):
    """The engine Qwen3-ASR: where it runs, how much at once, how exact."""

    device: str = "auto"
    """`auto`: a GPU when there is one; else `cpu`, `cuda`, `cuda:1`."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """`auto`: float32 on a CPU, bfloat16 on a GPU, and float16 on one that is too old for it."""
    quantise: Literal["none", "int8", "fp8"] = "none"
    """Linear layers in 8 bits: half the memory of 16. `int8`: on a CPU or any NVIDIA GPU. `fp8`: on a GPU, from Ada or
    Hopper on; on a CPU it is only slow. A word here and there may differ (docs/performance.md)."""
    graphs: bool = True
    """On a GPU, recorded sequences of kernels (CUDA graphs) instead of starting each: some more memory and seconds of
    warming up."""
    threads: Annotated[int, Meta(ge=1, le=256)] = 1
    """Of a CPU."""
    slots: Annotated[int, Meta(ge=0, le=4096)] = 0
    """Utterances whose keys and values are kept. Beyond it they are computed again, those of files first. 0: 32 on a
    CPU; on a GPU as many as half of its free memory holds, up to 256."""
    positions: Annotated[int, Meta(ge=256, le=8192)] = 1024
    """Of a slot: the context, 13 a second of audio, and the answer; 112 kB each for the 0.6B model in bfloat16."""
    batch: Annotated[int, Meta(ge=0, le=1024)] = 0
    """Requests in one step. 0: 32, and on a GPU with more than 32 slots half of them, up to 128."""
    batch_tokens: Annotated[int, Meta(ge=16, le=8192)] = 128
    """Positions of files in one step: a live request never waits for more."""
    window_s: Annotated[float, Meta(ge=0, le=60)] = 0.0
    """Whole seconds of audio that attend to each other: 1 to 8 were trained. 0: as published (8)."""
    partials: Literal["frozen", "exact"] = "frozen"
    """What a new loudest moment does to audio that has been encoded: nothing until the final, or it is encoded again
    at once. Finals are exact in both cases."""


class Files(Section, frozen=True, kw_only=True):
    """Files: how they are read, and what of them may be in work at once."""

    max_upload_mb: Positive = 2048
    """Of one file; larger ones are answered 413."""
    max_hours: Annotated[float, Meta(gt=0)] = 24.0
    """Of its audio."""
    rows: Annotated[int, Meta(ge=1, le=64)] = 8
    """Stretches of speech of one file in work at the same time."""
    memory_mb: Annotated[int, Meta(ge=512)] = 1536
    """Address space of the process that decodes a file; it uses about 60 MB."""
    cpu_s: Positive = 3600
    """Processor time, in seconds, that decoding one file may take; a file that takes more is refused. An hour of one
    channel takes about 6 s."""
    stall_s: Annotated[float, Meta(gt=0)] = 60.0
    """A decoder that says nothing for so long is ended."""
    min_free_mb: Annotated[int, Meta(ge=0)] = 1024
    """So much of the disk stays free for calls: an upload that would take of it is answered 507."""
    max_requests: Positive = 16
    """Requests with a file that are served at once. As many more may wait for `queue_s`; the rest are answered 429."""
    max_requests_per_key: Positive = 8
    """The same for the requests of one key."""
    queue_s: Annotated[float, Meta(ge=0)] = 10.0
    """Seconds for which a request beyond `max_requests` or `max_requests_per_key` waits for a place before it is
    answered 429."""
    heartbeat_s: Annotated[float, Meta(ge=1)] = 10.0
    """A stream of text that has nothing to say says so this often."""


class Jobs(Section, frozen=True, kw_only=True):
    """Files that are transcribed in the background. Their uploads and results are in `data_dir`."""

    parallel: Annotated[int, Meta(ge=1, le=64)] = 4
    """In work at once; they take turns in the engine."""
    parallel_per_key: Positive = 4
    max_queued_per_key: Positive = 1000
    """Not yet ended; more are answered 429."""
    roots: tuple[str, ...] = ()
    """Folders on this machine whose files may be named by `path` instead of uploaded."""
    keep_days: Annotated[float, Meta(gt=0)] = 7.0
    """Ended jobs, with their results. An upload is erased as soon as its job has ended."""
    retry_hours: Annotated[float, Meta(ge=0)] = 24.0
    """So long a job waits for an engine that does not start, and a webhook is tried again."""
    webhook_secret: Secret = Secret("")
    """Signs the webhooks of ended jobs (Standard Webhooks); without it none can be asked for. At least 24 characters,
    or `whsec_` and base64 of at least 24 bytes."""
    webhook_allow: tuple[str, ...] = ()
    """Addresses or networks (CIDR) that these webhooks may go to though they are not public: `["10.1.2.0/24"]`. Empty:
    a URL that leads to loopback, a private network or a cloud's metadata is never connected to."""


class ApiKey(Section, frozen=True, kw_only=True):
    name: Name
    key: Secret
    """At least 8 of `A-Z a-z 0-9 . _ ~ -`: it must fit into a WebSocket subprotocol (RFC 6455 section 4.1)."""
    scopes: tuple[Scope, ...]


class Auth(Section, frozen=True, kw_only=True):
    api_keys: tuple[ApiKey, ...] = ()


class Route(Section, frozen=True, kw_only=True):
    """What a call is: the first route whose conditions all hold sets profile, language, context, roles and names.

    `calling` and `called` match the number or user part exactly, or by prefix when they end in `*`. In `participant`
    and `headers`, `*` stands for anything, `?` for one character, `[0-9]` for one of these; letters match in any case.
    """

    source: Literal["", "sip", "siprec", "twilio", "audiosocket", "asterisk-ws", "websocket"] = ""
    calling: str = ""
    called: str = ""
    account: str = ""
    participant: str = ""
    """SIPREC: somebody in the metadata of the INVITE has this URI (`sip:1001@pbx.example`), user part or name."""
    headers: dict[str, str] = {}
    """SIP: the INVITE has each of these headers with such a value; repeated headers are joined by commas."""
    profile: Literal["bot", "assist", "dictation"] = "assist"
    language: str = ""
    """ISO 639-1 code forced on these calls. With one that the engine does not know they get finals without text, whose
    `error` says so, and the worker warns at its start."""
    context: str = ""
    roles: dict[str, Role] = {}
    """leg → role; legs are `inbound` and `outbound` for Twilio, `main` for a SIP call and for AudioSocket."""
    names: dict[str, str] = {}


class Events(Section, frozen=True, kw_only=True):
    heartbeat_s: Annotated[float, Meta(ge=1)] = 20.0
    """Seconds between WebSocket pings to a subscriber, and between comments to an idle reader of server-sent events."""
    queue: Annotated[int, Meta(ge=16)] = 1000
    """Events that may wait for one subscriber before it is closed with 4008. 256 may come at once: not fewer."""
    max_subscribers: Positive = 2000
    metrics_s: Annotated[float, Meta(gt=0)] = 5.0


class PrivacyPattern(Section, frozen=True, kw_only=True):
    """What it matches is replaced by its name in brackets."""

    name: Name
    pattern: Annotated[str, Meta(min_length=1)]
    """A regular expression (of the library `regex`), letters in any case."""


class Privacy(Section, frozen=True, kw_only=True):
    """What is taken out of texts and digits before anybody sees them and before they are stored."""

    cards: bool = True
    """Numbers of payment cards, written or spoken, become `[card]`. A partial shows six digits of what may be one."""
    patterns: tuple[PrivacyPattern, ...] = ()
    dtmf: Literal["show", "mask"] = "show"
    """`mask`: no digit that is keyed in is shown; who, when and how long still is."""
    mask_after_digits: tuple[str, ...] = ()
    """Sequences of keys (`*9`) after which digits are masked, keyed or spoken."""
    mask_after_phrases: tuple[str, ...] = ()
    """Phrases ("card number") that do the same when anybody says them."""
    unmask_after_digits: tuple[str, ...] = ()
    unmask_after_phrases: tuple[str, ...] = ()
    mask_s: Seconds = 60.0
    """Masking ends after so long; 0: with the call."""


class EventWebhook(Section, frozen=True, kw_only=True):
    """Durable events for who has no WebSocket: each is posted to `url`, in order within its call, until it is taken."""

    name: Name
    """Under it the worker keeps how far this webhook has come, over restarts."""
    url: Annotated[str, Meta(min_length=1)]
    secret: Secret
    """Signs each request (Standard Webhooks): at least 24 characters, or `whsec_` and base64 of at least 24 bytes."""
    types: tuple[str, ...] = ()
    """Of the durable event types; none: all of them."""
    parallel: Annotated[int, Meta(ge=1, le=256)] = 16
    """Calls whose events are under way at once."""
    retry_hours: Annotated[float, Meta(ge=0)] = 24.0
    """So long an event is tried again; then it is given up, and the call's next one follows."""


class Alerts(Section, frozen=True, kw_only=True):
    """Rules that raise `alert` events."""

    file: str = ""
    """TOML file with `[[rules]]` (docs/alerts.md). It is read again whenever it changes."""


class Log(Section, frozen=True, kw_only=True):
    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["console", "json"] = "console"
    sip_trace: bool = False
    """Log every SIP message, with credentials, media keys and digits masked."""


class Retention(Section, frozen=True, kw_only=True):
    """What happens to the events of calls that ended long ago. Erased is overwritten, and the file shrinks."""

    max_age_days: Annotated[float, Meta(ge=0)] = 0.0
    """Calls that ended longer ago are erased; 0: never. Off, because nobody's transcripts should go unasked."""
    max_bytes: Annotated[int, Meta(ge=0)] = 20_000_000_000
    """While the store's file is larger the calls that ended first are erased; 0: never. On, because a full disk stops
    the worker from taking calls; about 400,000 calls of thirty utterances."""
    every_s: Annotated[float, Meta(gt=0)] = 60.0
    """How often the store is looked through."""


class Settings(Section, frozen=True, kw_only=True):
    data_dir: str = "data"
    """Where the event store lives; one worker owns it."""
    shutdown_s: Seconds = 30.0
    """How long SIGTERM lets calls run on before they are ended with `reason: shutdown`."""
    max_calls: Positive = 1000
    """Calls over all ingresses; beyond it a caller is refused (486 on SIP, 503 elsewhere)."""
    http: Http = Http()
    media: Media = Media()
    stream: Stream = Stream()
    rtp: Rtp = Rtp()
    sip: Sip = Sip()
    siprec: Siprec = Siprec()
    twilio: Twilio = Twilio()
    audiosocket: AudioSocket = AudioSocket()
    asterisk: Asterisk = Asterisk()
    endpointing: Profiles = Profiles()
    asr: Asr = Asr()
    qwen: Qwen = Qwen()
    files: Files = Files()
    jobs: Jobs = Jobs()
    auth: Auth = Auth()
    events: Events = Events()
    privacy: Privacy = Privacy()
    alerts: Alerts = Alerts()
    retention: Retention = Retention()
    log: Log = Log()
    routes: tuple[Route, ...] = ()
    webhooks: tuple[EventWebhook, ...] = ()
