"""A collector of traces on loopback: takes OTLP over HTTP, or does not, and decodes it with the protocol's classes."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

Behaviour = Literal["takes", "unavailable", "hangs"]


@dataclass(frozen=True)
class Received:
    """A span as it came. Ids are in hexadecimal, times in nanoseconds of Unix time."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str
    start: int
    end: int
    kind: int
    failed: bool
    attributes: dict[str, Any]
    service: str
    resource: dict[str, Any]


@dataclass
class Collector:
    url: str = ""
    behaviour: Behaviour = "takes"
    spans: list[Received] = field(default_factory=list)
    headers: dict[str, str] = field(default_factory=dict)
    """Of the last request."""
    asked: threading.Event = field(default_factory=threading.Event)
    """A request has come."""
    released: threading.Event = field(default_factory=threading.Event)

    def named(self, name: str, call_id: str = "") -> list[Received]:
        trace_id = call_id.replace("-", "")
        return [span for span in list(self.spans) if span.name == name and trace_id in ("", span.trace_id)]

    def receive(self, body: bytes) -> None:
        for process in ExportTraceServiceRequest.FromString(body).resource_spans:
            resource = _plain(process.resource.attributes)
            for scope in process.scope_spans:
                for span in scope.spans:
                    self.spans.append(
                        Received(
                            span.name,
                            span.trace_id.hex(),
                            span.span_id.hex(),
                            span.parent_span_id.hex(),
                            span.start_time_unix_nano,
                            span.end_time_unix_nano,
                            span.kind,
                            span.status.code == span.status.STATUS_CODE_ERROR,
                            _plain(span.attributes),
                            resource["service.name"],
                            resource,
                        )
                    )


def _plain(attributes: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in attributes}


@contextlib.contextmanager
def collector(behaviour: Behaviour = "takes") -> Iterator[Collector]:
    found = Collector(behaviour=behaviour)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            found.headers = {name.lower(): value for name, value in self.headers.items()}
            found.asked.set()
            if found.behaviour == "hangs":
                found.released.wait()
            if found.behaviour == "takes":
                found.receive(body)
            self.send_response(200 if found.behaviour == "takes" else 503)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Tests read nothing of it."""

        def handle(self) -> None:
            with contextlib.suppress(OSError):  # whoever asked is gone
                super().handle()

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    found.url = f"http://127.0.0.1:{server.server_address[1]}/v1/traces"
    serving = threading.Thread(target=server.serve_forever, daemon=True)
    serving.start()
    try:
        yield found
    finally:
        found.released.set()
        server.shutdown()
        serving.join()
        server.server_close()
