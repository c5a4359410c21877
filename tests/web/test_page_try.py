"""The page's tab to try it, in Chromium beside a real worker: a file, and a microphone that plays one."""

from __future__ import annotations

import asyncio
import wave
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from playwright.async_api import Browser, expect

from audio.codecs.g711 import ulaw_decode
from lab.http.browser import browser, chromium, screen
from lab.patience import until
from lab.worker.peers import Worker, worker

__all__ = ["browser"]
pytestmark = pytest.mark.asyncio(loop_scope="module")
DIGITS = Path(__file__).parents[1] / "data" / "digits"
EARLY = ("404",)
"""The page may ask for its call before that is on the disk, and asks again."""
SAID = ["four seven one two", "nine oh five three eight"]
WAIT_MS = 60_000


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    with worker(tmp_path_factory.mktemp("worker")) as started:
        yield started


@pytest.fixture(scope="module")
def spoken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The customer's digits as a WAV file, in two channels at 48 kHz as a browser's device would have them."""
    path = tmp_path_factory.mktemp("speech") / "digits.wav"
    samples = ulaw_decode((DIGITS / "customer.ulaw").read_bytes())
    slow = np.concatenate([samples, np.zeros(8000, np.int16)])
    at = np.arange(len(slow) * 6) / 6
    fast = np.interp(at, np.arange(len(slow)), slow).astype(np.int16)
    with wave.open(str(path), "wb") as file:
        file.setnchannels(2)
        file.setsampwidth(2)
        file.setframerate(48_000)
        file.writeframes(np.repeat(fast, 2).tobytes())
    return path


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
    sides = [ulaw_decode((DIGITS / f"{name}.ulaw").read_bytes()) for name in ("customer", "agent")]
    length = max(map(len, sides)) + 8000
    stereo = np.stack([np.pad(side, (0, length - len(side))) for side in sides], axis=1)
    path = tmp_path / "stereo.wav"
    with wave.open(str(path), "wb") as file:
        file.setnchannels(2)
        file.setsampwidth(2)
        file.setframerate(8000)
        file.writeframes(stereo.astype("<i2").tobytes())
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


async def test_the_microphone(running: Worker, spoken: Path) -> None:
    before = {call["call_id"] for call in running.calls()}
    async with chromium(f"--use-file-for-fake-audio-capture={spoken}%noloop") as browser:
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
