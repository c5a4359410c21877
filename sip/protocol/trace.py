"""SIP messages for the log: PJSIP's printed messages are parsed into fields, with secrets and digits masked. No I/O."""

from __future__ import annotations

import re

LEVEL = 4
"""The level at which PJSIP prints the messages it sends and receives."""

_DUMP = re.compile(
    r"(?P<way>RX|TX) (?P<bytes>\d+) bytes .*? (?:from|to) (?P<transport>\w+) (?P<peer>\S+?):?[ \t]*\r?\n"
    r"(?P<message>.*?)(?:\r?\n?--end msg--\s*)?\Z",
    re.DOTALL,
)
_CALL_ID = re.compile(r"^(?:call-id|i)[ \t]*:[ \t]*(\S+)", re.IGNORECASE | re.MULTILINE)
# Values and their folded lines (RFC 3261 section 7.3.1).
_CREDENTIALS = re.compile(r"(?im)^((?:proxy-)?authorization[ \t]*:)[^\r\n]*(?:\r?\n[ \t][^\r\n]*)*")
_MEDIA_KEYS = re.compile(
    # SDES (RFC 4568), ICE (RFC 8839), the old key line (RFC 4566 section 5.12), MIKEY (RFC 4567)
    r"(?im)^(a=crypto:\d+[ \t]+\S+[ \t]+|a=ice-pwd:|k=|a=key-mgmt:\S+[ \t]+)[^\r\n]+"
)
_PASSWORD = re.compile(r"(?i)\b(sips?:[^\s:@<>\"]*):[^\s@<>\"]+@")
_DIGIT_BODY = re.compile(r"(?im)^(?:content-type|c)[ \t]*:[ \t]*application/(?:dtmf|vnd\.nortelnetworks\.digits|kpml)")
_SIGNAL = re.compile(r"(?im)^([ \t]*(?:signal|d|digits?)[ \t]*=)[^\r\n]*")
_BODY = re.compile(r"(\r?\n\r?\n).*\Z", re.DOTALL)


def parse(text: str) -> dict[str, str | int] | None:
    """The fields of a log line for a message printed by PJSIP, masked; None for other text.

    `direction` is `<` for a received message and `>` for a sent one; `bytes` is its size on the wire, while a long
    `message` is cut.
    """
    if (found := _DUMP.search(text)) is None:
        return None
    call = _CALL_ID.search(found["message"])
    return {
        "direction": "<" if found["way"] == "RX" else ">",
        "peer": found["peer"],
        "transport": found["transport"],
        "bytes": int(found["bytes"]),
        "external_id": call[1] if call else "",
        "message": mask_message(found["message"]),
    }


def mask_message(text: str) -> str:
    """The SIP or SDP text without digest responses, media keys, passwords in URIs, and keyed digits."""
    text = _CREDENTIALS.sub(r"\1 ***", text)
    text = _MEDIA_KEYS.sub(r"\1***", text)
    text = _PASSWORD.sub(r"\1:***@", text)
    text = _SIGNAL.sub(r"\1***", text)
    return _BODY.sub(r"\1***", text, count=1) if _DIGIT_BODY.search(text) else text
