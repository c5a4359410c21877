"""The Grafana dashboard, from a table: rows of panels, each a title, a unit and its queries.

`tools/gen_docs.py` writes it to deploy/grafana/mediaworker.json, and a test holds its names to the worker's.
"""

from __future__ import annotations

import json
from typing import Any

S = '{instance=~"$instance"}'


def rate(metric: str, by: str = "", more: str = "") -> str:
    labels = f'{{instance=~"$instance"{more}}}'
    return f"sum by (instance{', ' if by else ''}{by}) (rate(mediaworker_{metric}{labels}[$__rate_interval]))"


def quantile(q: float, metric: str, by: str = "") -> str:
    group = f"le{', ' if by else ''}{by}"
    return f"histogram_quantile({q}, sum by ({group}) (rate(mediaworker_{metric}_bucket{S}[$__rate_interval])))"


def gauge(metric: str) -> str:
    return f"mediaworker_{metric}{S}"


def quantiles(metric: str) -> list[tuple[str, str]]:
    return [(quantile(q, metric), f"p{round(q * 100)}") for q in (0.5, 0.95, 0.99)]


MEAN_PART = (
    f"sum by (part) (rate(mediaworker_final_latency_part_seconds_sum{S}[$__rate_interval]))"
    f" / sum by (part) (rate(mediaworker_final_latency_part_seconds_count{S}[$__rate_interval]))"
)
LOSS = " / ".join(
    rate("legs_media_total", more=f', kind=~"{kinds}"') for kinds in ("lost_packets", "packets|lost_packets")
)

ROWS: list[tuple[str, list[tuple[str, str, list[tuple[str, str]]]]]] = [
    (
        "Now",
        [
            (
                "Calls",
                "short",
                [(gauge("calls_active"), "calls {{instance}}"), (gauge("legs_active"), "legs {{instance}}")],
            ),
            ("Ready", "bool", [(gauge("ready"), "ready {{instance}}"), (gauge("draining"), "draining {{instance}}")]),
            ("Calls per second", "cps", [(rate("calls_opened_total"), "opened {{instance}}")]),
            (
                "Refused",
                "cps",
                [
                    (rate("calls_refused_total"), "full or draining {{instance}}"),
                    (rate("sip_refused_total", "status"), "SIP {{status}}"),
                    (rate("twilio_refused_total", "reason"), "Twilio {{reason}}"),
                    (rate("media_upgrades_rejected_total", "status"), "upgrade {{status}}"),
                    (rate("connections_refused_total", "port, reason"), "connection {{port}} {{reason}}"),
                ],
            ),
        ],
    ),
    (
        "Text",
        [
            ("End of speech to final", "s", quantiles("final_latency_seconds")),
            ("Its parts, mean", "s", [(MEAN_PART, "{{part}}")]),
            ("Its parts, p99", "s", [(quantile(0.99, "final_latency_part_seconds", "part"), "{{part}}")]),
            (
                "Transcripts per second",
                "cps",
                [
                    (rate("transcripts_partials_total"), "partials {{instance}}"),
                    (rate("transcripts_finals_total"), "finals {{instance}}"),
                    (rate("transcripts_empty_finals_total"), "empty finals {{instance}}"),
                    (rate("transcripts_failed_finals_total"), "failed finals {{instance}}"),
                    (rate("transcripts_speculative_hits_total"), "ready at the endpoint {{instance}}"),
                ],
            ),
        ],
    ),
    (
        "Media",
        [
            ("Loss", "percentunit", [(LOSS, "{{instance}}")]),
            ("What arrives", "cps", [(rate("legs_media_total", "kind"), "{{kind}}")]),
            ("Jitter of a leg", "s", quantiles("leg_jitter_seconds")),
            (
                "RTP that is not taken",
                "cps",
                [
                    (rate("rtp_wrong_source_total"), "wrong source {{instance}}"),
                    (rate("rtp_receive_errors_total"), "receive errors {{instance}}"),
                    (rate("rtp_send_errors_total"), "send errors {{instance}}"),
                ],
            ),
        ],
    ),
    (
        "Media loop",
        [
            ("Loop stall", "s", quantiles("loop_stall_seconds")),
            ("VAD lag", "s", quantiles("vad_lag_seconds")),
            ("Ticks cut short", "cps", [(rate("media_errors_total"), "{{instance}}")]),
            ("VAD windows per second", "cps", [(rate("vad_windows_total"), "{{instance}}")]),
        ],
    ),
    (
        "Engine",
        [
            ("State", "bool", [(gauge("asr_state"), "{{state}} {{instance}}")]),
            (
                "Crashes and hangs",
                "short",
                [
                    (f"increase(mediaworker_asr_crashes_total{S}[1h])", "ended {{instance}}, last hour"),
                    (f"increase(mediaworker_asr_hangs_total{S}[1h])", "of those hung {{instance}}"),
                    (f"increase(mediaworker_asr_replayed_total{S}[1h])", "utterances replayed {{instance}}"),
                ],
            ),
            (
                "Queue and decode",
                "s",
                [
                    (quantile(0.95, "asr_queue_seconds"), "queue p95"),
                    (quantile(0.5, "asr_decode_seconds"), "decode p50"),
                    (quantile(0.95, "asr_decode_seconds"), "decode p95"),
                ],
            ),
            (
                "Backlog",
                "bytes",
                [
                    (gauge("asr_backlog_bytes"), "audio {{instance}}"),
                    (gauge("asr_spilled_bytes"), "of it on disk {{instance}}"),
                ],
            ),
        ],
    ),
    (
        "Signalling",
        [
            ("SIP registration", "bool", [(gauge("sip_registered"), "{{account}} {{instance}}")]),
            (
                "SIP",
                "cps",
                [
                    (rate("sip_invites_total"), "INVITE {{instance}}"),
                    (rate("sip_answered_total"), "answered {{instance}}"),
                    (rate("sip_failed_total"), "failed {{instance}}"),
                    (rate("sip_media_timeouts_total"), "without media {{instance}}"),
                ],
            ),
            (
                "Twilio",
                "cps",
                [
                    (rate("twilio_webhooks_total"), "webhooks {{instance}}"),
                    (rate("twilio_started_total"), "streams {{instance}}"),
                    (rate("twilio_forbidden_total"), "forbidden {{instance}}"),
                    (rate("twilio_malformed_total"), "malformed {{instance}}"),
                ],
            ),
            ("Connections", "short", [(gauge("connections"), "{{port}} {{instance}}")]),
        ],
    ),
    (
        "Events",
        [
            ("Subscribers", "short", [(gauge("event_subscribers"), "{{instance}}")]),
            (
                "Slow subscribers",
                "cps",
                [
                    (rate("event_partials_dropped_total"), "partials dropped {{instance}}"),
                    (rate("event_subscribers_overrun_total"), "closed {{instance}}"),
                ],
            ),
            (
                "Store trouble",
                "short",
                [
                    (f"1 - mediaworker_event_store_ok{S}", "not storing {{instance}}"),
                    (gauge("event_store_backlog"), "waiting {{instance}}"),
                    (f"increase(mediaworker_event_store_lost_total{S}[1h])", "lost {{instance}}, last hour"),
                ],
            ),
            (
                "Store",
                "bytes",
                [
                    (gauge("event_store_bytes"), "file {{instance}}"),
                    (gauge("event_store_free_bytes"), "room on the disk {{instance}}"),
                ],
            ),
        ],
    ),
    (
        "Process",
        [
            (
                "Memory",
                "bytes",
                [
                    (gauge("resident_memory_bytes"), "media {{instance}}"),
                    (gauge("asr_process_resident_memory_bytes"), "inference {{process}} {{instance}}"),
                ],
            ),
            ("CPU of the media process", "percentunit", [(rate("cpu_seconds_total"), "{{instance}}")]),
            (
                "File descriptors",
                "short",
                [(gauge("open_fds"), "open {{instance}}"), (gauge("max_fds"), "limit {{instance}}")],
            ),
            (
                "Uptime",
                "s",
                [(f"time() - mediaworker_process_start_time_seconds{S}", "{{instance}}")],
            ),
        ],
    ),
    (
        "Files",
        [
            (
                "In work",
                "short",
                [
                    (gauge("file_requests"), "requests {{instance}}"),
                    (gauge("jobs_running"), "jobs {{instance}}"),
                    (gauge("jobs_queued"), "jobs that wait {{instance}}"),
                ],
            ),
            (
                "Stretches per second",
                "cps",
                [
                    (rate("file_segments_total"), "recognised {{instance}}"),
                    (rate("file_segments_failed_total"), "without text {{instance}}"),
                    (rate("file_segments_retried_total"), "asked for again {{instance}}"),
                ],
            ),
            ("Upload to first text", "s", quantiles("file_first_text_seconds")),
            (
                "Refused, ended, told",
                "cps",
                [
                    (rate("files_refused_total", "fault"), "file {{fault}}"),
                    (rate("file_requests_rejected_total"), "429 {{instance}}"),
                    (rate("jobs_ended_total", "status"), "job {{status}}"),
                    (rate("webhooks_failed_total"), "webhook given up {{instance}}"),
                ],
            ),
        ],
    ),
    (
        "Assist",
        [
            ("Webhooks: behind", "s", [(gauge("event_webhook_lag_seconds"), "{{webhook}} {{instance}}")]),
            (
                "Webhooks: events and requests",
                "cps",
                [
                    (rate("event_webhook_events_total", "outcome"), "{{outcome}}"),
                    (rate("event_webhook_tries_total"), "requests {{instance}}"),
                ],
            ),
            ("Taken out of texts, digits masked", "cps", [(rate("redactions_total", "kind"), "{{kind}}")]),
            (
                "Alert rules",
                "short",
                [
                    (gauge("alert_rules"), "in force {{instance}}"),
                    (gauge("alert_rules_ok"), "file in use {{instance}}"),
                ],
            ),
        ],
    ),
]


def dashboard() -> str:
    panels: list[dict[str, Any]] = []
    y = 0
    for title, row in ROWS:
        place = {"h": 1, "w": 24, "x": 0, "y": y}
        panels.append({"type": "row", "title": title, "collapsed": False, "gridPos": place, "panels": []})
        for column, (name, unit, queries) in enumerate(row):
            panels.append(_panel(name, unit, queries, column * 6, y + 1))
        y += 9
    for number, panel in enumerate(panels, 1):
        panel["id"] = number
    board = {
        "uid": "mediaworker",
        "title": "mediaworker",
        "tags": ["mediaworker", "telephony"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {
            "list": [
                {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Prometheus"},
                {
                    "name": "instance",
                    "type": "query",
                    "label": "Worker",
                    "datasource": {"type": "prometheus", "uid": "${datasource}"},
                    "query": {"query": "label_values(mediaworker_build_info, instance)", "refId": "instance"},
                    "refresh": 2,
                    "multi": True,
                    "includeAll": True,
                    "current": {"text": "All", "value": "$__all"},
                },
            ]
        },
        "annotations": {
            "list": [
                {
                    "name": "Starts",
                    "datasource": {"type": "prometheus", "uid": "${datasource}"},
                    "expr": f"changes(mediaworker_process_start_time_seconds{S}[1m]) > 0",
                    "enable": True,
                    "iconColor": "orange",
                    "titleFormat": "restarted",
                }
            ]
        },
        "panels": panels,
    }
    return json.dumps(board, indent=1, ensure_ascii=False) + "\n"


def _panel(title: str, unit: str, queries: list[tuple[str, str]], x: int, y: int) -> dict[str, Any]:
    defaults: dict[str, Any] = {"unit": unit, "min": 0, "custom": {"fillOpacity": 8, "showPoints": "never"}}
    if unit == "bool":
        defaults |= {"unit": "short", "max": 1}
        defaults["custom"] |= {"lineInterpolation": "stepAfter"}
    return {
        "type": "timeseries",
        "title": title,
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "gridPos": {"h": 8, "w": 6, "x": x, "y": y},
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
        "targets": [
            {"refId": chr(65 + number), "expr": expression, "legendFormat": legend}
            for number, (expression, legend) in enumerate(queries)
        ],
    }
