"""The blocks of the pages, run as they stand: commands, and programs beside a worker."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from lab.docs.pages import Block, blocks
from lab.docs.shell import IS_THERE, KINDS, STREAM, furnish, run

pytestmark = [
    pytest.mark.skipif(not IS_THERE, reason="a network of its own needs root or user namespaces"),
    pytest.mark.timeout(300),
]

RUN = [block for block in blocks() if block.language in KINDS and not block.needs]
FOLLOWS = re.compile(r"transcript\.final")
"""A program with that waits for what is said in calls."""


@pytest.mark.parametrize("block", [each for each in RUN if each.language in ("sh", "console")], ids=str)
def test_commands_run_as_pasted(block: Block, tmp_path: Path) -> None:
    """Each succeeds, and every server of the block answers, all at once."""
    furnish(tmp_path)
    run(tmp_path, [each.partition("  #")[0].strip() for each in block.commands], beside=block.beside)


@pytest.mark.parametrize("block", [each for each in RUN if each.language in ("python", "js") and each.beside], ids=str)
def test_programs_run_beside_a_worker(block: Block, tmp_path: Path) -> None:
    furnish(tmp_path)
    name = f"program.{'mjs' if block.language == 'js' else 'py'}"
    (tmp_path / name).write_text(block.text)
    program = f"node --experimental-websocket {name}" if block.language == "js" else f"python {name}"
    if FOLLOWS.search(block.text):  # until it has printed what is said in a call
        again = f"{STREAM}; for try in $(seq 100); do [ -s said ] && break; sleep 0.2; done; cat said; [ -s said ]"
        run(tmp_path, ["wait-for-servers", f"{program} > said 2> program.log &"], beside=block.beside, checked=again)
    else:
        printed = run(tmp_path, ["wait-for-servers", f"{program} > said 2> program.log"], beside=block.beside)
        assert (tmp_path / "said").stat().st_size, printed
