"""How PJSIP is built: hardened, from a source that is known."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pjsua2

SCRIPT = Path(__file__).parents[2] / "tools/build_pjsip.sh"
BINDING = Path(sys.modules["_pjsua2"].__file__ or "")


def readelf(*options: str) -> str:
    return subprocess.check_output(["readelf", "--wide", *options, str(BINDING)], text=True)


def test_an_overflow_ends_in_an_abort() -> None:
    """Stack protector, checked copies, and addresses that are read-only once they are bound."""
    assert Path(pjsua2.__file__).parent == BINDING.parent
    wanted = set(re.findall(r" UND (\w+)", readelf("--dyn-syms")))
    assert "__stack_chk_fail" in wanted
    assert {"__memcpy_chk", "__vsnprintf_chk"} <= wanted, sorted(name for name in wanted if name.endswith("_chk"))
    assert "BIND_NOW" in readelf("--dynamic")
    assert "GNU_RELRO" in readelf("--program-headers")


def build(cache: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    env = os.environ | {"MEDIAWORKER_CACHE": str(cache)} | environ
    command = ["bash", str(SCRIPT), sys.executable]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)


def test_another_source_ends_the_build(tmp_path: Path) -> None:
    source = tmp_path / "pjproject-2.17.tar.gz"
    source.write_bytes(b"something else")
    done = build(tmp_path / "cache", PJSIP_TARBALL=str(source))
    assert done.returncode == 1
    (found,) = re.findall(r"pjproject-2\.17\.tar\.gz has the SHA-256 ([0-9a-f]{64}), which is not one", done.stderr)
    assert f"PJSIP_SHA256={found}" in done.stderr
    assert not list((tmp_path / "cache").glob("*/*.whl"))
    # Who has verified it says so; here it comes as far as being no archive.
    assert "which is not" not in build(tmp_path / "cache", PJSIP_TARBALL=str(source), PJSIP_SHA256=found).stderr
    wrong = build(tmp_path / "cache", PJSIP_TARBALL=str(source), PJSIP_SHA256="0" * 64)
    assert wrong.returncode == 1 and "0" * 64 in wrong.stderr
