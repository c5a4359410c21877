"""Plans a call by the routes of the configuration and the overrides in the caller's headers or parameters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from config import Route, Settings
from config.sections.section import Role
from config.settings import Endpointing

PROFILES = ("bot", "assist", "dictation")
ROLES = ("agent", "customer", "unknown")


@dataclass(frozen=True, slots=True)
class CallPlan:
    """How a call is transcribed. `roles` and `names` are keyed by leg and hold what a route or an override sets."""

    endpointing: Endpointing
    profile: str
    language: str = ""
    context: str = ""
    roles: Mapping[str, Role] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    join: str = ""
    """The header, or `HEADER;PARAMETER`, whose value all INVITEs of one conversation share; empty for none."""


def plan(
    settings: Settings,
    *,
    source: str,
    calling: str,
    called: str,
    account: str = "",
    headers: Mapping[str, str] | None = None,
    participants: Sequence[str] = (),
    overrides: Mapping[str, str] | None = None,
) -> CallPlan:
    """Plan a call by the first route that fits, and then by the overrides.

    `headers`: the headers of an INVITE, by their names in lower case; `participants`: the URIs, user parts and names in
    SIPREC metadata.

    Overrides are `profile`, `language`, `context`, `role.LEG` and `name.LEG`: Twilio `<Parameter>`s of that name, or
    SIP headers `X-Mediaworker-Profile`, `X-Mediaworker-Role-LEG` and so on. A value that is not allowed is ignored.
    """
    facts = _Facts(source, calling, called, account, headers or {}, participants)
    route = next((each for each in settings.routes if facts.fit(each)), Route())
    # Bytes of a SIP header that are not UTF-8 arrive as lone surrogates, which cannot be encoded in messages and files.
    overrides = {key: value.encode("utf-8", "replace").decode() for key, value in (overrides or {}).items()}
    roles = dict(route.roles)
    names = dict(route.names)
    for key, value in overrides.items():
        kind, _, leg = key.partition(".")
        if kind == "role" and leg and value in ROLES:
            roles[leg] = value  # type: ignore[assignment]
        elif kind == "name" and leg:
            names[leg] = value[:200]
    profile = overrides.get("profile", route.profile)
    if profile not in PROFILES:
        profile = route.profile
    return CallPlan(
        endpointing=getattr(settings.endpointing, profile),
        profile=profile,
        language=overrides.get("language", "") or route.language or settings.asr.language,
        context=overrides.get("context", "") or route.context,
        roles=roles,
        names=names,
        join=route.join,
    )


@dataclass(frozen=True, slots=True)
class _Facts:
    """The facts of a call that routes are matched against."""

    source: str
    calling: str
    called: str
    account: str
    headers: Mapping[str, str]
    participants: Sequence[str]

    def fit(self, route: Route) -> bool:
        return (
            route.source in ("", self.source)
            and _fits(route.calling, self.calling)
            and _fits(route.called, self.called)
            and _fits(route.account, self.account)
            and (not route.participant or matches(route.participant, self.participants))
            and all(
                (value := self.headers.get(name.lower())) is not None and matches(pattern, [value])
                for name, pattern in route.headers.items()
            )
        )


def _fits(pattern: str, value: str) -> bool:
    if pattern.endswith("*"):
        return value.startswith(pattern[:-1])
    return pattern in ("", value)


def matches(pattern: str, texts: Iterable[str]) -> bool:
    """Whether one of the texts fits a pattern with wildcards, ignoring case."""
    return any(fnmatchcase(text.casefold(), pattern.casefold()) for text in texts)
