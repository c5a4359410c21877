"""Extensions of Asterisk that answer, and calls from one to another through the worker."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lab.asterisk.pbx import ADDRESS, PASSWORD, Asterisk
from lab.events.story import check_story
from lab.patience import until
from lab.sip.softphone import Softphone, phone
from lab.worker.calls import said
from lab.worker.peers import Worker


@contextmanager
def extension(
    asterisk: Asterisk, tmp_path: Path, name: str, *, registers: bool = False, **options: Any
) -> Iterator[Softphone]:
    account = f'auth_user={name};auth_pass="{PASSWORD}";regint={60 * registers};answermode=auto'
    folder = tmp_path / name
    with phone(asterisk.system, folder, f"sip:{name}@{ADDRESS}:{asterisk.sip_port}", account=account, **options) as it:
        if registers:
            until(lambda: asterisk.contact(name), 20, f"{name} has registered")
        yield it


def dialled(asterisk: Asterisk, listening: Worker, caller: Softphone, peer: str) -> str:
    """The call id that the worker gives to a call from a phone."""
    known = {call["call_id"] for call in listening.calls()}
    caller.do("dial", f"sip:{peer}@{ADDRESS}:{asterisk.sip_port}")
    (call,) = until(lambda: [each for each in listening.calls() if each["call_id"] not in known], 20, "a call")
    return str(call["call_id"])


def wait_said(listening: Worker, call_id: str, texts: list[str]) -> None:
    until(lambda: len(said(listening, call_id)) >= len(texts), 40, f"{texts}")
    assert said(listening, call_id) == texts


def hold_and_say_again(listening: Worker, call_id: str, phone: Softphone, texts: list[str]) -> None:
    """Hold, of which the worker is told; then `texts` once more, behind those of before."""
    phone.do("hold")
    until(lambda: "call.held" in [event["type"] for event in listening.events(call_id)], 30, "the hold")
    phone.resume()
    wait_said(listening, call_id, texts * 2)


def wait_ended(listening: Worker, call_id: str) -> list[dict[str, Any]]:
    until(lambda: any(call["call_id"] == call_id and call["ended_at"] for call in listening.calls()), 20)
    events = listening.events(call_id)
    check_story(events)
    return events
