"""The worker's counters under their Prometheus names."""

from __future__ import annotations

import asyncio
import os
import platform
import resource
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from asr.engines.runtime import Runtime
from asr.utterance import EngineStatus
from mediaworker.events.retention import file_bytes
from mediaworker.ingress.connections import ConnectionLimit
from mediaworker.ops.metrics import MetricsRegistry

if TYPE_CHECKING:
    from mediaworker.worker import Worker


def register(metrics: MetricsRegistry, worker: Worker) -> None:
    _process(metrics, worker)
    _latency(metrics, worker)
    _operations(metrics, worker)
    calls, media, detector = worker.calls, worker.media, worker.detector
    metrics.gauge("calls_active", "Calls that have not ended", lambda: len(calls))
    metrics.counter("calls_opened", "Calls since the start", lambda: calls.opened)
    metrics.counter("calls_refused", "Calls refused because the worker was full or draining", lambda: calls.refused)
    metrics.gauge("legs_active", "Legs with a ring row", lambda: detector.legs)
    metrics.counter(
        "legs_media",
        "Packets and chunks that arrived on all legs, and those that were late, lost or malformed, by kind",
        lambda: {(kind,): float(count) for kind, count in detector.counters.items()},
        labels=("kind",),
    )
    metrics.counter("vad_windows", "Windows of 32 ms taken through the VAD", lambda: detector.windows)
    metrics.counter(
        "vad_windows_skipped", "Windows of digital silence, which the VAD need not look at", lambda: detector.skipped
    )
    metrics.counters(
        "transcripts",
        calls.stats,
        {
            "utterances": "Utterances begun",
            "finals": "Finals published",
            "empty_finals": "Finals without words",
            "failed_finals": "Finals with an error",
            "partials": "Partials published",
            "speculative_hits": "Finals whose text was ready when the endpoint fired",
            "resumed": "Pauses, with a speculative final, after which the speaker went on",
        },
    )
    metrics.counter("media_ticks", "Media ticks of 32 ms", lambda: media.ticks)
    metrics.counter("media_errors", "Media ticks cut short by an error of the worker", lambda: media.errors)
    metrics.gauge("media_lag_max_seconds", "Longest media tick since the start", lambda: media.lag_max_s)
    guard = worker.guard
    metrics.gauge("load", "0 normal, 1 sheds partials, 2 also refuses calls", lambda: float(guard.load))
    metrics.counter("load_shed_partials", "Partials not asked for in overload", lambda: guard.shed_partials)
    metrics.counter(
        "redactions",
        "Parts of texts that were redacted, and digits that were masked, by kind",
        lambda: {(kind,): float(count) for kind, count in calls.masked.items()},
        labels=("kind",),
    )
    _webhooks(metrics, worker)
    alerts = worker.alerts
    metrics.gauge("alert_rules", "Rules for alerts in force", lambda: len(alerts.rules))
    metrics.gauge("alert_rules_ok", "0 while the file cannot be used and older rules are in force", lambda: alerts.ok)
    _asr(metrics, worker)
    _twilio(metrics, worker)
    _stream(metrics, worker)
    _asterisk(metrics, worker)
    _connections(metrics, worker)
    if worker.sip is not None:
        _sip(metrics, worker)


def _webhooks(metrics: MetricsRegistry, worker: Worker) -> None:
    hooks = worker.webhooks.feeds
    metrics.counter(
        "event_webhook_events",
        "Events of webhooks that were taken, or given up; and times that erased ones were skipped",
        lambda: {
            (hook.name, outcome): float(count)
            for hook in hooks
            for outcome, count in (
                ("delivered", hook.outbox.delivered), ("given_up", hook.outbox.given_up), ("skipped", hook.skips)
            )
        },
        labels=("webhook", "outcome"),
    )  # fmt: skip
    metrics.counter(
        "event_webhook_tries",
        "Requests of webhooks",
        lambda: {(hook.name,): float(hook.outbox.tries) for hook in hooks},
        labels=("webhook",),
    )
    metrics.gauge(
        "event_webhook_lag_seconds",
        "Age of the oldest event that a webhook has not taken",
        lambda: {(hook.name,): hook.lag_s for hook in hooks},
        labels=("webhook",),
    )


def _asr(metrics: MetricsRegistry, worker: Worker) -> None:
    recognizer = worker.recognizer
    metrics.gauge(
        "asr_backlog_bytes", "Audio kept for utterances whose final has not come back", lambda: recognizer.backlog_bytes
    )
    metrics.gauge(
        "asr_spilled_bytes",
        "Audio that waits for the engine in a file, because memory had no room for it",
        lambda: recognizer.spilled_bytes,
    )
    metrics.gauge("asr_open_utterances", "Utterances at the engine", lambda: recognizer.open_utterances)
    metrics.gauge(
        "asr_state",
        "1 for the engine's state, 0 for the others",
        lambda: {(state.value,): float(state is recognizer.state) for state in EngineStatus},
        labels=("state",),
    )
    metrics.gauge(
        "asr_device_info",
        "1, with where the engine computes as labels, since it was first ready",
        lambda: {_device_labels(runtime): 1.0} if (runtime := recognizer.runtime) is not None else {},
        labels=("device", "name", "dtype", "attention", "graphs", "torch", "cuda"),
    )
    metrics.gauge(
        "asr_device_memory_bytes",
        "Memory of the engine's GPU: total, free when it was last ready, and reserved for keys and values (slots)",
        lambda: _device_memory(runtime) if (runtime := recognizer.runtime) is not None else {},
        labels=("kind",),
    )
    metrics.gauge(
        "asr_process_resident_memory_bytes",
        "RSS of the inference process; 0 while there is none",
        lambda: _rss_bytes(recognizer.pid) if recognizer.pid else 0.0,
    )
    metrics.counters(
        "asr",
        recognizer.counters,
        {
            "errors": "Finals that the engine answered with an error",
            "alignments": "Utterances whose words got their times",
            "words": "Words that got their times",
            "failed_alignments": "Utterances whose words got no times, though times were asked for",
            "refused_alignments": "Utterances whose words got no times because too much audio waited",
            "stale": "Answers of the engine that came too late to be used",
            "refused_partials": "Partials not asked for because too much audio waited",
            "shed_partials": "Partials dropped by the scheduler",
            "exhausted_steps": "Steps of the engine that ran out of memory and were done again, smaller",
            "crashes": "Times that the inference process ended unexpectedly",
            "hangs": "Inference processes that were ended because they had stopped answering",
            "spill_failures": "Utterances given up because their audio had no room on disk",
            "replayed": "Utterances that were sent again because the inference process had ended",
        },
    )


def _twilio(metrics: MetricsRegistry, worker: Worker) -> None:
    twilio, listener = worker.twilio, worker.listener
    metrics.counters(
        "twilio",
        twilio.counters,
        {
            "messages": "Messages received",
            "media": "Media messages",
            "started": "Streams that became a call",
            "stopped": "Streams ended by stop",
            "disconnected": "Streams whose socket was lost",
            "malformed": "Messages that are not what Twilio sends",
            "unknown": "Messages of an unknown event",
            "unexpected": "Messages in the wrong state",
            "wrong_stream": "Messages of another stream",
            "wrong_track": "Media of a track that was not announced",
            "implausible": "Chunks with an impossible timestamp, digits faster than any phone",
        },
    )
    metrics.counter(
        "twilio_refused", "Streams refused by reason", lambda: _by(twilio.counters.refused), labels=("reason",)
    )
    metrics.counter("twilio_webhooks", "Voice webhooks answered", lambda: twilio.webhooks)
    metrics.counter(
        "twilio_forbidden", "Requests of Twilio's routes without a valid signature", lambda: twilio.forbidden
    )
    metrics.gauge("media_connections", "Open media WebSockets", lambda: listener.connections)
    metrics.counter(
        "media_upgrades_rejected", "Upgrades rejected by status", lambda: _by(listener.rejected), labels=("status",)
    )


def _asterisk(metrics: MetricsRegistry, worker: Worker) -> None:
    asterisk, audiosocket = worker.asterisk, worker.audiosocket
    metrics.gauge("asterisk_channels", "Open connections of /asterisk/media", lambda: asterisk.channels)
    metrics.counters(
        "asterisk",
        asterisk.counters,
        {
            "events": "Control messages received",
            "started": "Channels that became a leg",
            "joined": "Channels that joined a call that another channel had opened",
            "hangups": "Channels hung up by Asterisk",
            "silent": "Channels ended because Asterisk did not answer any more, or sent no audio for an hour",
            "probes": "Times that a silent channel of Asterisk was asked for its status",
            "malformed": "Messages that are not what Asterisk sends",
            "unknown": "Messages of an unknown event",
            "unexpected": "Messages in the wrong state, and errors that Asterisk reports",
            "implausible": "Digits that came faster than any phone sends them",
            "early": "Messages of audio before MEDIA_START",
            "early_lost": "Messages of audio before MEDIA_START that were too many to keep",
        },
    )
    metrics.counter(
        "asterisk_refused", "Channels refused by reason", lambda: _by(asterisk.counters.refused), labels=("reason",)
    )
    metrics.gauge("audiosocket_connections", "Open connections of AudioSocket", lambda: audiosocket.connections)
    metrics.counters(
        "audiosocket",
        audiosocket.counters,
        {
            "frames": "Frames received",
            "started": "Connections that became a call",
            "hangups": "Calls hung up by Asterisk",
            "disconnected": "Calls whose connection broke",
            "silent": "Calls ended for lack of frames",
            "malformed": "Frames with a wrong length for their kind, or with an invalid digit",
            "too_long": "Frames of audio of more than a second",
            "unknown": "Frames of an unknown kind",
            "unexpected": "Frames in the wrong state, and errors that Asterisk reports",
            "implausible": "Digits that came faster than any phone sends them",
            "silence": "Frames of silence sent",
            "withheld": "Frames of silence not sent because the peer did not read",
        },
    )
    metrics.counter(
        "audiosocket_refused",
        "Connections refused by reason",
        lambda: _by(audiosocket.counters.refused),
        labels=("reason",),
    )


def _stream(metrics: MetricsRegistry, worker: Worker) -> None:
    streams = worker.streams
    counters = streams.counters
    metrics.gauge("stream_sessions", "Open sessions of /ws/asr and /ws/transcribe", lambda: streams.sessions)
    metrics.counter("stream_sessions", "Sessions since the start", lambda: counters.sessions)
    metrics.counter("stream_refused", "Sessions refused by reason", lambda: _by(counters.refused), labels=("reason",))
    metrics.counter(
        "stream_errors",
        "Errors reported to clients of /ws/asr and /ws/transcribe, by code",
        lambda: _by(counters.errors),
        labels=("code",),
    )
    metrics.counter("stream_slow_clients", "Sessions cut because the client did not read", lambda: counters.slow)
    metrics.counter(
        "stream_nonfinite_samples",
        "Samples of float audio that were not a number or infinite",
        lambda: counters.nonfinite,
    )


def _connections(metrics: MetricsRegistry, worker: Worker) -> None:
    guard, listener = worker.http.guard, worker.listener

    def limits() -> dict[str, ConnectionLimit]:
        both = {"http": guard.limit, "media": listener.limit}
        return both | {"audiosocket": worker.audiosocket.limit} if worker.settings.audiosocket.enabled else both

    metrics.gauge(
        "connections",
        "Open TCP connections of a port",
        lambda: {(port,): float(limit.open) for port, limit in limits().items()},
        labels=("port",),
    )
    metrics.counter(
        "connections_refused",
        "Connections beyond the limit of a port (total) or of an address (peer)",
        lambda: {(port, why): float(n) for port, limit in limits().items() for why, n in limit.refused.items()},
        labels=("port", "reason"),
    )
    metrics.counter(
        "auth_failures",
        "Requests and streams refused for want of the right credential on the HTTP and media ports, by reason",
        lambda: _by(worker.auth_failures.counts),
        labels=("reason",),
    )
    metrics.counter(
        "media_unfinished",
        "Connections to the media port that closed before a whole request came",
        lambda: listener.unfinished,
    )
    metrics.counters(
        "http",
        guard.counters,
        {
            "bad_requests": "Requests that were not valid HTTP, and frames that were not valid WebSocket",
            "slow_requests": "Requests cut because their head or body did not arrive in time",
            "slow_readers": "Connections cut because the peer did not read",
        },
    )


def _sip(metrics: MetricsRegistry, worker: Worker) -> None:
    sip = worker.sip
    assert sip is not None
    metrics.gauge("sip_calls_active", "SIP calls", lambda: sip.calls)
    metrics.gauge("sip_dialogs", "Dialogs that PJSIP still keeps, of calls and of refusals", lambda: sip.dialogs)
    metrics.gauge("rtp_sockets", "RTP ports in use", lambda: sip.rtp_sockets)
    metrics.gauge(
        "sip_registered",
        "1 while the account is registered",
        lambda: {(r.account,): float(r.state == "registered") for r in sip.registrations},
        labels=("account",),
    )
    metrics.counters(
        "sip",
        sip.counters,
        {
            "invites": "INVITEs received",
            "answered": "Calls answered",
            "failed": "Calls that failed after being accepted",
            "cancelled": "Calls cancelled by the caller",
            "media_timeouts": "Calls ended for lack of RTP",
            "peers_asked": "OPTIONS within calls, sent to peers that were silent or had lost their connection",
            "peers_lost": "Calls ended because the peer did not answer OPTIONS, or did not know the call",
            "sdp_mismatches": "Calls ended because the SDP that went out was not ours",
            "recordings": "SIPREC sessions answered",
            "metadata_errors": "SIPREC metadata that could not be read",
            "registrations_ok": "Registrations and refreshes that succeeded",
            "registrations_failed": "Registrations that failed",
        },
    )
    metrics.gauge(
        "sip_tcp", "TCP connections that others have opened to the SIP port", lambda: sip.admission.connections
    )
    metrics.counters(
        "sip_door",
        sip.admission.counters,
        {
            "unanswered": "Requests of addresses that may not call, left without an answer",
            "refused": "Requests other than INVITE, of addresses that may not call, that were answered 403",
            "challenged": "Calls asked for credentials (sip.users)",
            "credentials_bad": "Calls with credentials that match no user",
            "errors": "Requests refused because an error in the worker kept it from judging them",
            "tcp_refused": "TCP connections beyond sip.max_tcp",
            "tcp_expired": "TCP connections closed because no message came",
        },
    )
    metrics.counter(
        "sip_auth_failures",
        "Calls whose credentials failed, by reason: malformed, realm, algorithm, nonce, replayed, uri, user, password, "
        "or slowed after too many wrong passwords",
        lambda: _by(sip.admission.counters.auth_failures),
        labels=("reason",),
    )
    metrics.counters(
        "sip_stun",
        sip.nat,
        {
            "answered": "Ports whose address outside a NAT the STUN server has told",
            "unanswered": "Times that the STUN server did not answer, or its name had no address",
        },
    )
    metrics.counter(
        "sip_callback_errors",
        "Errors in the worker's own code while PJSIP waited for it; what it asked was refused",
        lambda: sip.callback_errors,
    )
    metrics.counter("sip_refused", "Calls refused by status", lambda: _by(sip.counters.refused), labels=("status",))
    metrics.counters(
        "rtp",
        sip.rtp,
        {
            "packets": "RTP packets accepted from their stream's source",
            "wrong_source": "Datagrams from a source that is not the stream's",
            "rtcp": "RTCP packets received",
            "rtcp_sent": "RTCP packets sent",
            "rtcp_malformed": "RTCP packets that could not be read",
            "sent": "Packets of silence sent",
            "send_errors": "Packets that could not be sent",
            "srtp_errors": "SRTP packets that failed authentication or were replayed",
        },
    )
    receiver = sip.receiver
    metrics.counter("rtp_receive_errors", "Errors while RTP sockets were read", lambda: receiver.errors)
    metrics.counter("rtp_truncated", "Datagrams too long for RTP", lambda: receiver.truncated)


def _latency(metrics: MetricsRegistry, worker: Worker) -> None:
    latency, hub = worker.latency, worker.hub
    metrics.histogram("final_latency_seconds", "From the true end of speech to its final", latency.final)
    metrics.histograms(
        "final_latency_part_seconds",
        "Parts of the time from the end of speech to its final at an endpoint, and on to the subscribers",
        "part",
        latency.parts | {"commit": hub.final_commit_s, "fan_out": hub.final_fan_out_s},
    )
    metrics.histogram("asr_queue_seconds", "Wait of a final's request until the engine began with it", latency.queue)
    metrics.histogram(
        "asr_decode_seconds",
        "Time from the engine's beginning with a final until its hypothesis arrived",
        latency.decode,
    )
    metrics.histogram("words_seconds", "From a final until the times of its words were here", latency.words)
    metrics.histogram(
        "words_queue_seconds", "Wait of a final's words until the aligner began with them", latency.words_queue
    )
    metrics.histogram("loop_stall_seconds", "How late a media tick began: other work on the event loop", latency.stall)
    metrics.histogram("vad_lag_seconds", "From when a media tick was due to its last window's VAD", latency.vad_lag)
    metrics.histogram("leg_jitter_seconds", "RFC 3550 jitter of a leg at the end of its call", latency.jitter)


def _device_labels(runtime: Runtime) -> tuple[str, ...]:
    graphs = "on" if runtime.graphs else "off"
    return (
        runtime.device, runtime.device_name, runtime.dtype, runtime.attention, graphs, runtime.torch, runtime.cuda,
    )  # fmt: skip


def _device_memory(runtime: Runtime) -> dict[tuple[str, ...], float]:
    return {
        ("total",): float(runtime.memory_bytes),
        ("free",): float(runtime.free_bytes),
        ("slots",): float(runtime.slots_bytes),
    }


def _operations(metrics: MetricsRegistry, worker: Worker) -> None:
    reloads, retention, store = worker.reloads, worker.retention, worker.hub.file
    metrics.gauge(
        "build_info",
        "1, with what is running as labels",
        lambda: {(version("mediaworker"), worker.recognizer.engine, platform.python_version()): 1.0},
        labels=("version", "engine", "python"),
    )
    metrics.counter(
        "config_reloads",
        "Reloads of the configuration",
        lambda: {("done",): float(reloads.done), ("refused",): float(reloads.refused)},
        labels=("result",),
    )
    metrics.gauge("config_last_reload_successful", "0 after a reload that was refused", lambda: float(reloads.last_ok))
    metrics.gauge("config_loaded_timestamp_seconds", "When the configuration in force was read", lambda: reloads.last_s)
    metrics.gauge(
        "tls_certificate_expiry_timestamp_seconds",
        "When the certificate of a listener expires",
        lambda: {
            (port,): certificate.expires_s
            for port, certificate in (
                ("http", worker.http.certificate),
                ("media", worker.listener.certificate),
                ("sip", worker.sip_certificate),
            )
            if certificate is not None
        },
        labels=("port",),
    )
    metrics.gauge("event_store_bytes", "The store on the disk, its log included", lambda: float(file_bytes(store)))
    metrics.gauge("event_store_rows", "Events in the store when it was last counted", lambda: float(retention.rows))
    metrics.gauge("event_store_free_bytes", "Free space on the disk of the event store", lambda: _free_bytes(store))
    metrics.counter("retention_calls", "Old calls erased", lambda: retention.erased_calls)
    metrics.counter("retention_events", "Events of old calls that were erased", lambda: retention.erased_events)
    metrics.gauge("draining", "1 while the worker drains before its end", lambda: float(worker.calls.draining))
    metrics.gauge(
        "ready",
        "1 while /readyz answers 200",
        lambda: float(not worker.not_ready() and worker.hub.trouble is None),
    )


def _process(metrics: MetricsRegistry, worker: Worker) -> None:
    metrics.gauge("process_start_time_seconds", "When the media process started", lambda: worker.started_s)
    metrics.gauge("max_fds", "File descriptors that the media process may open", _max_fds)
    metrics.gauge("tasks", "Tasks of asyncio", lambda: len(asyncio.all_tasks()))
    metrics.gauge("open_fds", "Open file descriptors", lambda: len(os.listdir("/proc/self/fd")))
    metrics.gauge("resident_memory_bytes", "RSS of the media process", _rss_bytes)
    metrics.counter(
        "cpu_seconds", "CPU time of the media process", lambda: sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
    )


def _rss_bytes(pid: int | str = "self") -> float:
    try:
        with open(f"/proc/{pid}/statm") as file:
            return float(int(file.read().split()[1]) * resource.getpagesize())
    except FileNotFoundError:  # it has just ended
        return 0.0


def _max_fds() -> float:
    return float(resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def _free_bytes(path: Path) -> float:
    try:
        disk = os.statvfs(path.parent)
    except OSError:
        return 0.0
    return float(disk.f_bavail * disk.f_frsize)


def _by(counts: Mapping[int, int] | Mapping[str, int]) -> dict[tuple[str, ...], float]:
    return {(str(key),): float(count) for key, count in counts.items()}
