"""`mediaworker call` where nobody answers: a port without a listener is told at once, else how long it may take."""

from __future__ import annotations

import socket

import pytest

from lab.house import ROOT
from lab.network.ports import ports
from lab.patience import timeout
from lab.worker.peers import running_command

AGENT = str(ROOT / "tests/data/digits/agent.ulaw")


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]"])
async def test_a_port_where_nobody_listens_is_told_at_once(host: str) -> None:
    (port,) = ports(1)
    uri = f"sip:demo@{host}:{port}"
    async with running_command("call", uri, "--play", AGENT, "--answer-timeout", "3600") as phone, timeout(30):
        _, errors = await phone.communicate()
        assert phone.returncode == 1 and errors.decode() == f"mediaworker: {uri}: nothing listens on that UDP port\n"


async def test_who_waits_is_told_for_how_long() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent:
        silent.bind(("127.0.0.1", 0))
        uri = f"sip:demo@127.0.0.1:{silent.getsockname()[1]}"
        async with running_command("call", uri, "--play", AGENT, "--answer-timeout", "3600") as phone, timeout(30):
            assert phone.stderr is not None
            line = (await phone.stderr.readline()).decode()
            assert line == f"mediaworker: {uri}: no answer yet; 3600 s at most\n"
