"""The page in Chromium beside a real model: a file and a microphone in the tab to try it, and what must not be seen."""

from __future__ import annotations

import asyncio
import wave
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
from playwright.async_api import Browser, expect

from audio.codecs.g711 import ulaw_decode
from lab.http.browser import WAIT_MS, screen
from lab.patience import seconds, until
from lab.worker.peers import Worker, command, worker
from lab.worker.qwen import QWEN, file
from lab.worker.qwen import SAID as WORDS

pytestmark = pytest.mark.asyncio(loop_scope="session")
EARLY = ("404",)
"""The page may ask for its call before that is on the disk, and asks again."""
SAID = WORDS["customer"]
WATCH = """() => {
    window.shown = new Set();
    const look = () => window.shown.add(document.body.innerText);
    new MutationObserver(look).observe(document.body, { subtree: true, childList: true, characterData: true });
    look();
}"""


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    """Digits behind `*9` are secret, and `zero six` is an alert."""
    folder = tmp_path_factory.mktemp("worker")
    rules = folder / "alerts.toml"
    rules.write_text('[[rules]]\nname = "opening"\nphrases = ["zero six"]\nseverity = "critical"\n')
    with worker(folder, **QWEN, PRIVACY__MASK_AFTER_DIGITS='["*9"]', ALERTS__FILE=str(rules)) as started:
        yield started


def finals(running: Worker, call_id: str) -> list[str]:
    segments = running.get(f"/v1/calls/{call_id}/transcript")["segments"]
    return [segment["text"] for segment in segments if segment["text"]]


@pytest.mark.parametrize("pace", ["real", "fast"])
async def test_a_dropped_file_becomes_a_call(running: Worker, browser: Browser, spoken: Path, pace: str) -> None:
    before = {call["call_id"] for call in running.calls()}
    async with screen(browser, running.url, expected=EARLY) as shown:
        await shown.open("/#/try")
        page = shown.page
        await page.get_by_label("Pace").select_option(pace)
        await page.get_by_label("Language").select_option("en")
        await page.locator("#file").set_input_files(spoken)
        await expect(page.locator(".message")).to_have_text("Done.", timeout=WAIT_MS)
        await expect(page.locator(".event.end")).to_be_attached(timeout=WAIT_MS)
        (call,) = [call for call in running.calls() if call["call_id"] not in before]
        assert call["source"] == "websocket"
        assert await shown.said() == finals(running, call["call_id"]) == SAID
        await page.locator("#to-calls").click()
        await expect(page.locator(".list ul").last).to_contain_text("loopback")


async def test_two_channels_are_two_speakers(running: Worker, browser: Browser, tmp_path: Path) -> None:
    sides = [ulaw_decode(file(name).read_bytes()) for name in ("customer", "agent")]
    length = max(map(len, sides)) + 8000
    stereo = np.stack([np.pad(side, (0, length - len(side))) for side in sides], axis=1)
    path = tmp_path / "stereo.wav"
    with wave.open(str(path), "wb") as writer:
        writer.setnchannels(2)
        writer.setsampwidth(2)
        writer.setframerate(8000)
        writer.writeframes(stereo.astype("<i2").tobytes())
    before = {call["call_id"] for call in running.calls()}
    async with screen(browser, running.url, expected=EARLY) as shown:
        await shown.open("/#/try")
        await shown.page.get_by_label("Pace").select_option("fast")
        await shown.page.get_by_label("Language").select_option("en")
        await shown.page.locator("#file").set_input_files(path)
        await expect(shown.page.locator(".message")).to_have_text("Done.", timeout=WAIT_MS)
    (call,) = [call for call in running.calls() if call["call_id"] not in before]
    assert [leg["leg"] for leg in call["legs"]] == ["left", "right"]
    said: dict[str, list[str]] = {}
    for segment in running.get(f"/v1/calls/{call['call_id']}/transcript")["segments"]:
        said.setdefault(segment["leg"], []).append(segment["text"])
    assert said["left"] == SAID and said["right"] and not set(said["right"]) & set(SAID)


async def test_the_microphone(running: Worker, browser: Browser) -> None:
    before = {call["call_id"] for call in running.calls()}
    async with screen(browser, running.url, expected=EARLY, permissions=["microphone"]) as shown:
        await shown.open("/#/try")
        page = shown.page
        await page.get_by_role("button", name="Use the microphone").click()
        await expect(page.locator(".said:not(.unsettled)")).to_have_count(len(SAID), timeout=WAIT_MS)
        await page.get_by_role("button", name="Stop").click()
        await expect(page.locator(".message")).to_have_text("Done.", timeout=WAIT_MS)
        (call,) = await asyncio.to_thread(
            until, lambda: [c for c in running.calls() if c["call_id"] not in before and c["ended_at"]]
        )
        assert await shown.said() == finals(running, call["call_id"])
        # The device's clock is not the recording's: the words are held to account, not each of them.
        assert len(set(" ".join(await shown.said()).split()) & set(" ".join(SAID).split())) > 5


async def test_what_must_not_be_seen_is_not_on_the_page(running: Worker, browser: Browser) -> None:
    """What is kept out of events is not there either, at no moment; alerts are."""
    async with httpx.AsyncClient(base_url=running.url, timeout=seconds(10)) as client:
        for call in running.calls():  # of the other tests, who may say anything
            assert (await client.delete(f"/v1/calls/{call['call_id']}")).status_code == 204
    heard = await asyncio.to_thread(command, "stream", running.twilio, "--play", str(file("agent")))
    assert heard.returncode == 0
    (before,) = await asyncio.to_thread(running.wait_ended, 1)
    # The keys come at half a second each: behind them is the second thing that is said.
    calling = ("--play", str(file("customer")), "--connect", "--dtmf", "*9317")
    async with screen(browser, running.url) as shown:
        await shown.open()
        page = shown.page
        await expect(page.locator("#connection")).to_have_text("Connected")
        await page.evaluate(WATCH)
        played = asyncio.create_task(asyncio.to_thread(command, "stream", running.twilio, *calling))
        await page.locator(".list ul").first.locator("li a").click(timeout=WAIT_MS)
        await expect(page.locator(".event.end")).to_be_visible(timeout=WAIT_MS)
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


async def test_it_says_what_is_in_the_way(running: Worker, browser: Browser, tmp_path: Path) -> None:
    async with screen(browser, running.url) as shown:
        await shown.open("/#/try")
        message = shown.page.locator(".message")
        noise = tmp_path / "noise.wav"
        noise.write_bytes(b"no sound at all")
        await shown.page.locator("#file").set_input_files(noise)
        await expect(message).to_have_text("This browser cannot read that file as audio.")
        denied = "() => Promise.reject(new DOMException('', 'NotAllowedError'))"
        await shown.page.evaluate(f"() => {{ navigator.mediaDevices.getUserMedia = {denied}; }}")
        await shown.page.get_by_role("button", name="Use the microphone").click()
        await expect(message).to_contain_text("denied")
        await shown.page.evaluate("() => Object.defineProperty(window, 'isSecureContext', { value: false })")
        await shown.page.get_by_role("button", name="Use the microphone").click()
        await expect(message).to_contain_text("secure")
