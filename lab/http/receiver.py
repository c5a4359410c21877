"""An HTTP server that takes webhooks: it answers by a script, and keeps what came."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from standardwebhooks.webhooks import Webhook as Verifier

SECRET = "whsec_dGhlIHNlY3JldCBvZiB0aGUgdGVzdHMgb2Ygd2ViaG9va3M="


class Receiver(ThreadingHTTPServer):
    """Answers as its script says, one line for each request, and the last line to all that follow."""

    daemon_threads = True

    def __init__(self, *script: int | str, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.script = list(script)
        self.judge: Callable[[dict[str, Any]], int | str] | None = None
        """Answers by what is said, in place of the script."""
        self.retry_after = ""
        """Said with each 429 and 503."""
        self.came: list[tuple[dict[str, str], bytes, str]] = []
        self.times_s: list[float] = []
        """When, by the monotonic clock."""
        self.peers: set[int] = set()
        """The ports that requests have come from."""
        self.over = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/told"

    def handle_error(self, *_: Any) -> None:
        """A sender that has gone is part of the script."""

    def ids(self) -> list[str]:
        return [headers["webhook-id"] for headers, _, _ in self.came]


class Handler(BaseHTTPRequestHandler):
    server: Receiver
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # head and body in one piece: in two, the second waits 40 ms for an acknowledgement

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        server = self.server
        says = server.script[min(len(server.came), len(server.script) - 1)]
        if server.judge is not None:
            says = server.judge(json.loads(body))
        server.times_s.append(time.monotonic())
        server.peers.add(self.client_address[1])
        self.server.came.append(({name.lower(): value for name, value in self.headers.items()}, body, self.path))
        if says == "silence":
            self.server.over.wait(30)
        if isinstance(says, str):
            self.close_connection = True
            self.connection.close()
            return
        self.send_response(says)
        self.send_header("Location", f"{self.server.url}/elsewhere")
        if self.server.retry_after and says in (429, 503):
            self.send_header("Retry-After", self.server.retry_after)
        text = b"" if says == 204 else b"it is so" if says < 300 else b"it is not so"
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    do_GET = do_POST

    def log_message(self, *_: Any) -> None:
        """Not on the terminal."""


@contextlib.contextmanager
def receiving(*script: int | str, port: int = 0) -> Iterator[Receiver]:
    with Receiver(*script, port=port) as receiver:
        serving = threading.Thread(target=receiver.serve_forever, args=(0.02,))
        serving.start()
        try:
            yield receiver
        finally:
            receiver.over.set()
            receiver.shutdown()
            serving.join()


def told(receiver: Receiver, secret: str = SECRET) -> list[dict[str, Any]]:
    """What was said in each request, by the signature's word."""
    return [json.loads(json.dumps(Verifier(secret).verify(body, headers))) for headers, body, _ in receiver.came]
