"""The account of a call if several are registered, which routes match and events contain. No I/O.

PBXs and SBCs differ in their INVITEs. The request URI is the Contact that the worker has registered, unless a proxy has
replaced it. To may be the account's address, that Contact, the dialled number or a `tel:` URI. The source is the
registrar's address, unless the PBX calls from another one.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from sip.protocol.uri import host_of, parameter, user_of

LINE = "line"
"""The Contact parameter by which the request URI distinguishes accounts with the same user."""


@dataclass(frozen=True, slots=True)
class CalledAccount:
    """The account that an INVITE may name."""

    name: str
    user: str
    hosts: frozenset[str]
    """The hosts of its registrars, in lower case."""
    line: str = ""
    """The value of the parameter `LINE` in its Contact; "" if it has none."""


def called_account(accounts: Sequence[CalledAccount], *, request_uri: str, to_uri: str, here: Collection[str]) -> str:
    """The name of the account; "" if it cannot be determined.

    The request URI decides, then the user in To, then the source. `here`: the names of the accounts whose registrars
    have the source's address. Of several matches these are preferred, and then those whose host the INVITE names.
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
