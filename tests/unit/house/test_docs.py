"""Generated documents are what the code generates now."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from config.settings import Settings

ROOT = Path(__file__).parents[3]


def test_generated_documents_are_current() -> None:
    done = subprocess.run([sys.executable, "tools/gen_docs.py", "--check"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, f"run `make schema`: {done.stdout}{done.stderr}"


def test_the_readme_names_files_that_exist() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    named = {name for name in re.findall(r"`((?:[a-z_]+/)+[a-z_.]+\.[a-z]+)`", text)}
    assert len(named) > 8
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []


def test_the_security_policy_names_what_exists() -> None:
    """Files, tests, settings and links: a promise that points nowhere is none."""
    text = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    tests, links = re.findall(r"`(tests/\w+\.py)`", text), re.findall(r"\]\(([\w/.]+)(?:#[\w-]+)?\)", text)
    assert len(tests) > 6 and len(links) >= 4
    assert [name for name in [*tests, *links] if not (ROOT / name).exists()] == []
    settings = Settings()
    for section, key in re.findall(r"`([a-z]+)\.([a-z_]+)(?: = [^`]+)?`", text):
        assert hasattr(getattr(settings, section), key), f"{section}.{key}"
