"""Many files read by decoders that are forked from one process: each is confined like a worker's, and Python is
started and its modules are imported once for all of them.

`python -m lab.media.forked_decoder`, with paths on standard input; started by `read_all`.
"""

from __future__ import annotations

import base64
import json
import os
import socket
import subprocess
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from config import Endpointing
from config.process.child_process import how
from config.process.framing import Frames, decode, encode
from config.settings import Files
from lab.house import ROOT
from lab.patience import seconds
from mediaworker.files import decoder
from mediaworker.files.decoder_process import CPU_S, MEMORY_BYTES, _environment
from mediaworker.files.messages import Begin, FromReader, Grant, from_reader

READ_S = 60.0
"""What one file may take: as long as a decoder may say nothing."""


class Reading(NamedTuple):
    said: list[FromReader]
    ended: str
    """Empty for well."""
    peak_bytes: int
    """Of memory. What it shares with the process that it is forked from is in it."""


def read_all(paths: Sequence[Path]) -> dict[Path, Reading]:
    done = subprocess.run(
        [sys.executable, "-m", "lab.media.forked_decoder"], input="\n".join(map(str, paths)), text=True, cwd=ROOT,
        env=_environment(), stdout=subprocess.PIPE, timeout=seconds(READ_S * len(paths)), check=True,
    )  # fmt: skip
    found = {}
    for line in done.stdout.splitlines():
        path, data, ended, peak_kb = json.loads(line)
        bodies = Frames().feed(base64.b64decode(data))
        found[Path(path)] = Reading([decode(from_reader, body) for body in bodies], ended, peak_kb * 1024)
    return found


def read(path: Path) -> tuple[bytes, str, int]:
    """By a decoder that is forked for it: what it says, how it ends, and its most memory in kB."""
    requests, reads = socket.socketpair()
    answers, writes = socket.socketpair()
    max_s = Files().max_hours * 3600
    requests.sendall(encode(Begin("mix", Endpointing(), max_s=max_s, memory_bytes=MEMORY_BYTES, cpu_s=CPU_S)))
    requests.sendall(encode(Grant(10_000)))
    answers.settimeout(seconds(READ_S))
    with path.open("rb") as file, requests, answers:
        child = os.fork()
        if not child:
            requests.close()
            answers.close()
            sys.argv[1:] = [str(os.dup(file.fileno())), str(reads.detach()), str(writes.detach()), path.name]
            _become_decoder()
        reads.close()
        writes.close()
        said = bytearray()
        while data := answers.recv(256 * 1024):
            said += data
    _, status, usage = os.wait4(child, 0)
    code = os.waitstatus_to_exitcode(status)
    return bytes(said), how(code) if code else "", usage.ru_maxrss


def _become_decoder() -> None:
    try:
        decoder.main()
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def main() -> None:
    decoder._load()
    for path in sys.stdin.read().splitlines():
        said, ended, peak_kb = read(Path(path))
        sys.stdout.write(json.dumps([path, base64.b64encode(said).decode(), ended, peak_kb]) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
