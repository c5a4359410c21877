"""Utterances sent to engine servers by a recognizer in this process."""

from __future__ import annotations

from asr.client.recognizer import EngineStatus, Utterance
from lab.engine.recognizer import PROMPT, Client, codes


def ready(c: Client) -> int:
    return sum(server.state is EngineStatus.READY for server in c.recognizer.servers)


def say(c: Client, leg: str, number: int, audio: bytes = codes(PROMPT), *, final: bool = True) -> str:
    """Speech of a leg, and its final. -> the utterance's id."""
    name = f"{leg}/{number}"
    c.recognizer.open(Utterance(name, "PCMU", stream=leg), c.heard.append)
    c.recognizer.append(name, audio)
    if final:
        c.recognizer.final(name, 1, commit=True)
    return name


async def finals(c: Client, names: list[str]) -> list[str]:
    """The text of each, which has come once and without an error."""
    await c.until(lambda: all(c.finals(name) for name in names))
    heard = [c.finals(name) for name in names]
    assert [(len(each), each[0].error) for each in heard] == [(1, None)] * len(names)
    return [each[0].text for each in heard]
