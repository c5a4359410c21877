"""Every block of code of every page is what it says it is; those that can be are also run, in tests/slow."""

from __future__ import annotations

import ast
import json
import re
import tomllib

import pytest

from config.load import parse
from config.sections.key_names import keys
from config.settings import Settings
from lab.docs.pages import Block, blocks, pages, words
from lab.house import ROOT
from mediaworker.cli.main import COMMANDS, create_parser
from mediaworker.policy.alerts import rules

LANGUAGES = {"sh", "console", "text", "toml", "python", "js", "html", "json"}
OF_OTHERS = {"ini", "xml", "conf", "haproxy", "nginx", "yaml"}
"""Configurations of other programs, which tests/interop and tests/process run."""
BLOCKS = list(blocks())
SECRET = "a secret of two dozen letters"
NOT_ON_AN_INDEX = "mediaworker"


def of(*languages: str) -> list[Block]:
    return [block for block in BLOCKS if block.language in languages]


def test_every_block_says_its_language() -> None:
    fences = sum(path.read_text(encoding="utf-8").count("\n```") for path in pages())
    assert fences == 2 * len(BLOCKS), "a fence that is indented, or a comment that is no marker"
    assert [str(block) for block in BLOCKS if block.language not in LANGUAGES | OF_OTHERS | {""}] == []
    assert {block.page for block in BLOCKS if not block.language} == {"README.md"}, "its first one names two commands"


@pytest.mark.parametrize("block", of("toml"), ids=str)
def test_toml_is_a_configuration(block: Block) -> None:
    tree = tomllib.loads(block.text.replace("whsec_…", SECRET).replace("…", SECRET))
    if block.text.startswith("# alerts.toml"):
        assert rules.parse(block.text)
    elif "project" not in tree:
        parse(tree)


@pytest.mark.parametrize("block", of("json"), ids=str)
def test_json_is_json(block: Block) -> None:
    json.loads(block.text)


@pytest.mark.parametrize("block", of("python"), ids=str)
def test_python_is_a_whole_program(block: Block) -> None:
    """It compiles, and every name in it is defined there."""
    tree = ast.parse(block.text)
    compile(block.text, str(block), "exec")
    stored = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            stored |= {(alias.asname or alias.name).split(".")[0] for alias in node.names}
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            stored.add(node.name)
        elif isinstance(node, ast.arg):
            stored.add(node.arg)
        elif isinstance(node, ast.MatchAs) and node.name:
            stored.add(node.name)
    builtin = set(dir(__builtins__) if not isinstance(__builtins__, dict) else __builtins__)
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    assert used - stored - builtin == set()


@pytest.mark.parametrize("block", of("sh", "console"), ids=str)
def test_commands_and_variables_are_known(block: Block) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    known = {f"MEDIAWORKER_{key.upper().replace('.', '__')}" for key in keys(Settings)} | {"MEDIAWORKER_KEY"}
    for variable in re.findall(r"\b(MEDIAWORKER_[A-Z0-9_]+)=", block.text):
        assert variable in known, variable
    if "ari()" in block.text:  # a script of its own
        return
    for command in block.commands:
        _, rest = words(command)
        if rest[:1] == ["mediaworker"]:
            parser, _ = create_parser(rest[1])
            assert parser.parse_known_args(rest[1:])[1] == [], command
        elif rest[:1] == ["make"]:
            assert rest[1] in targets, command
        elif rest[:2] == ["pip", "install"]:
            assert not any(word.partition("[")[0] == NOT_ON_AN_INDEX for word in rest[2:]), (
                f"{command}: no index has it"
            )


def test_a_marker_says_what_is_lacking() -> None:
    for block in of("sh", "console", "js", "python"):
        assert not block.needs or len(block.needs) > 5, str(block)


def test_the_page_of_commands_has_all_of_them() -> None:
    table = (ROOT / "docs/reference/commands.md").read_text(encoding="utf-8")
    named = re.findall(r"`([a-z]+)[^`]*`", "\n".join(re.findall(r"^\| (`[^|]+) \|", table, re.M)))
    assert sorted(set(named)) == sorted(COMMANDS)
