"""Workers and engine servers without sockets: what a session makes of messages, and what cuts and deaths cost."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from asr import messages
from asr.client.outstanding import EngineQueue, OutstandingWork
from asr.client.servers.engine_connection import EngineConnection, ServerAddress
from asr.client.servers.engine_health import ProcessRestarts
from asr.client.servers.engine_life import EngineLife
from asr.client.servers.engine_server import EngineServer, EngineUser
from asr.client.servers.watchdog import Watchdog
from asr.client.spill import Spill
from asr.network.connection import Delay
from asr.network.session import MAX_NAME, MAX_UTTERANCES, AnsweredFinal, ProtocolError, WorkerSession
from asr.server.inference import Inference
from asr.utterance import Alignment, Hypothesis, Utterance
from config import framing
from config.certificates import client_context
from config.sections.cluster import Cluster
from lab.engine.hash_engine import HashEngine, text_of
from lab.patience import wait_for

WORKERS, SERVERS, NAMES = 2, 2, "abc"


def outstanding(max_bytes: int = 1 << 20) -> OutstandingWork:
    return OutstandingWork(max_bytes=max_bytes, spill=Spill(tempfile.gettempdir(), max_bytes=1 << 20, block_bytes=64))


class Server:
    """An engine server: outstanding work of its own, an inference that can die, and sessions."""

    def __init__(self) -> None:
        self.work = outstanding()
        self.queue = self.work.add_queue()
        self.inference: Inference | None = None
        self.sessions: dict[int, WorkerSession] = {}

    # -- `asr.network.session.SharedRecognizer` --

    def open(self, utterance: Utterance, on_hypothesis: Callable[[Hypothesis], None], *, suspect: bool = False) -> None:
        self.work.open(utterance, on_hypothesis, suspect=suspect)

    def append(self, utterance_id: str, audio: bytes) -> None:
        self.work.append(utterance_id, audio)

    def partial(self, utterance_id: str, revision: int) -> None:
        self.work.partial(utterance_id, revision)

    def final(self, utterance_id: str, revision: int, *, commit: bool, wanted_in_ms: int = 0) -> None:
        self.work.final(utterance_id, revision, commit=commit, wanted_in_ms=wanted_in_ms)

    def withdraw(self, utterance_id: str) -> None:
        self.work.withdraw(utterance_id)

    def align(self, utterance_id: str, text: str, language: str, on_words: Callable[[Alignment], None]) -> None:
        self.work.align(utterance_id, text, language, on_words)

    def cancel(self, utterance_id: str) -> None:
        self.work.close(utterance_id)

    def release(self, stream: str) -> None:
        self.work.release(stream)

    def is_open(self, utterance_id: str) -> bool:
        return utterance_id in self.work

    def crashes(self, utterance_id: str) -> int:
        return self.work.crashes(utterance_id)

    # -- its engine --

    def start(self) -> None:
        if self.inference is None:
            self.inference = Inference(HashEngine())
            self.work.on_ready(self.queue)

    def step(self, *, die: bool = False) -> bool:
        """One step of the engine, which may be its last. -> whether there was one."""
        if self.inference is None:
            return False
        while (message := self.queue.next_message()) is not None:
            self.inference.receive(messages.decode_to_engine(framing.encode(message)[4:]), 0.0)
        if (work := self.inference.choose()) is None:
            return False
        self.queue.working = work.utterance_ids
        if die:
            return True
        for message in self.inference.perform(work):
            if isinstance(message, messages.Heard):
                self.work.on_hypothesis(self.queue, message.hypothesis)
        self.deliver()
        self.queue.working = ()
        return True

    def die(self) -> list[tuple[int, messages.Working]]:
        """Its inference process dies. -> what each worker is told, whose sessions are over."""
        self.inference = None
        self.work.on_death(self.queue, "it died")
        self.deliver()
        blamed = {number: session.blamed for number, session in self.sessions.items()}
        total = sum(map(len, blamed.values()))
        return [(number, messages.Working(names, shared=total > len(names))) for number, names in blamed.items()]

    def deliver(self) -> None:
        for callback, answer in self.work.take_deliveries():
            callback(answer)


class World:
    """Workers, servers, and connections on which messages are under way."""

    def __init__(self) -> None:
        self.workers = [outstanding() for _ in range(WORKERS)]
        self.queues = [[work.add_queue(shared=True) for _ in range(SERVERS)] for work in self.workers]
        self.servers = [Server() for _ in range(SERVERS)]
        self.got: dict[str, list[Hypothesis]] = {}
        self._numbers = 0

    def connect(self, worker: int, server: int) -> None:
        at = self.servers[server]
        if worker not in at.sessions and at.inference is not None:
            self._numbers += 1
            at.sessions[worker] = WorkerSession(self._numbers, str(worker), at, lambda waited_s: None)
            self.workers[worker].on_ready(self.queues[worker][server])

    def cut(self, worker: int, server: int, *, asked: bool = False) -> None:
        """The connection is lost, with what was under way to the worker. `asked`: it was let go of."""
        session = self.servers[server].sessions.pop(worker, None)
        if session is None:
            return
        session.close()
        queue = self.queues[worker][server]
        if asked:
            self.workers[worker].forget_process(queue)
        else:
            self.workers[worker].on_death(queue, "it was cut")
        self.deliver(worker)

    def send(self, worker: int, server: int, count: int = 1 << 30) -> None:
        session, queue = self.servers[server].sessions.get(worker), self.queues[worker][server]
        while session is not None and count and (message := queue.next_message()) is not None:
            session.receive(messages.decode_to_engine(framing.encode(message)[4:]))
            count -= 1
        self.servers[server].deliver()

    def receive(self, worker: int, server: int) -> None:
        session, queue = self.servers[server].sessions.get(worker), self.queues[worker][server]
        for message in session.take() if session is not None else []:
            message = messages.decode_from_engine(framing.encode(message)[4:])
            assert isinstance(message, messages.Heard)
            self.workers[worker].on_hypothesis(queue, message.hypothesis)
        self.deliver(worker)

    def die(self, server: int) -> None:
        if self.servers[server].inference is None:
            return
        for worker, working in self.servers[server].die():
            self.servers[server].sessions[worker].close()
            self.receive(worker, server)
            queue = self.queues[worker][server]
            queue.working, queue.in_company = working.utterance_ids, working.shared
            self.cut(worker, server)

    def deliver(self, worker: int) -> None:
        for callback, answer in self.workers[worker].take_deliveries():
            callback(answer)

    def restore(self) -> None:
        for server in range(SERVERS):
            self.servers[server].start()
            for worker in range(WORKERS):
                self.connect(worker, server)


pairs = st.tuples(st.integers(0, WORKERS - 1), st.integers(0, SERVERS - 1))
servers = st.integers(0, SERVERS - 1)
speakers = st.tuples(st.integers(0, WORKERS - 1), st.sampled_from(NAMES))
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), speakers, st.integers(1, 250)),
        st.tuples(st.sampled_from(["partial", "speculate", "withdraw"]), speakers),
        st.tuples(st.just("send"), pairs, st.integers(1, 5)),
        st.tuples(st.sampled_from(["receive", "cut", "let go", "connect"]), pairs),
        st.tuples(st.sampled_from(["step", "die", "die in step", "start"]), servers),
    ),
    max_size=60,
)


@given(STEPS, st.booleans())
def test_every_final_once_and_equal_whatever_is_cut(steps: list[tuple], begun: bool) -> None:
    """The promise of `Recognizer`, over any order of cuts, deaths at servers, and new connections."""
    world = World()
    if begun:
        world.restore()
    speech = {f"{worker}{name}": b"" for worker in range(WORKERS) for name in NAMES}
    revision = dict.fromkeys(speech, 0)
    asked: dict[str, dict[int, bytes]] = {name: {} for name in speech}
    for worker in range(WORKERS):
        for name in NAMES:
            # The same names at both workers: servers tell them apart.
            heard = world.got[f"{worker}{name}"] = []
            world.workers[worker].open(Utterance(name, "PCMU", live=name != "c", stream=name), heard.append)
    for step in steps:
        match step:
            case "append", (worker, name), size:
                audio = bytes((len(speech[f"{worker}{name}"]) + index + worker) % 200 for index in range(size))
                speech[f"{worker}{name}"] += audio
                world.workers[worker].append(name, audio)
            case "partial" | "speculate" as kind, (worker, name):
                revision[f"{worker}{name}"] += 1
                number = revision[f"{worker}{name}"]
                if kind == "partial":
                    world.workers[worker].partial(name, number)
                else:
                    asked[f"{worker}{name}"][number] = speech[f"{worker}{name}"]
                    world.workers[worker].final(name, number, commit=False)
                world.deliver(worker)
            case "withdraw", (worker, name):
                world.workers[worker].withdraw(name)
            case "send", (worker, server), count:
                world.send(worker, server, count)
            case "receive", (worker, server):
                world.receive(worker, server)
            case "cut" | "let go" as kind, (worker, server):
                world.cut(worker, server, asked=kind == "let go")
            case "connect", (worker, server):
                world.connect(worker, server)
            case "step", server:
                world.servers[server].step()
            case "die", server:
                world.die(server)
            case "die in step", server:
                if world.servers[server].step(die=True):
                    world.die(server)
            case "start", server:
                world.servers[server].start()
    for worker in range(WORKERS):
        for name in NAMES:
            whole = f"{worker}{name}"
            asked[whole][revision[whole] + 1] = speech[whole]
            world.workers[worker].final(name, revision[whole] + 1, commit=True)
            world.deliver(worker)
    world.restore()
    while any(map(len, world.workers)):
        before = sum(map(len, world.workers))
        for server in range(SERVERS):
            for worker in range(WORKERS):
                world.send(worker, server)
            while world.servers[server].step():
                pass
            for worker in range(WORKERS):
                world.receive(worker, server)
        assert sum(map(len, world.workers)) < before, "nobody waits for ever"
    for name, heard in world.got.items():
        revisions = [hypothesis.revision for hypothesis in heard]
        assert revisions == sorted(set(revisions)), "each at most once, in order"
        assert revisions[-1] == max(asked[name]), "the committed final has come, as the last"
        for final in (hypothesis for hypothesis in heard if hypothesis.final):
            assert final.error == "it died" or final.text == text_of(asked[name][final.revision])
    _nothing_is_left(world)


def _nothing_is_left(world: World) -> None:
    for worker, work in enumerate(world.workers):
        for leg in NAMES:
            work.release(leg)
        for server in range(SERVERS):
            world.send(worker, server)
        assert work.audio_bytes == work.spilled_bytes == 0
        assert all((queue.legs, queue.files) == (0, 0) for queue in world.queues[worker])
    for server in world.servers:
        server.step()
        assert server.inference is not None and server.inference.engine.audio == {}
        assert len(server.work) == server.work.audio_bytes == 0
        assert (server.queue.legs, server.queue.files) == (0, 0)
        for session in server.sessions.values():
            assert (len(session), set(session.legs), session.files) == (0, set(), 0)


@given(STEPS)
@example([("append", (0, "a"), 50), ("speculate", (0, "a")), ("send", (0, 0), 5), ("die in step", 0)] * 3)
def test_only_what_is_worked_on_when_a_process_dies_is_blamed(steps: list[tuple]) -> None:
    """Whatever workers do, cuts alone never cost a final."""
    harmless = [step for step in steps if step[0] not in ("die", "die in step")]
    world = World()
    world.restore()
    for worker in range(WORKERS):
        for name in NAMES:
            heard = world.got[f"{worker}{name}"] = []
            world.workers[worker].open(Utterance(name, "PCMU", stream=name), heard.append)
            world.workers[worker].append(name, b"\x01" * 150)
            world.workers[worker].final(name, 1, commit=True)
    for step in harmless:
        match step:
            case "send", (worker, server), count:
                world.send(worker, server, count)
            case "receive" | "cut" | "connect" as kind, (worker, server):
                getattr(world, kind)(worker, server)
            case "step", server:
                world.servers[server].step()
    world.restore()
    for _ in range(2):
        for server in range(SERVERS):
            for worker in range(WORKERS):
                world.send(worker, server)
            while world.servers[server].step():
                pass
            for worker in range(WORKERS):
                world.receive(worker, server)
    assert {(len(heard), heard[0].error) for heard in world.got.values()} == {(1, None)}


def test_an_utterance_that_two_processes_of_a_server_die_over_is_given_up() -> None:
    world = World()
    heard: list[Hypothesis] = []
    world.workers[0].open(Utterance("poison", "PCMU"), heard.append)
    world.workers[0].append("poison", b"\x01" * 50)
    world.workers[0].final("poison", 1, commit=True)
    for _ in range(2):
        world.servers[0].start()
        world.connect(0, 0)
        world.send(0, 0)
        assert heard == [] and world.servers[0].step(die=True)
        world.die(0)
    assert [(final.error, final.died) for final in heard] == [("it died", True)]


# -- what makes no sense -----------------------------------------------------------------------------------------------


names, numbers = st.sampled_from(["u", "v"]), st.integers(0, 4)
utterances = st.builds(Utterance, names, st.just("PCMU"), live=st.booleans(), stream=names, words=st.booleans())
ANYTHING = st.one_of(
    st.builds(messages.Open, utterances, st.booleans()),
    st.builds(messages.Append, names, numbers, st.binary(max_size=4)),
    st.builds(messages.PartialRequest, names, numbers, numbers),
    st.builds(messages.FinalRequest, names, numbers, numbers, st.booleans()),
    st.builds(messages.Align, names, numbers, names, names, numbers),
    st.builds(messages.Withdraw, names),
    st.builds(messages.CloseUtterance, names),
    st.builds(messages.Release, names),
    st.just(messages.Ping()),
)


@given(st.lists(ANYTHING, max_size=30))
def test_messages_in_any_order_are_taken_or_refused(sent: list[messages.ToEngine]) -> None:
    server = Server()
    server.start()
    session = WorkerSession(1, "a worker", server, lambda waited_s: None)
    try:
        for message in sent:
            session.receive(message)
            assert len(session) == len(server.work) and session.files <= len(session)
    except ProtocolError as error:
        assert str(error)
    session.close()
    assert len(server.work) == server.work.audio_bytes == 0 and server.queue.legs == 0


OPEN = messages.Open(Utterance("u", "PCMU"))


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        ([OPEN, OPEN], "utterance u is open already"),
        ([messages.Open(Utterance("u" * (MAX_NAME + 1), "PCMU"))], f"a name of more than {MAX_NAME} characters"),
        ([messages.Open(Utterance("u", "PCMU", stream="s" * 999))], f"a name of more than {MAX_NAME} characters"),
        ([OPEN, messages.Append("u", 5, b"x")], "audio from byte 5 on, after 0 bytes"),
        ([OPEN, messages.PartialRequest("u", 1, 5)], "a request for 5 bytes of audio, after 0 bytes"),
        ([OPEN, *[messages.PartialRequest("u", 1, 0)] * 2], "revision 1 after 1"),
        ([OPEN, messages.Align("u", 1, "", "en", 0)], "times of words of an utterance that was opened without them"),
        ([messages.Hello(1)], "a greeting in the middle of a connection"),
        (
            [messages.Open(Utterance(str(number), "PCMU")) for number in range(MAX_UTTERANCES + 1)],
            f"more than {MAX_UTTERANCES} utterances are open",
        ),
    ],
)
def test_what_makes_no_sense_is_a_sentence(sent: list[messages.ToEngine], why: str) -> None:
    session = WorkerSession(1, "a worker", Server(), lambda waited_s: None)
    for message in sent[:-1]:
        session.receive(message)
    with pytest.raises(ProtocolError) as raised:
        session.receive(sent[-1])
    assert str(raised.value) == why


def test_the_times_of_traced_finals_are_told() -> None:
    """Of those that answer the newest request; of what is not traced, nothing."""
    server, told, now = Server(), list[AnsweredFinal](), 10.0
    server.start()
    session = WorkerSession(1, "a worker", server, lambda waited_s: None, on_final=told.append, clock=lambda: now)
    session.receive(messages.Open(Utterance("u", "PCMU", traceparent="its span")))
    session.receive(messages.Open(Utterance("v", "PCMU")))
    for name in "uv":
        session.receive(messages.FinalRequest(name, 1, 0, commit=False))
    while server.step():
        pass
    now = 11.0
    session.receive(messages.FinalRequest("u", 2, 0, commit=True))
    while server.step():
        pass
    assert [(each.traceparent, each.worker, each.asked_s, each.failed) for each in told] == [
        ("its span", "a worker", 10.0, False), ("its span", "a worker", 11.0, False)
    ]  # fmt: skip


def test_other_versions_know_utterances_without_a_span_or_with_more() -> None:
    """`traceparent` came later, and the version of the protocol stayed: it is nothing that the other side must know."""
    tree = msgspec.msgpack.decode(framing.encode(messages.Open(Utterance("u", "PCMU", traceparent="x")))[4:])
    tree["utterance"]["later"] = True
    assert messages.decode_to_engine(msgspec.msgpack.encode(tree)).utterance.traceparent == "x"  # type: ignore[union-attr]
    del tree["utterance"]["traceparent"]
    assert messages.decode_to_engine(msgspec.msgpack.encode(tree)).utterance.traceparent == ""  # type: ignore[union-attr]


def test_what_is_about_a_closed_utterance_has_crossed_with_its_end() -> None:
    session = WorkerSession(1, "a worker", Server(), lambda waited_s: None)
    for message in (messages.Append("u", 7, b"x"), messages.Withdraw("u"), messages.CloseUtterance("u")):
        session.receive(message)
    session.receive(messages.Release("nobody"))
    assert session.take() == []
    session.receive(messages.Ping())
    assert session.take() == [messages.Pong()]


def test_the_delay_of_requests_is_forgotten() -> None:
    delay = Delay()
    assert delay.ms(0.0) == 0
    for number in range(100):
        delay.record(0.4, number * 0.1)
    assert 390 <= delay.ms(9.9) <= 400 and delay.ms(9.9) % 10 == 0
    delay.record(0.0, 10.0)
    assert 300 <= delay.ms(10.0) < 390, "one prompt answer is not yet the end of a delay"
    assert delay.ms(12.0) < delay.ms(10.0) and delay.ms(30.0) == 0, "nobody has waited for a while"


def test_legs_that_a_worker_does_not_end_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names that are never used again, for ever: the leg that was silent for longest loses its place."""
    monkeypatch.setattr("asr.network.session.MAX_LEGS", 50)
    server = Server()
    server.start()
    server.queue.available = True
    session = WorkerSession(1, "careless", server, lambda queue_s: None)
    for number in range(500):
        stream = "talks all the time" if number % 3 == 0 else f"s{number}"
        session.receive(messages.Open(Utterance(f"u{number}", "PCMU", stream=stream)))
        session.receive(messages.CloseUtterance(f"u{number}"))
        assert len(session.legs) <= 50 and server.queue.legs == len(session.legs)
    assert "talks all the time" in session.legs and "s1" not in session.legs
    session.close()
    assert server.queue.legs == 0


async def test_a_certificate_that_is_half_written_is_a_reason(tmp_path: Path) -> None:
    """Renewed at the wrong moment, it is read again with the next connection."""
    half = tmp_path / "half.pem"
    half.write_text("-----BEGIN CERT")
    cluster = Cluster(tls_cert=str(half), tls_key=str(half), tls_ca=str(half))
    connection = EngineConnection(
        ServerAddress("127.0.0.1", 9, "localhost", True), Nobody(), worker="w", token="",
        context=lambda: client_context(cluster), accepts=lambda welcome: "", timeout_s=5.0,
    )  # fmt: skip
    assert "half.pem" in await connection.run()


class Nobody:
    needed = True

    def next_message(self) -> None:
        return None

    def on_message(self, message: messages.FromEngine) -> None:
        raise AssertionError("nobody is connected")


class Failing(EngineLife):
    """A life that ends by a fault, once."""

    what, beginning = "a test", "beginning"
    lives = 0

    async def run(self) -> str:
        Failing.lives += 1
        raise RuntimeError("what nobody has thought of")


class AtOnce(ProcessRestarts):
    backoff_s = 0.0


async def test_a_server_whose_life_ends_by_a_fault_is_begun_again() -> None:
    class Watching:
        needed = True

        def add_user(self, name: str, *, shared: bool) -> EngineQueue:
            return work.add_queue(name, shared=shared)

        def remove_user(self, user: EngineUser) -> None: ...

        def on_state(self, reason: str, last_end: str) -> None:
            if Failing.lives == 3:
                over.set()

        def on_ready(self, server: EngineServer, ready: messages.EngineReady) -> None: ...
        def deliver(self) -> None: ...
        def deliver_soon(self) -> None: ...

    over, work = asyncio.Event(), outstanding()
    server = EngineServer(
        "s", "engine server", lambda server: Failing(server, Watchdog(hang_s=1.0, start_s=1.0)), Watching(), AtOnce()
    )
    server.want()
    running = asyncio.create_task(server.run("idle"))
    await wait_for(over.wait(), 20)
    assert "what nobody has thought of" in server.last_end and not running.done()
    running.cancel()
