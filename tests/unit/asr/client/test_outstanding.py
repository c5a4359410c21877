"""Utterances that wait for the inference process: order, limits, and what a death costs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asr import messages
from asr.client.engine_health import FAILURES, HOLD_S, FinalOutcomes
from asr.client.recognizer import Hypothesis, Utterance
from asr.engines import weights
from asr.engines.interface import Answer, Capabilities, Collect, EngineExhausted
from asr.engines.selection import select
from asr.scheduling.request import Request
from config import ConfigError
from config.settings import Asr
from lab.engine.hash_engine import HashEngine, Pair, text_of
from lab.worker.peers import TINY


class PipelinedHashEngine(HashEngine):
    """What has been launched is computed when it is collected, and may have been closed by then."""

    capabilities = Capabilities(batch=3, pipelined=True)

    def __init__(self) -> None:
        super().__init__()
        self.launched: set[str] = set()

    def launch(self, requests: Sequence[Request]) -> Collect:
        names = {request.utterance_id for request in requests}
        assert not self.launched & names, "one step for each utterance"
        assert len(self.launched) <= 3, "two steps at a time"
        self.launched |= names

        def collect() -> list[Answer]:
            self.launched -= names
            return self.step(left) if (left := [each for each in requests if each.utterance_id in self.audio]) else []

        return collect


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.sampled_from("abc"), st.integers(1, 350)),
        st.tuples(st.sampled_from(["partial", "speculate", "withdraw"]), st.sampled_from("abc")),
        st.tuples(st.sampled_from(["send", "work", "die in work"]), st.integers(1, 4)),
        st.tuples(st.just("die")),
    ),
    max_size=40,
)


@given(STEPS, st.sampled_from([1 << 20, 300]), st.sampled_from([HashEngine, PipelinedHashEngine]))
def test_every_final_once_and_equal_whatever_dies(steps: list[tuple], max_bytes: int, engine: type[HashEngine]) -> None:
    """Also with most of the audio on disk, utterances waiting for room in the inference process, and two steps of the
    engine begun at a time."""
    pair = Pair(max_bytes, engine=engine)
    sent = {name: b"" for name in "abc"}
    revision = dict.fromkeys("abc", 0)
    asked: dict[str, dict[int, bytes]] = {name: {} for name in "abc"}
    for name in "abc":
        pair.open(name, live=name != "c")
    for step in steps:
        match step:
            case "append", name, size:
                audio = bytes((len(sent[name]) + index) % 200 for index in range(size))
                sent[name] += audio
                pair.outstanding.append(name, audio)
            case "partial" | "speculate" as kind, name:
                revision[name] += 1
                if kind == "partial":
                    pair.outstanding.partial(name, revision[name])
                    continue
                asked[name][revision[name]] = sent[name]
                pair.outstanding.final(name, revision[name], commit=False)
                pair.deliver()
            case "withdraw", name:
                pair.outstanding.withdraw(name)
            case "send", count:
                pair.send(count)
            case "work" | "die in work" as kind, count:
                pair.work(count, die=kind == "die in work")
            case ("die",):
                pair.die()
    for name in "abc":
        asked[name][revision[name] + 1] = sent[name]
        pair.outstanding.final(name, revision[name] + 1, commit=True)
        pair.deliver()
    while pair.outstanding.open_utterances:
        before = pair.outstanding.open_utterances
        pair.send()
        pair.work()
        assert pair.outstanding.open_utterances < before, "nobody waits for ever"
    for name in "abc":
        revisions = [hypothesis.revision for hypothesis in pair.got[name]]
        assert revisions == sorted(set(revisions)), "each at most once, in order"
        assert revisions[-1] == max(asked[name]), "the committed final has come, as the last"
        for final in pair.finals(name):
            assert final.error == "it died" or final.text == text_of(asked[name][final.revision])
    assert pair.outstanding.backlog_bytes == pair.outstanding.spilled_bytes == 0
    pair.send()
    assert pair.inference.engine.audio == {} and len(pair.inference.scheduler) == 0
    assert not pair.inference.begun


def test_two_deaths_over_an_utterance_end_it_and_not_the_others() -> None:
    pair = Pair()
    for name in "ab":
        pair.open(name)
        pair.outstanding.append(name, b"\x01" * 500)
    pair.outstanding.final("a", 1, commit=True)
    for _ in range(2):
        pair.send()
        pair.work(1, die=True)
    assert [final.error for final in pair.finals("a")] == ["it died"]
    pair.outstanding.final("b", 1, commit=True)
    pair.send()
    pair.work()
    assert [final.text for final in pair.finals("b")] == [text_of(b"\x01" * 500)]
    assert pair.outstanding.counters.crashes == 2 and pair.outstanding.counters.errors == 1


@pytest.mark.parametrize("live", [True, False])
def test_a_death_in_company_costs_the_one_who_is_to_blame(live: bool) -> None:
    """All who were in the step are tried alone, those who live are answered, and then they go on together."""
    pair = Pair()
    for name in "abcd":
        pair.open(name, live=live)
        pair.outstanding.append(name, name.encode() * 350)
        pair.outstanding.final(name, 1, commit=False)

    def poisoned() -> bool:
        """Work until the step that kills; False: there was none."""
        while (work := pair.inference.choose()) is not None:
            pair.queue.working = work.utterance_ids
            if "b" in work.utterance_ids:
                pair.die()
                return True
            for message in pair.inference.perform(work):
                pair.receive(message)
        pair.queue.working = ()
        return False

    pair.send()
    assert poisoned() and len(pair.queue.working) == 0
    pair.send()
    assert poisoned()
    pair.send()
    assert not poisoned()
    assert [final.error for final in pair.finals("b")] == ["it died"]
    for name in "acd":
        assert [final.text for final in pair.finals(name)] == [text_of(name.encode() * 350)]
    assert pair.outstanding.counters.crashes == 2
    for name in "acd":
        pair.outstanding.final(name, 2, commit=True)
    pair.send()
    work = pair.inference.choose()
    assert work is not None and set(work.utterance_ids) == set("acd"), "nobody is under suspicion any more"


def test_those_who_die_together_only_are_given_up_in_the_end() -> None:
    pair = Pair()
    for name in "ab":
        pair.open(name)
        pair.outstanding.append(name, b"\x01" * 200)
    revision = 0
    while not any(pair.finals(name) and pair.finals(name)[-1].error for name in "ab"):
        revision += 1
        for name in "ab":
            pair.outstanding.final(name, revision, commit=False)
        pair.send()
        if revision > 1:
            pair.work()  # each alone
            revision += 1
            for name in "ab":
                pair.outstanding.final(name, revision, commit=False)
            pair.send()
        work = pair.inference.choose()
        assert work is not None and set(work.utterance_ids) == {"a", "b"}
        pair.queue.working = work.utterance_ids
        pair.die()
    assert pair.outstanding.counters.crashes == 4


def test_an_utterance_given_up_before_its_final_answers_with_the_error() -> None:
    pair = Pair()
    pair.open("a")
    pair.outstanding.append("a", b"\x01" * 500)
    for _ in range(2):
        pair.outstanding.partial("a", pair.outstanding.counters.crashes + 1)
        pair.send()
        pair.work(1, die=True)
    pair.outstanding.append("a", b"\x01" * 500)
    assert pair.outstanding.backlog_bytes == 0
    pair.outstanding.final("a", 9, commit=True)
    (delivery,) = pair.outstanding.take_deliveries()
    assert delivery[1].error == "it died" and delivery[1].final
    assert pair.outstanding.open_utterances == 0


def test_an_engine_error_ends_one_utterance() -> None:
    pair = Pair()
    for name, audio in (("good", b"\x01" * 300), ("bad", b"\x01" * 150 + b"\xee")):
        pair.open(name)
        pair.outstanding.append(name, audio)
        pair.outstanding.final(name, 1, commit=True)
    pair.send()
    pair.work()
    assert [(final.text, final.error) for final in pair.finals("bad")] == [("", "cannot stand it")]
    assert [final.text for final in pair.finals("good")] == [text_of(b"\x01" * 300)]
    assert pair.outstanding.open_utterances == 0


def test_beyond_the_backlog_partials_stop_and_finals_do_not() -> None:
    pair = Pair(max_bytes=1000)
    pair.open("a")
    pair.outstanding.append("a", b"\x01" * 1001)
    pair.outstanding.partial("a", 1)
    pair.outstanding.final("a", 2, commit=False)
    pair.send()
    pair.work()
    assert [(h.revision, h.final) for h in pair.got["a"]] == [(2, True)]
    assert pair.outstanding.counters.refused_partials == 1
    pair.outstanding.close("a")
    assert pair.outstanding.backlog_bytes == 0


def test_beyond_the_backlog_audio_waits_on_disk(tmp_path: Path) -> None:
    """One utterance at a time is at the engine, the rest is in a file that nobody can open."""
    pair = Pair(max_bytes=500, folder=str(tmp_path))
    audio = {name: bytes(index % 200 for index in range(start, start + 500)) for start, name in enumerate("abcd")}
    for name in audio:
        pair.open(name)
        for at in range(0, 500, 100):
            pair.outstanding.append(name, audio[name][at : at + 100])
        pair.outstanding.final(name, 1, commit=True)
    in_memory = pair.outstanding.backlog_bytes - pair.outstanding.spilled_bytes
    assert pair.outstanding.spilled_bytes >= 1280 and in_memory <= 500 + 4 * 64
    assert list(tmp_path.iterdir()) == []
    for round in range(4):
        pair.send()
        assert set(pair.inference.engine.audio) == {"abcd"[round]}
        if round == 1:
            pair.die()
            pair.send()
        pair.work()
    assert [pair.finals(name)[0].text for name in audio] == [text_of(audio[name]) for name in audio]
    assert pair.spill.used_bytes == 0


def test_beyond_the_disk_batch_goes_first_and_the_oldest_of_it() -> None:
    pair = Pair(max_bytes=0, max_spill=768)
    for name, live in (("live", True), ("old", False), ("new", False)):
        pair.open(name, live=live)
        pair.outstanding.append(name, bytes(256))
    pair.outstanding.final("old", 1, commit=True)
    assert pair.spill.used_bytes == 768 and pair.outstanding.counters.spill_failures == 0
    pair.outstanding.append("live", bytes(256))
    (delivery,) = pair.outstanding.take_deliveries()
    assert (delivery[1].utterance_id, delivery[1].final) == ("old", True)
    assert delivery[1].error == "more audio waits for the engine than asr.max_spill_mb allows"
    for _ in range(2):
        pair.outstanding.append("live", bytes(256))
    assert pair.outstanding.counters.spill_failures == 3, "the other batch utterance, and then the live one"
    assert pair.outstanding.take_deliveries() == [], "both answer when they are asked"
    for name in ("live", "new"):
        pair.outstanding.final(name, 1, commit=True)
        (delivery,) = pair.outstanding.take_deliveries()
        assert delivery[1].error
    assert pair.outstanding.open_utterances == pair.outstanding.backlog_bytes == pair.spill.used_bytes == 0


def test_a_disk_that_does_not_take_or_give_back_costs_an_utterance(tmp_path: Path) -> None:
    pair = Pair(max_bytes=100, folder=str(tmp_path / "nowhere"))
    pair.open("a")
    pair.outstanding.append("a", bytes(256))
    pair.outstanding.final("a", 1, commit=True)
    (delivery,) = pair.outstanding.take_deliveries()
    assert "No such file or directory" in str(delivery[1].error)
    pair = Pair(max_bytes=100, folder=str(tmp_path))
    for name in "ab":
        pair.open(name)
        pair.outstanding.append(name, b"\x01" * 256)
        pair.outstanding.final(name, 1, commit=True)
    assert pair.spill._file is not None
    pair.spill._file.truncate(100)
    pair.send()
    (delivery,) = pair.outstanding.take_deliveries()
    assert "read back" in str(delivery[1].error)
    pair.outstanding.close("b")
    assert pair.spill._file is None


@pytest.mark.parametrize("told", [False, True])
def test_a_withdrawn_final_is_not_decoded_and_the_next_one_is(told: bool) -> None:
    pair = Pair()
    pair.open("a")
    pair.outstanding.append("a", b"\x01" * 200)
    pair.outstanding.final("a", 1, commit=False, wanted_in_ms=340)
    if told:
        pair.send()
    pair.outstanding.withdraw("a")
    pair.send()
    assert pair.inference.choose() is None and pair.got["a"] == []
    pair.die()  # what the process forgets may be asked again
    pair.outstanding.append("a", b"\x02" * 200)
    pair.outstanding.final("a", 2, commit=True)
    pair.outstanding.withdraw("a")  # crosses with the end
    pair.send()
    pair.work()
    assert [final.revision for final in pair.finals("a")] == [2] and pair.outstanding.open_utterances == 0


def test_a_resumed_utterance_gets_a_second_final() -> None:
    pair = Pair()
    pair.open("a")
    pair.outstanding.append("a", b"\x01" * 200)
    pair.outstanding.final("a", 1, commit=False)
    pair.send()
    pair.work()
    pair.outstanding.append("a", b"\x02" * 200)
    pair.outstanding.final("a", 2, commit=True)
    pair.send()
    pair.work()
    assert [h.text for h in pair.finals("a")] == [text_of(b"\x01" * 200), text_of(b"\x01" * 200 + b"\x02" * 200)]


def test_a_superseded_final_is_not_delivered() -> None:
    pair = Pair()
    pair.open("a")
    pair.outstanding.append("a", b"\x01" * 200)
    pair.outstanding.final("a", 1, commit=False)
    pair.send()
    pair.outstanding.partial("a", 2)
    pair.work()
    assert pair.got["a"] == [] and pair.outstanding.counters.stale == 1


def test_a_partial_that_comes_late_leaves_the_final_to_be_answered() -> None:
    pair = Pair()
    pair.open("a")
    pair.outstanding.append("a", b"\x01" * 100)
    pair.outstanding.partial("a", 1)
    pair.send()
    pair.outstanding.final("a", 2, commit=True)
    pair.work()
    assert [h.revision for h in pair.got["a"]] == [1]
    pair.send()
    pair.work()
    assert [h.revision for h in pair.got["a"]] == [1, 2] and pair.outstanding.open_utterances == 0
    assert pair.queue.next_message() is None, "the process has closed the utterance with its answer"


def test_a_partial_that_a_newer_one_has_overtaken_is_stale() -> None:
    pair = Pair()
    pair.open("a")
    for revision in (1, 2):
        pair.outstanding.partial("a", revision)
    for revision in (2, 1):
        pair.outstanding.on_hypothesis(pair.queue, Hypothesis("a", revision, "so", "en", 0, final=False))
    pair.deliver()
    assert [h.revision for h in pair.got["a"]] == [2] and pair.outstanding.counters.stale == 1


def test_a_partial_that_is_refused_does_not_cost_the_one_before() -> None:
    pair = Pair(max_bytes=1000)
    pair.open("a")
    pair.outstanding.append("a", b"\x01" * 100)
    pair.outstanding.partial("a", 1)
    pair.send()
    pair.outstanding.append("a", b"\x01" * 901)
    pair.outstanding.partial("a", 2)
    pair.work()
    assert [h.revision for h in pair.got["a"]] == [1] and pair.outstanding.counters.refused_partials == 1
    pair.outstanding.close("a")


def test_stable_chars_grow_and_a_final_is_all_stable() -> None:
    pair = Pair()
    pair.open("a")
    pair.outstanding.append("a", b"\x01" * 200)
    for revision in (1, 2):
        pair.outstanding.partial("a", revision)
        pair.send()
        pair.work()
    pair.outstanding.final("a", 3, commit=True)
    pair.send()
    pair.work()
    whole = len(text_of(b"\x01" * 200))
    assert [h.stable_chars for h in pair.got["a"]] == [0, whole, whole]


def test_failures_in_a_row_are_trouble_until_an_answer_or_a_while_without_one() -> None:
    outcomes = FinalOutcomes()
    for now in range(FAILURES - 1):
        outcomes.record("out of memory", now)
        assert outcomes.trouble(now) is None
    outcomes.record("out of memory", 10.0)
    assert outcomes.trouble(10.0) == "the last 3 utterances were not recognised: out of memory"
    assert outcomes.trouble(10.0 + HOLD_S) is None
    outcomes.record("out of memory", 100.0)
    assert outcomes.trouble(101.0) is not None, "it has been tried again"
    outcomes.record(None, 102.0)
    assert outcomes.trouble(102.0) is None


@pytest.mark.parametrize(
    ("engine", "model", "chosen", "why"),
    [
        ("auto", "nobody/nothing", "mixed", "`mediaworker models pull nobody/nothing`"),
        ("auto", "/no/such/folder", "mixed", "set asr.model to one"),
        ("auto", str(TINY), "qwen", str(TINY)),
        ("moonshine", str(TINY), "moonshine", "English only"),
        ("qwen", str(TINY), "qwen", str(TINY)),
    ],
)
def test_selection_says_why_in_one_line(engine: str, model: str, chosen: str, why: str) -> None:
    selection = select(Asr(engine=engine, model=model))
    assert selection.engine == chosen
    assert engine in selection.reason and why in selection.reason and "\n" not in selection.reason


@pytest.mark.parametrize(
    ("asr", "key", "why"),
    [
        (Asr(engine="qwen", model="nobody/nothing"), "asr.model", "`mediaworker models pull nobody/nothing`"),
        (Asr(engine="qwen", model=str(Path(__file__).parent)), "asr.model", "is no folder with a model"),
        (Asr(engine="kaldi"), "asr.engine", "there are moonshine, whisper, mixed, qwen"),
        (Asr(engine="whisper", whisper_model="/no/folder"), "asr.engine", "/no/folder is no folder with a Whisper"),
        (Asr(engine="mixed", whisper_model="/no/folder"), "asr.engine", "/no/folder is no folder with a Whisper"),
        (Asr(engine="whisper", languages=("en", "xx")), "asr.languages", "does not know the language 'xx'"),
        (Asr(model=str(TINY), partials_model="nobody/small"), "asr.partials_model", "are not on this machine"),
    ],
)
def test_an_engine_that_cannot_run_is_not_selected(asr: Asr, key: str, why: str) -> None:
    with pytest.raises(ConfigError, match=f"^{key} = .*{re.escape(why)}"):
        select(asr)


def test_a_pulled_model_is_found_where_the_hub_library_keeps_it(tmp_path: Path) -> None:
    kept = tmp_path / "models--Qwen--Qwen3-ASR-0.6B"
    for revision in ("old", "new"):
        (kept / "snapshots" / revision).mkdir(parents=True)
        for name in ("config.json", "tokenizer_config.json", "model.safetensors"):
            (kept / "snapshots" / revision / name).write_text("{}")
    (kept / "refs").mkdir()
    (kept / "refs" / "main").write_text("new")
    where = {"HF_HUB_CACHE": str(tmp_path)}
    assert weights.find("Qwen/Qwen3-ASR-0.6B", where) == kept / "snapshots" / "new"
    assert weights.find("Qwen/Qwen3-ASR-1.7B", where) is None
    assert weights.find("../etc", where) is None
    assert weights.hub({"HF_HOME": "/x"}) == Path("/x/hub")
    assert weights.hub({}) == Path("~/.cache/huggingface/hub").expanduser()


def test_a_refused_utterance_says_so_in_its_final() -> None:
    pair = Pair()
    pair.open("a")
    pair.outstanding.refuse("a", "no Klingon here")
    pair.outstanding.append("a", b"\x01" * 500)
    assert pair.outstanding.backlog_bytes == 0, "nobody listens"
    pair.outstanding.final("a", 1, commit=True)
    (delivery,) = pair.outstanding.take_deliveries()
    assert (delivery[1].error, delivery[1].refused, delivery[1].died) == ("no Klingon here", True, False)
    assert pair.outstanding.open_utterances == 0


def test_what_is_closed_is_forgotten_on_both_sides() -> None:
    pair = Pair()
    pair.open("a")
    assert "a" in pair.outstanding and "b" not in pair.outstanding
    pair.outstanding.append("a", b"\x01" * 500)
    pair.send()
    pair.outstanding.close("a")
    pair.outstanding.close("a")
    assert pair.queue.next_message() == messages.CloseUtterance("a")
    assert pair.queue.next_message() is None and pair.outstanding.backlog_bytes == 0
    pair.outstanding.on_hypothesis(pair.queue, Hypothesis("a", 1, "late", "en", 4, final=True))
    assert not pair.outstanding.take_deliveries() and pair.outstanding.counters.stale == 1


def test_answers_are_counted_by_what_they_are() -> None:
    pair = Pair()
    for name, audio in (("good", b"\x01" * 300), ("short", b"\x01"), ("bad", b"\xee" * 150)):
        pair.open(name)
        pair.outstanding.append(name, audio)
    pair.outstanding.partial("good", 1)
    pair.send()
    pair.work()
    for name in ("good", "short", "bad"):
        pair.outstanding.final(name, 2, commit=True)
    pair.send()
    pair.work()
    counters = pair.outstanding.counters
    assert (counters.utterances, counters.partials, counters.finals, counters.errors) == (3, 1, 3, 1)
    assert (counters.stale, counters.crashes, counters.replayed) == (0, 0, 0)


def test_audio_is_sent_as_it_comes_before_anything_is_asked() -> None:
    pair = Pair()
    pair.open("a")
    assert isinstance(pair.queue.next_message(), messages.Open)
    assert pair.queue.next_message() is None
    pair.outstanding.append("a", b"\x01" * 100)
    assert isinstance(pair.queue.next_message(), messages.Append)
    assert pair.queue.next_message() is None


def test_audio_that_is_added_counts_to_what_the_engine_holds() -> None:
    pair = Pair(max_bytes=1000)
    for name in "ab":
        pair.open(name)
    pair.outstanding.append("a", b"\x01" * 100)
    assert isinstance(pair.queue.next_message(), messages.Open)
    assert isinstance(pair.queue.next_message(), messages.Open)
    pair.open("c")
    pair.outstanding.append("a", b"\x01" * 900)
    sent = [type(message).__name__ for message in iter(pair.queue.next_message, None)]
    assert sent and "Open" not in sent, "the third waits until the first is over"
    pair.outstanding.close("a")
    sent = [type(message).__name__ for message in iter(pair.queue.next_message, None)]
    assert sent == ["CloseUtterance", "Open"]


def test_kills_between_answers_are_not_the_fault_of_an_utterance() -> None:
    pair = Pair()
    pair.open("a")
    for revision in range(1, 6):
        pair.outstanding.append("a", b"\x01" * 50)
        pair.outstanding.partial("a", 2 * revision)
        pair.send()
        pair.work(1, die=True)
        pair.send()
        pair.work()
    pair.outstanding.final("a", 99, commit=True)
    pair.send()
    pair.work()
    assert [final.text for final in pair.finals("a")] == [text_of(b"\x01" * 250)]
    assert pair.outstanding.counters.crashes == 5


def test_the_next_step_of_a_pipelined_engine_begins_before_the_one_before_is_collected() -> None:
    pair = Pair(engine=PipelinedHashEngine)
    for name in "abcdef":
        pair.open(name)
        pair.outstanding.append(name, name.encode() * 50)
        pair.outstanding.final(name, 1, commit=True)
    pair.send()
    inference = pair.inference
    first = inference.choose()
    assert first is not None and len(first.requests) == 3
    assert inference.perform(first) == [] and set(inference.begun) == set("abc")
    second = inference.choose()
    assert second is not None and set(second.utterance_ids) == set("def")
    answers = inference.perform(second)
    assert {each.hypothesis.utterance_id for each in answers if isinstance(each, messages.Heard)} == set("abc")
    third = inference.choose()
    assert third is not None and third.requests == (), "there is something to collect"
    inference.receive(messages.CloseUtterance("d"), 0.0)
    answers = inference.perform(third)
    assert {each.hypothesis.utterance_id for each in answers if isinstance(each, messages.Heard)} == set("ef")
    assert inference.choose() is None and not inference.begun


def test_a_suspect_has_a_pipelined_engine_for_itself() -> None:
    pair = Pair(engine=PipelinedHashEngine)
    for name in "ab":
        pair.inference.receive(messages.Open(Utterance(name, "PCMU"), suspect=name == "b"), 0.0)
        pair.inference.receive(messages.Append(name, 0, b"\x01" * 50), 0.0)
        pair.inference.receive(messages.FinalRequest(name, 1, 50, commit=True), 0.0 if name == "a" else 1.0)
    alone = []
    while (work := pair.inference.choose()) is not None:
        alone.append({*pair.inference.begun, *work.utterance_ids})
        pair.inference.perform(work)
    assert {"a", "b"} not in alone and {"a"} in alone and {"b"} in alone


def test_a_pipelined_engine_that_is_exhausted_does_it_again_with_less() -> None:
    class Narrow(PipelinedHashEngine):
        def launch(self, requests: Sequence[Request]) -> Collect:
            if len(requests) > 1:
                raise EngineExhausted("no room")
            return super().launch(requests)

    pair = Pair(engine=Narrow)
    for name in "abc":
        pair.open(name)
        pair.outstanding.append(name, name.encode() * 50)
        pair.outstanding.final(name, 1, commit=True)
    pair.send()
    pair.work()
    assert all(pair.finals(name)[0].text == text_of(name.encode() * 50) for name in "abc")
    assert pair.inference.oom_backoff.exhausted > 0
