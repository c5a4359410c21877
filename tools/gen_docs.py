"""Regenerate what is made from the code and from other documents: docs/, the dashboard, and the page at /docs.

python tools/gen_docs.py            write
python tools/gen_docs.py --check    exit 1 when a committed file differs
"""

from __future__ import annotations

import asyncio
import sys
import types
import typing
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgspec

from config import settings as schema
from config.load import PREFIX
from config.metrics.registry import MetricsRegistry

sys.path.insert(0, str(Path(__file__).parent))
import events_schema  # noqa: E402
import openapi_page  # noqa: E402
from dashboard import dashboard  # noqa: E402

DOCS = Path(__file__).parent.parent / "docs"


def configuration() -> str:
    lines = [
        "# Configuration",
        "",
        "<!-- Generated from config/ by `make schema`; do not edit. -->",
        "",
        "Every setting of the TOML file (`mediaworker serve --config FILE`, else `./mediaworker.toml` if it is there).",
        f"Each can also be set in the environment as `{PREFIX}<SECTION>__<KEY>` with a TOML literal or a bare string:",
        f"`{PREFIX}SIP__PORT=5070`, `{PREFIX}SIP__ALLOW='[\"10.0.0.0/8\"]'`, `{PREFIX}DATA_DIR=/var/lib/mediaworker`.",
        "The environment wins. An unknown key or a bad value stops the start with one line. `mediaworker config`",
        "prints what is in force, secrets masked.",
    ]
    _section(lines, "", schema.Settings)
    return "\n".join(lines) + "\n"


def _section(lines: list[str], path: str, kind: type[schema.Section]) -> None:
    notes = events_schema.field_notes(kind)
    hints = typing.get_type_hints(kind, include_extras=True)
    rows, inner = [], []
    for field in msgspec.structs.fields(kind):
        hint = hints[field.name]
        nested = _nested(hint)
        if nested is not None:
            inner.append((field.name, hint, nested))
            continue
        value = field.default if field.default is not msgspec.NODEFAULT or field.required else field.default_factory()
        default = "**required**" if field.required else f"`{_literal(value)}`"
        rows.append(f"| `{field.name}` | {_describe(hint)} | {default} | {notes.get(field.name, '')} |")
    if kind is schema.Profiles:
        lines += _profiles(inner)
        return
    title = path or "Top level"
    lines += ["", f"## {title}" if not path else f"## `{path}`", ""]
    if path and kind.__doc__ and not kind.__doc__.startswith(kind.__name__ + "("):
        lines += [" ".join(kind.__doc__.split()), ""]
    if rows:
        lines += ["| key | value | default | |", "|---|---|---|---|", *rows]
    for name, hint, nested in inner:
        many = get_origin(_plain(hint)) is tuple
        here = f"{path.strip('[]')}.{name}" if path else name
        _section(lines, f"[[{here}]]" if many else f"[{here}]", nested)


def _profiles(profiles: list[tuple[str, Any, type[schema.Section]]]) -> list[str]:
    """Profiles have the same keys, so that one table has the defaults of all of them."""
    names = [name for name, _, _ in profiles]
    sections = ", ".join(f"`[endpointing.{name}]`" for name in names)
    out = [
        "",
        "## `[endpointing.PROFILE]`",
        "",
        f"{' '.join((schema.Profiles.__doc__ or '').split())} The sections are {sections}.",
        "",
    ]
    out += [f"| key | value | {' | '.join(names)} | |", "|---|---|" + "---|" * len(names) + "---|"]
    kinds = [kind for _, _, kind in profiles]
    hints, notes = typing.get_type_hints(kinds[0], include_extras=True), events_schema.field_notes(kinds[0])
    for fields in zip(*map(msgspec.structs.fields, kinds), strict=True):
        key = fields[0].name
        defaults = " | ".join(f"`{_literal(field.default)}`" for field in fields)
        out.append(f"| `{key}` | {_describe(hints[key])} | {defaults} | {notes[key]} |")
    return out


def _plain(hint: Any) -> Any:
    """Without what is annotated: its limits, and whether it is reloadable."""
    return get_args(hint)[0] if get_origin(hint) is Annotated else hint


def _nested(hint: Any) -> type[schema.Section] | None:
    plain = _plain(hint)
    for candidate in (plain, *get_args(plain)):
        if isinstance(candidate, type) and issubclass(candidate, schema.Section):
            return candidate
    return None


def _describe(hint: Any) -> str:
    if get_origin(hint) is Annotated:
        inner, *meta = get_args(hint)
        limits = [
            f"{sign} {getattr(item, name)}"
            for item in meta
            for name, sign in (("ge", "≥"), ("gt", ">"), ("le", "≤"), ("max_length", "length ≤"))
            if getattr(item, name, None) is not None
        ]
        return f"{_describe(inner)} {', '.join(limits)}".strip()
    if get_origin(hint) is Literal:
        return " \\| ".join(f"`{_literal(choice)}`" for choice in get_args(hint))
    if isinstance(hint, types.UnionType) or get_origin(hint) is Union:
        return " \\| ".join(_describe(choice) for choice in get_args(hint))
    if get_origin(hint) is tuple:
        return f"list of {_describe(get_args(hint)[0])}"
    if get_origin(hint) is dict:
        return f"table of {_describe(get_args(hint)[1])}"
    if isinstance(hint, types.GenericAlias):
        return str(hint)
    return {"str": "text", "Secret": "text (secret)", "int": "integer", "float": "number", "bool": "true/false"}[
        hint.__name__
    ]


def _literal(value: Any) -> str:
    return msgspec.json.encode(value, enc_hook=str).decode().replace("|", "\\|")


Row = tuple[str, str, str, str]


def metrics() -> str:
    """Everything `/metrics` may show, from a worker that is made and not started."""
    from config.load import parse
    from mediaworker.service.engine import EngineService
    from mediaworker.service.worker import Worker

    def table(metrics: MetricsRegistry) -> list[Row]:
        return sorted((each.name, each.kind, ", ".join(each.labels), each.help) for each in metrics)

    async def tables() -> tuple[list[Row], list[Row]]:
        traces = {"url": "http://127.0.0.1:4318/v1/traces"}
        server = {"asr": {"listen": "tcp://127.0.0.1:9095"}, "cluster": {"token": "none"}, "traces": traces}
        clustered = {"cluster": {"nats": ["nats://127.0.0.1:4222"]}, "traces": traces}
        return table(Worker(parse(clustered)).metrics), table(EngineService(parse(server)).metrics)

    def line(row: Row) -> str:
        name, kind, labels, help = row
        return f"| `{name}` | {kind} | {labels and f'`{labels}`'} | {help} |"

    lines = [
        "# Metrics",
        "",
        "<!-- Generated from the worker by `make schema`; do not edit. -->",
        "",
        "Every metric that `GET /metrics` shows. [Monitoring](../how-to/monitoring.md) says how to scrape it.",
        "",
        "| name | kind | labels | |",
        "|---|---|---|---|",
    ]
    worker, server = asyncio.run(tables())
    lines += map(line, worker)
    lines += ["", "## Engine servers", "", "`mediaworker engine` shows these besides those above of the engine:", ""]
    lines += ["| name | kind | labels | |", "|---|---|---|---|"]
    lines += map(line, [each for each in server if each not in worker])
    return "\n".join(lines) + "\n"


FILES = {
    "reference/configuration.md": configuration,
    "reference/metrics.md": metrics,
    "schemas/events.schema.json": events_schema.generate,
    "../deploy/grafana/mediaworker.json": dashboard,
    "../mediaworker/web/openapi.json": openapi_page.as_json,
    "../mediaworker/web/docs.html": openapi_page.page,
}


def main(check: bool) -> int:
    wrong = []
    for name, make in FILES.items():
        path, text = DOCS / name, make()
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            wrong.append(name)
            if not check:
                path.write_text(text, encoding="utf-8")
    if wrong:
        sys.stdout.write(("out of date: " if check else "wrote: ") + ", ".join(wrong) + "\n")
    return 1 if wrong and check else 0


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv[1:]))
