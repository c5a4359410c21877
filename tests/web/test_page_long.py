"""The page with a lot to show: a call of three hours, fifty calls at once, hundreds that are over."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.async_api import Browser, expect

from lab.events.samples import ended, final, speech
from lab.http.api_server import Running, running_api
from lab.http.browser import WAIT_MS, screen
from mediaworker.events.schema import SpeechEnded

pytestmark = pytest.mark.asyncio(loop_scope="session")
UTTERANCES, APART_MS = 1000, 10_800
DISTANCE = "((log) => log.scrollHeight - log.scrollTop - log.clientHeight)(document.querySelector('.log'))"
FOLLOWS = f"{DISTANCE} < 2"


def talk(api: Running, call_id: str, first: int, count: int) -> None:
    for number in range(first, first + count):
        leg, role = (("inbound", "customer"), ("outbound", "agent"))[number % 2]
        start, utterance = APART_MS * number, f"{call_id}/{number}"
        api.hub.publish(call_id, start, speech(utterance, leg, start))
        api.hub.publish(call_id, start + 3000, SpeechEnded(leg, utterance, start + 3000))
        text = f"number {number} " + "and so on " * (number % 23)
        fields = {"leg": leg, "role": role, "start_ms": start, "end_ms": start + 3000}
        api.hub.publish(call_id, start + 3050, final(utterance, text, **fields))


async def test_three_hours(tmp_path: Path, browser: Browser) -> None:
    async with running_api(tmp_path) as api, screen(browser, api.url) as shown:
        api.open_call("c1")
        talk(api, "c1", 0, UTTERANCES)
        await api.hub.flush()
        await shown.open("/#/calls/c1")
        page = shown.page
        await page.locator(f".said >> nth={UTTERANCES - 1}").wait_for(state="attached", timeout=WAIT_MS)
        await page.locator(f".timeline .speech >> nth={UTTERANCES - 1}").wait_for(state="attached")
        assert await page.locator(".said").count() == UTTERANCES
        await shown.until("[...document.querySelectorAll('.axis span')].at(-1).innerText === '3:00:00'")
        # What is out of sight is not drawn.
        skipped = "() => document.querySelector('.said .text').checkVisibility({ contentVisibilityAuto: true })"
        assert await page.evaluate(skipped) is False
        await shown.until(FOLLOWS)
        # Its rows are touched once each: an event does not make the page look at all that was said before.
        await page.evaluate(
            """() => {
                window.touched = new Set();
                new MutationObserver((records) => {
                    for (const record of records) {
                        for (const node of [record.target, ...record.addedNodes]) {
                            const row = (node.nodeType === 1 ? node : node.parentElement)?.closest('.said');
                            if (row) window.touched.add(row);
                        }
                    }
                }).observe(document.querySelector('.items'), { subtree: true, childList: true, characterData: true,
                                                               attributes: true });
            }"""
        )
        talk(api, "c1", UTTERANCES, 5)
        await page.locator(f".said:not(.unsettled) >> nth={UTTERANCES + 4}").wait_for(state="attached")
        assert await page.evaluate("() => window.touched.size") == 5
        await shown.until(FOLLOWS)
        await page.keyboard.press("/")
        await page.keyboard.type("number 1001")
        # Not `expect`: while it waits it describes all that is on the page, seconds for as many rows.
        await page.locator(".search .count", has_text="1 of 1").wait_for()
        await expect(page.locator("mark.current")).to_be_in_viewport()


async def test_it_follows_only_who_wants_to_be_taken_along(tmp_path: Path, browser: Browser) -> None:
    async with running_api(tmp_path) as api, screen(browser, api.url) as shown:
        api.open_call("c1")
        talk(api, "c1", 0, 60)
        await api.hub.flush()
        await shown.open("/#/calls/c1")
        page, jump = shown.page, shown.page.locator(".jump")
        await expect(page.locator(".said")).to_have_count(60)
        await expect(jump).to_be_hidden()
        await shown.until(FOLLOWS)
        await page.evaluate("() => document.querySelector('.log').scrollBy(0, -900)")
        await expect(jump).to_be_visible()
        await expect(jump).to_have_text("Jump to live")
        await shown.until(f"{DISTANCE} >= 890")  # Chromium turns a wheel smoothly
        top = await page.evaluate("() => document.querySelector('.log').scrollTop")
        talk(api, "c1", 60, 3)
        await expect(jump).to_have_text("Jump to live · 3 new")
        assert await page.evaluate("() => document.querySelector('.log').scrollTop") == top, "who reads is left alone"
        await jump.click()
        await expect(jump).to_be_hidden()
        await shown.until(FOLLOWS)
        talk(api, "c1", 63, 1)
        await expect(page.locator(".said").last).to_be_in_viewport()
        # A call that is over is read from its beginning.
        api.calls.pop("c1").hangup()
        await expect(page.locator(".event.end")).to_be_attached()
        await page.reload()
        await expect(page.locator(".event.end")).to_be_attached()
        await expect(page.locator(".said").first).to_be_in_viewport()
        await expect(jump).to_be_hidden()


async def test_fifty_calls_at_once_and_hundreds_that_are_over(tmp_path: Path, browser: Browser) -> None:
    async with running_api(tmp_path) as api, screen(browser, api.url) as shown:
        for number in range(130):
            api.open_call(f"a{number:03}", from_=f"past-{number}")
            api.hub.publish(f"a{number:03}", 1000, ended())
        for number in range(50):
            api.open_call(f"b{number:03}", from_=f"live-{number}")
        await api.hub.flush()
        await shown.open()
        page = shown.page
        live, past = page.locator(".list ul").first.locator("li"), page.locator(".list ul").last.locator("li")
        await expect(live).to_have_count(50)
        await expect(page.locator(".list h2 .count")).to_have_text("50")
        for count in (0, 50, 100, 130):  # fifty to a page, and the first has the live ones
            await expect(past).to_have_count(count)
            if count < 130:
                await page.get_by_role("button", name="More").click()
        await expect(page.get_by_role("button", name="More")).to_be_hidden()
        assert [await row.locator(".who").text_content() for row in (past.first, past.last)] == [
            "Bea · past-129",
            "Bea · past-0",
        ]
        # All of them talk at once: the list is drawn once for a frame, not once for an event.
        await page.evaluate(
            """() => {
                window.frames = 0;
                window.draws = new Set();
                (function count() { window.frames += 1; requestAnimationFrame(count); })();
                new MutationObserver(() => window.draws.add(window.frames))
                    .observe(document.querySelector('.list'), { subtree: true, childList: true, characterData: true });
            }"""
        )
        for turn in range(20):
            at = 100 * turn
            for number in range(50):
                call_id, utterance = f"b{number:03}", f"u{turn}-{number}"
                api.hub.publish(call_id, at, speech(utterance, "inbound", at))
                api.hub.publish(call_id, at, final(utterance, f"round {turn}", start_ms=at, end_ms=at + 50))
        await expect(page.locator(".row .what", has_text="round 19")).to_have_count(50)
        draws, frames = await page.evaluate("() => [window.draws.size, window.frames]")
        assert 0 < draws <= frames
        for number in range(50):
            api.calls.pop(f"b{number:03}").hangup()
        await expect(live).to_have_count(0)
        await expect(past.first.locator(".who")).to_have_text("Bea · live-49")  # the newest first
