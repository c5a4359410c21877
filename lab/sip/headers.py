"""SIP requests, digest answers (RFC 7616) and identity headers as a test writes them."""

from __future__ import annotations

import hashlib
import re
from itertools import count

from config.settings import Sip
from sip.admission.request_filter import RequestHead

NAMED = Sip().headers
TELLING = {
    "P-Asserted-Identity": '"Bea" <sip:+4930123456@carrier.example>, <tel:+4930123456>',
    "Diversion": "<sip:100@pbx.example>;reason=no-answer, <sip:200@pbx.example>;reason=busy",
    "History-Info": "<sip:100@pbx.example>;index=1, <sip:200@pbx.example>;index=1.1",
    "Remote-Party-ID": "<sip:+4930123456@carrier.example>;party=calling;privacy=off",
    "User-to-User": "56a390f3d2b7310023a2;encoding=hex;purpose=isdn-uui",
    "Session-ID": "ab30317f1a784dc48ff824d0d3715d86;remote=47755a9de7794ba387653f2099600ef2",
    "Cisco-GUID": "3242324224-2863311530-1431655765-0305419896",
}
FRIEND, STRANGER = "192.0.2.10", "203.0.113.5"
_numbers = count()


def request(method: str = "INVITE", source: str = FRIEND, *, tag: str = "", branch: str = "") -> RequestHead:
    number = next(_numbers)
    return RequestHead(method, f"call-{branch or number}", branch or f"z9hG4bK{number}", tag, source)


URI = "sip:1000@worker"


def answer(
    challenge: str,
    user: str,
    password: str,
    *,
    method: str = "INVITE",
    nc: int = 1,
    qop: bool = True,
    uri: str = URI,
    count: str = "",
) -> str:
    """As a caller makes it of a challenge (RFC 7616 section 3.4); `count`: how `nc` is written."""
    count = count or f"{nc:08x}"
    fields = dict(re.findall(r'(\w+)="?([^",]+)"?', challenge))
    algorithm = {"MD5": hashlib.md5, "SHA-256": hashlib.sha256}[fields["algorithm"]]

    def hashed(*parts: str) -> str:
        return algorithm(":".join(parts).encode()).hexdigest()

    first, second = hashed(user, fields["realm"], password), hashed(method, uri)
    middle = (count, "abc", "auth") if qop else ()
    response = hashed(first, fields["nonce"], *middle, second)
    more = f', qop=auth, nc={count}, cnonce="abc"' if qop else ""
    return (
        f'Digest username="{user}", realm="{fields["realm"]}", nonce="{fields["nonce"]}", uri="{uri}", '
        f'response="{response}", algorithm={fields["algorithm"]}{more}'
    )
