"""Who speaks on which leg of a recorded call: participants of its metadata, with the configured roles."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from config.sections.section import Role
from config.settings import Siprec, SiprecParticipant
from sip.protocol.siprec import Participant


def speaker(settings: Siprec, participants: Sequence[Participant], label: str) -> tuple[Role, str]:
    """(role, name) of a stream: of the one who is heard in it, or of all who are.

    Without anybody the label decides, if something is configured for it. A stream of people with different roles has
    none: whose word it is cannot be told.
    """
    if not participants:
        rule = _rule(settings, [label])
        return (rule.role, rule.name) if rule is not None else ("unknown", "")
    roles: list[Role] = []
    names: list[str] = []
    for each in participants:
        rule = _rule(settings, [each.aor, each.user, each.name, label])
        roles.append(settings.others if rule is None else rule.role)
        names.append((rule.name if rule is not None else "") or each.name or each.user)
    return roles[0] if len(set(roles)) == 1 else "unknown", ", ".join(dict.fromkeys(filter(None, names)))


def _rule(settings: Siprec, known: Sequence[str]) -> SiprecParticipant | None:
    texts = [text.casefold() for text in known if text]
    for rule in settings.participants:
        if any(fnmatchcase(text, rule.match.casefold()) for text in texts):
            return rule
    return None
