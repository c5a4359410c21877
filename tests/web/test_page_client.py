"""`client.js`, as a program would use it: in Chromium, against a real server."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser

from lab.events.samples import until
from lab.http.api_server import ADMIN_KEY, BOTH_KEY, EVENTS_KEY, Running, running_api
from lab.http.browser import Screen, cut_after, screen
from lab.patience import timeout
from mediaworker.events.schema import Dtmf
from mediaworker.http.resources import page as page_files

in_browser = pytest.mark.asyncio(loop_scope="session")

FOLLOW = """
async ([options, stopAt]) => {
  const { Client } = await import("/client.js");
  const client = new Client({ url: location.origin, key: options.key ?? "" });
  const seen = { states: [], events: [] };
  await new Promise((resolve) => {
    const stream = client.events({
      ...options,
      onEvent: (event, { resumed }) => {
        seen.events.push([event.type, event.digit ?? null, resumed]);
        if (event.digit !== stopAt) return;
        const heard = [...seen.states];
        stream.close();  // nothing that has arrived behind it is handled
        seen.states = heard;
        resolve();
      },
      onState: (state) => {
        seen.states.push(state);
        if (["unauthorized", "forbidden", "gone", "closed"].includes(state)) resolve();
      },
    });
    seen.stream = stream;
  });
  const { states, events, stream } = seen;
  stream.close();
  return { states: [...states], events, cursor: stream.cursor ?? null };
}
"""


async def follow(shown: Screen, stop_at: str = "#", **options: Any) -> dict[str, Any]:
    """Until that digit has come, or the stream has ended."""
    async with timeout(30):
        return await shown.page.evaluate(FOLLOW, [options, stop_at])


def digits(seen: dict[str, Any]) -> str:
    return "".join(digit for kind, digit, _ in seen["events"] if kind == "dtmf")


def press(api: Running, keys: str) -> None:
    for at, digit in enumerate(keys):
        api.hub.publish("c1", at, Dtmf("inbound", digit, 80))


@in_browser
async def test_from_the_start_and_from_a_cursor(tmp_path: Path, browser: Browser) -> None:
    async with running_api(tmp_path) as api, screen(browser, api.url) as shown:
        api.open_call("c1")
        press(api, "12345#")
        await api.hub.flush()
        await shown.open("/#/none")
        seen = await follow(shown, call="c1", after="start")
        assert digits(seen) == "12345#"
        assert [kind for kind, *_ in seen["events"]][:2] == ["hello", "call.started"]
        middle = await follow(shown, "3", call="c1", after="start")
        assert digits(await follow(shown, after=middle["cursor"])) == "45#"
        assert digits(await follow(shown, call="c1", after="start", types=["dtmf"])) == "12345#"


@in_browser
async def test_a_resumed_hello_is_not_where_it_goes_on(tmp_path: Path, browser: Browser) -> None:
    """The line is cut after every third frame: the hello of a resumption is ahead of what is replayed."""
    async with running_api(tmp_path) as api, screen(browser, api.url) as shown:
        api.open_call("c1")
        press(api, "0123456789ABCD*#")
        await api.hub.flush()
        await cut_after(shown.page, "call=c1", [(3, 4008)] * 100)
        await shown.open()
        seen = await follow(shown, call="c1", after="start")
        assert digits(seen) == "0123456789ABCD*#"
        assert seen["states"].count("open") > 5 and "waiting" not in seen["states"], "4008: at once"


@in_browser
async def test_an_unknown_cursor_begins_anew_and_says_so(tmp_path: Path, browser: Browser) -> None:
    async with running_api(tmp_path) as api, screen(browser, api.url) as shown:
        api.open_call("c1")
        await api.hub.flush()
        await shown.open("/#/none")
        following = asyncio.ensure_future(follow(shown, after="nosuch:1"))
        await until(lambda: api.hub.subscribers == 2)  # the page's own, and this one
        press(api, "#")
        seen = await following
        assert seen["states"] == ["connecting", "expired", "connecting", "open"]
        assert [event for event in seen["events"] if event[0] in ("hello", "dtmf")] == [
            ["hello", None, False],
            ["dtmf", "#", False],
        ]


@in_browser
async def test_who_is_refused_is_told_and_does_not_try_again(tmp_path: Path, browser: Browser) -> None:
    expected = ("WebSocket", "Failed to load resource")
    async with running_api(tmp_path, keys=True) as api, screen(browser, api.url, expected=expected) as shown:
        await shown.open("/#/none")
        for options, state in (
            ({}, "unauthorized"),
            ({"key": "no-such-key"}, "unauthorized"),
            ({"key": ADMIN_KEY}, "forbidden"),
            ({"key": EVENTS_KEY, "call": "c9"}, "gone"),
        ):
            assert (await follow(shown, **options))["states"] == ["connecting", state], options


@in_browser
async def test_the_routes(tmp_path: Path, browser: Browser) -> None:
    async with running_api(tmp_path, keys=True) as api, screen(browser, api.url, expected=("404", "401")) as shown:
        for number in range(3):
            api.open_call(f"c{number}")
        await api.hub.flush()
        await shown.open("/#/none")
        found = await shown.page.evaluate(
            """async (key) => {
                const { Client, RequestError } = await import("/client.js");
                const client = new Client({ key });
                const first = await client.calls({ limit: 2 });
                const rest = await client.calls({ limit: 2, after: first.next });
                const renamed = await client.rename("c1", { outbound: "Ann" });
                const text = await client.transcript("c1", "vtt"), json = await client.transcript("c1");
                const hung = await client.hangup("c2");
                const refused = await client.call("nosuch").catch((error) => error);
                return [first.items.length, rest.items.map((call) => call.call_id), rest.next,
                        renamed.legs.map((leg) => leg.name), text.slice(0, 6), json.segments, hung.call_id,
                        refused instanceof RequestError, refused.status, refused.message];
            }""",
            BOTH_KEY,
        )
        assert found == [2, ["c0"], None, ["Bea", "Ann"], "WEBVTT", [], "c2", True, 404, "no such call"]
        await api.hub.flush()
        await shown.page.evaluate(
            """async (key) => {
                const { Client } = await import("/client.js");
                await new Client({ key }).erase("c2");
            }""",
            BOTH_KEY,
        )
        assert [call.call_id for call in api.hub.calls] == ["c0", "c1"]


def test_it_needs_nothing_of_a_browser() -> None:
    """`test_node_client.py` runs it where there is none."""
    text = (page_files.files("mediaworker.web") / "client.js").read_text(encoding="utf-8")
    assert not re.search(r"^\s*import\b|document\.|window\.", text, re.M)
