"""What the page makes of events, in Chromium: every kind of event, and what may not run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.async_api import Browser, expect

from lab.events.samples import ended, final, speech
from lab.http.api_server import running_api
from lab.http.browser import screen
from lab.http.page_story import partial, show, story
from mediaworker.events.schema import Alert, CallHeld, Dtmf, LegInfo, LegUpdated, Metrics

pytestmark = pytest.mark.asyncio(loop_scope="session")

EVIL = '<img src=x onerror="window.hacked=1"><script>window.hacked=1</script>'
FOREIGN = "'><svg onload=alert(1)>"


async def test_one_of_everything(tmp_path: Path, browser: Browser) -> None:
    async with running_api(tmp_path) as api, screen(browser, api.url) as shown:
        await story(api)
        await show(shown)
        page = shown.page
        await expect(page.locator(".said")).to_have_count(3)
        await shown.shows(
            ".talk .part", ["English · 25 % · 4.0 s", "English · 75 % · 12 s"]
        )  # of the story's last event
        kinds = await page.evaluate("() => [...document.querySelectorAll('.item')].map((node) => node.item.kind)")
        assert kinds == ["said", "alert", "said", "dtmf", "hold", "resume", "said"]
        await shown.shows(".event.dtmf kbd", list("4711#"))
        await expect(page.locator(".event.resume").first).to_have_text(re.compile("Agent back after 7.0 s$"))
        await expect(page.locator(".side .facts", has_text="Both at once")).to_contain_text("0.5 s")
        await expect(page.locator(".side")).to_contain_text("ann-7")
        await expect(page.locator(".timeline .overtalk")).to_have_count(1)
        await expect(page.locator(".timeline .hold")).to_have_count(1)
        await expect(page.locator(".timeline .tick")).to_have_count(2)
        for at in (24_000, 25_000):
            api.hub.publish("c1", at + 500, Alert("supervisor", "inbound", "", "", at, at + 500, "critical"))
        await expect(page.locator(".list .badge.alert")).to_have_text("supervisor (3)")
        await expect(page.locator(".event.alert")).to_have_count(2)  # equal ones in a row are one
        await expect(page.locator(".event.alert").last).to_contain_text("2 ×")
        await expect(page.locator(".alerts .times")).to_have_text(["2 ×", ""])
        api.hub.publish("c1", 26_000, Alert("greeting", "inbound", "", "", 25_900, 26_000, "info"))
        await expect(page.locator(".alerts li")).to_have_count(3)
        await expect(page.locator(".list .badge.alert")).to_have_text("supervisor (4)")  # the worst, and how many
        await expect(page.locator(".list .badge.alert")).to_have_attribute("data-severity", "critical")
        await api.hub.flush()
        await page.reload()  # the list knows what was said last, and what was raised
        await shown.shows(".list .what", ["Danke, einen Augenblick."])
        await expect(page.locator(".list .badge.alert")).to_have_text("supervisor (4)")
        await page.locator(".alerts button", has_text="cancellation").click()
        await expect(page.locator(".said.alerted")).to_be_focused()
        # The names are the channel's until somebody gives others.
        api.hub.publish("c1", 25_000, LegUpdated("outbound", "agent", "Ann", "", "PCMU"))
        await expect(page.locator(".said.right .who").first).to_have_text("Agent · Ann")
        # Who takes the leg over leaves to Ann what she said, whatever name comes later.
        for name in ("Cleo", "Cleo Cole"):
            api.hub.publish("c1", 25_100, LegUpdated("outbound", "agent", name, "", "PCMU", since_ms=25_100))
        api.hub.publish("c1", 25_200, speech("u9", "outbound", 25_150))
        said = {"leg": "outbound", "role": "agent", "start_ms": 25_150, "end_ms": 25_290}
        api.hub.publish("c1", 25_300, final("u9", "Here is Cleo.", **said))
        await expect(page.locator(".said.right .who").last).to_have_text("Agent · Cleo Cole")
        await expect(page.locator(".said.right .who").first).to_have_text("Agent · Ann")
        api.hub.publish("c1", 25_500, CallHeld("outbound", left=True))
        await expect(page.locator(".event.hold").last).to_have_text(re.compile("Cleo Cole left$"))
        await expect(page.locator(".timeline .hold")).to_have_count(2)
        api.calls.pop("c1").hangup()
        await expect(page.locator(".event.end")).to_contain_text("api")
        await expect(page.locator(".list ul").last.locator("a")).to_have_count(1)


async def test_partials_are_replaced_in_place(tmp_path: Path, browser: Browser) -> None:
    async with running_api(tmp_path) as api, screen(browser, api.url) as shown:
        api.open_call("c1")
        await api.hub.flush()
        await show(shown)
        page, text = shown.page, shown.page.locator(".said .text")
        await expect(page.locator(".list .speaking")).to_be_hidden()
        api.hub.publish("c1", 1100, speech("u1", "inbound", 1000))
        await expect(page.locator(".said.unsettled")).to_be_visible()
        await expect(page.locator(".list .speaking")).to_have_text("Customer · Bea")
        await page.evaluate("() => { window.node = document.querySelector('.said'); }")
        # stable_chars counts code points: an emoji is one, in JavaScript's strings two.
        api.hub.publish("c1", 1500, partial("u1", 1, "🙂🙂 hello wor", 3))
        await expect(text.locator("span").first).to_have_text("🙂🙂 ", use_inner_text=False)
        await expect(text.locator(".loose")).to_have_text("hello wor")
        spans = [text.locator("span").nth(at) for at in (0, 1)]
        colours = [await span.evaluate("(node) => getComputedStyle(node).color") for span in spans]
        assert colours[0] != colours[1]
        api.hub.publish("c1", 1600, partial("u1", 2, "🙂🙂 hello world", 8))
        await expect(text).to_have_text("🙂🙂 hello world")
        await expect(page.locator(".timeline .leg1")).to_be_visible()  # head and timeline are drawn a little later
        box = await page.locator(".said").bounding_box()
        fields = {"start_ms": 1000, "end_ms": 2000, "lost_ms": 40, "language": "en"}
        api.hub.publish("c1", 2100, final("u1", "🙂🙂 hello world", **fields))
        await expect(page.locator(".said:not(.unsettled)")).to_be_visible()
        assert await page.evaluate("() => window.node === document.querySelector('.said')")
        assert await page.locator(".said").bounding_box() == box, "nothing jumps when it settles"
        await expect(page.locator(".said .lost")).to_be_visible()
        assert await text.get_attribute("lang") == "en" and await text.get_attribute("dir") == "auto"
        # Only what is final is read out.
        spoken = page.locator("[aria-live=polite]")
        await expect(spoken).to_have_text("Customer · Bea: 🙂🙂 hello world")
        await expect(page.locator("[role=log]")).to_have_attribute("aria-live", "off")
        api.hub.publish("c1", 3000, speech("u2", "inbound", 2900))
        await expect(page.locator(".said")).to_have_count(2)
        api.hub.publish("c1", 3300, final("u2", "", start_ms=2900, end_ms=3200))
        await expect(page.locator(".said")).to_have_count(1)
        failed = {"start_ms": 4000, "end_ms": 5000, "reason": "failed", "error": "crashed twice"}
        api.hub.publish("c1", 5300, final("u3", "", **failed))
        await expect(page.locator(".said").nth(1)).to_contain_text("could not be recognised")


async def test_what_strangers_say_is_text(tmp_path: Path, browser: Browser) -> None:
    legs = [LegInfo("inbound", "customer", EVIL, EVIL, EVIL), LegInfo(EVIL, "unknown", "", FOREIGN, "PCMU")]
    async with running_api(tmp_path) as api, screen(browser, api.url) as shown:
        violated = "addEventListener('securitypolicyviolation', () => { window.violated = 1; })"
        await shown.page.add_init_script(violated)
        api.open_call("c1", source=EVIL, from_=EVIL, to=FOREIGN, external_id=EVIL, legs=legs, custom={EVIL: EVIL})
        api.hub.publish("c1", 900, speech(EVIL, "inbound", 0))
        api.hub.publish("c1", 1000, final(EVIL, EVIL, language='en"><script>', end_ms=900))
        api.hub.publish("c1", 1100, final("u2", FOREIGN, leg=EVIL, role="unknown", start_ms=1000, end_ms=1100))
        api.hub.publish("c1", 1200, Alert(EVIL, EVIL, EVIL, EVIL, 0, 900, FOREIGN))
        api.hub.publish("c1", 1300, Dtmf(EVIL, EVIL, 0))
        api.hub.publish("c1", 1400, CallHeld(EVIL))
        api.hub.publish("c1", 1500, Metrics({EVIL: 1000}, 0, 0, 0, {EVIL: 1.0}))
        await api.hub.flush()
        await show(shown)
        page = shown.page
        await expect(page.locator(".said .text").first).to_have_text(EVIL)
        api.hub.publish("c1", 1550, partial("u4", 1, EVIL, 7))
        await expect(page.locator(".said .loose", has_text="onerror")).to_have_count(1)
        await page.locator(".search input").fill("script")
        await expect(page.locator("mark.found").first).to_have_text("script")
        await page.locator(".talk button").first.click()
        await expect(page.locator("dialog h2")).to_contain_text("onerror")
        await page.keyboard.press("Escape")
        await expect(page.locator(".call h2").first).to_have_text(f"{EVIL} → {FOREIGN}")
        api.hub.publish("c1", 1600, ended(EVIL))
        await expect(page.locator(".event.end")).to_contain_text("onerror")
        assert await page.evaluate("() => [window.hacked, window.violated]") == [None, None]
        await expect(page.locator("img, iframe, main script, [onerror], [onload]")).to_have_count(0)


async def test_what_was_taken_out_is_marked(tmp_path: Path, browser: Browser) -> None:
    async with running_api(tmp_path) as api, screen(browser, api.url) as shown:
        await shown.open()
        found = await shown.page.evaluate(
            """async () => {
                const { marked, pattern } = await import("/search.js");
                const redactions = [{ kind: "card", start_ms: 0, end_ms: 900 }];
                const nodes = marked("My card [card] is [not] lost.", pattern("IS  [not]"), redactions);
                return nodes.map((node) => node.className ? [node.className, node.textContent] : node);
            }"""
        )
        assert found == ["My card ", ["redacted", "[card]"], " ", ["found", "is [not]"], " lost."]
