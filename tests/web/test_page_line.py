"""The page on a line that dies without a word, and on a network that hangs: it says so, and it comes back."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from playwright.async_api import Browser, Route, expect

from lab.events.samples import speech
from lab.http.api_server import Running, running_api
from lab.http.browser import Screen, screen
from lab.http.page_story import partial, say, story
from lab.network.cutting_proxy import CuttingProxy
from lab.patience import eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")
EXPECTED = ("WebSocket", "Failed to load resource", "ERR_")
LIMIT_MS = 25_000
"""A dead line is told so soon."""


@asynccontextmanager
async def far_away(tmp_path: Path, browser: Browser) -> AsyncIterator[tuple[Running, CuttingProxy, Screen]]:
    """A worker, what is between it and the page, and the page, whose clock can be set forward."""
    async with running_api(tmp_path) as api, CuttingProxy(api.server.port) as proxy:
        async with screen(browser, f"http://127.0.0.1:{proxy.port}", expected=EXPECTED) as shown:
            await shown.page.clock.install()
            yield api, proxy, shown


async def test_a_dead_line_is_told_and_paints_nobody_speaking(tmp_path: Path, browser: Browser) -> None:
    async with far_away(tmp_path, browser) as (api, proxy, shown):
        await story(api)
        page, connection = shown.page, shown.page.locator("#connection")
        seen: list[str | bytes] = []
        page.on("websocket", lambda socket: socket.on("framereceived", lambda frame: seen.append(frame)))
        await shown.open("/#/calls/c1")
        await expect(page.locator(".said")).to_have_count(3)
        api.hub.publish("c1", 30_000, speech("u9", "inbound", 29_900))
        api.hub.publish("c1", 31_000, partial("u9", 1, "still unsettled words", 5))
        await expect(page.locator(".loose", has_text="words")).to_be_visible()
        await expect(page.locator(".row .speaking")).to_have_text("Customer · Bea")
        await expect(connection).to_have_text("Connected")
        await eventually(lambda: sum("heartbeat" in str(frame) for frame in seen) >= 2, 15)  # the list's, the call's
        proxy.answers.clear()
        proxy.swallows = True
        await page.clock.fast_forward(LIMIT_MS - 3000)
        await expect(connection).to_have_text("Connected")
        await page.clock.fast_forward(1500)  # no heartbeat, for 3 s more than there should have been one
        await page.clock.fast_forward(1500)
        await expect(connection).to_contain_text("Connection lost")
        await expect(page.locator(".row .speaking")).to_be_hidden()
        await expect(page.locator(".list .stale")).to_be_visible()
        await expect(page.locator(".status")).to_contain_text("connection lost")
        await expect(page.locator(".status.live")).to_have_count(0)
        told = await page.locator(".status").text_content()
        await page.clock.fast_forward(3000)
        assert await page.locator(".status").text_content() == told, "no clock runs that nobody hears"
        proxy.swallows = False
        proxy.answers.set()
        say(api, "c1", 11, "What was said meanwhile.")
        await page.clock.fast_forward(20_000)  # the attempts that hang are given up
        await expect(connection).to_have_text("Connected")
        await expect(page.locator(".said", has_text="meanwhile")).to_be_visible()
        await expect(page.locator(".status.live")).to_be_visible()
        await expect(page.locator(".row .speaking")).to_be_visible()
        await expect(page.locator(".list .stale")).to_be_hidden()


async def test_it_comes_back_from_a_network_that_hangs(tmp_path: Path, browser: Browser) -> None:
    async with far_away(tmp_path, browser) as (api, proxy, shown):
        await story(api)
        await shown.open("/#/calls/c1")
        page, connection = shown.page, shown.page.locator("#connection")
        await expect(page.locator(".said")).to_have_count(3)
        proxy.swallows = True
        proxy.cut()
        before = proxy.connections
        await page.clock.fast_forward(1500)
        await eventually(lambda: proxy.connections >= before + 2, 15)
        proxy.cut()  # refused, it seems; and why is asked of a network that hangs
        await eventually(lambda: proxy.connections >= before + 4, 15)
        await page.clock.fast_forward(1500)
        await expect(connection).to_contain_text("Connection lost")
        proxy.swallows = False
        say(api, "c1", 9, "What was said meanwhile.")
        await page.clock.fast_forward(10_000)
        await page.clock.fast_forward(10_000)
        await expect(connection).to_have_text("Connected")
        await expect(page.locator(".said", has_text="meanwhile")).to_be_visible()


@pytest.mark.parametrize("path", ["v1/key", "v1/calls?*", "v1/calls/c1"])
async def test_what_is_never_answered_at_its_start_is_asked_for_again(
    tmp_path: Path, browser: Browser, path: str
) -> None:
    async with running_api(tmp_path) as api, screen(browser, api.url, expected=EXPECTED) as shown:
        await story(api)
        api.open_call("a0", from_="past")
        api.calls.pop("a0").hangup()
        await api.hub.flush()
        page, held = shown.page, []
        await page.clock.install()

        async def hold(route: Route) -> None:
            if held:
                await route.continue_()
            held.append(route)

        await page.route(f"**/{path}", hold)
        await shown.open("/#/calls/c1")
        await eventually(lambda: len(held) == 1, 15)
        await page.clock.fast_forward(30_000)
        await expect(page.locator("#connection")).to_have_text("Connected")
        await expect(page.locator(".said")).to_have_count(3)
        await expect(page.locator(".list li")).to_have_count(2)
        await expect(page.locator("#to-try")).to_be_visible()
        await expect(page.get_by_role("button", name="Hang up")).to_be_visible()


@pytest.mark.parametrize("path", ["v1/key", "v1/calls?*", "v1/calls/c1"])
async def test_what_fails_on_a_line_that_is_open_is_asked_for_again(
    tmp_path: Path, browser: Browser, path: str
) -> None:
    async with running_api(tmp_path) as api, screen(browser, api.url, expected=EXPECTED) as shown:
        await story(api)
        page, refused, lists, failing = shown.page, [], [], True
        page.on("websocket", lambda socket: "call=*" in socket.url and lists.append(socket))
        await page.clock.install()

        async def refuse(route: Route) -> None:
            if not failing:
                return await route.continue_()
            await route.abort()
            refused.append(route)

        await page.route(f"**/{path}", refuse)
        await shown.open("/#/calls/c1")
        await expect(page.locator("#connection")).to_have_text("Connected")
        await eventually(lambda: len(refused) >= (1 if path == "v1/calls/c1" else 2), 15)
        failing = False
        await page.clock.fast_forward(2000)  # less than makes the stream connect anew
        await expect(page.locator(".said")).to_have_count(3)
        await expect(page.locator(".list li")).to_have_count(1)
        await expect(page.locator("#to-try")).to_be_visible()
        await expect(page.get_by_role("button", name="Hang up")).to_be_visible()
        assert len(lists) == 1, "the line stayed"


async def test_a_session_of_audio_ends_where_the_worker_does_not_answer(tmp_path: Path, browser: Browser) -> None:
    async with far_away(tmp_path, browser) as (_, proxy, shown):
        await shown.open("/#/try")
        await expect(shown.page.locator("#language")).to_be_visible()
        proxy.swallows = True
        found = await shown.page.evaluate_handle(
            """async () => {
                const { Client } = await import("/client.js");
                const { Session } = await import("/audio.js");
                const seen = { ends: [] };
                const session = new Session(new Client(), (error) => seen.ends.push(error));
                session.begin("en").catch((error) => { seen.error = error.message; });
                return seen;
            }"""
        )
        await shown.page.clock.fast_forward(10_000)
        text = "The worker does not answer."
        await shown.page.wait_for_function("(seen) => seen.error && seen.ends.length", arg=found)
        assert await found.evaluate("(seen) => [seen.error, seen.ends]") == [text, [text]]
