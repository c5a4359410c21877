"""A call has one clock on the page, that of its samples, however fast its audio comes."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.async_api import Browser, expect

from lab.events.samples import ended, final, speech
from lab.http.api_server import Running, running_api
from lab.http.browser import screen
from mediaworker.events.schema import CallHeld, Dtmf

pytestmark = pytest.mark.asyncio(loop_scope="session")


def say_at(api: Running, number: int, start_ms: int) -> None:
    utterance, end_ms = f"u{number}", start_ms + 3000
    api.hub.publish("c1", start_ms + 300, speech(utterance, start_ms=start_ms))
    api.hub.publish("c1", end_ms, final(utterance, f"number {number}", start_ms=start_ms, end_ms=end_ms))


async def test_audio_that_comes_faster_than_it_was_spoken(tmp_path: Path, browser: Browser) -> None:
    """Seven minutes in a moment; a digit of a leg that runs behind does not set the clock back."""
    async with running_api(tmp_path) as api, screen(browser, api.url) as shown:
        api.open_call("c1")
        for number in range(8):
            say_at(api, number, 60_000 * number)
        api.hub.publish("c1", 400_000, Dtmf("inbound", "1", 80))
        await api.hub.flush()
        await shown.open("/#/calls/c1")
        page, axis = shown.page, "[...document.querySelectorAll('.axis span')].at(-1).innerText"
        await expect(page.locator(".said")).to_have_count(8)
        await expect(page.locator(".status.live")).to_contain_text("7:0")
        await expect(page.locator(".list .row .time")).to_contain_text("7:0")
        await shown.until(f"{axis} === '10:00'")
        api.hub.publish("c1", 460_000, CallHeld("outbound"))
        await expect(page.locator(".event.hold")).to_contain_text("7:40")
        await expect(page.locator(".list .row .time")).to_contain_text("7:4")
        api.hub.publish("c1", 460_100, ended())  # 1 s, by the clock on the wall
        await expect(page.locator(".event.end")).to_contain_text("after 7:40")
        await expect(page.locator(".status")).to_contain_text("7:40")
        await shown.until(f"{axis} === '10:00'")
        await page.reload()
        await expect(page.locator(".status")).to_contain_text("7:40")


async def test_what_a_clock_shows(tmp_path: Path, browser: Browser) -> None:
    """Between events it goes on as the wall does; slow audio, a wall that is set back, and no event at all."""
    async with running_api(tmp_path) as api, screen(browser, api.url) as shown:
        await shown.open()
        found = await shown.page.evaluate(
            """async () => {
                const { CallClock } = await import("/calls-state.js");
                const at = (ms) => new Date(ms).toISOString(), began = 1_000_000;
                const shows = (events, wallMs, startedMs) => {
                    const clock = new CallClock(startedMs);
                    events.forEach(([at_ms, time, end_ms]) => clock.hear({ at_ms, time: at(time), end_ms }));
                    return clock.now(wallMs);
                };
                return [
                    shows([], began + 5000, began), shows([], began),
                    shows([[0, began], [2000, began + 2000]], began + 5000),
                    shows([[0, began], [90_000, began + 2000]], began + 5000),
                    shows([[0, began], [2000, began + 10_000]], began + 11_000),
                    shows([[90_000, began + 2000], [80_000, began + 2500]], began + 5000),
                    shows([[2000, began + 2000, 9000]], began + 3000),
                    shows([[2000, began + 2000]], began - 60_000),
                ];
            }"""
        )
        assert found == [5000, 0, 5000, 93_000, 3000, 93_000, 9000, 2000]
