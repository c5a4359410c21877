"""Answers held to the description at `/openapi.json`: status, content type and body of each are documented there."""

from __future__ import annotations

import json
import re
from functools import cache
from typing import Any

import httpx
import jsonschema

from lab.worker.peers import ROOT

ANYWHERE = (405, 500)
"""A method that a route does not have, and our own fault: these are in no description."""


@cache
def document() -> dict[str, Any]:
    return json.loads((ROOT / "mediaworker" / "web" / "openapi.json").read_text(encoding="utf-8"))


def operation(method: str, path: str) -> tuple[str, dict[str, Any]] | None:
    """Of a request's path: those without parameters come first."""
    for template in sorted(document()["paths"], key=lambda each: each.count("{")):
        pattern = re.sub(r"\\\{(\w+)\\\}", lambda name: ".+" if name[1] == "model" else "[^/]+", re.escape(template))
        if re.fullmatch(pattern, path):
            found = document()["paths"][template].get(method.lower())
            return (f"{method} {template}", found) if found else None
    return None


def resolved(node: dict[str, Any]) -> dict[str, Any]:
    while "$ref" in node:
        found: Any = document()
        for step in node["$ref"].removeprefix("#/").split("/"):
            found = found[step]
        node = found
    return node


@cache
def validator(schema: str) -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(json.loads(schema) | {"components": document()["components"]})


def check(response: httpx.Response) -> None:
    """Raises AssertionError. The body has been read, unless it is a stream of events."""
    request = response.request
    if (found := operation(request.method, request.url.path)) is None or response.status_code in ANYWHERE:
        return
    name, described = found
    answers = described["responses"]
    about = f"{name} answered {response.status_code}"
    answer = answers.get(str(response.status_code)) or answers.get("default")
    assert answer is not None, f"{about}, documented: {', '.join(answers)}"
    contents = resolved(answer).get("content", {})
    kind = response.headers.get("content-type", "").partition(";")[0]
    if not contents:
        assert not kind, f"{about} with {kind}, documented: nothing"
        return
    assert kind in contents, f"{about} with {kind}, documented: {', '.join(contents)}"
    if kind.endswith("json") and (schema := contents[kind].get("schema")):
        validator(json.dumps(schema)).validate(response.json())


def check_read(response: httpx.Response) -> None:
    """As an event hook of a client."""
    if response.headers.get("content-type", "").startswith(("application/json", "application/problem+json")):
        response.read()
    check(response)


async def check_async(response: httpx.Response) -> None:
    if response.headers.get("content-type", "").startswith(("application/json", "application/problem+json")):
        await response.aread()
    check(response)
