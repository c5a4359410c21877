"""Parts of SIP and telephone URIs (RFC 3261 section 19.1, RFC 3966), from whatever stands in a header. No I/O.

Parameters may belong to the user (`sip:+33123;npdi;rn=+33999@carrier.example;user=phone`: those of RFC 4694 before the
`@`) or to the URI, so the `@` is looked for before any `;`.
"""

from __future__ import annotations

import re
from urllib.parse import unquote

_END = re.compile(r"[;?]")


def without_parameters(uri: str) -> str:
    """The URI without its own parameters and headers; those of the user are kept."""
    user, at, host = uri.rpartition("@")
    return user + at + _END.split(host, maxsplit=1)[0]


def user_of(uri: str) -> str:
    """The user without password and parameters, or the number of a `tel:` URI; "" if there is none."""
    scheme, _, rest = uri.partition(":")
    user, at, _ = rest.rpartition("@")
    if not at and scheme.lower() == "tel":
        user = rest
    return unquote(_END.split(user, maxsplit=1)[0].partition(":")[0])


def host_of(uri: str) -> str:
    """The host without brackets and port; "" for a `tel:` URI."""
    scheme, _, rest = without_parameters(uri).partition(":")
    host = rest.rpartition("@")[2]
    if scheme.lower() == "tel":
        return ""
    return host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]


def parameter(uri: str, name: str) -> str:
    """The value of a parameter of the URI itself; "" if it has none with that name."""
    for each in uri.rpartition("@")[2].partition("?")[0].split(";")[1:]:
        key, _, value = each.partition("=")
        if key.strip().lower() == name:
            return unquote(value.strip())
    return ""
