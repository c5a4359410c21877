"""The speaker on each leg of a recorded call: the participants from its metadata, with their configured roles."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from config.sections.section import Role
from config.settings import Siprec, SiprecParticipant
from sip.protocol.siprec import Participant


def speaker(settings: Siprec, participants: Sequence[Participant], label: str) -> tuple[Role, str]:
    """(role, name) of a stream, from the participants who speak in it.

    Without participants the configuration of the label decides. The role is unknown if the participants' roles differ.
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
