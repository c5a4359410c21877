"""Workers and engine servers without sockets: what links make of messages, and what cuts and deaths cost."""

from __future__ import annotations

import tempfile

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from asr import messages
from asr.client.outstanding import OutstandingWork
from asr.client.spill import Spill
from asr.inference import links as link_server
from asr.inference.inference import Inference
from asr.inference.links import MAX_NAME, MAX_SHARES, MAX_UTTERANCES, ServedLink, ServedLinks, blamed
from asr.inference.utterances import Delay
from asr.utterance import Hypothesis, Utterance
from config.process import framing
from config.settings import Asr, Qwen
from lab.engine.hash_engine import HashAligner, HashEngine, text_of

WORKERS, SERVERS, NAMES = 2, 2, "abc"
LATE_S = 1e6
"""Every deadline has passed by then."""


def outstanding(max_bytes: int = 1 << 20) -> OutstandingWork:
    return OutstandingWork(max_bytes=max_bytes, spill=Spill(tempfile.gettempdir(), max_bytes=1 << 20, block_bytes=64))


def taken(link: ServedLink) -> list[messages.FromEngine]:
    """What has been sent over the link since the last call."""
    bodies = framing.Frames().feed(bytes(link.outgoing))
    link.outgoing.clear()
    return [messages.decode_from_engine(body) for body in bodies]


class Server:
    """The inference process of an engine server, which can die, and what its parent knows of it."""

    def __init__(self) -> None:
        self.links: ServedLinks | None = None
        self.of: dict[int, ServedLink] = {}
        """Worker → its link."""
        self.working: tuple[str, ...] = ()
        self.usage = messages.Usage()
        self.answered: list[messages.Answered] = []
        self.closed: list[messages.LinkClosed] = []

    def start(self, max_bytes: int = 1 << 20) -> ServedLinks:
        if self.links is None:
            inference = Inference(HashEngine(), HashAligner(), max_bytes=max_bytes)
            self.links = ServedLinks(inference, ServedLink(), max_bytes=max_bytes, languages=("en", "de"))
        return self.links

    def attach(self, number: int, worker: int = 0) -> ServedLink:
        link = self.of[worker] = ServedLink(number, f"worker {worker}")
        self.start().attach(link, 0.0)
        return link

    def receive(self, link: ServedLink, *sent: messages.ToEngine, now: float = 0.0) -> None:
        assert self.links is not None
        for each in sent:
            link.receive_data(framing.encode(each))
        for event in link.events_received():
            self.links.receive(link, event, now)

    def step(self, *, die: bool = False, now: float = LATE_S) -> bool:
        """One step of the engine, which may be its last. -> whether there was one."""
        if self.links is None:
            return False
        work = self.links.choose(now)
        self.hear()
        if work is None or die:
            return work is not None
        self.links.perform(work, now)
        self.hear()
        return True

    def hear(self) -> None:
        """The parent reads."""
        assert self.links is not None
        self.links.report_load(0.0)
        for message in taken(self.links.parent):
            match message:
                case messages.Working():
                    self.working = message.utterance_ids
                case messages.Usage():
                    self.usage = message
                case messages.Answered():
                    self.answered.append(message)
                case messages.LinkClosed():
                    self.closed.append(message)

    def die(self) -> dict[int, messages.Working]:
        """-> what each worker is told by the parent."""
        told = {worker: blamed(self.working, link.number) for worker, link in self.of.items()}
        self.links, self.working, self.usage = None, (), messages.Usage()
        return told


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
        if worker not in at.of and at.links is not None:
            self._numbers += 1
            at.attach(self._numbers, worker)

    def cut(self, worker: int, server: int, *, asked: bool = False, why: str = "it was cut") -> None:
        """The connection is lost, with what was under way to the worker. `asked`: it was let go of."""
        at = self.servers[server]
        if (link := at.of.pop(worker, None)) is None:
            return
        if at.links is not None:
            at.links.remove(link)
        queue = self.queues[worker][server]
        if asked:
            queue.on_end()
        else:
            queue.on_death(why)
        self.deliver(worker)

    def send(self, worker: int, server: int, count: int = 1 << 30) -> None:
        at, queue = self.servers[server], self.queues[worker][server]
        link = at.of.get(worker)
        while link is not None and count and (message := queue.next_message()) is not None:
            at.receive(link, message)
            assert not link.closed
            count -= 1

    def receive(self, worker: int, server: int) -> None:
        link, queue = self.servers[server].of.get(worker), self.queues[worker][server]
        for message in taken(link) if link is not None else []:
            if isinstance(message, messages.EngineReady):
                queue.on_ready()
            queue.on_message(message)
        self.deliver(worker)

    def die(self, server: int) -> None:
        at = self.servers[server]
        if at.links is None:
            return
        for worker, working in at.die().items():
            self.receive(worker, server)
            self.queues[worker][server].on_message(working)
            self.cut(worker, server, why="it died")

    def deliver(self, worker: int) -> None:
        for callback, answer in self.workers[worker].take_deliveries():
            callback(answer)

    def exchange(self) -> None:
        """Send everything, let each server answer it, and receive the answers."""
        for server in range(SERVERS):
            for worker in range(WORKERS):
                self.send(worker, server)
            while self.servers[server].step():
                pass
            for worker in range(WORKERS):
                self.receive(worker, server)

    def restore(self) -> None:
        for server in range(SERVERS):
            self.servers[server].start()
            for worker in range(WORKERS):
                self.connect(worker, server)
                self.receive(worker, server)


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
    while any(worker.open_utterances for worker in world.workers):
        before = sum(worker.open_utterances for worker in world.workers)
        world.exchange()
        assert sum(worker.open_utterances for worker in world.workers) < before, "nobody waits for ever"
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
        assert work.backlog_bytes == work.spilled_bytes == 0
        assert all((queue.legs, queue.files) == (0, 0) for queue in world.queues[worker])
    for server in world.servers:
        server.step()
        server.hear()
        assert server.links is not None and server.links.inference.engine.audio == {}
        assert (server.usage.open_utterances, server.usage.legs, server.usage.files) == (0, 0, 0)
        assert server.usage.audio_bytes == 0 and server.closed == []


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
        world.exchange()
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
        world.receive(0, 0)
        world.send(0, 0)
        assert heard == [] and world.servers[0].step(die=True)
        world.die(0)
    assert [(final.error, final.died) for final in heard] == [("it died", True)]


# -- what makes no sense -----------------------------------------------------------------------------------------------


names, numbers = st.sampled_from(["u", "v"]), st.integers(0, 4)
utterances = st.builds(
    Utterance, names, st.just("PCMU"), live=st.booleans(), stream=names, words=st.booleans(),
    language=st.sampled_from(["", "en", "xx"]),
)  # fmt: skip
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
    st.just(messages.Configure("e", Asr(), Qwen(), "info", "json")),
)
OPEN = messages.Open(Utterance("u", "PCMU"))
WORDS = messages.Open(Utterance("u", "PCMU", words=True))


@given(st.lists(st.one_of(ANYTHING, st.just("step")), max_size=30))
@example([WORDS, messages.FinalRequest("u", 1, 0, True), "step", messages.PartialRequest("u", 2, 0), "step"])
@example([WORDS, messages.Align("u", 1, "u", "u", 0), "step", messages.FinalRequest("u", 2, 0, False), "step"])
@example([WORDS, messages.Align("u", 1, "u", "u", 0), messages.FinalRequest("u", 2, 0, False), "step"])
def test_messages_in_any_order_are_taken_or_refused(sent: list[messages.ToEngine | str]) -> None:
    """Whatever one worker sends, the engine goes on, and the other worker notices nothing."""
    server = Server()
    good, bad = server.attach(1), server.attach(2, 1)
    server.receive(good, OPEN, messages.Append("u", 0, b"good"))
    for message in sent:
        if isinstance(message, str):
            server.step()
        else:
            server.receive(bad, message)
    while server.step():
        pass
    told = taken(bad)
    if bad.closed:
        assert told[-1] == messages.Refused(bad.closed)
        assert server.closed == [messages.LinkClosed(2, bad.closed)]
    else:
        server.links.remove(bad)
    server.hear()
    assert server.usage.open_utterances == 1 and server.usage.legs == 0 and server.usage.audio_bytes == 4
    server.receive(good, messages.FinalRequest("u", 1, 4, commit=True))
    server.step()
    (final,) = [each.hypothesis for each in taken(good) if isinstance(each, messages.Heard)]
    assert (final.utterance_id, final.text) == ("u", text_of(b"good"))
    server.hear()
    assert server.usage.open_utterances == 0 and server.links.inference.engine.audio == {}
    assert len(server.links.inference.scheduler) == 0


@given(st.lists(st.binary(max_size=40), max_size=5))
def test_noise_is_refused_and_no_more_is_kept_of_it(noise: list[bytes]) -> None:
    server = Server()
    link = server.attach(1)
    link.receive_data(b"\xff" * 4)
    for data in noise:
        link.receive_data(data)
    server.receive(link)
    server.receive(link, OPEN)
    assert taken(link)[-1] == messages.Refused("frame of 4294967295 bytes")
    server.hear()
    assert server.usage.open_utterances == 0


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        ([OPEN, OPEN], "utterance 1/u is open already"),
        ([messages.Open(Utterance("u" * (MAX_NAME + 1), "PCMU"))], f"a name of more than {MAX_NAME} characters"),
        ([messages.Open(Utterance("u", "PCMU", stream="s" * 999))], f"a name of more than {MAX_NAME} characters"),
        ([messages.Open(Utterance("u", "PCMU", "xx"))], "an utterance in 'xx', which the engine does not know"),
        ([OPEN, messages.Append("u", 5, b"x")], "audio from byte 5 on, after 0 bytes"),
        ([OPEN, messages.PartialRequest("u", 1, 5)], "a request for 5 bytes of audio, after 0 bytes"),
        (
            [OPEN, messages.Append("u", 0, b"x"), messages.PartialRequest("u", 1, 0)],
            "a request for 0 bytes of audio, after 1 bytes",
        ),
        ([OPEN, *[messages.PartialRequest("u", 1, 0)] * 2], "revision 1 after 1"),
        ([OPEN, messages.Align("u", 1, "", "en", 0)], "times of words of an utterance that was opened without them"),
        ([WORDS, *(messages.Align("u", number, "", "en", 0) for number in (1, 2))], "times of words, twice"),
        (
            [WORDS, messages.Align("u", 1, "", "en", 0), messages.FinalRequest("u", 2, 0, False)],
            "a request for a text after the last final was taken",
        ),
        ([messages.WorkerHello(1)], "a greeting in the middle of a connection"),
        ([messages.Configure("e", Asr(), Qwen(), "info", "json")], "a greeting in the middle of a connection"),
        (
            [messages.Open(Utterance(str(number), "PCMU")) for number in range(MAX_UTTERANCES + 1)],
            f"more than {MAX_UTTERANCES} utterances are open",
        ),
    ],
)
def test_what_makes_no_sense_is_a_sentence(sent: list[messages.ToEngine], why: str) -> None:
    server = Server()
    link = server.attach(1)
    server.receive(link, *sent[:-1])
    assert not link.closed
    server.receive(link, sent[-1])
    server.hear()
    assert link.closed == why and server.closed == [messages.LinkClosed(1, why)] and server.usage.open_utterances == 0


def test_far_more_audio_than_there_is_room_for_costs_the_worker_its_link() -> None:
    server = Server()
    server.start(max_bytes=1000)
    link, other = server.attach(1), server.attach(2, 1)
    server.receive(other, OPEN)
    server.receive(link, OPEN, messages.Append("u", 0, bytes(MAX_SHARES * 1000)))
    assert not link.closed
    server.receive(link, messages.Append("u", MAX_SHARES * 1000, b"x"))
    server.hear()
    assert "far more audio" in link.closed and not other.closed and server.usage.audio_bytes == 0


def test_a_worker_with_more_than_its_share_of_the_room_gets_no_partials() -> None:
    server = Server()
    server.start(max_bytes=1000)
    link, other = server.attach(1), server.attach(2, 1)
    for each, size in ((other, 200), (link, 900)):
        server.receive(each, OPEN, messages.Append("u", 0, bytes(size)), messages.PartialRequest("u", 1, size))
    while server.step():
        pass
    heard = [[m for m in taken(each) if isinstance(m, messages.Heard)] for each in (link, other)]
    assert [len(each) for each in heard] == [0, 1] and server.usage.counters.refused_partials == 1
    server.receive(link, messages.FinalRequest("u", 2, 900, commit=True))
    while server.step():
        pass
    assert any(isinstance(m, messages.Heard) for m in taken(link)), "finals are never refused"


def test_a_worker_that_does_not_read_gets_no_partials_and_is_cut_off_in_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(link_server, "SLOW_BYTES", 200)
    monkeypatch.setattr(link_server, "FULL_BYTES", 1000)
    server = Server()
    link = server.attach(1)
    taken(link)
    server.receive(link, OPEN)
    revision = 0
    while not server.usage.dropped_partials:
        server.receive(link, messages.PartialRequest("u", revision := revision + 1, 0))
        server.step()
    while not link.closed:
        server.receive(link, messages.FinalRequest("u", revision := revision + 1, 0, commit=False))
        server.step()
    assert server.closed == [messages.LinkClosed(1, "it does not read its answers", slow=True)]
    assert not any(isinstance(each, messages.Refused) for each in taken(link)) and revision < 50


def test_each_worker_is_told_what_the_others_have_here() -> None:
    server = Server()
    a, b = server.attach(1), server.attach(2, 1)
    server.receive(a, messages.Open(Utterance("u", "PCMU", stream="leg")))
    server.receive(a, messages.Open(Utterance("f", "PCMU", live=False, stream="file")))
    assert server.links is not None
    for link in (a, b):
        taken(link)
    server.links.report_load(100.0)
    room = (1 << 20) // 2
    assert taken(a) == [messages.ServerLoad(max_bytes=room)] and taken(b) == [messages.ServerLoad(1, 1, 0, room)]
    server.links.report_load(102.0)
    assert taken(a) == taken(b) == [], "nothing has changed"
    server.receive(a, messages.Release("leg"), messages.Release("nobody"))
    server.links.report_load(104.0)
    assert taken(b) == [messages.ServerLoad(0, 1, 0, room)]


def test_the_times_of_traced_finals_are_told() -> None:
    """They are told of finals that answer the newest request, and of nothing that is not traced."""
    server = Server()
    link = server.attach(7)
    server.receive(link, messages.Open(Utterance("u", "PCMU", traceparent="its span")))
    server.receive(link, messages.Open(Utterance("v", "PCMU")))
    for name in "uv":
        server.receive(link, messages.FinalRequest(name, 1, 0, commit=False), now=10.0)
    while server.step(now=10.5):
        pass
    server.receive(link, messages.FinalRequest("u", 2, 0, commit=True), now=11.0)
    while server.step(now=11.0):
        pass
    assert server.answered == [
        messages.Answered(7, "its span", 10.0, 0.5, False), messages.Answered(7, "its span", 11.0, 0.0, False)
    ]  # fmt: skip


def test_other_versions_know_utterances_without_a_span_or_with_more() -> None:
    """`traceparent` came later, and the version of the protocol stayed: it is nothing that the other side must know."""
    tree = msgspec.msgpack.decode(framing.encode(messages.Open(Utterance("u", "PCMU", traceparent="x")))[4:])
    tree["utterance"]["later"] = True
    assert messages.decode_to_engine(msgspec.msgpack.encode(tree)).utterance.traceparent == "x"  # type: ignore[union-attr]
    del tree["utterance"]["traceparent"]
    assert messages.decode_to_engine(msgspec.msgpack.encode(tree)).utterance.traceparent == ""  # type: ignore[union-attr]


def test_what_is_about_a_closed_utterance_has_crossed_with_its_end() -> None:
    server = Server()
    link = server.attach(1)
    taken(link)
    for message in (messages.Append("u", 7, b"x"), messages.Withdraw("u"), messages.CloseUtterance("u")):
        server.receive(link, message)
    server.receive(link, messages.Release("nobody"), messages.Ping())
    assert taken(link) == [messages.Pong()] and not link.closed


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
    monkeypatch.setattr(link_server, "MAX_LEGS", 50)
    server = Server()
    link = server.attach(1)
    for number in range(500):
        stream = "talks all the time" if number % 3 == 0 else f"s{number}"
        server.receive(link, messages.Open(Utterance(f"u{number}", "PCMU", stream=stream)))
        server.receive(link, messages.CloseUtterance(f"u{number}"))
        assert len(link.legs) <= 50
    server.hear()
    assert "talks all the time" in link.legs and "s1" not in link.legs and server.usage.legs == 50


def test_only_the_workers_own_utterances_are_blamed_by_its_own_names() -> None:
    working = ("1/leg/3", "12/leg/3", "1/b")
    assert blamed(working, 1) == messages.Working(("leg/3", "b"), shared=True)
    assert blamed(working, 2) == messages.Working((), shared=True)
    assert blamed(("2/a",), 2) == messages.Working(("a",)) and blamed((), 2) == messages.Working(())
