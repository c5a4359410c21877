"""What docs/how-to/pbx shows is what is run here."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from xml.etree import ElementTree

import pytest

from config.load import parse
from lab.asterisk.pbx import CONFIGURATION
from lab.sip import kamailio as proxy
from lab.worker.peers import ROOT

PAGES = sorted([*(ROOT / "docs/how-to/pbx").glob("*.md"), ROOT / "docs/how-to/twilio.md"])
EXAMPLES = {
    "192.0.2.10:5060": "@ADDRESS@:@SIP@",
    "192.0.2.10:5061": "@ADDRESS@:@TLS@",
    "192.0.2.10:5062": "@ADDRESS@:@TLS_VERIFIED@",
    "192.0.2.10": "@ADDRESS@",
    "bindport = 8088": "bindport = @HTTP@",
    "192.0.2.20:5060": "@WORKER@",
    "192.0.2.20:5061": "@WORKER_TLS@",
    "127.0.0.1:8081": "@MEDIA@",
    "worker.example:8443": "@MEDIA_TLS@",
    "192.0.2.20:9092": "@AUDIOSOCKET@",
    "/etc/asterisk/keys": "@KEYS@",
    "YOUR-API-KEY": "@KEY@",
    "CHANGE-ME": "@PASSWORD@",
    "HASH-OF-worker256:asterisk:PASSWORD": "@HASH@",
}
FILES = {"pjsip.conf", "extensions.conf", "websocket_client.conf", "http.conf", "ari.conf"}
"""Those of Asterisk that its page shows."""


def test_what_is_to_be_copied_is_what_was_run() -> None:
    text = (ROOT / "docs" / "how-to" / "pbx" / "asterisk.md").read_text()
    blocks = re.findall(r"```ini\n; (\S+)\n(.*?)```", text, re.DOTALL)
    assert {name for name, _ in blocks} == FILES and len(blocks) == text.count("```ini")
    for name, block in blocks:
        for example, placeholder in EXAMPLES.items():
            block = block.replace(example, placeholder)
        ran = sections((CONFIGURATION / name).read_text())
        for header, lines in sections(block).items():
            assert lines <= ran[header], f"{name} [{header}]: {lines - ran[header]}"


def test_kamailio_runs_with_the_files_that_are_to_be_copied() -> None:
    text = (ROOT / "docs" / "how-to" / "pbx" / "kamailio-opensips.md").read_text()
    found = dict(re.findall(r"`/etc/kamailio/(\S+)`:\n\n```conf\n(.*?)```", text, re.DOTALL))
    assert found == {name: (proxy.CONFIGURATION / name).read_text() for name in proxy.FILES}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: f"{page.parent.name}-{page.stem}")
def test_what_cannot_be_run_can_be_read(page: Path) -> None:
    """The worker takes each of its configurations, and its XML is well-formed."""
    text = page.read_text()
    for block in re.findall(r"```toml\n(.*?)```", text, re.DOTALL):
        parse(tomllib.loads(block))
    for block in re.findall(r"```xml\n(.*?)```", text, re.DOTALL):
        ElementTree.fromstring(f"<page>{block}</page>")


def sections(text: str) -> dict[str, set[str]]:
    """Name → its settings; with those of its template, and of all sections of that name."""
    found: dict[str, set[str]] = {}
    current: set[str] = set()
    for line in text.splitlines():
        if header := re.match(r"\[([\w-]+)\](?:\(([\w-]+|!)\))?", line):
            current = found.setdefault(header[1], set())
            current |= found.get(header[2] or "", set())
        elif line.strip() and not line.startswith(";"):
            current.add(line)
    return found
