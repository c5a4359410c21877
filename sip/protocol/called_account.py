"""Which account a call belongs to, when several are registered: for routes, and for whoever reads the events. No I/O.

PBXs and SBCs put different things into an INVITE. The request URI is the Contact that the worker has registered, if
nobody on the way has replaced it; To may be the account's address, that Contact, the number that was dialled or a
`tel:`; and the source is the registrar's, unless the PBX calls from elsewhere.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from sip.protocol.uri import host_of, parameter, user_of

LINE = "line"
"""A parameter of the Contact that accounts with the same user register, so that the request URI tells them apart."""


@dataclass(frozen=True, slots=True)
class CalledAccount:
    """The account that an INVITE may name."""

    name: str
    user: str
    hosts: frozenset[str]
    """The hosts of its registrars, in lower case."""
    line: str = ""
    """The value of the parameter `LINE` in its Contact; "" when it has none."""


def called_account(accounts: Sequence[CalledAccount], *, request_uri: str, to_uri: str, here: Collection[str]) -> str:
    """The name of the account; "" when it is not to be told.

    By the request URI, then by the user in To, then by the source. `here`: the names of the accounts whose registrars
    have the source's address; of several that fit otherwise, they are preferred, and then those whose host the INVITE
    names.
    """
    line, user = parameter(request_uri, LINE), user_of(request_uri)
    hosts = {host_of(request_uri).lower(), host_of(to_uri).lower()}
    groups = (
        [each for each in accounts if line and each.line == line],
        [each for each in accounts if user and each.user == user],
        [each for each in accounts if user_of(to_uri) and each.user == user_of(to_uri)],
        [each for each in accounts if each.name in here],
    )
    found = next(filter(None, groups), [])
    found = [each for each in found if each.name in here] or found
    found = [each for each in found if each.hosts & hosts] or found
    return found[0].name if len(found) == 1 else ""
