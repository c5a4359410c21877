"""`mediaworker completion`: a script with which a shell completes commands, actions and options.

bash: eval "$(mediaworker completion bash)" in ~/.bashrc; zsh: eval "$(mediaworker completion zsh)" in ~/.zshrc; fish:
mediaworker completion fish > ~/.config/fish/completions/mediaworker.fish
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping

from mediaworker.cli.bench import is_checkout

SHELLS = ("bash", "zsh", "fish")

_BASH = """\
_mediaworker() {{
  local current="${{COMP_WORDS[COMP_CWORD]}}" words=""
  COMPREPLY=()
  if [ "$COMP_CWORD" -eq 1 ]; then
    words="{commands}"
  else
    case "${{COMP_WORDS[1]}}" in
{cases}
    esac
  fi
  if [ "$COMP_CWORD" -eq 1 ] || [ -n "$words" ]; then
    COMPREPLY=($(compgen -W "$words" -- "$current"))
  fi
}}
complete -o default -F _mediaworker mediaworker
"""
_ZSH = "autoload -U +X compinit && compinit -u\nautoload -U +X bashcompinit && bashcompinit\n"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=SHELLS, metavar="SHELL", help="bash, zsh or fish")


def run(args: argparse.Namespace) -> int:
    from mediaworker.cli.main import COMMANDS, create_parser

    words: dict[str, list[str]] = {}
    for command in COMMANDS:
        if command == "bench" and not is_checkout():
            continue
        _, commands = create_parser(command)
        words[command] = commands.choices[command].words()
    words["help"] = list(COMMANDS)
    words["completion"] += SHELLS
    if args.shell == "fish":
        print(fish(words, COMMANDS), end="")
    else:
        print((_ZSH if args.shell == "zsh" else "") + bash(words), end="")
    return 0


def bash(words: Mapping[str, list[str]]) -> str:
    """The script for bash, and for zsh after `bashcompinit`. Other words are completed as file names."""
    cases = "\n".join(f'      {command}) words="{" ".join(each)}" ;;' for command, each in words.items())
    return _BASH.format(commands=" ".join(words), cases=cases)


def fish(words: Mapping[str, list[str]], summaries: Mapping[str, str]) -> str:
    lines = []
    for command, each in words.items():
        summary = summaries[command].replace("'", "\\'")
        lines.append(f"complete -c mediaworker -n __fish_use_subcommand -a {command} -d '{summary}'")
        seen = f"complete -c mediaworker -n '__fish_seen_subcommand_from {command}'"
        lines += [f"{seen} -l {word[2:]}" for word in each if word.startswith("--")]
        lines += [f"{seen} -a {word}" for word in each if not word.startswith("--")]
    return "\n".join(lines) + "\n"
