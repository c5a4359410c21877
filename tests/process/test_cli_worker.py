"""The commands that ask a running worker: where they find it, what they print, and what a refusal is called."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from asyncio.subprocess import PIPE
from pathlib import Path

from lab.events.samples import ended, final, speech
from lab.http.api_server import ADMIN_KEY, BOTH_KEY, EVENTS_KEY, Running, running_api
from lab.network.ports import ports
from lab.patience import timeout

CALL = "0198f3a0-1111-7222-8333-444455556666"


async def command(*arguments: str, **environ: str) -> tuple[int, str, str]:
    """Exit code, output, errors."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("MEDIAWORKER_")}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "mediaworker", *arguments, stdin=asyncio.subprocess.DEVNULL, stdout=PIPE, stderr=PIPE,
        env=clean | environ,
    )  # fmt: skip
    async with timeout(60):
        out, err = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


async def answered(answer: str, *arguments: str) -> tuple[int, str]:
    """Exit code and output of a command at a terminal, whose user answers its question."""
    own, its = os.openpty()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "mediaworker", *arguments, stdin=its, stdout=PIPE, stderr=asyncio.subprocess.STDOUT
    )
    os.close(its)
    os.write(own, f"{answer}\n".encode())
    async with timeout(60):
        out, _ = await process.communicate()
    os.close(own)
    assert process.returncode is not None
    return process.returncode, out.decode()


async def spoken(api: Running) -> None:
    api.open_call(CALL)
    api.hub.publish(CALL, 100, speech("u1"))
    api.hub.publish(CALL, 900, final("u1", "good morning"))
    api.hub.publish(CALL, 1000, ended())
    await api.hub.flush()
    del api.calls[CALL]


def configured(folder: Path, api: Running) -> str:
    """The configuration of that worker, as its own machine has it."""
    keys = f'{{name = "a", key = "{EVENTS_KEY}", scopes = ["events"]}}, {{name = "b", key = "{BOTH_KEY}", scopes = '
    keys += '["events", "admin"]}'
    file = folder / "worker.toml"
    file.write_text(f'[http]\nhost = "127.0.0.1"\nport = {api.server.port}\n[auth]\napi_keys = [{keys}]\n')
    return str(file)


async def test_calls_and_transcripts_of_the_worker_of_this_machine(tmp_path: Path) -> None:
    async with running_api(tmp_path, keys=True) as api:
        await spoken(api)
        config = configured(tmp_path, api)
        code, out, _ = await command("calls", "--config", config)
        assert code == 0 and out.startswith(CALL) and "good morning" in out and out.count("\n") == 1
        code, out, _ = await command("calls", "--json", "--text", "good morn", MEDIAWORKER_CONFIG=config)
        assert code == 0 and json.loads(out)["call_id"] == CALL
        code, out, _ = await command("transcript", CALL[-6:], "--config", config)
        assert code == 0 and "good morning" in out
        code, out, _ = await command("transcript", CALL, "--format", "srt", "--config", config)
        assert code == 0 and " --> " in out
        code, _, err = await command("transcript", "nothing", "--config", config)
        assert code == 1 and "none of the 200 latest calls" in err
        code, _, err = await command("transcript", "0" * 8 + CALL[8:], "--config", config)
        assert code == 1 and err.endswith("refused with status 404: no such call\n")


async def test_a_call_is_erased_when_somebody_says_so(tmp_path: Path) -> None:
    async with running_api(tmp_path, keys=True) as api:
        await spoken(api)
        code, _, err = await command("erase", CALL, "--url", api.url, "--key", BOTH_KEY)
        assert code == 2 and "--yes is needed" in err
        code, _, err = await command("erase", CALL, "--yes", "--url", api.url, "--key", EVENTS_KEY)
        assert code == 1 and "lacks the scope `admin`" in err
        code, _, err = await command("erase", CALL[-6:], "--yes", "--url", api.url, "--key", ADMIN_KEY)
        assert code == 1 and "lacks the scope `events`" in err, "it would have to be looked up"
        for answer, left in (("n", True), ("", True), ("y", False)):
            code, out = await answered(answer, "erase", CALL[-6:], "--config", configured(tmp_path, api))
            assert code == int(left) and ("nothing was erased" in out) is left
            assert out.endswith("] erased\n") is not left
        await spoken(api)
        code, out, _ = await command("erase", CALL, "--yes", "--url", api.url, "--key", ADMIN_KEY)
        assert code == 0 and out == "erased\n"
        assert (await api.client.get(f"/v1/calls/{CALL}", headers={"Authorization": f"Bearer {BOTH_KEY}"})).is_error


async def test_a_refusal_is_told_in_words(tmp_path: Path) -> None:
    async with running_api(tmp_path, keys=True) as api:
        for arguments, said in (
            (("calls",), "wants an API key: give --key"),
            (("calls", "--key", "wrong-key"), "the key is wrong: unknown API key"),
            (("calls", "--key", ADMIN_KEY), "lacks the scope `events`"),
            (("calls", "--key", EVENTS_KEY, "--limit", "1", "--text", " "), "status 400: text must have"),
        ):
            code, out, err = await command(*arguments, "--url", api.url)
            assert code == 1 and not out and said in err and err.count("\n") == 1 and "{" not in err
        # What `watch` is given is right here as well.
        code, out, err = await command("calls", "--key", EVENTS_KEY, "--url", f"{api.ws}")
        assert (code, out, err) == (0, "", "")
    (port,) = ports(1)
    for name in ("calls", "jobs", "watch", "health"):
        code, _, err = await command(name, MEDIAWORKER_HTTP__PORT=str(port))
        assert code == 1 and err.endswith("connection refused: nothing listens there\n") and f":{port}" in err


async def test_watch_goes_where_the_configuration_says(tmp_path: Path) -> None:
    async with running_api(tmp_path, keys=True) as api:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "mediaworker", "watch", "--json", "--config", configured(tmp_path, api), stdout=PIPE
        )
        assert process.stdout is not None
        async with timeout(30):
            assert json.loads(await process.stdout.readline())["type"] == "hello"
        process.kill()
        await process.communicate()
