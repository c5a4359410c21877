"""The headers of an INVITE: the caller, the entries of `custom`, the overrides of routes, and names to join by."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from sip.protocol.message import parameter_of
from sip.protocol.uri import host_of, user_of

OVERRIDE = "x-mediaworker-"
"""Headers `X-Mediaworker-Language`, `-Profile`, `-Context`, `-Role-LEG` and `-Name-LEG` override the routes."""
CUSTOM = "x-"
MAX_HEADERS = 64
MAX_NAME_CHARS = 64
MAX_VALUE_CHARS = 2048
"""The limits on text from peers: `custom` is stored and shown with every call."""
_NIL = "0" * 32
_UUID = re.compile("[0-9a-f]{32}")
_ASSERTED = ("p-asserted-identity", "remote-party-id")
_HIDDEN = frozenset(("", "anonymous", "restricted", "unavailable", "unknown", "private"))
_URI = re.compile(
    r"<((?:sips?|tel):[^<>\s]+)>|\b(sips?:[^<>\s,\"@]+@[^<>\s,;\"]+|(?:sips?|tel):[^<>\s,;\"]+)", re.IGNORECASE
)
"""A URI in angle brackets, or without. Without them, parameters of the user before the `@` belong to the URI, and
others do not."""


def custom_headers(headers: Mapping[str, str], named: Iterable[str]) -> dict[str, str]:
    """The headers for `custom`: those of `named` (in any case), then those that begin with `X-`.

    `headers` are keyed by their names in lower case.
    """
    names = [name for name in map(str.lower, named) if name in headers]
    names += [name for name in headers if name.startswith(CUSTOM) and not name.startswith(OVERRIDE)]
    kept = [name for name in dict.fromkeys(names) if len(name) <= MAX_NAME_CHARS][:MAX_HEADERS]
    return {name: headers[name][:MAX_VALUE_CHARS] for name in kept}


def overriding_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """The overrides for `mediaworker.calls.routing.plan`: name (`language`, `role.LEG`, …) → value."""
    found = [(name[len(OVERRIDE) :], value) for name, value in headers.items() if name.startswith(OVERRIDE)]
    return {
        name.replace("role-", "role.").replace("name-", "name."): value[:MAX_VALUE_CHARS]
        for name, value in found[:MAX_HEADERS]
    }


def shared_names(rule: str, headers: Mapping[str, str]) -> tuple[str, ...]:
    """The names of the conversation in the header, or `HEADER;PARAMETER`, of a route's `join`; () if it has none.

    INVITEs belong together if they share one of the names. The names in `Session-ID` are its two UUIDs, in either
    order: each end of a session generates one, and the nil UUID stands for an end that is not known yet (RFC 7989).
    """
    header, _, parameter = rule.lower().partition(";")
    value = headers.get(header, "").strip()
    if parameter:
        value = parameter_of(value, parameter)
    elif header == "session-id":
        return _session_uuids(value)
    return (value,) if value else ()


def _session_uuids(value: str) -> tuple[str, ...]:
    """The UUIDs of a `Session-ID` header; () unless all are valid. A header of RFC 7329 has no `remote`."""
    local, *parameters = value.lower().split(";")
    parts = (each.partition("=") for each in parameters)
    remote = next((value for name, _, value in parts if name.strip() == "remote"), _NIL)
    uuids = tuple(dict.fromkeys((local.strip(), remote.strip())))
    return tuple(each for each in uuids if each != _NIL) if all(map(_UUID.fullmatch, uuids)) else ()


def calling_uri(from_uri: str, headers: Mapping[str, str]) -> str:
    """The caller: From, or if that is anonymous (RFC 3323) the identity asserted by the network.

    The asserted identity is P-Asserted-Identity (RFC 3325) or the older Remote-Party-ID. Only admitted peers can send
    them.
    """
    if not _is_hidden(from_uri):
        return from_uri
    for name in _ASSERTED:
        for found in _URI.finditer(headers.get(name, "")[:MAX_VALUE_CHARS]):
            if not _is_hidden(uri := found[1] or found[2]):
                return uri
    return from_uri


def _is_hidden(uri: str) -> bool:
    """Whether the URI names no caller."""
    user = user_of(uri)
    return user.casefold() in _HIDDEN or host_of(uri).casefold() == "anonymous.invalid"


def user_part(uri: str) -> str:
    """The user part of an address, or the host without one: `"Ann" <sip:100;npdi@host;p=1>` → `100`."""
    inside = uri.split("<", 1)[-1].split(">", 1)[0]
    return user_of(inside) or host_of(inside) or inside.partition(":")[2].split(";", 1)[0].split("?", 1)[0]
