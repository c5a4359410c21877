"""What came of it: by act, and by the promises that hold over all of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from tools.cluster.acts import Act
from tools.cluster.callers import Callers, Script
from tools.cluster.listeners import Event, Listener, moment

LATE_S = 3.0
"""From the end of speech until its worker has published the final; half a second of it is the endpoint."""
LEASE_S = 8.0
"""A worker that was away for less has lost no call."""
CUT_SHORT = ("worker_lost", "worker_restart")


@dataclass
class Verdict:
    """Over the whole run. All but the first three must be empty."""

    calls: int = 0
    finals: int = 0
    both_sides: int = 0
    """Calls of a worker that was cut off, of which its own subscribers have heard more than the others."""
    compared: int = 0
    """Finals whose audio had arrived whole: their text is held against what was said."""
    lost: list[str] = field(default_factory=list)
    """Utterances that began and have no final, and finals that are missing of calls that came through whole."""
    doubled: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    """Finals with other words."""
    different: list[str] = field(default_factory=list)
    """Calls of which two subscribers have not heard the same."""
    faults: list[str] = field(default_factory=list)

    @property
    def kept(self) -> bool:
        return not (self.lost or self.doubled or self.wrong or self.different or self.faults)

    def lines(self) -> Iterable[str]:
        yield f"calls {self.calls}, finals {self.finals}, of which {self.compared} were compared word for word"
        if self.both_sides:
            yield f"calls of which subscribers of a worker that was cut off have heard more: {self.both_sides}"
        for name in ("lost", "doubled", "wrong", "different", "faults"):
            found = getattr(self, name)
            yield f"{name:<10} {len(found)}" + (f"   {'; '.join(found[:3])}" if found else "")


def judge(listeners: Sequence[Listener], script: Script, acts: Sequence[Act]) -> Verdict:
    verdict = Verdict(faults=[fault for each in listeners for fault in each.faults])
    for call_id in sorted({call_id for each in listeners for call_id in each.calls}):
        verdict.calls += 1
        stories: list[list[Event]] = []
        for listener in listeners:
            story = _plain(listener.calls.get(call_id, []))
            if story not in stories:
                stories.append(story)
        if len(stories) > 1 and not _is_split(stories, acts):
            verdict.different.append(call_id)
        verdict.both_sides += len(stories) > 1
        for story in stories:
            _judge_call(verdict, call_id, story, script, acts)
    return verdict


def _is_split(stories: list[list[Event]], acts: Sequence[Act]) -> bool:
    """Two whole stories of a call that was there while its worker was cut off, which was ended by another one."""
    if len(stories) != 2 or not all(stories) or any(story[-1]["type"] != "call.ended" for story in stories):
        return False
    lost = [story[-1]["reason"] == "worker_lost" for story in stories]
    begun, ended = moment(stories[0][0]), max(moment(story[-1]) for story in stories)
    return any(lost) and any(act.cut_s > LEASE_S and act.meets(begun, ended) for act in acts)


def _is_whole(events: list[Event], script: Script, acts: Sequence[Act]) -> bool:
    """Whether all that was said until its end has come to the worker. A worker that is lost does not say so."""
    end = events[-1]
    if end["type"] != "call.ended":
        return False
    if not end["legs"]:
        return not any(act.cut_s and act.meets(moment(events[0]), moment(end)) for act in acts)
    return all(leg["lost"] == leg["late"] == 0 and leg["packets"] >= script.packets for leg in end["legs"])


def _judge_call(verdict: Verdict, call_id: str, events: list[Event], script: Script, acts: Sequence[Act]) -> None:
    if [event["seq"] for event in events] != list(range(1, len(events) + 1)):
        verdict.doubled.append(f"{call_id}: events {[event['seq'] for event in events]}")
    started = [event["utterance_id"] for event in events if event["type"] == "speech.started"]
    finals = [event for event in events if event["type"] == "transcript.final"]
    verdict.finals += len(finals)
    times = Counter(final["utterance_id"] for final in finals)
    verdict.lost += [f"{name} has no final" for name in started if not times[name]]
    verdict.doubled += [f"{name} has {count} finals" for name, count in times.items() if count > 1]
    whole, end = _is_whole(events, script, acts), events[-1]
    if whole and end["reason"] == "hangup" and len(finals) < len(script.texts):
        verdict.lost.append(f"{call_id}: {len(finals)} finals of {len(script.texts)}")
    if not whole or len(finals) > len(script.texts):
        return
    if end["reason"] != "hangup":
        finals = finals[:-1]  # the caller may have been broken off in the middle of the last one
    for final, text in zip(finals, script.texts, strict=False):
        if final["reason"] in ("endpoint", "hangup") and not final["lost_ms"]:
            verdict.compared += 1
            if final["text"] != text:
                verdict.wrong.append(f"{final['utterance_id']}: {final['text']!r} instead of {text!r}")


def _plain(events: list[Event]) -> list[Event]:
    return [{key: value for key, value in each.items() if key not in ("cursor", "heard_at")} for each in events]


def table(acts: Sequence[Act], listeners: Sequence[Listener], callers: Callers) -> Iterable[str]:
    heading = (
        "",
        "struck",
        "calls ended",
        "finals",
        "failed",
        "late",
        "slowest",
        "elsewhere",
        "next call",
        "next final",
        "refused",
    )
    rows = [heading, *(_row(number, act, listeners, callers) for number, act in enumerate(acts, start=1))]
    widths = [max(len(row[column]) for row in rows) for column in range(len(heading))]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def _row(number: int, act: Act, listeners: Sequence[Listener], callers: Callers) -> tuple[str, ...]:
    heard = _first_heard(listeners)
    finals = [
        event for event in heard if event["type"] == "transcript.final" and act.began <= moment(event) < act.ended
    ]
    spoken = [final for final in finals if final["reason"] != "failed"]
    waits = [final["latency_ms"] / 1000 for final in spoken]
    last = _last_heard(listeners)
    spread = [last[final["call_id"], final["seq"]] - moment(final) for final in finals]
    refused = sum(bool(each.problem) for each in callers.between(act.began, act.ended))
    return (
        str(number),
        act.struck or "–",
        _ends(act, heard),
        str(len(finals)),
        str(len(finals) - len(spoken)),
        str(sum(wait > LATE_S for wait in waits)),
        f"{max(waits, default=0):.1f} s",
        f"{max(spread, default=0):.1f} s",
        _next(act, heard, "call.started"),
        _next(act, heard, "transcript.final"),
        str(refused),
    )


def _ends(act: Act, heard: list[Event]) -> str:
    ends = [event for event in heard if event["type"] == "call.ended" and act.began <= moment(event) < act.ended]
    parts = []
    for reason, count in Counter(event["reason"] for event in ends).most_common():
        when = [moment(event) - act.blow for event in ends if event["reason"] == reason]
        parts.append(f"{count} {reason}" + (f" after {max(when):.0f} s" if reason in CUT_SHORT else ""))
    return ", ".join(parts) or "–"


def _next(act: Act, heard: list[Event], type_: str) -> str:
    found = [moment(event) for event in heard if event["type"] == type_ and moment(event) > act.blow]
    return f"{min(found) - act.blow:.1f} s" if found else "–"


def _first_heard(listeners: Sequence[Listener]) -> list[Event]:
    """Every event once, as whoever heard it first."""
    found: dict[tuple[str, int], Event] = {}
    for listener in listeners:
        for call_id, events in listener.calls.items():
            for event in events:
                known = found.get((call_id, event["seq"]))
                if known is None or event["heard_at"] < known["heard_at"]:
                    found[call_id, event["seq"]] = event
    return list(found.values())


def _last_heard(listeners: Sequence[Listener]) -> dict[tuple[str, int], float]:
    found: dict[tuple[str, int], float] = {}
    for listener in listeners:
        for call_id, events in listener.calls.items():
            for event in events:
                found[call_id, event["seq"]] = max(found.get((call_id, event["seq"]), 0.0), event["heard_at"])
    return found
