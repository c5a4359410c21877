"""How the page looks: on wide screens and phones, with any font, in any language, and while there is nothing."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.async_api import Browser, expect

from lab.events.samples import final, speech
from lab.http.api_server import running_api
from lab.http.browser import PHONE, WIDE, screen
from lab.http.page_story import partial, say, show, story
from mediaworker.events.schema import Alert, CallHeld
from mediaworker.http.resources import page as page_files

pytestmark = pytest.mark.asyncio(loop_scope="session")
WIDEST, NARROW = {"width": 1920, "height": 1080}, {"width": 320, "height": 640}
MEASURE_PX = 900
DRAWN = re.compile(r"[\u2190-\u2bff\ue000-\uf8ff\U0001f000-\U0001faff]")
"""Arrows, shapes, dingbats and pictures: what a font may lack."""


async def test_both_sides_of_a_conversation_stay_together(tmp_path: Path, browser: Browser) -> None:
    async with running_api(tmp_path) as api:
        await story(api)
        say(api, "c1", 9, "A long answer, as people give them. " * 30)
        await api.hub.flush()
        for size in (WIDEST, {"width": 3840, "height": 1600}, WIDE, PHONE, NARROW):
            async with screen(browser, api.url, size=size) as shown:
                await show(shown)
                await expect(shown.page.locator(".said")).to_have_count(4)
                boxes = [
                    await shown.page.locator(f".said.{side} .bubble").first.bounding_box() for side in ("left", "right")
                ]
                assert boxes[0] and boxes[1]
                assert boxes[1]["x"] + boxes[1]["width"] - boxes[0]["x"] <= MEASURE_PX, size
                ends = [box["x"] + box["width"] for box in boxes if box]
                assert ends[0] < ends[1] or size["width"] <= 720, "and still are told apart"
                long = await shown.page.locator(".said .bubble", has_text="A long answer").bounding_box()
                assert long and long["width"] <= 45 * 15, "some eighty letters"
                assert await shown.page.evaluate("document.documentElement.scrollWidth") <= size["width"]


@pytest.mark.parametrize(("size", "part"), [(PHONE, 0.22), (NARROW, 0.3), ({"width": 360, "height": 640}, 0.3)])
async def test_a_phone_shows_the_conversation(
    tmp_path: Path, browser: Browser, size: dict[str, int], part: float
) -> None:
    """What is above it takes so much of the height at most; nothing of it is cut, and all can be reached."""
    async with running_api(tmp_path) as api, screen(browser, api.url, size=size) as shown:
        await story(api)
        await show(shown)
        page = shown.page
        await expect(page.locator(".timeline .speech")).to_have_count(3)
        await shown.until(
            f"document.querySelector('.conversation').getBoundingClientRect().top <= {part} * innerHeight"
        )
        for name in ("Hang up", "Export", "Search in this call", "Calls", "Try it", "Settings"):
            box = (
                await page.locator("body")
                .get_by_label(name)
                .or_(page.get_by_text(name, exact=True))
                .first.bounding_box()
            )
            assert box and box["x"] >= 0 and box["x"] + box["width"] <= size["width"], name
        await expect(page.locator("#connection")).to_have_text("Connected")
        await expect(page.locator("#theme")).to_be_hidden()
        await page.get_by_role("button", name="Settings").click()
        await page.locator("#theme").select_option("dark")
        await expect(page.get_by_label("Tell alerts")).to_be_visible()
        await shown.accessible("the settings on a phone")
        await page.keyboard.press("Escape")
        await expect(page.locator("#theme")).to_be_hidden()
        await expect(page.get_by_role("button", name="Settings")).to_be_focused()
        await page.locator(".side > summary").click()
        await expect(page.locator(".facts", has_text="ann-7")).to_be_visible()
        log = await page.locator(".conversation").bounding_box()
        assert log and log["height"] >= 100, "the details leave room"
        await page.locator("#to-calls").click()
        await expect(page.locator(".list li:visible")).to_have_count(1)


async def test_no_sign_is_drawn_by_a_font() -> None:
    """In programs and styles; words, punctuation and the heading's arrow, which every font has, are text."""
    folder = page_files.files("mediaworker.web")
    for name in ("index.html", *(name for name in page_files.names() if name.endswith((".js", ".css")))):
        text = (folder / name).read_text(encoding="utf-8")
        program = re.sub(r"/\*.*?\*/|^\s*//.*$", "", text, flags=re.S | re.M)
        assert not DRAWN.findall(program.replace('" → "', "")), name


async def test_buttons_without_words_are_drawn(tmp_path: Path, browser: Browser) -> None:
    async with running_api(tmp_path) as api, screen(browser, api.url, size=PHONE) as shown:
        await story(api)
        await show(shown)
        await expect(shown.page.locator(".facts .copy")).to_have_count(2)
        wordless = await shown.page.evaluate(
            """() => [...document.querySelectorAll("button")].filter((button) => !button.textContent.trim())
                .map((button) => [button.ariaLabel ?? "", button.querySelectorAll("svg path").length])"""
        )
        assert len(wordless) >= 7  # two names, two copies, two finds, the settings
        assert all(label and paths for label, paths in wordless if [label, paths] != ["", 0]), wordless


async def test_texts_have_their_language(tmp_path: Path, browser: Browser) -> None:
    """The page's own words are English, so a text whose language is unknown must not pass for it."""
    said = {
        "u1": ("Ich möchte kündigen.", "de"),
        "u2": ("Ayee", "tl"),
        "u3": ("你好", "zh"),
        "u4": ("Hm", ""),
        "u5": ("Oh", "x y"),
    }
    async with running_api(tmp_path) as api, screen(browser, api.url) as shown:
        api.open_call("c1")
        for number, (utterance, (text, language)) in enumerate(said.items()):
            start = 3000 * number
            api.hub.publish("c1", start, speech(utterance, start_ms=start))
            fields = {"start_ms": start, "end_ms": start + 2000, "language": language}
            if number == 4:
                await show(shown)
                await expect(shown.page.locator(".said")).to_have_count(5)
            api.hub.publish("c1", start + 2000, final(utterance, text, **fields))
        api.hub.publish("c1", 14_100, Alert("cancel", "inbound", "u1", said["u1"][0], 0, 2000, "critical", "kündigen"))
        page, lang = shown.page, "(nodes) => nodes.map((node) => node.lang)"
        await expect(page.locator(".alerts li")).to_have_count(1)
        await expect(page.locator(".said.unsettled")).to_have_count(0)
        assert await page.locator(".said .text").evaluate_all(lang) == ["de", "tl", "zh", "", ""]
        await expect(page.locator(".alerts .quote")).to_have_attribute("lang", "de")
        await expect(page.locator(".event.alert [lang]")).to_have_attribute("lang", "de")
        await expect(page.locator(".event.alert")).to_contain_text("cancel: “kündigen”")
        await expect(page.locator("[aria-live=polite] [lang]").last).to_have_text("Oh")
        await expect(page.locator(".row .what")).to_have_attribute("lang", "")
        api.hub.publish("c1", 15_000, speech("u6", start_ms=15_000))
        api.hub.publish("c1", 17_000, final("u6", "Tschüss.", start_ms=15_000, end_ms=17_000, language="de-CH"))
        await expect(page.locator(".row .what")).to_have_attribute("lang", "de-CH")
        failed = {"start_ms": 18_000, "end_ms": 19_000, "reason": "failed", "error": "crashed", "language": ""}
        api.hub.publish("c1", 19_000, final("u7", "", **failed))
        await expect(page.locator(".loose", has_text="could not be")).to_have_attribute("lang", "en")
        api.hub.publish("c1", 20_000, partial("u8", 1, "Bonjour", 2))
        await expect(page.locator(".said.unsettled .text")).to_have_attribute("lang", "en")  # as the partial says
        await expect(page.locator("html")).to_have_attribute("lang", "en")
        await shown.accessible("texts in many languages")


async def test_beside_the_list_stands_what_to_do(tmp_path: Path, browser: Browser) -> None:
    async with running_api(tmp_path) as api, screen(browser, api.url) as shown:
        await shown.open()
        beside = shown.page.locator(".overview")
        await expect(beside).to_contain_text("No calls yet")
        await expect(beside).to_contain_text("written down as it is spoken")
        await shown.accessible("no calls yet")
        for number in range(3):
            api.open_call(f"c{number}", from_=f"+49{number}")
        await expect(beside).to_contain_text("Choose a call to read along.")
        await expect(beside).to_contain_text("3 calls now.")
        await expect(beside).to_contain_text("searches in it")
        api.hub.publish("c1", 1000, CallHeld())
        await expect(beside).to_contain_text("3 calls now, 1 on hold.")
        await shown.page.locator(".row").first.click()
        await expect(beside).to_have_count(0)
        for call_id in ("c0", "c1", "c2"):
            api.calls.pop(call_id).hangup()
        await shown.page.keyboard.press("Escape")
        await expect(beside).to_contain_text("No call now.")
