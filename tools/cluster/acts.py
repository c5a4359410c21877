"""What is done to the cluster: each act strikes one part, waits until all is well again, and lets some calls go by."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from textwrap import fill

from tools.cluster.parts import Part
from tools.cluster.scene import Scene

AWAY_S = 12.0
"""A killed part stays away for so long: longer than it takes for its leases to be gone."""
STALL_S = 4.0
"""Shorter than `asr.server_timeout_s` and than a lease: nobody may be given up for that."""
DEAD_S = 14.0
"""Longer than both."""
CABLE_S = 5.0
AFTER_S = 8.0
INDENT = " " * 4
Choose = Callable[[Scene], Awaitable[Part]]


@dataclass
class Act:
    """One row of the table; times are Unix time."""

    title: str
    why: str
    """What is expected, for whoever reads along."""
    play: Callable[[Scene, Act], Awaitable[None]]
    cut_s: float = 0.0
    """For so long a worker's cable is out. What its callers say meanwhile does not come to it by RTP; and if that is
    longer than its lease, its calls are told in two ways: by itself, and by the others."""
    struck: str = ""
    began: float = 0.0
    blow: float = 0.0
    ended: float = 0.0
    notes: list[str] = field(default_factory=list)

    async def run(self, scene: Scene, number: int, of: int) -> None:
        scene.show(
            f"\n{number}/{of}  {self.title}\n{fill(self.why, 110, initial_indent=INDENT, subsequent_indent=INDENT)}"
        )
        self.began = self.blow = time.time()
        await asyncio.gather(self.play(scene, self), scene.jobs.submit())
        await asyncio.sleep(AFTER_S)
        self.ended = time.time()

    def meets(self, begun: float, ended: float) -> bool:
        """Whether a call of this time was there between the blow and the end."""
        return begun < self.ended and self.blow < ended

    @asynccontextmanager
    async def strikes(self, scene: Scene, part: Part) -> AsyncIterator[None]:
        self.struck = part.name
        self.blow = time.time()
        scene.show(f"{INDENT}It is {part.name}. Look: tail -f {part.log}")
        yield


async def leader(scene: Scene) -> Part:
    """The NATS server through which events go just now."""
    name = await scene.stream_leader()
    return next(each for each in scene.nats if each.name == name)


async def engine(scene: Scene) -> Part:
    return scene.engines[0]


async def worker(scene: Scene) -> Part:
    """One that has few calls."""
    return min(scene.workers, key=lambda each: each.metric("mediaworker_calls_active"))


async def favourite(scene: Scene) -> Part:
    """The worker with the most calls."""
    return max(scene.workers, key=lambda each: each.metric("mediaworker_calls_active"))


async def _nothing(scene: Scene, act: Act) -> None:
    await asyncio.sleep(AWAY_S)


async def _kill(choose: Choose, scene: Scene, act: Act) -> None:
    part = await choose(scene)
    async with act.strikes(scene, part):
        part.kill()
        await asyncio.sleep(AWAY_S)
        part.start()
        await scene.up(part)


async def _kill_and_restart(choose: Choose, scene: Scene, act: Act) -> None:
    part = await choose(scene)
    async with act.strikes(scene, part):
        part.kill()
        part.start()
        await scene.up(part)


async def _freeze(choose: Choose, seconds: float, scene: Scene, act: Act) -> None:
    part = await choose(scene)
    async with act.strikes(scene, part):
        part.freeze()
        await asyncio.sleep(seconds)
        part.thaw()
        await scene.up(part)


async def _unplug(choose: Choose, seconds: float, scene: Scene, act: Act) -> None:
    part = await choose(scene)
    async with act.strikes(scene, part):
        part.machine.unplug()
        await asyncio.sleep(seconds)
        part.machine.plug()
        await scene.up(part)


async def _replace(scene: Scene, act: Act) -> None:
    version, environ = await asyncio.to_thread(scene.next_version)
    for part in [*scene.engines, *scene.workers, *scene.nats]:
        began = time.time()
        await asyncio.to_thread(part.stop)
        drained = time.time()
        if part not in scene.nats:
            part.environ |= environ
        part.start()
        await scene.up(part)
        what = f"{part.name}: {drained - began:.1f} s to drain, {time.time() - drained:.1f} s to start"
        act.notes.append(what)
        scene.show(f"{INDENT}{what}")
    act.struck = f"all, to {version}"


CALM = Act("Nothing happens", "Sixty callers come and go, and three subscribers hear everything.", _nothing)

QUICK = [
    CALM,
    Act(
        "The leader of NATS's stream is killed",
        "The other two elect a new one, which takes some seconds. Meanwhile each worker tells its own events; those of "
        "the others come late, and no final waits.",
        partial(_kill, leader),
    ),
    Act(
        "An engine server is killed",
        "The workers still have the audio of its utterances, and send them to the other one.",
        partial(_kill, engine),
    ),
    Act(
        "The worker with the most calls is killed",
        "Its calls are lost, for their media came to it. Another worker ends them for the subscribers, with a final "
        "for each utterance that had none (reason: failed). New calls go to the other workers.",
        partial(_kill, favourite),
    ),
    Act(
        "A worker stands still for longer than its lease lasts",
        "As above, but it comes back, and finds that its calls have been ended. It says nothing else of them.",
        partial(_freeze, worker, DEAD_S),
    ),
    Act(
        "The cable of an engine server is pulled",
        "It gives no sign of life for five seconds: its utterances go to the other one.",
        partial(_unplug, engine, CABLE_S),
    ),
]
WHOLE = [
    *QUICK,
    Act(
        "A worker is killed and started again at once",
        "It is faster than its lease: it ends its own calls (reason: worker_restart).",
        partial(_kill_and_restart, worker),
    ),
    Act(
        "The leader of NATS's stream stands still",
        "Its peers, and its clients, take it for gone after some seconds.",
        partial(_freeze, leader, STALL_S),
    ),
    Act(
        "An engine server stands still for four seconds",
        "That is not a death: nothing is sent again. The finals of its utterances are late.",
        partial(_freeze, engine, STALL_S),
    ),
    Act(
        "An engine server stands still for longer than it may",
        "It is given up after asr.server_timeout_s, and its utterances go to the other one.",
        partial(_freeze, engine, DEAD_S),
    ),
    Act(
        "The worker with the most calls stands still for four seconds",
        "Its calls go on: what TCP has kept is heard late, and RTP as far as the kernel's buffers have kept it.",
        partial(_freeze, favourite, STALL_S),
    ),
    Act(
        "The cable of the leader of NATS's stream is pulled",
        "As when it is killed, but nobody is told.",
        partial(_unplug, leader, CABLE_S),
    ),
    Act(
        "The cable of a worker is pulled",
        "Five seconds are shorter than its lease. What its callers say meanwhile is lost on RTP, and late on TCP.",
        partial(_unplug, worker, CABLE_S),
        cut_s=CABLE_S,
    ),
    Act(
        "The cable of the worker with the most calls is pulled for longer",
        "It keeps its calls, and the others end them: when it is back, it says nothing else of them.",
        partial(_unplug, favourite, DEAD_S),
        cut_s=DEAD_S,
    ),
]
ROLLING = Act(
    "Everything is restarted with a new version, one by one",
    "Each part drains first: an engine server answers what it has, a worker lets its calls go on until they end, and "
    "the proxies send new ones elsewhere.",
    _replace,
)
