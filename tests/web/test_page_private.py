"""What is kept out of events is not on the page either, at no moment; alerts are."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from playwright.async_api import Browser, expect

from lab.http.browser import browser, screen
from lab.worker.peers import command, worker
from lab.worker.qwen import QWEN, file

__all__ = ["browser"]
pytestmark = pytest.mark.asyncio(loop_scope="module")
WATCH = """() => {
    window.shown = new Set();
    const look = () => window.shown.add(document.body.innerText);
    new MutationObserver(look).observe(document.body, { subtree: true, childList: true, characterData: true });
    look();
}"""


async def test_what_must_not_be_seen_is_not_on_the_page(tmp_path: Path, browser: Browser) -> None:
    rules = tmp_path / "alerts.toml"
    rules.write_text('[[rules]]\nname = "opening"\nphrases = ["zero six"]\nseverity = "critical"\n')
    privacy = {"PRIVACY__MASK_AFTER_DIGITS": '["*9"]', "ALERTS__FILE": str(rules)}
    # The keys come at half a second each: behind them is the second thing that is said.
    calling = ("--play", str(file("customer")), "--connect", "--dtmf", "*9317")
    with worker(tmp_path, **QWEN, **privacy) as running:
        # A call before: it starts the inference process, which stays.
        assert command("stream", running.twilio, "--play", str(file("agent"))).returncode == 0
        (before,) = running.wait_ended(1)
        async with screen(browser, running.url) as shown:
            await shown.open()
            page = shown.page
            await expect(page.locator("#connection")).to_have_text("Connected")
            await page.evaluate(WATCH)
            played = asyncio.create_task(asyncio.to_thread(command, "stream", running.twilio, *calling))
            await page.locator(".list ul").first.locator("li a").click(timeout=60_000)
            await expect(page.locator(".event.end")).to_be_visible(timeout=60_000)
            assert (await played).returncode == 0
            said = await shown.said()
            assert said[-1] == "[digits]" and len(said) == 2
            await shown.shows(".event kbd", ["*", "9", "X", "X", "X"])
            texts = await page.evaluate("() => [...window.shown]")
            assert len(texts) > 5
            for text in texts:
                assert "nine oh" not in text and "oh five" not in text, text
            await shown.open(f"/#/calls/{before['call_id']}")
            await expect(page.locator(".event", has_text="opening")).to_contain_text("zero six")
