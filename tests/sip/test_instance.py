"""What tells workers apart at a registrar that knows a binding by its instance (RFC 5626), as over TCP and TLS."""

from __future__ import annotations

import asyncio
import re
from contextlib import ExitStack
from pathlib import Path

from lab.engine.listener import LISTENER, LISTENER_PATH
from lab.patience import until
from lab.sip.registrar_peer import RegistrarPeer
from lab.worker.peers import Worker, worker

INSTANCE = re.compile(r'\+sip\.instance="<(urn:uuid:[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})>"')


def bindings(registrar: RegistrarPeer) -> dict[tuple[str, str], str]:
    """(instance, registration id) → the host and port of the newest Contact, for one address of record."""
    found = {}
    for request in registrar.requests:
        instance, reg_id = INSTANCE.search(request), re.search(r"reg-id=(\d+)", request)
        contact = re.search(r"Contact: *<sip:alice@([^;>]+)", request)
        if instance and reg_id and contact and "Expires: 0" not in request:
            found[instance[1], reg_id[1]] = contact[1]
    return found


def registered(running: Worker) -> bool:
    return bool(running.get("/readyz")["sip"][0]["state"] == "registered")


async def test_two_workers_of_one_host_have_a_binding_each_and_keep_it_over_a_restart(tmp_path: Path) -> None:
    async with RegistrarPeer(answer="200 OK\r\nExpires: 3600") as registrar:
        environ = LISTENER | {"SIP__ACCOUNTS": f'[{{registrar = "{registrar.uri}", user = "alice"}}]'}

        def start(stack: ExitStack, name: str) -> Worker:
            (tmp_path / name).mkdir(exist_ok=True)
            return stack.enter_context(worker(tmp_path / name, LISTENER_PATH, **environ))

        with ExitStack() as both:
            for name in ("one", "two"):
                running = await asyncio.to_thread(start, both, name)
                await asyncio.to_thread(until, lambda running=running: registered(running), 20)
            before = bindings(registrar)
            assert len(before) == 2
            await asyncio.to_thread(both.close)
        with ExitStack() as again:
            running = await asyncio.to_thread(start, again, "two")
            await asyncio.to_thread(until, lambda: registered(running), 20)
            after = bindings(registrar)
            assert after.keys() == before.keys()
            assert sum(after[key] == before[key] for key in before) == 1, "from another port"
            await asyncio.to_thread(again.close)
