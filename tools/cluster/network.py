"""Machines: network namespaces at one switch, with real addresses and a cable each that can be pulled. Needs root."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

SWITCH = "switch"
OUTSIDE = "10.77.0.1"
"""Where callers and subscribers are: this process, at the switch itself."""


def enter_own_network(prepare: Callable[[], object]) -> None:
    """Start this program again where it may make machines: with a network and processes of its own, which all end with
    it. Returns in there alone; `prepare` is called before, while there is the machine's network."""
    if os.environ.pop("CLUSTER_INSIDE", ""):
        _ip("link", "set", "lo", "up")
        _ip("link", "add", SWITCH, "type", "bridge")
        _ip("address", "add", f"{OUTSIDE}/24", "dev", SWITCH)
        _ip("link", "set", SWITCH, "up")
        return
    prepare()
    root = [] if os.getuid() == 0 else ["--user", "--map-root-user"]
    own = ["--net", "--pid", "--fork", "--kill-child", "--mount", "--mount-proc"]
    with open("/proc/self/cmdline", "rb") as file:
        command = [os.fsdecode(each) for each in file.read().rstrip(b"\0").split(b"\0")]
    inside = {"CLUSTER_INSIDE": "1", "CLUSTER_PID": str(os.getpid())}
    os.execvpe("unshare", ["unshare", *root, *own, *command], os.environ | inside)


def way_in() -> str:
    """What lets another terminal into the network."""
    return f"sudo nsenter --net=/proc/{os.environ['CLUSTER_PID']}/ns/net"


@dataclass
class Machine:
    """One machine. What runs on it is started by `start`."""

    name: str
    address: str
    _holder: subprocess.Popen[bytes]
    """Keeps the namespace."""

    @classmethod
    def make(cls, name: str, number: int) -> Machine:
        holder = subprocess.Popen(["unshare", "--net", "cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert holder.stdin and holder.stdout
        holder.stdin.write(b"\n")
        holder.stdin.flush()
        holder.stdout.readline()  # it is in there
        machine = cls(name, f"10.77.0.{number}", holder)
        _ip("link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", str(holder.pid))
        _ip("link", "set", name, "master", SWITCH, "up")
        machine._inside("ip", "address", "add", f"{machine.address}/24", "dev", "eth0")
        for device in ("lo", "eth0"):
            machine._inside("ip", "link", "set", device, "up")
        return machine

    def start(
        self, command: Sequence[str | Path], folder: Path, log: Path, environ: Mapping[str, str]
    ) -> subprocess.Popen[bytes]:
        with log.open("ab") as output:
            return subprocess.Popen(
                [*self._enter, *command],
                cwd=folder,
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )

    def unplug(self) -> None:
        _ip("link", "set", self.name, "down")

    def plug(self) -> None:
        _ip("link", "set", self.name, "up")

    @property
    def _enter(self) -> list[str]:
        return ["nsenter", f"--net=/proc/{self._holder.pid}/ns/net", "--"]

    def _inside(self, *command: str) -> None:
        subprocess.run([*self._enter, *command], check=True)


def family(pid: int) -> list[int]:
    """The process, its children, and theirs."""
    found = [pid]
    for each in found:
        for task in Path(f"/proc/{each}/task").glob("*/children"):
            found += [int(child) for child in task.read_text().split()]
    return found


def send(pids: Sequence[int], number: signal.Signals) -> None:
    for pid in pids:
        os.kill(pid, number)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)
