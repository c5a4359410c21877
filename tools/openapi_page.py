"""docs/openapi.yaml as what the worker serves: one JSON document, and a page to read it, without scripts."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

import yaml

DOCS = Path(__file__).parent.parent / "docs"
METHODS = ("get", "put", "post", "patch", "delete")
Node = dict[str, Any]

HEAD = """<!doctype html>
<html lang="en">
<!-- Generated from docs/openapi.yaml by `make schema`; do not edit. -->
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>mediaworker: HTTP routes</title>
<link rel="icon" href="icon.svg">
<link rel="stylesheet" href="docs.css">
"""


def document() -> Node:
    """The description with everything in it: what it takes from the schema of events becomes a component."""
    found: Node = yaml.safe_load((DOCS / "openapi.yaml").read_text(encoding="utf-8"))
    del found["servers"]  # where the document is served, its routes are
    events = json.loads((DOCS / "schemas" / "events.schema.json").read_text(encoding="utf-8"))["$defs"]
    schemas = found["components"]["schemas"]
    wanted = [each.rpartition("/")[2] for each in _references(found) if "events.schema.json" in each]
    while wanted:
        if (name := wanted.pop()) not in schemas:
            schemas[name] = events[name]
            wanted += [each.rpartition("/")[2] for each in _references(events[name])]
    text = re.sub(r'"(?:schemas/events\.schema\.json)?#/\$defs/', '"#/components/schemas/', json.dumps(found))
    moved: Node = json.loads(text)
    return moved


def _references(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        for key, value in node.items():
            if key == "$ref" and isinstance(value, str):
                yield value
            else:
                yield from _references(value)
    elif isinstance(node, list):
        for each in node:
            yield from _references(each)


def as_json() -> str:
    return json.dumps(document(), ensure_ascii=False, indent=1) + "\n"


def page() -> str:
    """The document as HTML."""
    spec = document()
    parts = [HEAD, "<main>", f"<h1>{escape(spec['info']['title'])}: HTTP routes</h1>"]
    parts.append(_prose(spec["info"]["description"]))
    parts.append('<p>For programs: <a href="openapi.json">openapi.json</a>. Live calls: <a href="./">the page</a>.</p>')
    parts.append("<nav><h2>Routes</h2><ul>")
    items = spec["paths"].items()
    operations = [(method, path, item, item[method]) for path, item in items for method in METHODS if method in item]
    for method, path, _, operation in operations:
        label = f"<code>{method.upper()} {escape(path)}</code>"
        parts.append(f'<li><a href="#{_anchor(method, path)}">{label}</a> {_inline(operation["summary"])}</li>')
    parts.append("</ul></nav>")
    for method, path, item, operation in operations:
        parts += _operation(spec, method, path, item, operation)
    parts.append("<h2>Schemas</h2>")
    for name, schema in sorted(spec["components"]["schemas"].items()):
        parts += [f'<section id="schema-{escape(name)}"><h3>{escape(name)}</h3>', *_schema(spec, schema), "</section>"]
    return "\n".join([*parts, "</main>", "</html>", ""])


def _operation(spec: Node, method: str, path: str, item: Node, operation: Node) -> Iterator[str]:
    yield f'<section id="{_anchor(method, path)}"><h2><code>{method.upper()} {escape(path)}</code></h2>'
    yield f"<p>{_inline(operation['summary'])}.</p>" + _prose(operation.get("description", ""))
    if operation.get("security") == []:
        yield "<p>Open: no key is needed.</p>"
    parameters = [_resolved(spec, each) for each in [*item.get("parameters", ()), *operation.get("parameters", ())]]
    if parameters:
        rows = [
            (f"<code>{escape(each['name'])}</code>", f"{each['in']}{', required' if each.get('required') else ''}",
             _type(each["schema"]), _inline(each.get("description", "")))
            for each in parameters
        ]  # fmt: skip
        yield _table(("Parameter", "In", "Type", "Meaning"), rows)
    if body := operation.get("requestBody"):
        for kind, content in _resolved(spec, body)["content"].items():
            yield f"<h3>Request: <code>{escape(kind)}</code></h3>"
            yield from _schema(spec, content.get("schema", {}))
    rows = []
    for status, answer in operation["responses"].items():
        answer = _resolved(spec, answer)
        kinds = [
            f"<code>{escape(kind)}</code> {_type(content['schema']) if 'schema' in content else ''}"
            for kind, content in answer.get("content", {}).items()
        ]
        rows.append((f"<code>{escape(status)}</code>", _inline(answer["description"]), "<br>".join(kinds)))
    yield _table(("Answer", "Meaning", "Content"), rows)
    yield "</section>"


def _schema(spec: Node, schema: Node) -> Iterator[str]:
    if "description" in schema:
        yield _prose(schema["description"])
    rows = []
    for part in [schema, *schema.get("allOf", ())]:
        part = _resolved(spec, part) if part is not schema else part
        for name, each in part.get("properties", {}).items():
            needed = "required" if name in part.get("required", ()) else "optional"
            rows.append((f"<code>{escape(name)}</code>", needed, _type(each), _inline(each.get("description", ""))))
    yield _table(("Field", "Needed", "Type", "Meaning"), rows) if rows else f"<p>{_type(schema)}</p>"


def _type(schema: Node) -> str:
    """A schema in a few words, with a link to what has a name."""
    if reference := schema.get("$ref"):
        name = escape(reference.rpartition("/")[2])
        return f'<a href="#schema-{name}">{name}</a>'
    if "const" in schema:
        return f"<code>{escape(json.dumps(schema['const']))}</code>"
    if "enum" in schema:
        return ", ".join(f"<code>{escape(json.dumps(each))}</code>" for each in schema["enum"]) + _default(schema)
    for key, word in (("anyOf", " or "), ("oneOf", " or "), ("allOf", " and ")):
        if key in schema:
            return word.join(_type(each) for each in schema[key])
    kinds = schema.get("type", "any")
    kinds = kinds if isinstance(kinds, list) else [kinds]
    words = " or ".join(kinds)
    if "array" in kinds and "items" in schema:
        words += f" of {_type(schema['items'])}"
    if isinstance(schema.get("additionalProperties"), dict):
        words += f" of {_type(schema['additionalProperties'])}"
    limits = [
        f"{sign} {schema[key]}"
        for key, sign in (("minimum", "≥"), ("maximum", "≤"), ("maxLength", "length ≤"), ("format", ""))
        if key in schema
    ]
    return ", ".join([words, *(each.strip() for each in limits)]) + _default(schema)


def _default(schema: Node) -> str:
    return f"; default <code>{escape(json.dumps(schema['default']))}</code>" if "default" in schema else ""


def _resolved(spec: Node, node: Node) -> Node:
    while "$ref" in node:
        found: Any = spec
        for step in node["$ref"].removeprefix("#/").split("/"):
            found = found[step]
        node = found
    return node


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = ["".join(f"<td>{cell}</td>" for cell in row) for row in rows]
    titles = "".join(f"<th>{title}</th>" for title in head)
    body = "\n".join(f"<tr>{line}</tr>" for line in lines)
    return f"<table>\n<thead><tr>{titles}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table>"


def _prose(text: str) -> str:
    return "".join(f"<p>{_inline(each)}</p>" for each in text.strip().split("\n\n") if each)


def _inline(text: str) -> str:
    """Text in which only code is marked."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text, quote=False))


def _anchor(method: str, path: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", f"{method}{path}".lower()).strip("-")
