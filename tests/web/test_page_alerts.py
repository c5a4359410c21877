"""Alerts on the page: seen in the tab's title, whole and first in the list, told, and acknowledged."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from playwright.async_api import Browser, expect

from lab.events.samples import ended
from lab.http.api_server import EVENTS_KEY, Running, running_api
from lab.http.browser import PHONE, Screen, screen
from lab.http.page_story import say, show, story
from mediaworker.events.schema import Alert, LegInfo

pytestmark = pytest.mark.asyncio(loop_scope="session")
LONG = "confidential-information-of-the-customer-was-named"
SPY = """
window.told = [];
const start = OscillatorNode.prototype.start;
OscillatorNode.prototype.start = function (...of) { window.told.push("sound"); return start.apply(this, of); };
const Real = Notification;
window.Notification = class extends Real {
  constructor(title, { body, tag }) { super(title, { body, tag }); window.told.push([title, body, tag]); }
};
"""


def alert(
    api: Running, call_id: str, rule: str, severity: str = "warning", at_ms: int = 5000, leg: str = "inbound"
) -> None:
    api.hub.publish(call_id, at_ms, Alert(rule, leg, "", "", at_ms - 2000, at_ms, severity))


async def has_title(shown: Screen, *parts: str) -> None:
    await shown.until(f"document.title === {json.dumps(' · '.join([*parts, 'mediaworker']))}")


async def listed(shown: Screen, parties: Sequence[str]) -> None:
    """The live calls, from the first to the last."""
    await expect(shown.page.locator(".list ul").first.locator(".who")).to_have_text([f"Bea · {one}" for one in parties])


async def test_the_title_says_who_and_what(tmp_path: Path, browser: Browser) -> None:
    async with running_api(tmp_path) as api, screen(browser, api.url) as shown:
        await shown.open()
        await has_title(shown, "Calls")
        api.open_call("c1", from_="+491")
        await has_title(shown, "1 live")
        api.open_call("c2", from_="+492")
        await has_title(shown, "2 live")
        alert(api, "c1", "greeting", "info")
        await has_title(shown, "(1) info: greeting, Bea · +491", "2 live")
        alert(api, "c2", "cancellation", "critical")
        await has_title(shown, "(2) critical: cancellation, Bea · +492", "2 live")
        await shown.page.locator(".row", has_text="+492").click()
        await has_title(shown, "(2) critical: cancellation", "Bea · +492")
        await shown.page.locator(".row", has_text="+491").click()
        await has_title(shown, "(2) critical: cancellation, Bea · +492", "Bea · +491")
        api.calls.pop("c2").hangup()  # what was raised is still to be looked at
        await shown.page.keyboard.press("Escape")
        await has_title(shown, "(2) critical: cancellation, Bea · +492", "1 live")
        await shown.page.locator("#to-try").click()
        await has_title(shown, "(2) critical: cancellation, Bea · +492", "Try it")
        await shown.page.locator("#to-calls").click()
        await api.hub.flush()
        await shown.page.reload()  # what had ended before is of the past
        await has_title(shown, "(1) info: greeting, Bea · +491", "1 live")


async def test_the_title_of_a_call_from_further_back(tmp_path: Path, browser: Browser) -> None:
    async with running_api(tmp_path) as api, screen(browser, api.url) as shown:
        for number in range(55):  # more than a page of the list
            api.open_call(f"c{number:02}", from_=f"+49{number:02}", legs=[LegInfo("main", "unknown", "", "", "PCMU")])
            api.hub.publish(f"c{number:02}", 1000, ended())
        await api.hub.flush()
        await show(shown, "c01")
        await has_title(shown, "+4901")


async def test_alerts_are_whole_and_first_in_the_list(tmp_path: Path, browser: Browser) -> None:
    async with running_api(tmp_path) as api:
        for number in range(4):
            api.open_call(f"c{number}", from_=f"+49{number}")
        await api.hub.flush()
        for size in (PHONE, {"width": 320, "height": 640}, {"width": 1280, "height": 800}):
            async with screen(browser, api.url, size=size) as shown:
                await shown.open()
                await expect(shown.page.locator(".list ul").first.locator("li")).to_have_count(4)
                if size is PHONE:
                    await listed(shown, ["+493", "+492", "+491", "+490"])
                    alert(api, "c1", "greeting", "info")
                    alert(api, "c0", LONG)
                    await listed(shown, ["+490", "+491", "+493", "+492"])
                    alert(api, "c3", "greeting", "info")
                    await listed(shown, ["+490", "+493", "+491", "+492"])
                    alert(api, "c2", "fraud", "critical")
                    api.open_call("c4", from_="+494")
                    api.hub.publish("c4", 0, ended())
                await listed(shown, ["+492", "+490", "+493", "+491"])
                badge = shown.page.locator(".badge.alert", has_text=LONG)
                cut = "(node) => node.scrollWidth > node.clientWidth || node.scrollHeight > node.clientHeight"
                assert not await badge.evaluate(cut), size
                row, box = await shown.page.locator(".row", has_text=LONG).bounding_box(), await badge.bounding_box()
                assert row and box and box["x"] + box["width"] <= row["x"] + row["width"], size
                assert box["y"] + box["height"] <= row["y"] + row["height"], size


async def test_who_moves_in_the_list_keeps_the_focus(tmp_path: Path, browser: Browser) -> None:
    async with running_api(tmp_path) as api, screen(browser, api.url) as shown:
        for number in range(3):
            api.open_call(f"c{number}", from_=f"+49{number}")
        await shown.open()
        await expect(shown.page.locator(".list li")).to_have_count(3)
        await shown.page.locator(".row", has_text="+490").focus()
        alert(api, "c0", "fraud", "critical")
        await listed(shown, ["+490", "+492", "+491"])
        await expect(shown.page.locator(".row", has_text="+490")).to_be_focused()
        alert(api, "c2", "fraud", "critical")
        await listed(shown, ["+492", "+490", "+491"])
        await expect(shown.page.locator(".row", has_text="+490")).to_be_focused()


async def test_an_alert_is_acknowledged_until_the_next_one(tmp_path: Path, browser: Browser) -> None:
    async with running_api(tmp_path) as api, screen(browser, api.url) as shown, screen(browser, api.url) as other:
        for number in range(3):
            api.open_call(f"c{number}", from_=f"+49{number}")
        alert(api, "c0", "fraud", "critical")
        alert(api, "c1", "cancellation")
        await api.hub.flush()
        page = shown.page
        await other.open()
        await shown.open()
        await listed(shown, ["+490", "+491", "+492"])
        waiting = page.locator(".open li")
        await expect(waiting).to_have_count(2)
        await expect(waiting.first).to_contain_text("critical fraud")
        await shown.accessible("alerts that wait")
        await page.get_by_role("button", name="Acknowledge fraud of Bea · +490").click()
        await expect(waiting).to_have_count(1)
        await expect(waiting.get_by_role("button")).to_be_focused()
        await listed(shown, ["+491", "+492", "+490"])
        await listed(other, ["+491", "+492", "+490"])  # the tabs of a browser agree
        await has_title(shown, "(1) warning: cancellation, Bea · +491", "3 live")
        await shown.accessible("an alert that was acknowledged")
        # In the call itself, and for all that it has had.
        await waiting.get_by_role("link").click()
        alert(api, "c1", "fraud", "critical", 6000)
        await expect(page.locator(".alerts li")).to_have_count(2)
        await page.locator(".side").get_by_role("button", name="Acknowledge").click()
        await expect(page.locator(".side .acknowledge")).to_be_hidden()
        await has_title(shown, "Bea · +491")
        await page.reload()
        await listed(shown, ["+492", "+491", "+490"])
        await has_title(shown, "Bea · +491")
        await expect(page.locator(".side .acknowledge")).to_be_hidden()
        alert(api, "c1", "fraud", "critical", 7000)
        await expect(page.locator(".side .acknowledge")).to_be_visible()
        await listed(shown, ["+491", "+492", "+490"])
        await listed(other, ["+491", "+492", "+490"])
        stored = await page.evaluate("() => localStorage.getItem('mediaworker.acknowledged')")
        assert json.loads(stored) == [["c0", 1], ["c1", 2]], "ids and counts, and nothing that was said"


async def test_equal_alerts_are_one_entry_and_the_worst_is_first(tmp_path: Path, browser: Browser) -> None:
    async with running_api(tmp_path) as api, screen(browser, api.url) as shown:
        await story(api)  # a warning: cancellation
        await show(shown)
        entries = shown.page.locator(".alerts li")
        await expect(entries).to_have_count(1)
        alert(api, "c1", "greeting", "info", 25_000)
        alert(api, "c1", "cancellation", "warning", 26_000)
        alert(api, "c1", "fraud", "critical", 27_000)
        alert(api, "c1", "greeting", "info", 28_000)
        alert(api, "c1", "greeting", "info", 29_000, leg="outbound")
        alert(api, "c1", "fraud", "warning", 30_000)
        await expect(entries.locator(".rule")).to_have_text(
            ["fraud, 2 s", "fraud, 2 s", "cancellation, 2 s", "greeting, 2 s", "greeting, 2 s"]
        )
        await expect(entries.locator(".times")).to_have_text(["", "", "2 ×", "", "2 ×"])
        await expect(entries.locator(".by")).to_have_text([*["Customer · Bea"] * 3, "Agent", "Customer · Bea"])
        await expect(shown.page.locator(".event.alert")).to_have_count(7)  # each where it happened
        await expect(shown.page.locator(".side > summary .count")).to_have_text("7")


async def test_it_sounds_and_notifies_for_whoever_asks(tmp_path: Path, browser: Browser) -> None:
    async with running_api(tmp_path) as api, screen(browser, api.url, permissions=["notifications"]) as shown:
        await shown.page.add_init_script(SPY)
        page, told, choice = shown.page, "() => window.told", shown.page.get_by_label("Tell alerts")
        api.open_call("c1", from_="+491")
        await shown.open()
        await expect(choice).to_have_value("off")
        alert(api, "c1", "fraud", "critical")
        await has_title(shown, "(1) critical: fraud, Bea · +491", "1 live")
        assert await page.evaluate(told) == []
        await choice.select_option("notification")
        alert(api, "c1", "fraud", "critical")
        await shown.until("window.told.length === 1")
        alert(api, "c1", "greeting", "info")  # mild ones are only shown
        alert(api, "c1", "cancellation", "warning")
        await shown.until("window.told.length === 2")
        body = ["Bea · +491", "mediaworker c1"]
        assert await page.evaluate(told) == [["critical: fraud", *body], ["warning: cancellation", *body]]
        await choice.select_option("both")  # and so it sounds
        await shown.until("window.told.filter((one) => one === 'sound').length === 2")
        await api.hub.flush()
        await page.reload()
        await expect(choice).to_have_value("both")
        await expect(page.locator(".list li")).to_have_count(1)
        await page.locator("h1").click()  # a browser lets only a page sound that somebody has touched
        alert(api, "c1", "fraud", "critical")
        await shown.until("window.told.length === 3")
        assert [one for one in await page.evaluate(told) if one != "sound"] == [["critical: fraud", *body]]
        await choice.select_option("off")
        alert(api, "c1", "fraud", "critical")
        await expect(page.locator(".badge.alert")).to_have_text("fraud (6)")
        assert len(await page.evaluate(told)) == 3


async def test_a_browser_that_allows_no_notifications_is_believed(tmp_path: Path, browser: Browser) -> None:
    async with running_api(tmp_path) as api, screen(browser, api.url) as shown:
        await shown.page.add_init_script("Notification.requestPermission = async () => 'denied';")
        await shown.open()
        choice = shown.page.get_by_label("Tell alerts")
        await choice.select_option("both")
        await expect(shown.page.locator("#notice")).to_contain_text("does not allow")
        await expect(choice).to_have_value("off")


async def test_what_waited_for_long_is_no_news(tmp_path: Path, browser: Browser) -> None:
    async with running_api(tmp_path) as api, screen(browser, api.url) as shown:
        await shown.open()
        found = await shown.page.evaluate(
            """async () => {
                const { Notifier } = await import("/notify.js");
                const { Calls } = await import("/calls-state.js");
                const seen = [];
                window.Notification = class { constructor(title) { seen.push(title); } };
                const notifier = new Notifier(), call = { id: "c1", direction: "inbound", from: "+1", legs: new Map() };
                notifier.choice = "notification";
                for (const [rule, severity, ageMs] of [["a", "critical", 60_001], ["b", "critical", 60_000],
                     ["c", "warning", 0], ["d", "info", 0], ["e", "unheard-of", 0]]) {
                    notifier.tell(call, { rule, severity }, ageMs);
                }
                return seen;
            }"""
        )
        assert found == ["critical: b", "warning: c"]


async def test_alerts_are_acknowledged_on_a_phone(tmp_path: Path, browser: Browser) -> None:
    async with running_api(tmp_path) as api, screen(browser, api.url, size=PHONE) as shown:
        api.open_call("c1", from_="+491")
        say(api, "c1", 0, "I would like to cancel.")
        alert(api, "c1", "cancellation")
        await api.hub.flush()
        await show(shown)
        await has_title(shown, "(1) warning: cancellation", "Bea · +491")
        await shown.page.locator(".side > summary").click()
        await shown.page.locator(".side").get_by_role("button", name="Acknowledge").click()
        await has_title(shown, "Bea · +491")


async def test_signing_out_forgets_what_was_acknowledged(tmp_path: Path, browser: Browser) -> None:
    async with running_api(tmp_path, keys=True) as api, screen(browser, api.url, expected=("401",)) as shown:
        api.open_call("c1", from_="+491")
        alert(api, "c1", "fraud", "critical")
        await api.hub.flush()
        await show(shown, key=EVENTS_KEY)
        await shown.page.locator(".side").get_by_role("button", name="Acknowledge").click()
        await has_title(shown, "Bea · +491")
        await shown.page.get_by_role("button", name="Sign out").click()
        await expect(shown.page.locator("#login-reason")).to_contain_text("asks for an API key")
        assert await shown.page.evaluate("() => localStorage.getItem('mediaworker.acknowledged')") is None
        await has_title(shown)
