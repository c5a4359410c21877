"""Finds a model's files on this machine. It never downloads, and imports nothing heavy."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

COMMIT = re.compile("[0-9a-f]{40}")
RECORD = "mediaworker.json"
"""The name of a record in the folder of a model in the cache, beside its snapshots."""
HUB_FOLDERS = ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE")


def is_hub_name(model: str) -> bool:
    """`OWNER/NAME`, and no path."""
    return model.count("/") == 1 and not model.startswith((".", "/", "~"))


def find(model: str, environ: Mapping[str, str] = os.environ) -> Path | None:
    """The folder of `model`: a folder itself, or `OWNER/NAME` in the Hugging Face cache. None when it is not here.

    The layout of that cache is documented by `huggingface_hub`: `models--OWNER--NAME/snapshots/REVISION`, and the
    revision that is current in `refs/main`. The one that `mediaworker models pull` has recorded comes first: another
    program may move the other.
    """
    folder = Path(model).expanduser()
    if (folder / "config.json").is_file() and any(folder.glob("*.safetensors")):
        return folder
    if not is_hub_name(model):
        return None
    kept = _kept(model, environ)
    if pulled := recorded(model, environ):
        revision = pulled.revision
    else:
        try:
            revision = (kept / "refs" / "main").read_text().strip()
        except OSError:
            return None
    snapshot = kept / "snapshots" / revision
    return snapshot if _whole(snapshot) else None


def fingerprint(folder: Path | None) -> tuple[tuple[str, int, int], ...]:
    """The path, size and time of each file of a model, which change with an update; empty when it is not here."""
    if folder is None:
        return ()
    files = sorted(path for path in folder.iterdir() if path.is_file())
    return tuple((str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in files)


def size_bytes(folder: Path) -> int:
    """The size of the weights."""
    return sum(path.stat().st_size for path in folder.glob("*.safetensors"))


def _kept(model: str, environ: Mapping[str, str]) -> Path:
    return hub(environ) / f"models--{model.replace('/', '--')}"


@dataclass(frozen=True, slots=True)
class Record:
    """The files that `mediaworker models pull` has brought and checked."""

    revision: str
    """A commit: 40 hexadecimal digits."""
    bytes: dict[str, int]
    """The size of each file."""


def recorded(model: str, environ: Mapping[str, str] = os.environ) -> Record | None:
    """The record of this model; None when nothing was pulled, or its record cannot be read."""
    try:
        found = json.loads((_kept(model, environ) / RECORD).read_text(encoding="utf-8"))
        revision, sizes = found["revision"], found["bytes"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if not isinstance(revision, str) or not COMMIT.fullmatch(revision) or not isinstance(sizes, dict):
        return None
    return Record(revision, sizes)


def record(model: str, snapshot: Path, environ: Mapping[str, str] = os.environ) -> None:
    """Note that this snapshot is the one to use. Its files have been checked against the hub's hashes."""
    sizes = {path.name: path.stat().st_size for path in sorted(snapshot.iterdir()) if path.is_file()}
    path = _kept(model, environ) / RECORD
    beside = path.with_suffix(".new")
    beside.write_text(json.dumps({"revision": snapshot.name, "bytes": sizes}, indent=2) + "\n", encoding="utf-8")
    beside.replace(path)


def _whole(snapshot: Path) -> bool:
    """True when the download has ended: every file is linked into the snapshot when it is complete."""
    try:
        parts = set(json.loads((snapshot / "model.safetensors.index.json").read_text())["weight_map"].values())
    except OSError:
        parts = {"model.safetensors"}
    except (ValueError, KeyError, AttributeError, TypeError):
        return False
    return all((snapshot / part).is_file() for part in ("config.json", "tokenizer_config.json", *parts))


def hub(environ: Mapping[str, str] = os.environ) -> Path:
    """The folder of the Hugging Face cache."""
    for name in HUB_FOLDERS:
        if value := environ.get(name):
            return Path(value).expanduser()
    home = environ.get("HF_HOME") or Path(environ.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface"
    return Path(home).expanduser() / "hub"


def missing(model: str) -> str:
    """A sentence for somebody whose model is not on this machine."""
    if is_hub_name(model):
        return (
            f"the weights of {model} are not on this machine: `mediaworker models pull {model}` downloads them;"
            " without a network, copy the model's folder here and set asr.model to it"
        )
    return f"{model} is no folder with a model (config.json, *.safetensors, tokenizer): set asr.model to one"
