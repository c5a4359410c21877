"""Who can use the page, and what can be done with it, in Chromium."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

import pytest
from playwright.async_api import Browser, expect

from lab.http.api_server import ADMIN_KEY, BOTH_KEY, EVENTS_KEY, running_api
from lab.http.browser import PHONE, WIDE, screen
from lab.http.page_story import partial, say, show, story

pytestmark = pytest.mark.asyncio(loop_scope="session")
FORMATS = {"Text file": "txt", "JSON": "json", "Subtitles (SRT)": "srt", "Subtitles (WebVTT)": "vtt"}


async def test_it_can_be_used_by_everybody(tmp_path: Path, browser: Browser) -> None:
    async with running_api(tmp_path) as api:
        await story(api)
        api.open_call("c0")
        say(api, "c0", 0, "An older call.")
        api.calls.pop("c0").hangup()
        await api.hub.flush()
        for scheme, size in (("light", WIDE), ("dark", PHONE)):
            async with screen(browser, api.url, size=size, color_scheme=scheme) as shown:
                where = f"{scheme}, {size['width']} px"
                await shown.open()
                await expect(shown.page.locator(".list li:visible")).to_have_count(2)
                await shown.accessible(f"the list, {where}")
                await show(shown)
                await expect(shown.page.locator(".said")).to_have_count(3)
                api.hub.publish("c1", 30_000, partial("u9", 1, "still unsettled words", 5))
                await expect(shown.page.locator(".loose", has_text="words")).to_be_visible()
                await shown.page.locator(".search input").fill("morning")
                await expect(shown.page.locator("mark.current")).to_be_visible()
                await shown.page.locator(".menu summary").click()
                await shown.accessible(f"a call, {where}")
                await shown.page.keyboard.press("Escape")  # the menu
                if size is PHONE:
                    await shown.page.locator(".side > summary").click()
                    await shown.accessible(f"its details, {where}")
                    for target in await shown.page.locator("button:visible, summary:visible, select:visible").all():
                        box = await target.bounding_box()
                        assert box and box["height"] >= 44, await target.inner_text()
                    assert await shown.page.evaluate("() => document.documentElement.scrollWidth") <= 390
                await shown.page.locator(".actions button.danger").click()
                await shown.accessible(f"a question, {where}")
                await shown.page.keyboard.press("Escape")
                await shown.page.locator("#to-try").click()
                await expect(shown.page.locator("#language")).to_be_visible()
                await shown.accessible(f"the tab to try it, {where}")


async def test_the_theme_is_the_systems_until_another_is_chosen(tmp_path: Path, browser: Browser) -> None:
    async with running_api(tmp_path) as api, screen(browser, api.url, color_scheme="dark") as shown:
        ground = "() => getComputedStyle(document.body).backgroundColor"
        await shown.open()
        dark = await shown.page.evaluate(ground)
        await shown.page.locator("#theme").select_option("light")
        light = await shown.page.evaluate(ground)
        assert light != dark
        await shown.page.reload()
        assert await shown.page.evaluate(ground) == light
        await shown.page.locator("#theme").select_option("system")
        assert await shown.page.evaluate(ground) == dark


async def test_a_key_is_asked_for_kept_and_forgotten(tmp_path: Path, browser: Browser) -> None:
    async with (
        running_api(tmp_path, keys=True) as api,
        screen(browser, api.url, expected=("401", "403")) as shown,
    ):
        await story(api)
        page, reason = shown.page, shown.page.locator("#login-reason")
        stored = "() => [sessionStorage.getItem('mediaworker.key'), localStorage.getItem('mediaworker.key')]"
        await shown.open("/#/calls/c1")
        await expect(reason).to_contain_text("asks for an API key")
        await shown.accessible("signing in")
        for key, said in (("no-such-key", "does not know"), (ADMIN_KEY, "`events`")):
            await page.get_by_label("API key").fill(key)
            await page.keyboard.press("Enter")
            await expect(reason).to_contain_text(said)
        await page.get_by_label("API key").fill(EVENTS_KEY)
        await page.keyboard.press("Enter")
        await expect(page.locator(".said")).to_have_count(3)
        assert await page.evaluate(stored) == [EVENTS_KEY, None]
        assert EVENTS_KEY not in page.url
        # This key may read and nothing else, and nothing else is offered.
        await expect(page.get_by_role("button", name="Sign out")).to_be_visible()
        for name in ("Hang up", "Erase", "Rename Agent"):
            await expect(page.get_by_role("button", name=name)).to_have_count(0)
        await expect(page.locator("#to-try")).to_be_hidden()
        await page.goto(page.url.split("#")[0] + "#/try")
        await expect(page.locator("#try")).to_be_hidden()
        await page.goto(page.url.split("#")[0] + "#/calls/c1")
        await page.reload()
        await expect(page.locator(".said")).to_have_count(3)
        await page.get_by_role("button", name="Sign out").click()
        await expect(reason).to_contain_text("asks for an API key")
        assert await page.evaluate(stored) == [None, None]
        await page.get_by_label("API key").fill(BOTH_KEY)
        await page.get_by_label("Remember").check()
        await page.get_by_role("button", name="Sign in").click()
        await expect(page.locator(".said")).to_have_count(3)
        assert await page.evaluate(stored) == [BOTH_KEY, BOTH_KEY]
        await page.get_by_role("button", name="Hang up").click()
        await page.locator("dialog").get_by_role("button", name="Hang up").click()
        await expect(page.locator(".event.end")).to_contain_text("api")


async def test_search_copy_download_rename_erase(tmp_path: Path, browser: Browser) -> None:
    permissions = ["clipboard-read", "clipboard-write"]
    async with running_api(tmp_path) as api, screen(browser, api.url, permissions=permissions) as shown:
        await story(api)
        await show(shown)
        page = shown.page
        await expect(page.locator(".said")).to_have_count(3)
        await page.keyboard.press("/")
        await page.keyboard.type("GOOD  morning")
        count = page.locator(".search .count")
        await expect(count).to_have_text("1 of 2")
        await expect(page.locator("mark.found")).to_have_text(["Good morning", "Good morning"])
        await page.keyboard.press("Enter")
        await expect(count).to_have_text("2 of 2")
        await expect(page.locator(".said.right mark.current")).to_have_count(1)
        say(api, "c1", 9, "(Good morning.)")
        await expect(count).to_have_text("2 of 3")
        await page.keyboard.press("Escape")
        await expect(page.locator("mark")).to_have_count(0)
        await page.locator(".search input").fill("[a-z]+")
        await expect(count).to_have_text("none")
        await page.locator(".search input").fill("")
        # Rename a leg of a call that lasts, and of one that has ended.
        await page.get_by_role("button", name="Rename Agent").click()
        await page.get_by_role("textbox", name="Name").fill("Ann")
        await page.keyboard.press("Enter")
        await expect(page.locator(".said.right .who").first).to_have_text("Agent · Ann")
        api.calls.pop("c1").hangup()
        await expect(page.locator(".event.end")).to_be_attached()
        await page.get_by_role("button", name="Rename Customer · Bea").click()
        await page.get_by_role("textbox", name="Name").fill("Cleo")
        await page.keyboard.press("Enter")
        await expect(page.locator(".said.left .who").first).to_have_text("Customer · Cleo")
        await page.reload()
        await expect(page.locator(".said.left .who").first).to_have_text("Customer · Cleo")
        await page.locator(".menu summary").click()
        await page.get_by_role("button", name="Copy as text").click()
        await expect(page.locator("#notice")).to_have_text("Copied.")
        text = (await api.client.get("/v1/calls/c1/transcript?format=txt")).text
        assert await page.evaluate("() => navigator.clipboard.readText()") == text
        for name, format in FORMATS.items():
            await page.locator(".menu summary").click()
            async with page.expect_download() as download:
                await page.get_by_role("button", name=name, exact=True).click()
            file = await download.value
            assert file.suggested_filename == f"call-c1.{format}"
            saved = (await asyncio.to_thread((await file.path()).read_text, "utf-8")).strip()
            served = await api.client.get(f"/v1/calls/c1/transcript?format={format}")
            assert (json.loads(saved) == served.json()) if format == "json" else (saved == served.text.strip())
        await page.get_by_role("button", name="Erase").click()
        await page.locator("dialog").get_by_role("button", name="Erase").click()
        await expect(page.locator(".list li")).to_have_count(0)
        assert (await api.client.get("/v1/calls/c1")).status_code == 404


async def test_the_keyboard_reaches_everything(tmp_path: Path, browser: Browser) -> None:
    async with running_api(tmp_path) as api, screen(browser, api.url) as shown:
        for number in range(5):
            api.open_call(f"c{number}", from_=f"caller-{number}")
        await story(api, "c9")
        await shown.open()
        page, focused = shown.page, "() => document.activeElement.innerText"
        await expect(page.locator(".list li")).to_have_count(6)
        await page.get_by_label("Search all calls").fill("caller-")
        await expect(page.locator(".list li:visible")).to_have_count(5)
        await page.keyboard.press("ArrowDown")
        assert "caller-4" in await page.evaluate(focused)
        await page.keyboard.press("End")
        assert "caller-0" in await page.evaluate(focused)
        await page.keyboard.press("ArrowUp")
        assert "caller-1" in await page.evaluate(focused)
        await page.keyboard.press("Enter")
        await expect(page.locator(".call h2")).to_contain_text("caller-1")
        # Asked in one moment: the list is drawn anew as the calls go on.
        await page.wait_for_function("() => document.activeElement.matches('[aria-current=true]')")
        assert "caller-1" in await page.evaluate(focused)
        await page.keyboard.press("Escape")
        await expect(page.locator(".call h2")).to_have_count(0)
        assert page.url.endswith("#/")
        await show(shown, "c9")
        strip = page.get_by_role("slider")
        await strip.focus()
        await page.keyboard.press("End")
        await expect(strip).to_have_attribute("aria-valuetext", re.compile("Agent: Danke"))
        await page.keyboard.press("Home")
        await expect(strip).to_have_attribute("aria-valuetext", re.compile("Customer · Bea: Good morning"))
        await page.keyboard.press("Enter")
        await expect(page.locator(".said").first).to_be_focused()
        await page.keyboard.press("Tab")
        outline = await page.evaluate("() => getComputedStyle(document.activeElement).outlineStyle")
        assert outline == "solid", "where one is can be seen"


async def test_the_list_searches_all_calls_by_what_was_said(tmp_path: Path, browser: Browser) -> None:
    async with running_api(tmp_path) as api:
        api.open_call("a0", from_="+15550100")
        say(api, "a0", 0, "The parcel has not come.")
        api.calls.pop("a0").hangup()
        for number in range(60):  # more than a page
            api.open_call(f"b{number:02}", from_=f"+1777{number:02}")
            api.calls.pop(f"b{number:02}").hangup()
        await api.hub.flush()
        async with screen(browser, api.url) as shown:
            await shown.open()
            rows, field = shown.page.locator(".list li:visible"), shown.page.get_by_label("Search all calls")
            await expect(rows).to_have_count(50)
            await field.fill("parcel")
            await expect(rows).to_have_count(1)
            await expect(rows.first).to_contain_text("The parcel has not come.")
            await expect(shown.page.locator(".filter [role=status]")).to_have_text("1 call")
            await field.fill("no such word")
            await expect(shown.page.locator(".filter [role=status]")).to_have_text("No call matches.")
            await field.fill("")
            await expect(rows).to_have_count(50)


async def test_an_empty_page_says_how_to_make_a_first_call(tmp_path: Path, browser: Browser) -> None:
    async with running_api(tmp_path) as api, screen(browser, api.url) as shown:
        await shown.open()
        await expect(shown.page.locator(".first")).to_contain_text("mediaworker call sip:demo@127.0.0.1:5060")
        api.open_call("c1")
        await expect(shown.page.locator(".first")).to_be_hidden()


async def test_raw_ids_can_be_copied_and_shares_add_up(tmp_path: Path, browser: Browser) -> None:
    permissions = ["clipboard-read", "clipboard-write"]
    async with running_api(tmp_path) as api, screen(browser, api.url, permissions=permissions) as shown:
        await story(api)
        await show(shown)
        await shown.page.get_by_role("button", name="Copy the call id").click()
        await expect(shown.page.locator("#notice")).to_have_text("Copied.")
        assert await shown.page.evaluate("() => navigator.clipboard.readText()") == "c1"
        found = await shown.page.evaluate(
            """async () => {
                const { shares } = await import("/dom.js");
                return [{ a: 1, b: 1, c: 1 }, { a: 995, b: 5 }, { a: 0, b: 0 }, {}].map(shares);
            }"""
        )
        assert found == [{"a": 34, "b": 33, "c": 33}, {"a": 100, "b": 0}, {"a": 0, "b": 0}, {}]
