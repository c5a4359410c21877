"""Which metrics there are: for each part of the worker, the counters that it keeps and what is asked of it at a scrape.

Fields of counter dataclasses have their help texts beside them (`config.metrics.counters`); everything else here.
"""

from __future__ import annotations

import asyncio
import os
import platform
import resource
from collections.abc import Callable, Mapping
from importlib.metadata import version
from typing import TYPE_CHECKING

from asr.client.recognizer import Recognizer
from asr.runtime import Runtime
from asr.utterance import EngineStatus
from audio import Detector
from config.metrics.registry import Metrics
from config.tasks import faults
from mediaworker.access.connections import ConnectionLimit
from mediaworker.access.tls import Certificate
from mediaworker.calls.media_loop import MediaLoop
from mediaworker.calls.overload import LoadGuard
from mediaworker.calls.registry import CallRegistry
from mediaworker.events.hub import EventHub
from mediaworker.http.connection import Guard
from mediaworker.ingress.asterisk.routes import AsteriskIngress
from mediaworker.ingress.audiosocket.listener import AudioSocketListener
from mediaworker.ingress.listener import MediaListener
from mediaworker.ingress.twilio.routes import TwilioIngress
from mediaworker.ingress.websocket.routes import StreamIngress
from mediaworker.policy.alerts.watch import AlertWatch
from mediaworker.service.reload import ReloadCounters
from mediaworker.tracing.latency import LatencyParts

if TYPE_CHECKING:
    from asr.network.listener import EngineListener
    from asr.network.relay import ServedEngines
    from sip.pjsip.endpoint import SipEndpoint


def add_process(metrics: Metrics, started_s: float, ready: Callable[[], bool]) -> None:
    metrics.gauge("process_start_time_seconds", "Shows when the media process started.", lambda: started_s)
    metrics.gauge("max_fds", "Shows how many file descriptors the media process may open.", _max_fds)
    metrics.gauge("tasks", "Shows how many asyncio tasks exist.", lambda: len(asyncio.all_tasks()))
    metrics.gauge(
        "open_fds",
        "Shows how many file descriptors the media process has open.",
        lambda: len(os.listdir("/proc/self/fd")),
    )
    metrics.gauge("resident_memory_bytes", "Shows the resident memory of the media process.", _rss_bytes)
    metrics.counter(
        "cpu_seconds",
        "Counts the CPU seconds of the media process.",
        lambda: sum(resource.getrusage(resource.RUSAGE_SELF)[:2]),
    )
    metrics.gauge("ready", "Is 1 while /readyz answers with 200.", ready)
    what = "Counts failures of tasks that last as long as the process, by task; each was begun again."
    metrics.counter("task_faults", what, lambda: faults, "task")


def add_configuration(metrics: Metrics, reloads: ReloadCounters, certificates: Mapping[str, Certificate]) -> None:
    """`certificates`: by the port that they belong to."""
    metrics.counter(
        "config_reloads",
        "Counts reloads of the configuration by result.",
        lambda: {"done": reloads.done, "refused": reloads.refused},
        "result",
    )
    metrics.gauge(
        "config_last_reload_successful",
        "Is 0 after a reload of the configuration was refused.",
        lambda: reloads.last_ok,
    )
    metrics.gauge(
        "config_loaded_timestamp_seconds", "Shows when the configuration in force was read.", lambda: reloads.last_s
    )
    metrics.gauge(
        "tls_certificate_expiry_timestamp_seconds",
        "Shows when the certificate of a listener expires.",
        lambda: {port: certificate.expires_s for port, certificate in certificates.items()},
        "port",
    )


def add_latency(metrics: Metrics, latency: LatencyParts, hub: EventHub) -> None:
    metrics.counters("latency", latency)
    metrics.histogram(
        "final_latency_part_seconds",
        "Measures the parts of the time from the end of speech to its final and on to the subscribers.",
        latency.parts | {"commit": hub.final_commit_s, "fan_out": hub.final_fan_out_s},
        "part",
    )


def add_calls(metrics: Metrics, calls: CallRegistry, guard: LoadGuard, alerts: AlertWatch) -> None:
    metrics.gauge("calls_active", "Shows how many calls have not ended.", lambda: len(calls))
    metrics.counter("calls_opened", "Counts calls since the worker started.", lambda: calls.opened)
    metrics.counter(
        "calls_refused",
        "Counts calls that were refused because the worker was full or draining.",
        lambda: calls.refused,
    )
    metrics.gauge("draining", "Is 1 while the worker drains before it ends.", lambda: calls.draining)
    metrics.counters("transcripts", calls.stats)
    metrics.counter(
        "redactions",
        "Counts redacted parts of texts and masked digits by kind.",
        lambda: calls.masked,
        "kind",
    )
    metrics.gauge(
        "load",
        "Shows the load: 0 is normal, 1 means that partials are shed, and 2 that calls are refused as well.",
        lambda: float(guard.load),
    )
    metrics.counter(
        "load_shed_partials",
        "Counts partials that were not requested because of overload.",
        lambda: guard.shed_partials,
    )
    metrics.gauge("alert_rules", "Shows how many rules for alerts are in force.", lambda: len(alerts.rules))
    metrics.gauge(
        "alert_rules_ok",
        "Is 0 while the file of alert rules cannot be used and older rules are in force.",
        lambda: alerts.ok,
    )


def add_media(metrics: Metrics, media: MediaLoop, detector: Detector) -> None:
    metrics.gauge("legs_active", "Shows how many legs are active.", lambda: detector.legs)
    metrics.counter(
        "legs_media",
        (
            "Counts packets and chunks of all legs by kind: those that arrived, and those that "
            "were late, lost or malformed."
        ),
        lambda: detector.counters,
        "kind",
    )
    metrics.counter("vad_windows", "Counts windows of 32 ms that passed through the VAD.", lambda: detector.windows)
    metrics.counter(
        "vad_windows_skipped", "Counts windows of digital silence, which skip the VAD.", lambda: detector.skipped
    )
    metrics.counter("media_ticks", "Counts media ticks of 32 ms.", lambda: media.ticks)
    metrics.counter(
        "media_errors", "Counts media ticks that were cut short by an error of the worker.", lambda: media.errors
    )
    metrics.gauge(
        "media_lag_max_seconds", "Shows the longest media tick since the worker started.", lambda: media.lag_max_s
    )


def add_recognizer(metrics: Metrics, recognizer: Recognizer | ServedEngines) -> None:
    metrics.counters("asr", recognizer.counters)
    metrics.gauge(
        "build_info",
        "Is 1, and its labels say which version is running.",
        lambda: {(version("mediaworker"), recognizer.engine, platform.python_version()): 1},
        "version", "engine", "python",
    )  # fmt: skip
    metrics.gauge(
        "asr_backlog_bytes",
        "Shows how much audio is kept in memory for utterances that have no final yet.",
        lambda: recognizer.backlog_bytes,
    )
    metrics.gauge(
        "asr_spilled_bytes",
        "Shows how much audio waits for the engine on disk because it does not fit into memory.",
        lambda: recognizer.spilled_bytes,
    )
    metrics.gauge(
        "asr_open_utterances", "Shows how many utterances the engine is working on.", lambda: recognizer.open_utterances
    )
    metrics.gauge(
        "asr_state",
        "Is 1 for the state that the engine is in, and 0 for the other states; ready while one process is.",
        lambda: {state.value: state is recognizer.state for state in EngineStatus},
        "state",
    )
    _add_inference_processes(metrics, recognizer)


def _add_inference_processes(metrics: Metrics, recognizer: Recognizer | ServedEngines) -> None:
    metrics.gauge(
        "asr_process_state",
        "Is 1 for the state that each inference process is in, and 0 for the other states.",
        lambda: {
            (server.name, state.value): state is server.state
            for server in recognizer.servers
            for state in EngineStatus
        },
        "process", "state",
    )  # fmt: skip
    metrics.gauge(
        "asr_process_legs",
        "Shows how many legs of calls have their place at each inference process.",
        lambda: {server.name: server.user.legs for server in recognizer.servers},
        "process",
    )
    metrics.gauge(
        "asr_process_open_utterances",
        "Shows how many utterances each inference process has.",
        lambda: {server.name: server.user.open_utterances for server in recognizer.servers},
        "process",
    )
    metrics.gauge(
        "asr_device_info",
        "Is 1, and its labels say where the engine computes; absent until it has been ready once.",
        lambda: {
            _device_labels(server.name, server.runtime): 1
            for server in recognizer.servers
            if server.runtime is not None
        },
        "process", "device", "name", "dtype", "attention", "graphs", "torch", "cuda",
    )  # fmt: skip
    metrics.gauge(
        "asr_device_memory_bytes",
        (
            "Shows the memory of the engine's GPU: total, free when the engine was last ready, "
            "and reserved for keys and values (slots)."
        ),
        lambda: {
            (server.name, kind): value
            for server in recognizer.servers
            if server.runtime is not None
            for kind, value in _device_memory(server.runtime).items()
        },
        "process", "kind",
    )  # fmt: skip
    metrics.gauge(
        "asr_process_resident_memory_bytes",
        "Shows the resident memory of each inference process, 0 while there is none.",
        lambda: {server.name: _rss_bytes(server.pid) if server.pid else 0.0 for server in recognizer.servers},
        "process",
    )


def add_engine_listener(metrics: Metrics, listener: EngineListener, engines: ServedEngines) -> None:
    metrics.counters("engine_server", listener.counters)
    metrics.gauge(
        "engine_server_workers", "Shows how many workers are connected to this engine server.", lambda: listener.workers
    )
    metrics.gauge(
        "engine_server_legs",
        "Shows how many legs of calls have their place at this engine server.",
        lambda: engines.legs,
    )
    metrics.gauge(
        "engine_server_files", "Shows how many utterances of files this engine server has.", lambda: engines.files
    )
    metrics.gauge(
        "engine_server_delay_seconds",
        "Shows how long requests of calls have lately waited before the engine began with them.",
        lambda: engines.delay_ms / 1000,
    )


def add_twilio(metrics: Metrics, twilio: TwilioIngress) -> None:
    metrics.counters("twilio", twilio.counters)


def add_streams(metrics: Metrics, streams: StreamIngress) -> None:
    metrics.counters("stream", streams.counters)
    metrics.gauge(
        "stream_sessions", "Shows how many sessions of /ws/asr and /ws/transcribe are open.", lambda: streams.sessions
    )


def add_asterisk(metrics: Metrics, asterisk: AsteriskIngress, audiosocket: AudioSocketListener) -> None:
    metrics.counters("asterisk", asterisk.counters)
    metrics.gauge(
        "asterisk_channels", "Shows how many connections to /asterisk/media are open.", lambda: asterisk.channels
    )
    metrics.counters("audiosocket", audiosocket.counters)
    metrics.gauge(
        "audiosocket_connections", "Shows how many AudioSocket connections are open.", lambda: audiosocket.connections
    )


def add_ports(
    metrics: Metrics,
    limits: Mapping[str, ConnectionLimit],
    guard: Guard,
    listener: MediaListener,
    auth_failures: Mapping[str, int],
) -> None:
    """`limits`: by port; `guard`: of the HTTP port; `auth_failures`: by reason."""
    metrics.gauge(
        "connections",
        "Shows how many TCP connections of a port are open.",
        lambda: {port: limit.open for port, limit in limits.items()},
        "port",
    )
    metrics.counter(
        "connections_refused",
        (
"Counts connections refused because they exceeded the limit of a port (total) or of "
"an address (peer)."
),
        lambda: {(port, why): count for port, limit in limits.items() for why, count in limit.refused.items()},
        "port", "reason",
    )  # fmt: skip
    metrics.counter(
        "auth_failures",
        (
            "Counts requests and streams on the HTTP and media ports that were refused for lack "
            "of valid credentials, by reason."
        ),
        lambda: auth_failures,
        "reason",
    )
    metrics.counters("http", guard.counters)
    metrics.gauge("media_connections", "Shows how many media WebSockets are open.", lambda: listener.connections)
    metrics.counter(
        "media_upgrades_rejected",
        "Counts rejected upgrades on the media port by status.",
        lambda: listener.rejected,
        "status",
    )
    metrics.counter(
        "media_unfinished",
        "Counts connections to the media port that closed before a whole request had arrived.",
        lambda: listener.unfinished,
    )


def add_sip(metrics: Metrics, sip: SipEndpoint) -> None:
    metrics.counters("sip", sip.counters)
    metrics.counters("sip_door", sip.admission.counters)
    metrics.gauge("sip_calls_active", "Shows how many SIP calls are active.", lambda: sip.calls)
    metrics.gauge("sip_dialogs", "Shows how many dialogs PJSIP keeps, of calls and of refusals.", lambda: sip.dialogs)
    metrics.gauge(
        "sip_registered",
        "Is 1 while the account is registered.",
        lambda: {each.account: each.state == "registered" for each in sip.registrations},
        "account",
    )
    metrics.gauge(
        "sip_standby",
        "Is 1 while the account is left to another worker (`sip.accounts.one_worker`).",
        lambda: {each.account: each.state == "standby" for each in sip.registrations},
        "account",
    )
    metrics.gauge(
        "sip_tcp",
        "Shows how many TCP connections peers have opened to the SIP port.",
        lambda: sip.admission.connections,
    )
    metrics.counter(
        "sip_stun_answered", "Counts ports whose public address the STUN server has returned.", lambda: sip.nat.answered
    )
    metrics.counter(
        "sip_stun_unanswered",
        "Counts how often the STUN server did not answer or its name could not be resolved.",
        lambda: sip.nat.unanswered,
    )
    metrics.counter(
        "sip_callback_errors",
        "Counts errors in the worker's own code during a callback of PJSIP, which is then told to refuse.",
        lambda: sip.callback_errors,
    )
    metrics.counters("rtp", sip.rtp)
    metrics.gauge("rtp_sockets", "Shows how many RTP ports are in use.", lambda: sip.rtp_sockets)
    metrics.counter(
        "rtp_packets", "Counts RTP packets accepted from the source of their stream.", lambda: sip.rtp.packets
    )
    metrics.counter(
        "rtp_wrong_source", "Counts RTP datagrams from a source other than the stream's.", lambda: sip.rtp.wrong_source
    )
    metrics.counter("rtp_receive_errors", "Counts errors while reading RTP sockets.", lambda: sip.receiver.errors)
    metrics.counter("rtp_truncated", "Counts datagrams that were too long for RTP.", lambda: sip.receiver.truncated)


def _device_labels(name: str, runtime: Runtime) -> tuple[str, ...]:
    graphs = "on" if runtime.graphs else "off"
    return (
        name, runtime.device, runtime.device_name, runtime.dtype, runtime.attention, graphs, runtime.torch,
        runtime.cuda,
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
