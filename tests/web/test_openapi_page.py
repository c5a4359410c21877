"""The description of the routes, as the worker serves it: for programs at `/openapi.json`, for people at `/docs`."""

from __future__ import annotations

from pathlib import Path

import jsonschema
import pytest
from playwright.async_api import Browser

from lab.http.api_server import running_api
from lab.http.browser import screen
from lab.http.documented import document


async def test_the_description_is_served_whole(tmp_path: Path) -> None:
    """Open, without references to other files, and each of its schemas is one."""
    async with running_api(tmp_path, keys=True) as api:
        answer = await api.client.get("/openapi.json")
        assert answer.status_code == 200 and answer.headers["content-type"] == "application/json"
        served = answer.json()
    assert served == document() and served["openapi"].startswith("3.1") and "servers" not in served
    text = answer.text
    assert '"$ref": "schemas/' not in text and "$defs" not in text
    for schema in served["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(schema)
    for reference in set(part.split('"')[0] for part in text.split('"$ref": "')[1:]):
        node = served
        for step in reference.removeprefix("#/").split("/"):
            node = node[step]
    for path, item in served["paths"].items():
        for method, operation in item.items():
            if method != "parameters":
                assert operation["summary"] and operation["responses"], (method, path)


PARTS = "nav, #get-v1-calls, #post-v1-jobs, #schema-Call"
"""One of each kind of what is on the page."""


@pytest.mark.asyncio(loop_scope="session")
async def test_the_page_shows_every_route(tmp_path: Path, browser: Browser) -> None:
    """Complete, readable by everybody, and from this worker alone: no script, nothing from elsewhere."""
    async with running_api(tmp_path, keys=True) as api, screen(browser, api.url, color_scheme="light") as shown:
        await shown.open("/docs")
        routes = await shown.page.locator("section > h2").all_inner_texts()
        items = document()["paths"].items()
        named = [f"{method.upper()} {path}" for path, item in items for method in item if method != "parameters"]
        assert sorted(routes) == sorted(named)
        await shown.page.get_by_role("link", name="GET /v1/calls", exact=True).click()
        assert shown.page.url.endswith("/docs#get-v1-calls")
        assert await shown.page.locator("script").count() == 0
        await shown.page.get_by_role("link", name="Call", exact=True).first.click()
        assert shown.page.url.endswith("#schema-Call")
        await shown.accessible("the routes, light")
        await shown.page.emulate_media(color_scheme="dark")
        assert await shown.page.locator(PARTS).count() == len(PARTS.split(", "))
        await shown.accessible("the routes, dark", PARTS)
