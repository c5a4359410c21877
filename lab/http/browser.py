"""The page in a real Chromium: what it asks for, what it complains of, and where it must not go."""

from __future__ import annotations

import asyncio
import re
import shutil
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import pytest_asyncio
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Page,
    Request,
    WebSocketRoute,
    async_playwright,
    expect,
)

from lab.patience import seconds

LIMIT_MS, WAIT_MS = 1000 * seconds(30), 1000 * seconds(60)
"""For what the page does by itself, and for what happens beside it: a call, an engine's start."""
expect.set_options(timeout=LIMIT_MS)

WIDE, PHONE = {"width": 1280, "height": 800}, {"width": 390, "height": 844}
OPTIONS = [
    "--no-sandbox", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update",
    "--disable-sync", "--use-fake-ui-for-media-stream", "--use-fake-device-for-media-stream",
]  # fmt: skip


@asynccontextmanager
async def chromium(*options: str) -> AsyncIterator[Browser]:
    path = shutil.which("chromium")
    assert path, "tools/install_packages.sh dev installs Chromium"
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=path, args=[*OPTIONS, *options])
        await browser.new_context(viewport=WIDE)  # type: ignore[arg-type]
        try:
            yield browser
        finally:
            await browser.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator[Browser]:
    async with chromium() as started:
        yield started


@dataclass
class Screen:
    """A tab, and all that it said and asked for."""

    page: Page
    origin: str
    complaints: list[str] = field(default_factory=list)
    elsewhere: list[str] = field(default_factory=list)
    expected: tuple[str, ...] = ()
    """Complaints that a test provokes: parts of them."""

    async def open(self, path: str = "/") -> None:
        await self.page.goto(self.origin + path)

    async def shows(self, selector: str, texts: Sequence[str]) -> None:
        """Waits for it: the page draws what came once a frame, so one part may be there before another."""
        await expect(self.page.locator(selector)).to_have_text(texts, use_inner_text=True)

    async def until(self, condition: str) -> None:
        """Waits for a JavaScript expression to be true."""
        await self.page.wait_for_function(f"() => {condition}")

    async def said(self) -> list[str]:
        """The conversation's words, in the order in which they are shown."""
        return await self.page.evaluate(
            "() => [...document.querySelectorAll('.call:not([hidden]) .said .text')].map((node) => node.textContent)"
        )

    async def accessible(self, where: str, parts: str | None = None) -> None:
        """`parts`: a selector of what is looked at, in place of the whole page."""
        found: dict[str, Any] = (await Axe().run(self.page, parts)).response
        rules = {rule["id"] for rule in found["passes"]}
        assert "color-contrast" in rules, f"{where}: axe has not looked: {found['incomplete']}"
        broken = [(rule["id"], [node["html"] for node in rule["nodes"]]) for rule in found["violations"]]
        assert not broken, f"{where}: {broken}"

    def check(self) -> None:
        assert not self.elsewhere, f"asked elsewhere: {self.elsewhere}"
        left = [text for text in self.complaints if not any(part in text for part in self.expected)]
        assert not left, left


@asynccontextmanager
async def screen(
    browser: Browser, origin: str, *, size: dict[str, int] = WIDE, expected: tuple[str, ...] = (), **options: Any
) -> AsyncIterator[Screen]:
    """Fails when the page has complained, or has asked anybody but its worker.

    With `options`, or of another size, it has a profile of its own. All others share one, which costs half: they have
    nothing in common but what an origin keeps, and each server has a port of its own.
    """
    own: BrowserContext | None = None
    if options or size != WIDE:
        own = await browser.new_context(viewport=size, **options)  # type: ignore[arg-type]
    page = await (own or browser.contexts[0]).new_page()
    try:
        page.set_default_timeout(LIMIT_MS)
        shown = Screen(page, origin, expected=expected)

        def heard(message: ConsoleMessage) -> None:
            if message.type in ("error", "warning"):
                shown.complaints.append(message.text)

        def asked(request: Request) -> None:
            url = urlsplit(request.url)
            if url.scheme not in ("blob", "data") and url.netloc != urlsplit(origin).netloc:
                shown.elsewhere.append(request.url)

        page.on("console", heard)
        page.on("pageerror", lambda error: shown.complaints.append(f"error: {error}"))
        page.on("dialog", lambda dialog: shown.complaints.append(f"dialog: {dialog.message}"))
        page.on("request", asked)
        page.on("websocket", lambda socket: asked_socket(socket.url, origin, shown))
        yield shown
        shown.check()
    finally:
        await (own or page).close()


async def cut_after(page: Page, address: str, cuts: Sequence[tuple[int, int]]) -> list[WebSocketRoute]:
    """Between the page and its worker stands one who gives up: each of (frames, close code) is a connection's fate.

    Returns the connections, as they come. When no fate is left they are let be. The page must be opened after it.
    """
    made: list[WebSocketRoute] = []
    endings: list[asyncio.Task[None]] = []  # held, or they might not be done

    def through(route: WebSocketRoute) -> None:
        left, code = cuts[len(made)] if len(made) < len(cuts) else (-1, 0)
        made.append(route)
        server, seen = route.connect_to_server(), 0

        def frame(message: str | bytes) -> None:
            nonlocal seen
            seen += 1
            if seen <= left or left < 0:
                route.send(message)
            if seen == left:
                endings.append(asyncio.ensure_future(cut(route, server, code)))

        server.on_message(frame)

    await page.route_web_socket(re.compile(re.escape(address)), through)
    return made


async def cut(route: WebSocketRoute, server: WebSocketRoute, code: int) -> None:
    await server.close()
    await route.close(code=code)


def asked_socket(url: str, origin: str, shown: Screen) -> None:
    if urlsplit(url).netloc != urlsplit(origin).netloc:
        shown.elsewhere.append(url)
