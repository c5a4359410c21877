"""Several inference processes: which utterance goes where, and what the death of one costs."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asr import messages
from asr.client.outstanding import OutstandingWork
from asr.client.placement import Placement
from asr.client.send_queue import SendQueue
from asr.client.spill import Spill
from asr.engines import devices
from asr.inference.inference import Inference
from asr.utterance import Hypothesis, Utterance
from config.process import framing
from config.settings import Asr
from lab.engine.hash_engine import HashEngine, text_of


class Pool:
    """Outstanding work and, on the other side, inferences that can die at any moment."""

    def __init__(self, processes: int, max_bytes: int = 1 << 20) -> None:
        spill = Spill(tempfile.gettempdir(), max_bytes=1 << 20, block_bytes=64)
        self.outstanding = OutstandingWork(max_bytes=max_bytes, spill=spill)
        for _ in range(processes):
            self.outstanding.add_queue()
        self.inferences: list[Inference | None] = [None] * processes
        self.got: dict[str, list[Hypothesis]] = {}

    @property
    def queues(self) -> list[SendQueue]:
        return self.outstanding.queues

    def start(self, number: int) -> None:
        if self.inferences[number] is None:
            self.inferences[number] = Inference(HashEngine())
            self.outstanding.on_queue_ready(self.queues[number])

    def open(self, name: str, *, live: bool = True, stream: str = "") -> None:
        self.got.setdefault(name, [])
        self.outstanding.open(Utterance(name, "PCMU", live=live, stream=stream), self.got[name].append)

    def end(self, number: int, *, death: bool) -> None:
        """It dies, or is replaced."""
        if self.inferences[number] is None:
            return
        self.inferences[number] = None
        if death:
            self.outstanding.on_queue_death(self.queues[number], "it died")
        else:
            self.outstanding.forget_process(self.queues[number])
        self.deliver()

    def send(self, number: int, count: int = 1 << 30) -> None:
        inference = self.inferences[number]
        while inference and count and (message := self.queues[number].next_message()) is not None:
            inference.receive(messages.decode_to_engine(framing.encode(message)[4:]), 0.0)
            count -= 1

    def work(self, number: int, count: int = 1 << 30, *, die: bool = False) -> None:
        inference, queue = self.inferences[number], self.queues[number]
        while inference and count and (work := inference.choose()) is not None:
            queue.working = work.utterance_ids
            if die and count == 1:
                self.end(number, death=True)
                return
            for message in inference.perform(work):
                if isinstance(message, messages.Heard):
                    self.outstanding.on_hypothesis(queue, message.hypothesis)
                self.deliver()
            count -= 1
        queue.working = ()

    def deliver(self) -> None:
        for callback, answer in self.outstanding.take_deliveries():
            callback(answer)

    def where(self, name: str) -> int | None:
        return next((number for number, queue in enumerate(self.queues) if name in queue.utterances), None)


NAMES, PROCESSES = "abcd", 3
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.sampled_from(NAMES), st.integers(1, 350)),
        st.tuples(st.sampled_from(["partial", "speculate", "withdraw"]), st.sampled_from(NAMES)),
        st.tuples(st.sampled_from(["send", "work", "die in work"]), st.integers(0, PROCESSES - 1), st.integers(1, 4)),
        st.tuples(st.sampled_from(["die", "replace", "start", "drain"]), st.integers(0, PROCESSES - 1)),
    ),
    max_size=50,
)


@given(STEPS, st.sampled_from([1 << 20, 300]), st.integers(0, PROCESSES))
def test_every_final_once_and_equal_whatever_dies(steps: list[tuple], max_bytes: int, started: int) -> None:
    """The promise of `Recognizer`, over any order of deaths, replacements and drains."""
    pool = Pool(PROCESSES, max_bytes)
    for number in range(started):
        pool.start(number)
    sent = dict.fromkeys(NAMES, b"")
    revision = dict.fromkeys(NAMES, 0)
    asked: dict[str, dict[int, bytes]] = {name: {} for name in NAMES}
    for name in NAMES:
        pool.open(name, live=name < "c", stream="leg" if name == "a" else "")
    for step in steps:
        match step:
            case "append", name, size:
                audio = bytes((len(sent[name]) + index) % 200 for index in range(size))
                sent[name] += audio
                pool.outstanding.append(name, audio)
            case "partial", name:
                revision[name] += 1
                pool.outstanding.partial(name, revision[name])
            case "speculate", name:
                revision[name] += 1
                asked[name][revision[name]] = sent[name]
                pool.outstanding.final(name, revision[name], commit=False)
                pool.deliver()
            case "withdraw", name:
                pool.outstanding.withdraw(name)
            case "send", number, count:
                pool.send(number, count)
            case "work" | "die in work" as kind, number, count:
                pool.work(number, count, die=kind == "die in work")
            case "die" | "replace" as kind, number:
                pool.end(number, death=kind == "die")
            case "start", number:
                pool.start(number)
            case "drain", number:
                pool.queues[number].available = False
        placed = [name for queue in pool.queues for name in queue.utterances]
        assert len(placed) == len(set(placed)), "an utterance is at one process"
    for name in NAMES:
        asked[name][revision[name] + 1] = sent[name]
        pool.outstanding.final(name, revision[name] + 1, commit=True)
        pool.deliver()
    for number in range(PROCESSES):
        pool.start(number)
    while pool.outstanding.open_utterances:
        before = pool.outstanding.open_utterances
        for number in range(PROCESSES):
            pool.send(number)
            pool.work(number)
        assert pool.outstanding.open_utterances < before, "nobody waits for ever"
    for name in NAMES:
        revisions = [hypothesis.revision for hypothesis in pool.got[name]]
        assert revisions == sorted(set(revisions)), "each at most once, in order"
        assert revisions[-1] == max(asked[name]), "the committed final has come, as the last"
        for final in (hypothesis for hypothesis in pool.got[name] if hypothesis.final):
            assert final.error == "it died" or final.text == text_of(asked[name][final.revision])
    pool.outstanding.release("leg")
    assert pool.outstanding.backlog_bytes == pool.outstanding.spilled_bytes == 0
    assert [(queue.legs, queue.files, len(queue.utterances)) for queue in pool.queues] == [(0, 0, 0)] * PROCESSES
    for number, inference in enumerate(pool.inferences):
        pool.send(number)
        assert inference is not None
        assert inference.engine.audio == {} and len(inference.scheduler) == 0


def test_an_utterance_that_two_processes_die_over_is_given_up_and_the_others_go_on() -> None:
    pool = Pool(2)
    for number in range(2):
        pool.start(number)
    for name in ("poison", "fine"):
        pool.open(name)
        pool.outstanding.append(name, b"\x01" * 50)
        pool.outstanding.final(name, 1, commit=True)
    assert {pool.where("poison"), pool.where("fine")} == {0, 1}
    for _ in range(2):
        number = pool.where("poison")
        assert number is not None
        pool.send(number)
        inference = pool.inferences[number]
        assert inference is not None
        work = inference.choose()
        assert work is not None
        pool.queues[number].working = ("poison",)
        pool.end(number, death=True)
        pool.start(number)
    assert [final.error for final in pool.got["poison"]] == ["it died"] and pool.where("poison") is None
    for number in range(2):
        pool.send(number)
        pool.work(number)
    assert [final.error for final in pool.got["fine"]] == [None]


def test_what_a_dead_process_had_is_at_another_at_once_and_late_answers_of_it_are_none() -> None:
    pool = Pool(2)
    pool.start(0)
    pool.open("a")
    pool.outstanding.append("a", b"\x01" * 50)
    pool.outstanding.final("a", 1, commit=True)
    pool.send(0)
    pool.start(1)
    assert pool.where("a") == 0
    pool.end(0, death=False)
    assert pool.where("a") == 1
    late = Hypothesis("a", 1, "from the grave", "en", 14, final=True)
    pool.outstanding.on_hypothesis(pool.queues[0], late)
    assert not pool.outstanding.take_deliveries() and pool.outstanding.counters.stale == 1
    pool.send(1)
    pool.work(1)
    assert [final.text for final in pool.got["a"]] == [text_of(b"\x01" * 50)]


def queues(count: int) -> list[SendQueue]:
    made = [SendQueue(max_bytes=1 << 20) for _ in range(count)]
    for queue in made:
        queue.available = True
    return made


def leg(name: str) -> Utterance:
    return Utterance(f"{name}/1", "PCMU", stream=name)


def test_legs_are_spread_and_each_stays_where_it_is() -> None:
    three = queues(3)
    placement = Placement(three)
    homes = {name: placement.choose(leg(name)) for name in "abcdef"}
    assert [queue.legs for queue in three] == [2, 2, 2]
    assert {name: placement.choose(leg(name)) for name in "fedcba"} == homes
    placement.release("a")
    placement.release("a")
    placement.release("nobody")
    assert placement.choose(leg("g")) is homes["a"], "the place that has become free"


def test_a_silent_leg_comes_back_to_its_process_and_one_that_speaks_moves_on() -> None:
    two = queues(2)
    placement = Placement(two)
    for name in "abcd":
        placement.choose(leg(name))
    two[0].available = False
    assert placement.choose(leg("a")) is two[1] and (two[0].legs, two[1].legs) == (1, 3)
    two[0].available = True
    assert placement.choose(leg("c")) is two[0], "it has said nothing meanwhile"
    homes = [placement.choose(leg(name)) for name in "bda"]
    assert homes == [two[1], two[1], two[0]], "a third of three legs is too many: every third utterance moves one"
    assert [queue.legs for queue in two] == [2, 2]


@given(servers=st.integers(2, 40), legs=st.integers(10, 60), workers=st.integers(1, 5))
def test_a_new_server_is_given_its_share_and_not_all_who_begin_to_speak(servers: int, legs: int, workers: int) -> None:
    """Each leg speaks once, while no worker hears of the others."""
    moved = 0
    for _ in range(workers):
        all_queues = queues(servers + 1)
        all_queues[-1].available = False
        placement = Placement(all_queues)
        names = [str(number) for number in range(servers * legs)]
        for name in names:
            placement.choose(leg(name))
        for queue in all_queues[:-1]:
            queue.load = messages.ServerLoad(legs=(workers - 1) * legs)
        all_queues[-1].available = True
        for name in names:
            placement.choose(leg(name))
        moved += all_queues[-1].legs
    share = workers * servers * legs / (servers + 1)
    assert share / 3 - workers <= moved <= share + workers


def test_files_go_where_there_are_fewest_of_them_and_to_nobody_while_nobody_is_ready() -> None:
    two = queues(2)
    placement = Placement(two)
    two[0].files = 2
    file = Utterance("f", "L16", live=False, stream="job")
    assert placement.choose(file) is two[1]
    two[0].files, two[0].legs = 0, 5
    assert placement.choose(file) is two[1], "the one with fewer calls"
    two[1].load = messages.ServerLoad(files=3)
    assert placement.choose(file) is two[0], "those of other workers count"
    two[1].load = messages.ServerLoad()
    two[0].available = two[1].available = False
    assert placement.choose(file) is None and placement.choose(leg("a")) is None
    assert two[1].legs == 0


@pytest.mark.parametrize(
    ("settings", "engine", "cores", "gpus", "expected"),
    [
        (Asr(), "moonshine", 2, 0, [("auto", 1)]),
        (Asr(), "moonshine", 9, 0, [("auto", 4)] * 2),
        (Asr(threads=2), "moonshine", 16, 4, [("auto", 1)] * 4),
        (Asr(processes=3, threads=6), "moonshine", 2, 0, [("auto", 2)] * 3),
        (Asr(), "qwen", 16, 0, [("auto", 15)]),
        (Asr(), "qwen", 16, 1, [("auto:0", 15)]),
        (Asr(), "qwen", 16, 2, [("auto:0", 7), ("auto:1", 7)]),
        (Asr(processes=4), "qwen", 16, 2, [("auto:0", 3), ("auto:1", 3), ("auto:0", 3), ("auto:1", 3)]),
        (Asr(devices=("cuda:1", "cpu")), "qwen", 4, 2, [("cuda:1", 1), ("cpu", 1)]),
        (Asr(processes=2), "somebody-elses", 4, 2, [("auto", 1)] * 2),
    ],
)
def test_each_process_has_a_device_and_its_share_of_the_threads(
    settings: Asr, engine: str, cores: int, gpus: int, expected: list, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "cores", lambda: cores)
    monkeypatch.setattr(devices, "gpus", lambda: gpus)
    shares = devices.shares(settings, engine)
    assert [(share.devices[0], share.threads) for share in shares] == expected
    assert {share.processes for share in shares} == {len(expected)}


def test_gpus_are_those_that_the_environment_leaves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("nvidiactl", "nvidia0", "nvidia1", "nvidia-uvm", "nvidia-modeset"):
        (tmp_path / name).touch()
    monkeypatch.setattr(devices, "GPU_NODES", (tmp_path / "nvidiactl",))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert devices.gpus() == 2
    for visible, count in (("", 0), ("-1", 0), ("1", 1), ("0,1", 2), ("GPU-8932f937", 1)):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        assert devices.gpus() == count, visible
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    monkeypatch.setattr(devices, "GPU_NODES", (tmp_path / "kfd",))
    assert devices.gpus() == 0
    (tmp_path / "kfd").touch()
    for name in ("nvidia0", "nvidia1"):
        (tmp_path / name).unlink()
    assert devices.gpus() == 1, "a driver says so, and not how many"
