"""The page in Chromium beside a real worker: calls appear and fill in, and nothing is lost when the line is cut."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, expect

from lab.engine.listener import LISTENER, LISTENER_PATH
from lab.http.browser import WAIT_MS, cut_after, screen
from lab.patience import seconds, until
from lab.worker.calls import start
from lab.worker.peers import Worker, worker
from lab.worker.qwen import file

pytestmark = pytest.mark.asyncio(loop_scope="session")
WATCH = """() => {
    window.seen = new Map();
    const look = () => {
        for (const row of document.querySelectorAll(".said")) {
            const state = [row.querySelector(".text").textContent, row.classList.contains("unsettled")];
            const states = window.seen.get(row) ?? [];
            if (String(states.at(-1)) !== String(state)) window.seen.set(row, [...states, state]);
        }
    };
    new MutationObserver(look).observe(document.querySelector(".items"),
        { subtree: true, childList: true, characterData: true, attributes: true });
    look();
}"""
"""Keeps what every row has shown, by the element: one that was replaced would be two."""


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    with worker(tmp_path_factory.mktemp("worker"), LISTENER_PATH, **LISTENER) as started:
        yield started


def phone(running: Worker) -> Any:
    """A SIP call in which digits are read out. Leaving it waits for its end."""
    return start("call", f"sip:demo@127.0.0.1:{running.sip_port}", "--play", str(file("long")))


def stream(running: Worker) -> Any:
    """A Twilio call of two: customer and agent read digits."""
    tracks = ("--play", str(file("customer")), "--play-outbound", str(file("agent")))
    return start("stream", running.twilio, *tracks)


def transcript(running: Worker, call_id: str) -> list[str]:
    segments = running.get(f"/v1/calls/{call_id}/transcript")["segments"]
    shown = [segment for segment in segments if segment["text"] or segment["reason"] == "failed"]
    return [segment["text"] or "could not be recognised" for segment in shown]


async def test_a_sip_call_appears_fills_in_and_ends(running: Worker, browser: Browser) -> None:
    async with screen(browser, running.url) as shown:
        await shown.open()
        page = shown.page
        await expect(page.locator("#connection")).to_have_text("Connected")
        with phone(running) as calling:
            row = page.locator(".list ul").first.locator("li a")
            await expect(row).to_contain_text("mediaworker", timeout=WAIT_MS)
            await row.click()
            assert re.search(r"#/calls/[\w-]+$", page.url)
            await expect(page.locator(".status.live")).to_be_visible()
            await page.evaluate(WATCH)
            await expect(page.locator(".event.end")).to_be_visible(timeout=WAIT_MS)
            call_id = page.url.rpartition("/")[2]
            said = await shown.said()
            assert said == transcript(running, call_id)
            # While it was being said it was there, unsettled, and it settled in the place where it stood.
            for text, states in zip(said, await page.evaluate("() => [...window.seen.values()]"), strict=True):
                assert {words for words, unsettled in states if unsettled} - {"", text}, states
                assert [state for state in states if not state[1]] == [[text, False]]
            assert await asyncio.to_thread(calling.wait, seconds(60)) == 0
            await expect(page.locator(".list section, .list ul").last).to_contain_text("mediaworker")
            await expect(page.locator(".event.end")).to_contain_text("hangup")
            await expect(page.locator(".timeline .speech")).to_have_count(len(said))


async def test_two_speakers_have_their_sides(running: Worker, browser: Browser) -> None:
    async with screen(browser, running.url) as shown:
        with stream(running) as calling:
            assert await asyncio.to_thread(calling.wait, seconds(90)) == 0
            call = await asyncio.to_thread(
                until, lambda: next((c for c in running.calls() if c["source"] == "twilio" and c["ended_at"]), None)
            )
            await shown.open(f"/#/calls/{call['call_id']}")
            page = shown.page
            await expect(page.locator(".event.end")).to_be_attached()
            assert await shown.said() == transcript(running, call["call_id"])
            segments = running.get(f"/v1/calls/{call['call_id']}/transcript")["segments"]
            for side, role in (("left", "customer"), ("right", "agent")):
                texts = [segment["text"] for segment in segments if segment["role"] == role]
                await shown.shows(f".said.{side} .text", texts)
            await expect(page.locator(".talk li")).to_have_count(2)
            await expect(page.locator(".talk .part", has_text="%")).to_have_count(2)
            box = [await page.locator(f".said.{side} .bubble").first.bounding_box() for side in ("left", "right")]
            assert box[0] and box[1] and box[0]["x"] < box[1]["x"]


async def test_cut_lines_lose_nothing(running: Worker, browser: Browser) -> None:
    """Every connection is cut after some events, in the ways in which connections end."""
    cuts = [(2 + nth, [4000, 1012, 4008, 1001, 1013][nth % 5]) for nth in range(12)]
    async with screen(browser, running.url) as shown:
        made = await cut_after(shown.page, "/v1/events", cuts)
        await shown.open()
        with stream(running) as calling:
            row = shown.page.locator(".list ul").first.locator("li a").first
            await expect(row).to_be_visible(timeout=WAIT_MS)
            await row.click()
            await expect(shown.page.locator(".event.end")).to_be_attached(timeout=WAIT_MS)
            assert await asyncio.to_thread(calling.wait, seconds(60)) == 0
            assert len(made) > 4, "it was cut again and again"
            assert await shown.said() == transcript(running, shown.page.url.rpartition("/")[2])
            await expect(shown.page.locator(".speaking:visible")).to_have_count(0)


async def test_a_killed_worker_comes_back_and_so_does_the_page(tmp_path: Path, browser: Browser) -> None:
    with worker(tmp_path, LISTENER_PATH, **LISTENER) as running:
        refused = ("ERR_CONNECTION_REFUSED", "ERR_CONNECTION_RESET", "Failed to load resource", "WebSocket")
        async with screen(browser, running.url, expected=refused) as shown:
            await shown.open()
            with stream(running) as calling:
                row = shown.page.locator(".list ul").first.locator("li a").first
                await expect(row).to_be_visible(timeout=WAIT_MS)
                await row.click()
                await expect(shown.page.locator(".said:not(.unsettled)").first).to_be_visible(timeout=WAIT_MS)
                running.process.kill()
                running.process.wait()
                await expect(shown.page.locator("#connection")).to_contain_text("trying again", timeout=WAIT_MS)
                running.start_again()
                await asyncio.to_thread(calling.wait, seconds(60))
                await expect(shown.page.locator("#connection")).to_have_text("Connected", timeout=WAIT_MS)
                await expect(shown.page.locator(".event.end")).to_contain_text("worker restart", timeout=WAIT_MS)
                assert await shown.said() == transcript(running, shown.page.url.rpartition("/")[2])
