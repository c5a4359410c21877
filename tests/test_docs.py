"""Generated documents are what the code generates now."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_generated_documents_are_current() -> None:
    done = subprocess.run([sys.executable, "scripts/gen_docs.py", "--check"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, f"run `make schema`: {done.stdout}{done.stderr}"


def test_the_readme_names_files_that_exist() -> None:
    import re

    text = (ROOT / "README.md").read_text(encoding="utf-8")
    named = {name for name in re.findall(r"`((?:[a-z_]+/)+[a-z_.]+\.[a-z]+)`", text)}
    assert len(named) > 8
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []
