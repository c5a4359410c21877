"""SIPp, the real one, as the far end of a test."""

from __future__ import annotations

import asyncio
import string
from pathlib import Path

from lab.network.ports import free_port, port_range
from lab.patience import seconds, until

SCENARIOS = Path(__file__).parent / "sipp"


class Sipp:
    """Runs scenarios of tests/sipp, filled in from a dict, or those that `sipp_scenario` writes.

    An unexpected message is a failure with SIPp's own words.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._runs = 0
        self.processes: list[asyncio.subprocess.Process] = []
        """All that have been started, in order."""

    def start(
        self,
        scenario: str,
        *target: str,
        calls: int = 1,
        at_once: int = 1,
        rate: int = 20,
        source: str = "127.0.0.1",
        port: int | None = None,
        transport: str = "u1",
        timeout_s: int = 15,
        options: tuple[str, ...] = (),
        **values: object,
    ) -> asyncio.Task[None]:
        self._runs += 1
        folder = self.folder / f"{'steps' if scenario.startswith('<') else scenario}-{self._runs}"
        folder.mkdir()
        if scenario.startswith("<"):
            text = scenario
        else:
            if "talk_ms" in values:  # within which all of the audio is sent, by a thread of SIPp's
                values["talk_ms"] = round(seconds(int(str(values["talk_ms"]))))
            text = string.Template((SCENARIOS / f"{scenario}.xml").read_text()).substitute(values)
        (folder / "scenario.xml").write_text(text)
        limit = f"{seconds(timeout_s):.0f}s"
        command = ["sipp", *target, "-sf", "scenario.xml", "-m", str(calls), "-l", str(at_once), "-r", str(rate)]
        command += ["-i", source, "-mi", source, "-p", str(port or free_port()), "-t", transport]
        command += ["-mp", str(port_range(8)[0]), "-nostdin"]
        command += ["-timeout", limit, "-timeout_error", "-trace_err", "-error_file", "errors.log", *options]
        return asyncio.create_task(self._run(command, folder))

    async def run(self, scenario: str, *target: str, **options: object) -> None:
        await self.start(scenario, *target, **options)  # type: ignore[arg-type]

    async def _run(self, command: list[str], folder: Path) -> None:
        with (folder / "output.txt").open("wb") as output:
            process = await asyncio.create_subprocess_exec(*command, cwd=folder, stdout=output, stderr=output)
            self.processes.append(process)
            try:
                code = await process.wait()
            except asyncio.CancelledError:
                process.terminate()
                await process.wait()
                raise
        errors = folder / "errors.log"
        assert code == 0, (errors if errors.exists() else folder / "output.txt").read_text(errors="replace")[-4000:]


async def listens(port: int) -> None:
    """Until somebody has that port of UDP."""
    await asyncio.to_thread(until, lambda: f":{port:04X} " in Path("/proc/net/udp").read_text(), 10)
