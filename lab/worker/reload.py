"""A worker with a configuration file that is changed under it."""

from __future__ import annotations

import re
import signal
import ssl
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from lab.patience import until
from lab.worker.peers import Worker, worker


@contextmanager
def configured(
    folder: Path,
    text: str,
    tls: ssl.SSLContext | None = None,
    process_environ: Mapping[str, str] = {},
    **environ: str,
) -> Iterator[tuple[Worker, Callable[[str], str]]]:
    """A worker with a configuration file, and how to give it another one: returns what the log said of it."""
    file = folder / "worker.toml"
    file.write_text(text)
    with worker(folder, process_environ, tls=tls, CONFIG=str(file), LOG__FORMAT="json", **environ) as running:

        def reload(changed: str) -> str:
            file.write_text(changed)
            at = len(running.log.read_text())
            running.process.send_signal(signal.SIGHUP)
            over = re.compile(r'"event": "configuration (not )?reloaded.*\n')
            return str(until(lambda: over.search(said := running.log.read_text()[at:]) and said, 20))

        yield running, reload
