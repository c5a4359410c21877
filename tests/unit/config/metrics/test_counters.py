"""Counters: every one begins at nothing, and those that a scrape shows say what they count."""

from __future__ import annotations

import importlib
import inspect
from collections import Counter
from dataclasses import fields, is_dataclass
from typing import Any

import pytest

from config.metrics.counters import descriptions

COUNTERS = {
    "asr.counters": ("RecognizerCounters",),
    "mediaworker.calls.parts": ("TranscriberStats",),
    "mediaworker.files.transcription": ("FileStats",),
    "mediaworker.http.connection": ("HttpCounters",),
    "mediaworker.ingress.asterisk.session": ("AsteriskCounters",),
    "mediaworker.ingress.audiosocket.session": ("AudioSocketCounters",),
    "mediaworker.ingress.twilio.counters": ("TwilioCounters",),
    "mediaworker.ingress.websocket.limits": ("StreamCounters",),
    "mediaworker.tracing.otlp": ("SpanCounters",),
    "mediaworker.service.reload": ("ReloadCounters",),
    "sip.admission.admission": ("AdmissionCounters",),
    "sip.pjsip.counters": ("SipCounters",),
    "sip.media.rtp_socket": ("RtpCounters",),
}


@pytest.mark.parametrize(("module", "name"), [(module, name) for module, names in COUNTERS.items() for name in names])
def test_counters_begin_at_nothing(module: str, name: str) -> None:
    kind: Any = getattr(importlib.import_module(module), name)
    assert inspect.isclass(kind) and is_dataclass(kind)
    one, other = kind(), kind()
    for field in fields(kind):
        value = getattr(one, field.name)
        if isinstance(value, int) and not isinstance(value, bool):
            assert value == 0, field.name
        elif isinstance(value, Counter | dict):
            assert not value and value is not getattr(other, field.name), field.name
        elif hasattr(value, "counts"):
            assert not any(value.counts) and value.counts is not getattr(other, field.name).counts, field.name
    for attribute, each in descriptions(one):
        assert each.help[:1].isupper() and each.help.endswith("."), attribute
