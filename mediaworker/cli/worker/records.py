"""Calls and jobs as lines for a person, and the call that somebody names."""

from __future__ import annotations

import re
from typing import Any

from config.log_text import printable
from mediaworker.client import CallRecord, Client

LATEST = 200
"""So many calls are looked through for the end of an id."""
_ID = re.compile("[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def is_call_id(text: str) -> bool:
    """Whether it is a whole id."""
    return _ID.fullmatch(text) is not None


async def find_call(client: Client, text: str) -> str:
    """The id of the call that is named by it, or by its last characters, as `watch` and `calls` show them.

    Raises:
        LookupError: there is none, or more than one; a sentence.
    """
    if is_call_id(text):
        return text
    found = [call.call_id for call in (await client.calls(limit=LATEST))[0] if call.call_id.endswith(text)]
    if len(found) == 1:
        return found[0]
    which = "more than one" if found else "none"
    raise LookupError(f"{which} of the {LATEST} latest calls has an id that ends with {text}")


def call_line(call: CallRecord) -> str:
    """One call in one line."""
    length = f"{call.duration_ms / 1000:.1f} s" if call.duration_ms is not None else call.state
    said = f"  {call.said.text}" if call.said is not None else ""
    people = f"{call.from_ or '?'} → {call.to or '?'}"
    return printable(f"{call.call_id}  {call.started_at[:19]}  {length:>9}  {call.source:8}  {people}{said}")


def job_line(job: dict[str, Any]) -> str:
    """One job in one line; `job` as the worker shows it."""
    ratio = job["progress"]["ratio"]
    done = "" if ratio is None else f"{ratio:.0%}"
    why = job.get("error") or {}
    text = f"  {why.get('message', '') if isinstance(why, dict) else why}" if why else ""
    line = f"{job['id']}  {str(job['created_at'])[:19]}  {job['status']:9}  {done:>4}  {job['file']['name']}{text}"
    return printable(line)
