"""Files that are transcribed beside the calls: one at each act. All are alike, and so must their results be."""

from __future__ import annotations

import asyncio
import contextlib
import re
import ssl
import wave
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from audio.codecs.g711 import ulaw_decode
from tools.cluster.parts import KEY, PROXY_ADDRESS, Worker

REPEATS = 8
SEGMENT = re.compile(r"\] segment +.*?job=(\S+) number=(\d+)")
WITHIN_S = 180.0


@dataclass
class Jobs:
    codes: bytes
    """µ-law at 8 kHz; the file has it several times."""
    folder: Path
    tls: ssl.SSLContext
    ids: list[str] = field(default_factory=list)
    results: list[Any] = field(default_factory=list)
    refusals: int = 0
    """Uploads that were not taken at first, and sent again."""
    _file: Path = field(init=False)

    def __post_init__(self) -> None:
        self._file = self.folder / "numbers.wav"
        with wave.open(str(self._file), "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(8000)
            file.writeframes(np.tile(ulaw_decode(self.codes), REPEATS).astype("<i2").tobytes())

    async def submit(self) -> None:
        """Until it has been taken, as a client would."""
        async with self._client() as client:
            while True:
                with contextlib.suppress(httpx.TransportError):
                    answer = await client.post(
                        "/v1/jobs", files={"file": ("numbers.wav", self._file.read_bytes())}, timeout=15
                    )
                    if answer.status_code == 201:
                        self.ids.append(answer.json()["id"])
                        return
                self.refusals += 1
                await asyncio.sleep(1)

    async def finish(self) -> None:
        """Wait for all of them. Raises AssertionError when one fails, or does not end."""
        async with self._client() as client:
            for each in self.ids:
                self.results.append(await self._result(client, each))

    def repeated(self, workers: Iterable[Worker]) -> tuple[int, int]:
        """-> segments that were recognised, and how many of them more than once, by the workers' logs."""
        times: Counter[tuple[str, str]] = Counter()
        for worker in workers:
            times.update(SEGMENT.findall(worker.log.read_text(errors="replace")))
        return len(times), sum(count - 1 for count in times.values())

    async def _result(self, client: httpx.AsyncClient, job_id: str) -> Any:
        job: Any = None
        try:
            async with asyncio.timeout(WITHIN_S):
                while True:
                    with contextlib.suppress(httpx.TransportError):
                        job = (await client.get(f"/v1/jobs/{job_id}")).json()
                        if job.get("status") == "completed":
                            return (await client.get(f"/v1/jobs/{job_id}/result?format=json")).json()
                        assert job.get("status") not in ("failed", "cancelled"), job
                    await asyncio.sleep(0.5)
        except TimeoutError:
            raise AssertionError(f"job {job_id} has not ended within {WITHIN_S:g} s: {job}") from None

    def _client(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(
            base_url=f"https://{PROXY_ADDRESS}",
            headers={"Authorization": f"Bearer {KEY}"},
            verify=self.tls,
            trust_env=False,
            timeout=10,
        )
