"""Pictures of the page during a call, light and dark, for the README: a real worker, real calls, recorded speech.

    make screenshot        writes docs/images/call-light.webp and call-dark.webp

One SIP call is over, another one is live, and in a Twilio stream customer and agent talk. The pictures are taken while
the last sentence is being said, both of the same moment.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Literal

from playwright.async_api import expect

from lab.http.browser import chromium, screen
from lab.worker.peers import COMMAND, ROOT, Worker, worker
from tools import prompts

IMAGES = ROOT / "docs" / "images"
SIZE = {"width": 1200, "height": 690}
MOST_BYTES = 150_000

ENDED = [("main", "pbx-invalid")]
BESIDE = [("main", "vm-intro"), ("main", "conf-usermenu"), ("main", "demo-abouttotry")]
TALK = [
    ("customer", "tt-somethingwrong"), ("customer", "number-not-answering"), ("agent", "sorry-youre-having-problems"),
    ("agent", "one-moment-please"), ("customer", "vm-nonumber"), ("agent", "followme/status"),
    ("customer", "queue-thankyou"), ("agent", "tt-allbusy"),
]  # fmt: skip
CUSTOMER = "J. Marten"
SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")
LAST_WORDS = 9
"""The pictures are taken when so many words of the last sentence are shown."""
RULES = """
[[rules]]
name = "outage"
severity = "warning"
role = "customer"
phrases = ["terribly wrong"]
"""


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="mediaworker-screenshot-") as folder, contextlib.ExitStack() as stack:
        base = Path(folder)
        rules = base / "alerts.toml"
        rules.write_text(RULES)
        running = stack.enter_context(worker(base, ASR__ENGINE="moonshine", ALERTS__FILE=str(rules)))
        phone(running, prompts.wideband(ENDED, base / "ended.g722"), "1004").wait(60)
        running.wait_ended(1)
        beside = phone(running, prompts.wideband(BESIDE, base / "beside.g722"), "1007")
        stack.callback(end, beside)
        stack.callback(end, talk(running, base))
        taken = asyncio.run(pictures(running))
    for scheme, picture in taken.items():
        keep(picture, IMAGES / f"call-{scheme}.webp")
    return 0


async def pictures(running: Worker) -> dict[str, bytes]:
    """In PNG, by colour scheme."""
    async with chromium() as browser, screen(browser, running.url, size=SIZE) as shown:
        page = shown.page
        await shown.open()
        await page.locator(".list .row", has_text=CUSTOMER).first.click()
        await expect(page.locator(".status.live")).to_be_visible()
        await expect(page.locator(".said:not(.unsettled) .text")).to_have_count(len(TALK) - 1, timeout=120_000)
        words = "document.querySelector('.said.unsettled .text')?.textContent.split(' ').length"
        await page.wait_for_function(f"() => {words} >= {LAST_WORDS}", timeout=60_000)
        taken = {}
        for scheme in SCHEMES:
            await page.emulate_media(color_scheme=scheme)
            taken[str(scheme)] = await page.screenshot()
        return taken


def talk(running: Worker, base: Path) -> subprocess.Popen[Any]:
    """A Twilio stream of two speakers."""
    files = prompts.tracks(TALK, base)
    played = ["--play", str(files["customer"]), "--play-outbound", str(files["agent"])]
    about = {"name.inbound": CUSTOMER, "name.outbound": "Allison", "mw_from": "555 0142"}
    parameters = [part for name, value in about.items() for part in ("--param", f"{name}={value}")]
    return subprocess.Popen([*COMMAND, "stream", running.twilio, *played, *parameters])


def phone(running: Worker, file: Path, caller: str) -> subprocess.Popen[Any]:
    uri = f"sip:support@127.0.0.1:{running.sip_port}"
    return subprocess.Popen([*COMMAND, "call", uri, "--play", str(file), "--codec", "G722", "--from", caller])


def end(process: subprocess.Popen[Any]) -> None:
    process.terminate()
    process.wait(30)


def keep(picture: bytes, path: Path) -> None:
    """As WebP without loss, which is a third smaller than PNG and as sharp."""
    path.parent.mkdir(exist_ok=True)
    form = ["-c:v", "libwebp", "-lossless", "1", "-compression_level", "6", "-f", "webp"]
    subprocess.run(["ffmpeg", "-v", "error", "-y", "-f", "png_pipe", "-i", "-", *form, path], input=picture, check=True)
    size = path.stat().st_size
    assert size <= MOST_BYTES, f"{path} has {size} bytes: too many for a README"
    print(f"{path.relative_to(ROOT)}: {size / 1000:.0f} kB")


if __name__ == "__main__":
    sys.exit(main())
