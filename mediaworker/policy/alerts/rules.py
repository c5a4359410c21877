"""The form of the rules file: `[[rules]]` with one condition each, which `parse` checks and compiles. No I/O."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from config.sections.section import Name, Role
from mediaworker.errors import MediaworkerError
from mediaworker.policy.phrases import NumberPhrases, PatternError, Search, pattern, search

MAX_RULES = 1000
Severity = Literal["info", "warning", "critical"]
_CONDITIONS = ("phrases", "pattern", "silence_s", "overtalk_s")


class RulesError(MediaworkerError, ValueError):
    """The rules file cannot be used; the text names the rule and the reason."""


class Rule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One entry, with exactly one of `phrases`, `pattern`, `silence_s` and `overtalk_s`."""

    name: Name
    severity: Severity = "warning"
    role: Role | None = None
    """The role whose words, silence or overtalk the rule applies to; None: any role."""
    phrases: tuple[str, ...] = ()
    pattern: str = ""
    silence_s: Annotated[float, Meta(gt=0)] | None = None
    overtalk_s: Annotated[float, Meta(gt=0)] | None = None
    cooldown_s: Annotated[float, Meta(ge=0)] = 0.0
    """The time after an alert in which the rule raises no further one in the same call."""


@dataclass(frozen=True, slots=True)
class Spotting:
    """A rule about words, with its compiled search."""

    rule: Rule
    search: Search

    def find(self, text: str, language: str, latest: int = 0) -> tuple[int, int] | None:
        """Return (start, end) of the first match of `Search.finditer`; None without one or if the search times out."""
        try:
            return next(self.search.finditer(text, language, latest), None)
        except TimeoutError:
            return None


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules of a file, by the kind of their condition."""

    spotting: tuple[Spotting, ...] = ()
    silence: tuple[Rule, ...] = ()
    overtalk: tuple[Rule, ...] = ()

    @property
    def timed(self) -> bool:
        """True when a rule depends on the clock."""
        return bool(self.silence or self.overtalk)

    def __len__(self) -> int:
        return len(self.spotting) + len(self.silence) + len(self.overtalk)


NONE = Rules()


def parse(text: str) -> Rules:
    """Return the rules of a file's text. Raises RulesError."""
    try:
        tree = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise RulesError(f"not TOML: {error}") from None
    if unknown := tree.keys() - {"rules"}:
        raise RulesError(f"unknown key `{min(unknown)}`; only [[rules]] are allowed")
    entries = tree.get("rules", [])
    if not isinstance(entries, list) or len(entries) > MAX_RULES:
        raise RulesError(f"`rules` must be a list of at most {MAX_RULES}: [[rules]]")
    made = [_rule(number, entry) for number, entry in enumerate(entries, 1)]
    names = [rule.name for rule in made]
    if twice := {name for name in names if names.count(name) > 1}:
        raise RulesError(f"two rules have the name `{min(twice)}`")
    return Rules(
        tuple(_spotting(rule) for rule in made if rule.phrases or rule.pattern),
        tuple(rule for rule in made if rule.silence_s is not None),
        tuple(rule for rule in made if rule.overtalk_s is not None),
    )


def _rule(number: int, entry: Any) -> Rule:
    about = f"rule {number}"
    if isinstance(entry, dict) and isinstance(entry.get("name"), str):
        about += f" (`{entry['name'][:64]}`)"
    try:
        rule = msgspec.convert(entry, Rule)
    except msgspec.ValidationError as error:
        raise RulesError(f"{about}: {error}") from None
    conditions = [name for name in _CONDITIONS if getattr(rule, name)]
    if len(conditions) != 1:
        found = ", ".join(conditions) or "none"
        raise RulesError(f"{about}: exactly one of {', '.join(_CONDITIONS)} is needed, there is {found}")
    return rule


def _spotting(rule: Rule) -> Spotting:
    try:
        found = Search(pattern(rule.pattern), NumberPhrases(())) if rule.pattern else search(rule.phrases)
    except PatternError as error:
        raise RulesError(f"rule `{rule.name}`: {error}") from None
    assert found is not None
    return Spotting(rule, found)
