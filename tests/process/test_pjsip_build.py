"""How PJSIP is built: hardened, from a source that is known."""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
import sys
from ctypes import POINTER
from pathlib import Path

import pjsua2

from lab.patience import seconds
from sip.pjsip import native

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
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=seconds(60))


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


ADDITION = SCRIPT.parent / "pjsip/mediaworker.c"
C_TYPES = {"int": ctypes.c_int, "pjsua_transport_id": ctypes.c_int, "long*": POINTER(ctypes.c_long)}
C_TYPES |= {"int*": POINTER(ctypes.c_int), "void": None, "pj_status_t": ctypes.c_int}


def prototypes() -> dict[str, tuple[str, list[str]]]:
    """Of the functions in our addition to PJSIP: name → result and arguments, as C says them, without their names."""
    text = re.sub(r"/\*.*?\*/", "", ADDITION.read_text(), flags=re.DOTALL)
    found = re.findall(r"^(\w+) (mediaworker_\w+)\(([^;{]*?)\)\s*\{", text, flags=re.MULTILINE)
    return {name: (result, [_argument(each) for each in arguments.split(",")]) for result, name, arguments in found}


def _argument(text: str) -> str:
    """`const char *const names[]` → `char**`."""
    words = re.sub(r"\bconst\b", "", text).replace("*", " * ").replace("[]", " [] ").split()
    stars = words.count("*") + words.count("[]")
    return words[0] + "*" * stars


def test_c_and_python_agree_on_the_interface() -> None:
    """ctypes believes what it is told, so what it is told is held to the C that is compiled."""
    stated = re.search(r"#define MEDIAWORKER_INTERFACE (\d+)", ADDITION.read_text())
    assert stated and int(stated[1]) == native.INTERFACE == native.library.mediaworker_interface()
    written = prototypes()
    declared = {name: each for name, each in native.SIGNATURES.items() if name.startswith("mediaworker_")}
    assert written.keys() == declared.keys() and len(written) == 12
    for name, (result, arguments) in written.items():
        expected = [] if arguments == ["void"] else arguments
        assert declared[name][0] is C_TYPES[result], name
        assert len(declared[name][1]) == len(expected), name
        for said, kind in zip(declared[name][1], expected, strict=True):
            if kind in C_TYPES:
                assert said == C_TYPES[kind], f"{name}: {kind}"
            elif kind.startswith("char"):
                assert said == {"char*": ctypes.c_char_p, "char**": POINTER(ctypes.c_char_p)}[kind], name
            else:  # a structure stays opaque, a callback is one
                assert said is ctypes.c_void_p if kind.endswith("*") else hasattr(said, "argtypes"), name
