"""docs/start/first-captions.md as it stands: its configuration and its page, from another origin, in Chromium."""

from __future__ import annotations

import re
import tomllib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial as partial_of
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from playwright.async_api import Browser, Page, expect

from lab.docs.pages import blocks
from lab.events.samples import final, partial, speech
from lab.http.api_server import Running, running_api
from lab.patience import seconds

pytestmark = pytest.mark.asyncio(loop_scope="session")

TOML, HTML = (
    next(block.text for block in blocks() if (block.page, block.language) == ("docs/start/first-captions.md", language))
    for language in ("toml", "html")
)
TITLE_S = 20


class Quiet(SimpleHTTPRequestHandler):
    """`python3 -m http.server`, whose log belongs to nobody here."""

    def log_message(self, *_: object) -> None: ...


@asynccontextmanager
async def shown(
    browser: Browser, folder: Path, html: str = HTML, **changed: dict[str, Any]
) -> AsyncIterator[tuple[Running, Page]]:
    """The page at its own origin, beside a worker with the page's configuration, but for the port and what is changed
    in these sections."""
    files = ThreadingHTTPServer(("127.0.0.1", 0), partial_of(Quiet, directory=str(folder)))
    tree = tomllib.loads(TOML.replace(":8000", f":{files.server_port}"))
    tree["http"] |= {"host": "127.0.0.1", "port": 0}
    for section, keys in changed.items():
        tree[section] |= keys
    Thread(target=files.serve_forever, daemon=True).start()
    async with running_api(folder, **tree) as api:
        (folder / "captions.html").write_text(html.replace("127.0.0.1:8080", f"127.0.0.1:{api.server.port}"))
        context = await browser.new_context()
        try:
            page = await context.new_page()
            await page.goto(f"http://127.0.0.1:{files.server_port}/captions.html")
            yield api, page
        finally:
            await context.close()
            files.shutdown()
            files.server_close()


async def test_the_page_shows_what_is_said(browser: Browser, tmp_path: Path) -> None:
    assert HTML.count("\n") <= 20
    async with shown(browser, tmp_path) as (api, page):
        await expect(page).to_have_title("open", timeout=seconds(TITLE_S) * 1000)
        api.open_call("c1")
        api.hub.publish("c1", 100, speech("u1"))
        api.hub.publish("c1", 500, partial("u1", 1))
        api.hub.publish("c1", 900, final("u1", "good <b>morning"))
        await expect(page.locator("p")).to_have_text(["customer: good <b>morning"], timeout=seconds(TITLE_S) * 1000)


@pytest.mark.parametrize(("scopes", "key", "said"), [
    (["events"], "another-key", "unauthorized"), (["admin"], "a-long-random-key", "forbidden"),
])  # fmt: skip
async def test_the_title_says_what_is_wrong(
    browser: Browser, tmp_path: Path, scopes: list[str], key: str, said: str
) -> None:
    keys = [tomllib.loads(TOML)["auth"]["api_keys"][0] | {"scopes": scopes}]
    async with shown(browser, tmp_path, HTML.replace("a-long-random-key", key), auth={"api_keys": keys}) as (_, page):
        await expect(page).to_have_title(re.compile(f"^{said}"), timeout=seconds(TITLE_S) * 1000)


async def test_an_origin_that_is_not_listed_loads_nothing(browser: Browser, tmp_path: Path) -> None:
    async with shown(browser, tmp_path, http={"cors_origins": ["http://127.0.0.1:8001"]}) as (_, page):
        errors: list[str] = []
        page.on("console", lambda message: errors.append(message.text))
        await page.reload()
        assert await page.title() == "Captions" and any("CORS policy" in error for error in errors)
