"""An HTTP server that takes webhooks: it answers by a script, and keeps what came."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
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
        self.came: list[tuple[dict[str, str], bytes, str]] = []
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

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        says = self.server.script[min(len(self.server.came), len(self.server.script) - 1)]
        self.server.came.append(({name.lower(): value for name, value in self.headers.items()}, body, self.path))
        if says == "silence":
            self.server.over.wait(30)
        if isinstance(says, str):
            self.connection.close()
            return
        self.send_response(says)
        self.send_header("Location", f"{self.server.url}/elsewhere")
        self.send_header("Content-Length", "0")
        self.end_headers()

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
