"""What docs/pbx shows is what is run here."""

from __future__ import annotations

import re

from tests.interop import proxy
from tests.interop.pbx import CONFIGURATION
from tests.peers import ROOT

EXAMPLES = {
    "192.0.2.10:5060": "@ADDRESS@:@SIP@",
    "192.0.2.20:5060": "@WORKER@",
    "CHANGE-ME": "@PASSWORD@",
    "HASH-OF-worker256:asterisk:PASSWORD": "@HASH@",
}


def test_what_is_to_be_copied_is_what_was_run() -> None:
    text = (ROOT / "docs" / "pbx" / "asterisk.md").read_text()
    blocks = re.findall(r"```ini\n; (\S+)\n(.*?)```", text, re.DOTALL)
    assert {name for name, _ in blocks} == {"pjsip.conf", "extensions.conf"}
    for name, block in blocks:
        for example, placeholder in EXAMPLES.items():
            block = block.replace(example, placeholder)
        ran = sections((CONFIGURATION / name).read_text())
        for header, lines in sections(block).items():
            assert lines <= ran[header], f"{name} [{header}]: {lines - ran[header]}"


def test_kamailio_runs_with_the_files_that_are_to_be_copied() -> None:
    text = (ROOT / "docs" / "pbx" / "kamailio-opensips.md").read_text()
    found = dict(re.findall(r"`/etc/kamailio/(\S+)`:\n\n```conf\n(.*?)```", text, re.DOTALL))
    assert found == {name: (proxy.CONFIGURATION / name).read_text() for name in proxy.FILES}


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
