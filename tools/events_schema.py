"""The JSON Schema of a frame, generated from the structs."""

from __future__ import annotations

import ast
import inspect
import json
from typing import Any

import msgspec

from mediaworker.events.frame import Envelope
from mediaworker.events.schema import BODIES, VERSION, EventBody


def generate() -> str:
    """`docs/schemas/events.schema.json`, JSON Schema 2020-12. `$defs/<type>` is one event with its envelope."""
    (_, *references), components = msgspec.json.schema_components((Envelope, *BODIES), ref_template="#/$defs/{name}")
    for kind in (Envelope, *msgspec.Struct.__subclasses__(), *BODIES):
        if kind.__name__ in components and kind.__module__.startswith("mediaworker.events."):
            _add_notes(components[kind.__name__]["properties"], kind)
    envelope = components.pop("Envelope")
    definitions: dict[str, Any] = {}
    mapping: dict[str, str] = {}
    for kind, reference in zip(BODIES, references, strict=True):
        body = components.pop(reference["$ref"].rsplit("/", 1)[1])
        tag = str(kind.__struct_config__.tag)
        properties = {"v": envelope["properties"]["v"], "type": {"const": tag}}
        properties |= envelope["properties"] | {k: v for k, v in body["properties"].items() if k != "type"}
        definitions[tag] = {
            "title": kind.__name__,
            "description": _describe(kind, body),
            "type": "object",
            "properties": properties,
            "required": ["type", *envelope["required"], *(name for name in body["required"] if name != "type")],
        }
        mapping[tag] = f"#/$defs/{tag}"
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"mediaworker event, version {VERSION}",
        "description": "One text frame of WS /v1/events. Fields may be added; readers ignore those they do not know.",
        "oneOf": [{"$ref": reference} for reference in mapping.values()],
        "discriminator": {"propertyName": "type", "mapping": mapping},
        "$defs": definitions | components,
    }
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def _add_notes(properties: dict[str, Any], kind: type[msgspec.Struct]) -> None:
    notes = field_notes(kind)
    for field in msgspec.structs.fields(kind):
        if field.name in notes:
            description = {"description": notes[field.name].removesuffix(".")}
            properties[field.encode_name] = description | properties[field.encode_name] | description


def field_notes(kind: type) -> dict[str, str]:
    """The string literal under each field, from the class and its bases."""
    notes: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if base.__module__.split(".")[0] not in ("config", "mediaworker"):
            continue
        body = ast.parse(inspect.getsource(base)).body[0].body  # type: ignore[attr-defined]
        for field, note in zip(body, body[1:], strict=False):
            if isinstance(field, ast.AnnAssign) and isinstance(note, ast.Expr) and isinstance(note.value, ast.Constant):
                notes[field.target.id] = " ".join(str(note.value.value).split())  # type: ignore[union-attr]
    return notes


def _describe(kind: type[EventBody], body: dict[str, Any]) -> str:
    durable = "by its field `durable`" if kind.__name__ == "Metrics" else "yes" if kind.DURABLE else "no"
    text = " ".join(str(body.get("description", "")).split())
    return f"{text} Durable: {durable}.".strip()
