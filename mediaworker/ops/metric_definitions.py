"""Which metrics there are: for each part of the worker, the counters that it keeps and what is asked of it at a scrape.

Fields of counter dataclasses have their help texts beside them (`config.counters`); everything else has it here.
"""

from __future__ import annotations

import asyncio
import os
import platform
import resource
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from asr.client.recognizer import Recognizer
from asr.engines.runtime import Runtime
from asr.utterance import EngineStatus
from audio import Detector
from mediaworker.calls.media_loop import MediaLoop
from mediaworker.calls.registry import CallRegistry
from mediaworker.events.hub import EventHub
from mediaworker.events.retention import RetentionTask, file_bytes
from mediaworker.files.service import FileService
from mediaworker.http.connection import Guard
from mediaworker.ingress.asterisk.routes import AsteriskIngress
from mediaworker.ingress.audiosocket.listener import AudioSocketListener
from mediaworker.ingress.connections import ConnectionLimit
from mediaworker.ingress.listener import MediaListener
from mediaworker.ingress.twilio.routes import TwilioIngress
from mediaworker.ingress.websocket.routes import StreamIngress
from mediaworker.jobs.service import JobService
from mediaworker.ops.latency import LatencyParts
from mediaworker.ops.metrics import MetricsRegistry
from mediaworker.ops.overload import LoadGuard
from mediaworker.ops.reload import ReloadCounters
from mediaworker.ops.tls import Certificate
from mediaworker.policy.alerts.watch import AlertWatch
from mediaworker.webhooks.events import EventFeed

if TYPE_CHECKING:
    from sip.pjsip.endpoint import SipEndpoint


def add_process(metrics: MetricsRegistry, started_s: float, ready: Callable[[], bool]) -> None:
    metrics.gauge("process_start_time_seconds", "When the media process started", lambda: started_s)
    metrics.gauge("max_fds", "File descriptors that the media process may open", _max_fds)
    metrics.gauge("tasks", "Tasks of asyncio", lambda: len(asyncio.all_tasks()))
    metrics.gauge("open_fds", "Open file descriptors", lambda: len(os.listdir("/proc/self/fd")))
    metrics.gauge("resident_memory_bytes", "RSS of the media process", _rss_bytes)
    metrics.counter(
        "cpu_seconds", "CPU time of the media process", lambda: sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
    )
    metrics.gauge("ready", "1 while /readyz answers 200", ready)


def add_configuration(
    metrics: MetricsRegistry, reloads: ReloadCounters, certificates: Mapping[str, Certificate]
) -> None:
    """`certificates`: by the port that they belong to."""
    metrics.counter(
        "config_reloads",
        "Reloads of the configuration",
        lambda: {"done": reloads.done, "refused": reloads.refused},
        "result",
    )
    metrics.gauge("config_last_reload_successful", "0 after a reload that was refused", lambda: reloads.last_ok)
    metrics.gauge("config_loaded_timestamp_seconds", "When the configuration in force was read", lambda: reloads.last_s)
    metrics.gauge(
        "tls_certificate_expiry_timestamp_seconds",
        "When the certificate of a listener expires",
        lambda: {port: certificate.expires_s for port, certificate in certificates.items()},
        "port",
    )


def add_latency(metrics: MetricsRegistry, latency: LatencyParts, hub: EventHub) -> None:
    metrics.counters("latency", latency)
    metrics.histograms(
        "final_latency_part_seconds",
        "Parts of the time from the end of speech to its final at an endpoint, and on to the subscribers",
        "part",
        latency.parts | {"commit": hub.final_commit_s, "fan_out": hub.final_fan_out_s},
    )


def add_calls(metrics: MetricsRegistry, calls: CallRegistry, guard: LoadGuard, alerts: AlertWatch) -> None:
    metrics.gauge("calls_active", "Calls that have not ended", lambda: len(calls))
    metrics.counter("calls_opened", "Calls since the start", lambda: calls.opened)
    metrics.counter("calls_refused", "Calls refused because the worker was full or draining", lambda: calls.refused)
    metrics.gauge("draining", "1 while the worker drains before its end", lambda: calls.draining)
    metrics.counters("transcripts", calls.stats)
    metrics.counter(
        "redactions",
        "Parts of texts that were redacted, and digits that were masked, by kind",
        lambda: calls.masked,
        "kind",
    )
    metrics.gauge("load", "0 normal, 1 sheds partials, 2 also refuses calls", lambda: float(guard.load))
    metrics.counter("load_shed_partials", "Partials not asked for in overload", lambda: guard.shed_partials)
    metrics.gauge("alert_rules", "Rules for alerts in force", lambda: len(alerts.rules))
    metrics.gauge("alert_rules_ok", "0 while the file cannot be used and older rules are in force", lambda: alerts.ok)


def add_media(metrics: MetricsRegistry, media: MediaLoop, detector: Detector) -> None:
    metrics.gauge("legs_active", "Legs with a ring row", lambda: detector.legs)
    metrics.counter(
        "legs_media",
        "Packets and chunks that arrived on all legs, and those that were late, lost or malformed, by kind",
        lambda: detector.counters,
        "kind",
    )
    metrics.counter("vad_windows", "Windows of 32 ms taken through the VAD", lambda: detector.windows)
    metrics.counter(
        "vad_windows_skipped", "Windows of digital silence, which the VAD need not look at", lambda: detector.skipped
    )
    metrics.counter("media_ticks", "Media ticks of 32 ms", lambda: media.ticks)
    metrics.counter("media_errors", "Media ticks cut short by an error of the worker", lambda: media.errors)
    metrics.gauge("media_lag_max_seconds", "Longest media tick since the start", lambda: media.lag_max_s)


def add_events(metrics: MetricsRegistry, hub: EventHub) -> None:
    event_log = hub.event_log
    metrics.counter("events_published", "Events by type", lambda: hub.published, "type")
    metrics.counter("events_stray", "Events dropped because their call had not begun or had ended", lambda: hub.strays)
    metrics.gauge("event_subscribers", "Connections to /v1/events", lambda: hub.subscribers)
    metrics.counter("event_subscribers_overrun", "Subscribers closed because they were too slow", lambda: hub.overruns)
    metrics.counter("event_partials_dropped", "Partials dropped for slow subscribers", lambda: hub.dropped)
    metrics.counter("event_partials_shed", "Partials dropped because commits did not keep up", lambda: event_log.shed)
    metrics.histogram("event_commit_seconds", "Time of a commit, its wait for the thread included", event_log.commit_s)
    metrics.histogram("event_delay_seconds", "From an event's publication to its fan-out", hub.delay_s)


def add_event_store(metrics: MetricsRegistry, hub: EventHub, retention: RetentionTask) -> None:
    event_log, store, path = hub.event_log, hub.store, hub.file
    metrics.gauge("event_store_backlog", "Durable events not on disk yet", lambda: event_log.backlog)
    metrics.gauge("event_store_ok", "1 while events are being stored", lambda: event_log.trouble is None)
    metrics.counter("event_store_failures", "Commits that failed", lambda: event_log.write_failures)
    metrics.counter("event_store_lost", "Events given up because the disk did not take them", lambda: event_log.lost)
    metrics.counter(
        "event_store_unstored",
        "Durable events that were sent with `stored` false, because the disk did not take them at that time",
        lambda: event_log.unstored,
    )
    metrics.counter(
        "event_store_renewals",
        "Times a new event store was begun because its file was damaged, deleted or replaced",
        lambda: store.renewed,
        "reason",
    )
    metrics.counter(
        "event_store_damaged_records",
        "Stored events and call records that were met and could not be read",
        lambda: store.damaged_records,
    )
    metrics.gauge(
        "event_store_files_set_aside",
        "Damaged event stores that lie in `data_dir` beside the one in use",
        lambda: len(store.set_aside),
    )
    metrics.gauge("event_store_bytes", "The store on the disk, its log included", lambda: file_bytes(path))
    metrics.gauge("event_store_rows", "Events in the store when it was last counted", lambda: retention.rows)
    metrics.gauge("event_store_free_bytes", "Free space on the disk of the event store", lambda: _free_bytes(path))
    metrics.counter("retention_calls", "Old calls erased", lambda: retention.erased_calls)
    metrics.counter("retention_events", "Events of old calls that were erased", lambda: retention.erased_events)


def add_event_webhooks(metrics: MetricsRegistry, feeds: Sequence[EventFeed]) -> None:
    metrics.counter(
        "event_webhook_events",
        "Events of webhooks that were taken, or given up; and times that erased ones were skipped",
        lambda: {
            (feed.name, outcome): count
            for feed in feeds
            for outcome, count in (
                ("delivered", feed.outbox.delivered), ("given_up", feed.outbox.given_up), ("skipped", feed.skips)
            )
        },
        "webhook", "outcome",
    )  # fmt: skip
    metrics.counter(
        "event_webhook_tries",
        "Requests of webhooks",
        lambda: {feed.name: feed.outbox.tries for feed in feeds},
        "webhook",
    )
    metrics.gauge(
        "event_webhook_lag_seconds",
        "Age of the oldest event that a webhook has not taken",
        lambda: {feed.name: feed.lag_s for feed in feeds},
        "webhook",
    )


def add_recognizer(metrics: MetricsRegistry, recognizer: Recognizer) -> None:
    metrics.counters("asr", recognizer.counters)
    metrics.gauge(
        "build_info",
        "1, with what is running as labels",
        lambda: {(version("mediaworker"), recognizer.engine, platform.python_version()): 1},
        "version", "engine", "python",
    )  # fmt: skip
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
        lambda: {state.value: state is recognizer.state for state in EngineStatus},
        "state",
    )
    metrics.gauge(
        "asr_device_info",
        "1, with where the engine computes as labels, since it was first ready",
        lambda: {_device_labels(runtime): 1} if (runtime := recognizer.runtime) is not None else {},
        "device", "name", "dtype", "attention", "graphs", "torch", "cuda",
    )  # fmt: skip
    metrics.gauge(
        "asr_device_memory_bytes",
        "Memory of the engine's GPU: total, free when it was last ready, and reserved for keys and values (slots)",
        lambda: _device_memory(runtime) if (runtime := recognizer.runtime) is not None else {},
        "kind",
    )
    metrics.gauge(
        "asr_process_resident_memory_bytes",
        "RSS of the inference process; 0 while there is none",
        lambda: _rss_bytes(recognizer.pid) if recognizer.pid else 0.0,
    )


def add_twilio(metrics: MetricsRegistry, twilio: TwilioIngress) -> None:
    metrics.counters("twilio", twilio.counters)


def add_streams(metrics: MetricsRegistry, streams: StreamIngress) -> None:
    metrics.counters("stream", streams.counters)
    metrics.gauge("stream_sessions", "Open sessions of /ws/asr and /ws/transcribe", lambda: streams.sessions)


def add_asterisk(metrics: MetricsRegistry, asterisk: AsteriskIngress, audiosocket: AudioSocketListener) -> None:
    metrics.counters("asterisk", asterisk.counters)
    metrics.gauge("asterisk_channels", "Open connections of /asterisk/media", lambda: asterisk.channels)
    metrics.counters("audiosocket", audiosocket.counters)
    metrics.gauge("audiosocket_connections", "Open connections of AudioSocket", lambda: audiosocket.connections)


def add_ports(
    metrics: MetricsRegistry,
    limits: Mapping[str, ConnectionLimit],
    guard: Guard,
    listener: MediaListener,
    auth_failures: Mapping[str, int],
) -> None:
    """`limits`: by port; `guard`: of the HTTP port; `auth_failures`: by reason."""
    metrics.gauge(
        "connections",
        "Open TCP connections of a port",
        lambda: {port: limit.open for port, limit in limits.items()},
        "port",
    )
    metrics.counter(
        "connections_refused",
        "Connections beyond the limit of a port (total) or of an address (peer)",
        lambda: {(port, why): count for port, limit in limits.items() for why, count in limit.refused.items()},
        "port", "reason",
    )  # fmt: skip
    metrics.counter(
        "auth_failures",
        "Requests and streams refused for want of the right credential on the HTTP and media ports, by reason",
        lambda: auth_failures,
        "reason",
    )
    metrics.counters("http", guard.counters)
    metrics.gauge("media_connections", "Open media WebSockets", lambda: listener.connections)
    metrics.counter("media_upgrades_rejected", "Upgrades rejected by status", lambda: listener.rejected, "status")
    metrics.counter(
        "media_unfinished",
        "Connections to the media port that closed before a whole request came",
        lambda: listener.unfinished,
    )


def add_sip(metrics: MetricsRegistry, sip: SipEndpoint) -> None:
    metrics.counters("sip", sip.counters)
    metrics.counters("sip_door", sip.admission.counters)
    metrics.gauge("sip_calls_active", "SIP calls", lambda: sip.calls)
    metrics.gauge("sip_dialogs", "Dialogs that PJSIP still keeps, of calls and of refusals", lambda: sip.dialogs)
    metrics.gauge(
        "sip_registered",
        "1 while the account is registered",
        lambda: {each.account: each.state == "registered" for each in sip.registrations},
        "account",
    )
    metrics.gauge(
        "sip_tcp", "TCP connections that others have opened to the SIP port", lambda: sip.admission.connections
    )
    metrics.counter(
        "sip_stun_answered", "Ports whose address outside a NAT the STUN server has told", lambda: sip.nat.answered
    )
    metrics.counter(
        "sip_stun_unanswered",
        "Times that the STUN server did not answer, or its name had no address",
        lambda: sip.nat.unanswered,
    )
    metrics.counter(
        "sip_callback_errors",
        "Errors in the worker's own code while PJSIP waited for it; what it asked was refused",
        lambda: sip.callback_errors,
    )
    metrics.counters("rtp", sip.rtp)
    metrics.gauge("rtp_sockets", "RTP ports in use", lambda: sip.rtp_sockets)
    metrics.counter("rtp_packets", "RTP packets accepted from their stream's source", lambda: sip.rtp.packets)
    metrics.counter(
        "rtp_wrong_source", "Datagrams from a source that is not the stream's", lambda: sip.rtp.wrong_source
    )
    metrics.counter("rtp_receive_errors", "Errors while RTP sockets were read", lambda: sip.receiver.errors)
    metrics.counter("rtp_truncated", "Datagrams too long for RTP", lambda: sip.receiver.truncated)


def add_files(metrics: MetricsRegistry, files: FileService) -> None:
    metrics.counters("file", files.stats)
    metrics.gauge("files_open", "Files in work, of requests and of jobs", lambda: files.open_files)
    metrics.gauge("file_requests", "Requests with a file that wait for their answer", lambda: files.requests)
    metrics.gauge(
        "file_requests_queued", "Requests with a file that wait for a place (files.queue_s)", lambda: files.waiting
    )
    metrics.counter("file_requests_rejected", "Requests with a file answered 429", lambda: files.rejected)
    metrics.histogram(
        "file_first_text_seconds", "From the end of an upload to the first text of its file", files.first_text
    )


def add_jobs(metrics: MetricsRegistry, jobs: JobService) -> None:
    store, webhooks = jobs.store, jobs.webhooks
    metrics.gauge("jobs_queued", "Jobs that wait", lambda: jobs.queued)
    metrics.gauge("jobs_running", "Jobs in work", lambda: jobs.running)
    metrics.counter("jobs_ended", "Jobs by how they ended", lambda: store.ended, "status")
    metrics.gauge("job_store_ok", "1 while jobs can be written down", lambda: store.trouble is None)
    metrics.counter(
        "job_store_renewals",
        "Times a new job store was begun because its file was damaged, deleted or replaced",
        lambda: store.renewed,
        "reason",
    )
    metrics.counter(
        "job_store_damaged_records",
        "Stored jobs and stretches of them that were met and could not be read",
        lambda: store.damaged_records,
    )
    metrics.gauge(
        "job_store_files_set_aside",
        "Damaged job stores that lie in `data_dir` beside the one in use",
        lambda: len(store.set_aside),
    )
    metrics.counter("webhook_tries", "Requests that told of a job's end", lambda: webhooks.tries)
    metrics.counter("webhooks_delivered", "Ends that were told", lambda: webhooks.delivered)
    metrics.counter("webhooks_failed", "Ends that were given up to tell", lambda: webhooks.given_up)


def _device_labels(runtime: Runtime) -> tuple[str, ...]:
    graphs = "on" if runtime.graphs else "off"
    return (
        runtime.device, runtime.device_name, runtime.dtype, runtime.attention, graphs, runtime.torch, runtime.cuda,
    )  # fmt: skip


def _device_memory(runtime: Runtime) -> dict[str, int]:
    return {"total": runtime.memory_bytes, "free": runtime.free_bytes, "slots": runtime.slots_bytes}


def _rss_bytes(pid: int | str = "self") -> float:
    try:
        with open(f"/proc/{pid}/statm") as file:
            return float(int(file.read().split()[1]) * resource.getpagesize())
    except FileNotFoundError:  # it has just ended
        return 0.0


def _max_fds() -> float:
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def _free_bytes(path: Path) -> float:
    try:
        disk = os.statvfs(path.parent)
    except OSError:
        return 0.0
    return disk.f_bavail * disk.f_frsize
