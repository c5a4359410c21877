"""`mediaworker bench cluster`: the time of a final from an inference process of this machine, and from an engine server
over TCP, with a token and with certificates on both sides. The engine answers at once; the pairs alternate."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import uvloop

from asr.client.recognizer import Recognizer
from asr.utterance import EngineStatus, Utterance
from benchmarks import ROOT
from config.sections.section import Secret
from config.settings import Asr, Cluster, Settings

TOKEN = "of-this-benchmark"
AUDIO = b"\xff" * 16_000
"""Of each utterance: two seconds, sent before the final is asked for."""
SENT_S, PAUSE_S, START_S = 0.005, 0.003, 30.0


class BenchError(Exception):
    """The benchmark cannot run on this machine."""


def measure(finals: int, progress: Callable[[str], None]) -> list[dict[str, Any]]:
    """A row for each way. Raises BenchError."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        install(folder / "site")
        os.environ["PYTHONPATH"] = os.pathsep.join((str(folder / "site"), str(ROOT), os.environ.get("PYTHONPATH", "")))
        sys.path.insert(0, str(folder / "site"))
        rows = []
        for encrypted in (False, True):
            cluster = _certificates(folder) if encrypted else Cluster(token=Secret(TOKEN))
            progress(f"{finals} finals, in pairs, {'TLS' if encrypted else 'TCP'} …")
            with server(folder, cluster) as (port, _):
                local, remote = uvloop.run(_pairs(finals, port, cluster))
            if not encrypted:
                rows.append(_row("an inference process of this machine", local))
            how = "TLS with certificates" if encrypted else "TCP with a token"
            rows.append(_row(f"an engine server, {how}", remote))
        return rows


def table(rows: list[dict[str, Any]]) -> list[tuple[str, ...]]:
    head = ("a final from", "p50 ms", "p90 ms", "p99 ms")
    return [head, *((row["way"], *(f"{row[f'p{part}_ms']:.2f}" for part in (50, 90, 99))) for row in rows)]


async def _pairs(finals: int, port: int, cluster: Cluster) -> tuple[list[float], list[float]]:
    """Milliseconds of each final, of both."""
    shared = Settings(asr=Asr(servers=(f"tcp://127.0.0.1:{port}",)), cluster=cluster)
    async with ready(Settings(asr=Asr(engine="null", preload=True))) as local, ready(shared) as remote:
        times: tuple[list[float], list[float]] = [], []
        for number in range(finals):
            for recognizer, found in zip((local, remote), times, strict=True):
                found.append(await _final(recognizer, number))
        return times


@contextlib.asynccontextmanager
async def ready(settings: Settings) -> AsyncIterator[Recognizer]:
    recognizer = Recognizer(settings, on_state=lambda state, why: None)
    await recognizer.start()
    try:
        async with asyncio.timeout(START_S):
            while recognizer.state is not EngineStatus.READY:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        yield recognizer
    except TimeoutError:
        raise BenchError(f"no engine within {START_S:g} s: {recognizer.trouble}") from None
    finally:
        await recognizer.stop()


async def _final(recognizer: Recognizer, number: int) -> float:
    heard = asyncio.get_running_loop().create_future()
    name = f"leg/{number}"
    recognizer.open(Utterance(name, "PCMU", stream="leg"), lambda h: heard.set_result(None) if h.final else None)
    recognizer.append(name, AUDIO)
    await asyncio.sleep(SENT_S)
    begun_s = time.perf_counter()
    recognizer.final(name, 1, commit=True)
    await heard
    waited_ms = 1000 * (time.perf_counter() - begun_s)
    await asyncio.sleep(PAUSE_S)
    return waited_ms


def _row(way: str, times_ms: list[float]) -> dict[str, Any]:
    ordered = sorted(times_ms)
    parts = {f"p{part}_ms": round(ordered[len(ordered) * part // 100], 3) for part in (50, 90, 99)}
    return {"way": way, "finals": len(ordered), **parts}


def install(site: Path) -> None:
    """The engine as a package's plug-in."""
    about = site / "mediaworker_null_engine-1.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: mediaworker-null-engine\nVersion: 1\n")
    (about / "entry_points.txt").write_text("[mediaworker.engines]\nnull = benchmarks.cluster.null_engine:plugin\n")


def _certificates(folder: Path) -> Cluster:
    """Raises BenchError."""
    authority, own = folder / "authority", folder / "own"
    make = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]
    names = ["-addext", "subjectAltName=IP:127.0.0.1", "-addext", "basicConstraints=critical,CA:FALSE"]
    signed = ["-CA", f"{authority}.pem", "-CAkey", f"{authority}.key", *names]
    try:
        for path, more in ((authority, []), (own, signed)):
            files = ["-subj", f"/CN={path.name}", "-keyout", f"{path}.key", "-out", f"{path}.pem"]
            subprocess.run([*make, *more, *files], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise BenchError(f"openssl makes no certificates: {error}") from None
    return Cluster(tls_cert=f"{own}.pem", tls_key=f"{own}.key", tls_ca=f"{authority}.pem")


@contextlib.contextmanager
def server(folder: Path, cluster: Cluster) -> Iterator[tuple[int, int]]:
    """`mediaworker engine` in a process of its own. -> its port, and the process id."""
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
        listen, http = one.getsockname()[1], other.getsockname()[1]
    environ = {
        "ASR__ENGINE": "null", "ASR__LISTEN": f"tcp://127.0.0.1:{listen}", "HTTP__PORT": str(http),
        "DATA_DIR": str(folder / "data"), "CLUSTER__TOKEN": TOKEN, "CLUSTER__TLS_CERT": cluster.tls_cert,
        "CLUSTER__TLS_KEY": cluster.tls_key, "CLUSTER__TLS_CA": cluster.tls_ca,
    }  # fmt: skip
    process = subprocess.Popen(
        [sys.executable, "-m", "mediaworker.cli.main", "engine"],
        env=os.environ | {f"MEDIAWORKER_{key}": value for key, value in environ.items()},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield listen, process.pid
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)
