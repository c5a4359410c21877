"""Times of words: when they are asked for, in which order they come, and what a death costs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asr import messages
from asr.engines.aligner import TOGETHER
from asr.inference.alignments import Alignments
from asr.inference.inference import MAX_WORDS, PASSED_OVER, Inference
from asr.inference.utterances import ServedUtterance
from asr.samples import Loudness
from asr.scheduling.request import Lane, Request
from asr.scheduling.scheduler import Scheduler
from asr.utterance import BYTES_PER_S, Alignment, Hypothesis, TimedWord, Utterance
from audio.codecs.g711 import ulaw_encode
from config.process.framing import encode
from lab.calls.desks import SipDesk, sip_call
from lab.engine.hash_engine import HashAligner, HashEngine, Pair, words_of
from lab.media.speech import speech
from mediaworker.calls.word_timestamps import FinalText, LegWordTimestamps
from mediaworker.events import schema as events
from mediaworker.tracing.latency import LatencyParts

SECOND = BYTES_PER_S["PCMU"]


class WordsPair(Pair):
    """Both sides, and what each utterance got."""

    def __init__(self, max_bytes: int = 1 << 20) -> None:
        super().__init__(max_bytes)
        self.inference = Inference(HashEngine(), HashAligner())
        self.words: dict[str, list[Alignment]] = {}

    def begin(self, name: str, *, live: bool = True, stream: str = "") -> None:
        self.got[name], self.words[name] = [], []
        self.outstanding.open(Utterance(name, "PCMU", live=live, stream=stream, words=True), self.got[name].append)

    def say(self, name: str, audio: bytes, *, live: bool = True, stream: str = "") -> None:
        """All of an utterance and its final, which is taken."""
        self.begin(name, live=live, stream=stream)
        self.outstanding.append(name, audio)
        self.outstanding.final(name, 1, commit=True)
        assert not self.outstanding.take_deliveries()
        self.send()
        self.work()
        assert self.got[name]

    def ask(self, name: str, text: str = "hello", language: str = "en") -> None:
        self.outstanding.align(name, text, language, self.words[name].append)
        self.deliver()

    def die(self) -> None:
        super().die()
        self.inference = Inference(HashEngine(), HashAligner())

    @property
    def aligner(self) -> HashAligner:
        aligner = self.inference.alignments._aligner
        assert isinstance(aligner, HashAligner)
        return aligner


def empty(pair: WordsPair) -> bool:
    pair.send()
    kept = pair.inference._open or pair.inference.engine.audio
    return (
        not kept
        and not len(pair.inference.scheduler)
        and not pair.outstanding.open_utterances
        and not pair.outstanding.backlog_bytes
    )


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.sampled_from("abc"), st.integers(1, 350)),
        st.tuples(st.sampled_from(["guess", "align", "close"]), st.sampled_from("abc")),
        st.tuples(st.sampled_from(["send", "work", "die in work"]), st.integers(1, 4)),
        st.tuples(st.just("die")),
    ),
    max_size=40,
)


@given(STEPS, st.booleans())
def test_words_come_once_and_are_those_of_the_final_whatever_dies(steps: list[tuple], commits: bool) -> None:
    pair = WordsPair()
    sent = {name: b"" for name in "abc"}
    revision = dict.fromkeys("abc", 0)
    asked: set[str] = set()
    closed: set[str] = set()
    for name in "abc":
        pair.begin(name, live=name != "c")

    def final(name: str, *, commit: bool) -> None:
        revision[name] += 1
        pair.outstanding.final(name, revision[name], commit=commit)
        pair.deliver()

    def answered(name: str) -> bool:
        """Its newest final is here, with words, and of all of its audio."""
        last = pair.got[name][-1] if pair.got[name] else None
        return last is not None and last.revision == revision[name] and last.error is None

    def align(name: str) -> None:
        asked.add(name)
        pair.ask(name)

    for step in steps:
        match step:
            case "append", name, size if name not in asked | closed:
                sent[name] += bytes(index % 200 for index in range(size))
                pair.outstanding.append(name, sent[name][-size:])
                revision[name] += 1  # what was asked before is not of all of it
                pair.outstanding.partial(name, revision[name])
            case "guess", name if name not in asked | closed:
                final(name, commit=False)
            case "align", name if name not in asked | closed and answered(name) and pair.got[name][-1].final:
                align(name)
            case "close", name if name in asked:
                pair.outstanding.close(name)
                closed.add(name)
            case "send", count:
                pair.send(count)
            case "work" | "die in work" as kind, count:
                pair.work(count, die=kind == "die in work")
            case ("die",):
                pair.die()
    for name in sorted(set("abc") - asked):
        final(name, commit=commits)
        pair.send()
        pair.work()
        if answered(name):
            align(name)
        else:
            assert pair.got[name][-1].error == "it died"
            pair.outstanding.close(name)
    pair.send()
    pair.work()
    for name in asked:
        assert len(pair.words[name]) == 1 or (name in closed and not pair.words[name])
        for alignment in pair.words[name]:
            words = words_of(sent[name], "hello")
            assert alignment.words == words or (alignment.error == "it died" and not alignment.words)
    assert empty(pair)


def test_a_waiting_utterance_is_replayed_with_its_text_and_not_recognised_again() -> None:
    pair = WordsPair()
    pair.say("a", b"\x01" * 500)
    pair.ask("a", "text of the final")
    pair.send()
    pair.die()
    assert pair.outstanding.open_utterances == 1 and pair.outstanding.backlog_bytes == 500
    pair.send()
    pair.work()
    assert [each.words for each in pair.words["a"]] == [words_of(b"\x01" * 500, "text of the final")]
    assert len(pair.got["a"]) == 1 and pair.outstanding.counters.replayed == 1 and empty(pair)


def test_the_engine_is_done_with_an_utterance_that_waits_for_its_words() -> None:
    pair = WordsPair()
    pair.say("a", b"\x01" * 500)
    assert pair.inference.engine.audio == {} and pair.outstanding.open_utterances == 1, "its slot is another's"
    pair.ask("a")
    pair.outstanding.close("a")
    assert empty(pair)


@pytest.mark.parametrize(
    ("audio", "language", "says"),
    [
        (b"\x01" * 100, "sv", "does not know the language 'sv'"),
        (b"\x01" * 181 * SECOND, "en", "takes 180 s"),
        (b"\x01\xdd" * 50, "en", "cannot stand it"),
    ],
)
def test_what_cannot_be_aligned_is_answered_and_over(audio: bytes, language: str, says: str) -> None:
    pair = WordsPair(max_bytes=1 << 24)
    pair.say("a", audio)
    pair.ask("a", language=language)
    pair.send()
    pair.work()
    (answer,) = pair.words["a"]
    assert answer.words == () and says in str(answer.error)
    assert pair.outstanding.counters.failed_alignments == 1 and empty(pair)


def test_one_that_fails_costs_the_others_of_its_step_nothing() -> None:
    pair = WordsPair()
    for name, audio in (("a", b"\x01" * 50), ("bad", b"\x01\xdd" * 50), ("c", b"\x01" * 60)):
        pair.say(name, audio)
    for name in ("a", "bad", "c"):
        pair.ask(name)
    pair.send()
    pair.work()
    assert [len(step) for step in pair.aligner.steps] == [3, 1, 1, 1]
    assert [pair.words[name][0].words for name in ("a", "bad", "c")] == [
        words_of(b"\x01" * 50, "hello"), (), words_of(b"\x01" * 60, "hello")
    ]  # fmt: skip
    assert (
        pair.outstanding.counters.failed_alignments == 1 and pair.outstanding.counters.alignments == 2 and empty(pair)
    )


def test_without_an_aligner_there_are_no_words_and_no_audio_is_kept() -> None:
    pair = WordsPair()
    pair.inference = Inference(HashEngine())
    assert pair.inference.ready().words == ()
    pair.begin("a")
    pair.outstanding.append("a", b"\x01" * 100)
    pair.outstanding.final("a", 1, commit=True)
    pair.send()
    assert [len(kept.audio) for kept in pair.inference._open.values()] == [0]
    pair.work()
    pair.ask("a")
    pair.send()
    pair.work()
    assert pair.words["a"][0].error == "there is no aligner" and empty(pair)


def test_words_that_come_with_the_final_are_told_at_once_whatever_dies() -> None:
    """An engine may time them itself: nothing is asked of the process for them."""
    pair = WordsPair()
    pair.begin("a")
    pair.outstanding.append("a", b"\x01" * 100)
    pair.outstanding.final("a", 1, commit=True)
    pair.send()
    told = Hypothesis("a", 1, "hello", "en", 5, True, words=(TimedWord("hello", 10, 20, 0.5),))
    body = encode(messages.Heard(told))[4:]
    heard = messages.decode_from_engine(body)
    assert isinstance(heard, messages.Heard)
    pair.outstanding.on_hypothesis(pair.queue, heard.hypothesis)
    pair.die()
    pair.ask("a")
    assert [(each.words, each.error) for each in pair.words["a"]] == [(told.words, None)]
    assert pair.outstanding.counters.alignments == pair.outstanding.counters.words == 1 and empty(pair)


def test_too_much_waiting_audio_costs_the_words() -> None:
    pair = WordsPair(max_bytes=1000)
    pair.say("a", b"\x01" * 900)
    pair.begin("b")
    pair.outstanding.append("b", b"\x01" * 200)
    pair.ask("a")
    assert "asr.max_backlog_mb" in str(pair.words["a"][0].error)
    assert pair.outstanding.counters.refused_alignments == 1 and pair.outstanding.backlog_bytes == 200
    pair.outstanding.drop_spilled()


def test_words_that_nobody_waits_for_are_stale_and_change_nothing() -> None:
    """They are of another request, of another process, or of an utterance that is over or has not had its final."""
    pair = WordsPair()
    other = pair.outstanding.add_queue()
    pair.say("a", b"\x01" * 100)
    pair.ask("a")
    pair.begin("b")
    pair.outstanding.partial("b", 2)
    stale = [
        (pair.queue, "a", 1), (pair.queue, "a", 3), (other, "a", 2), (pair.queue, "b", 2), (pair.queue, "nobody", 2),
    ]  # fmt: skip
    for queue, name, revision in stale:
        pair.outstanding.on_alignment(queue, Alignment(name, revision, (TimedWord("hello", 0, 10, 1.0),)))
    assert pair.outstanding.counters.stale == 5 and not pair.outstanding.take_deliveries()
    pair.send()
    pair.work()
    assert [each.words for each in pair.words["a"]] == [words_of(b"\x01" * 100, "hello")]
    assert pair.outstanding.counters.stale == 5
    assert pair.queue.next_message() is None, "the process has closed the utterance with its answer"
    pair.outstanding.close("b")


def test_two_deaths_over_the_words_end_them() -> None:
    pair = WordsPair()
    pair.say("a", b"\x01" * 100)
    pair.ask("a")
    for _ in range(2):
        pair.send()
        pair.work(1, die=True)
    assert [each.error for each in pair.words["a"]] == ["it died"] and len(pair.got["a"]) == 1 and empty(pair)


def lanes(pair: WordsPair, count: int) -> list[str]:
    """What is worked on, step by step."""
    done = []
    for _ in range(count):
        work = pair.inference.choose()
        if work is None:
            break
        if work.requests:
            done.append("words" if work.align else "+".join(sorted({each.lane.name.lower() for each in work.requests})))
        pair.inference.perform(work)
    return done


def test_words_of_calls_go_behind_live_requests_and_before_files() -> None:
    pair = WordsPair()
    pair.say("file said", b"\x01" * 100, live=False)
    pair.say("call said", b"\x01" * 100)
    pair.ask("file said", "of a file")
    pair.ask("call said", "of a call")
    for name, live in (("call", True), ("file", False)):
        pair.begin(name, live=live)
        pair.outstanding.append(name, b"\x01" * 150)
    pair.outstanding.partial("call", 1)
    pair.outstanding.final("file", 1, commit=True)
    pair.send()
    assert lanes(pair, 9) == ["batch+first_partial", "batch+first_partial", "words"]
    assert [[each.text for each in step] for step in pair.aligner.steps] == [["of a call", "of a file"]]


def test_a_backlog_of_words_is_shed_from_its_oldest_and_says_so() -> None:
    """While partials wait: finals and partials lose nothing."""
    pair, most = WordsPair(), MAX_WORDS
    for number in range(most + 3):
        pair.say(f"call {number}", b"\x01" * 10)
    pair.begin("talks")
    pair.outstanding.append("talks", b"\x01" * 150)
    pair.outstanding.partial("talks", 1)
    for number in range(most + 3):
        pair.ask(f"call {number}")
    pair.send()
    pair.work(2)
    assert len(pair.got["talks"]) == 1 and not pair.aligner.steps, "the partial goes first"
    pair.work()
    answers = [pair.words[f"call {number}"][0] for number in range(most + 3)]
    assert [each.refused for each in answers] == [True] * 3 + [False] * most
    assert all(each.error == "too many wait for times" for each in answers[:3]) and all(e.words for e in answers[3:])
    assert len(pair.got["talks"]) == 1 and pair.inference.scheduler.shed_partials == 0
    for counters in (pair.outstanding.counters, pair.inference.usage.counters):
        assert (counters.refused_alignments, counters.failed_alignments, counters.alignments) == (3, 3, most)
    pair.outstanding.close("talks")
    assert empty(pair)


def test_words_of_files_are_never_shed() -> None:
    pair, many = WordsPair(), 2 * MAX_WORDS
    for number in range(many):
        pair.say(f"said {number}", b"\x01" * 10, live=False, stream="a")
    for number in range(many):
        pair.ask(f"said {number}")
    pair.send()
    pair.work()
    assert pair.outstanding.counters.alignments == many and empty(pair)


def test_files_that_are_read_and_files_that_are_aligned_take_turns() -> None:
    """Eight are aligned in a step, three are read in one."""
    pair = WordsPair()
    for number in range(16):
        pair.say(f"said {number}", b"\x01" * 10, live=False, stream="a")
    for number in range(16):
        pair.ask(f"said {number}")
    for number in range(6):
        pair.begin(f"read {number}", live=False, stream="b")
        pair.outstanding.append(f"read {number}", b"\x01" * 10)
        pair.outstanding.final(f"read {number}", 1, commit=True)
    pair.send()
    assert lanes(pair, 99) == ["batch", "words"] * 2
    assert not len(pair.inference.scheduler)


def test_words_do_not_starve_where_there_is_always_a_partial() -> None:
    pair = WordsPair()
    pair.say("said", b"\x01" * 100)
    pair.begin("talks")
    pair.outstanding.append("talks", b"\x01" * 100_000)
    pair.outstanding.partial("talks", 1)
    pair.ask("said")
    pair.send()
    done = lanes(pair, PASSED_OVER + 2)
    assert done.index("words") == PASSED_OVER and set(done) == {"first_partial", "words"}


def test_words_never_go_before_a_final() -> None:
    pair = WordsPair()
    pair.say("said", b"\x01" * 100)
    pair.begin("talks")
    pair.outstanding.append("talks", b"\x01" * 5000)
    pair.outstanding.final("talks", 1, commit=True)
    pair.ask("said")
    pair.send()
    assert lanes(pair, 100) == ["final"] * 50 + ["words"]


@given(st.lists(st.integers(1, 70), min_size=1, max_size=30))
def test_a_step_of_words_is_bounded(seconds: list[int]) -> None:
    pair = WordsPair(max_bytes=1 << 30)
    for number, length in enumerate(seconds):
        name = f"u{number}"
        pair.inference.receive(messages.Open(Utterance(name, "PCMU", words=True)), 0.0)
        pair.inference.receive(messages.Append(name, 0, bytes(length * SECOND)), 0.0)
        pair.inference.receive(messages.Align(name, 1, "hello", "en", length * SECOND), number)
    answered: list[str] = []
    while (work := pair.inference.choose()) is not None:
        assert work.align and 1 <= len(work.requests) <= TOGETHER
        together = sum(request.end for request in work.requests) / SECOND
        assert together <= 30 or len(work.requests) == 1
        assert all(request.lane is Lane.WORDS for request in work.requests)
        answered += [m.alignment.utterance_id for m in pair.inference.perform(work) if isinstance(m, messages.Words)]
    assert sorted(answered) == sorted(f"u{number}" for number in range(len(seconds)))


@dataclass
class Asked:
    words: tuple[str, ...] = ("en", "zh")
    asked: dict[str, Callable[[Alignment], None]] = field(default_factory=dict)
    cancelled: list[str] = field(default_factory=list)

    def align(self, utterance_id: str, text: str, language: str, on_words: Callable[[Alignment], None]) -> None:
        self.asked[utterance_id] = on_words

    def cancel(self, utterance_id: str) -> None:
        self.cancelled.append(utterance_id)


class LegStage:
    def __init__(self) -> None:
        self.aligner = Asked()
        self.published: list[tuple[int, events.EventBody]] = []
        self.done = 0
        self.now = 10.0
        self.leg = LegWordTimestamps(
            self.aligner,
            publish=lambda at_ms, body: self.published.append((at_ms, body)),
            clock=lambda: self.now,
            done=self._done,
            latency=LatencyParts(),
        )

    def _done(self) -> None:
        self.done += 1

    def ask(self, name: str, text: str = "so it is", language: str = "en") -> bool:
        """Spoken from 5.0 s to 6.0 s of its call, heard from 4.7 s on."""
        return self.leg.align(FinalText(name, f"{name}/cut", text, language, 5000, 6000, 4700, end_s=9.5))

    def answer(self, name: str, *times: tuple[int, int], error: str | None = None) -> None:
        words = tuple(TimedWord(str(number), *pair, 0.5) for number, pair in enumerate(times))
        self.aligner.asked[f"{name}/cut"](Alignment(f"{name}/cut", 3, words, error))


def test_words_are_published_in_the_time_of_the_call_inside_their_utterance() -> None:
    stage = LegStage()
    assert stage.ask("u1") and len(stage.leg) == 1
    stage.leg.on_final_published("u1")
    stage.now = 10.25
    stage.answer("u1", (80, 400), (400, 880), (1200, 1600))
    ((at_ms, body),) = stage.published
    assert at_ms == 6750
    assert body == events.TranscriptWords(
        "u1", [events.Word("0", 5000, 5100, 0.5), events.Word("1", 5100, 5580, 0.5), events.Word("2", 5900, 6000, 0.5)]
    )
    assert len(stage.leg) == 0 and stage.done == 1


def test_words_that_come_before_their_final_wait_for_it() -> None:
    """A final waits for those of what was said before it."""
    stage = LegStage()
    stage.ask("u1")
    stage.answer("u1", (0, 80))
    assert stage.published == [] and stage.done == 0
    stage.leg.on_final_published("u1")
    assert len(stage.published) == stage.done == 1


@pytest.mark.parametrize(("text", "language"), [("", "en"), ("hej", "sv"), ("so", ""), ("so", "nonsense")])
def test_nothing_is_asked_of_what_has_no_words_or_another_language(text: str, language: str) -> None:
    stage = LegStage()
    assert not stage.ask("u1", text, language) and not stage.aligner.asked and len(stage.leg) == 0


def test_a_variety_of_a_language_is_that_language() -> None:
    assert LegStage().ask("u1", "so", "en-US") and LegStage().ask("u1", "好", "cmn")


def test_no_words_are_no_event() -> None:
    stage = LegStage()
    stage.ask("u1")
    stage.leg.on_final_published("u1")
    stage.answer("u1", error="it died")
    assert stage.published == [] and len(stage.leg) == 0 and stage.done == 1


def test_what_comes_after_the_end_is_not_published() -> None:
    stage = LegStage()
    stage.ask("u1")
    stage.leg.on_final_published("u1")
    stage.leg.give_up()
    assert stage.aligner.cancelled == ["u1/cut"] and len(stage.leg) == 0
    stage.answer("u1", (0, 80))
    assert stage.published == []


class WordsDesk(SipDesk):
    """A call whose aligner answers when the test says so, and that waits for as long."""

    def __init__(self) -> None:
        super().__init__(sip_call(), aligner=Asked())
        self.aligner = self.registry._aligner
        self.later: list[tuple[float, Callable[[], None]]] = []
        self.call._later = lambda delay_s, run: self.later.append((delay_s, run))

    def kinds(self) -> list[str]:
        return [events.type_of(body) for body in self.published]

    def answer(self) -> None:
        ((name, take),) = self.aligner.asked.items()
        take(Alignment(name, 9, (TimedWord("8000", 0, 400, 0.9),)))


async def spoken() -> WordsDesk:
    desk = WordsDesk()
    await desk.hear(ulaw_encode(speech("auth-thankyou")), 0)
    desk.ingress.on_end(desk.sip, "hangup")
    assert "transcript.final" in desk.kinds()
    return desk


async def test_a_call_ends_behind_its_last_words() -> None:
    desk = await spoken()
    assert "call.ended" not in desk.kinds() and [delay_s for delay_s, _ in desk.later] == [5.0]
    desk.answer()
    assert desk.kinds()[-4:] == ["transcript.final", "transcript.words", "metrics", "call.ended"]
    desk.later[0][1]()
    assert desk.kinds().count("call.ended") == 1 and len(desk.registry) == 0


async def test_a_call_does_not_wait_for_ever() -> None:
    desk = await spoken()
    desk.later[0][1]()
    assert desk.kinds()[-3:] == ["transcript.final", "metrics", "call.ended"]
    assert desk.aligner.cancelled == list(desk.aligner.asked)
    desk.answer()
    assert "transcript.words" not in desk.kinds()


@pytest.mark.parametrize("aligner", [HashAligner(), None])
def test_audio_is_kept_for_utterances_whose_words_are_wanted_and_no_longer(aligner: HashAligner | None) -> None:
    inference = Inference(HashEngine(), aligner)
    for name in ("plain", "wanted"):
        inference.receive(messages.Open(Utterance(name, "PCMU", words=name == "wanted")), 0.0)
    for name in ("plain", "wanted", "unknown"):
        inference.receive(messages.Append(name, 0, b"\x01" * SECOND), 0.0)
    assert [len(kept.audio) for kept in inference._open.values()] == [0, SECOND if aligner else 0]
    for _ in range(2):
        inference.receive(messages.CloseUtterance("wanted"), 0.0)
    assert list(inference._open) == ["plain"]
    assert inference.alignments.languages == (("en", "zh") if aligner else ())


def to_align(*seconds: int) -> tuple[Alignments, Scheduler]:
    """Alignments of utterances `u0`, `u1` … of these lengths that are waiting."""
    utterances, scheduler = dict[str, ServedUtterance](), Scheduler()
    for number, each in enumerate(seconds):
        utterance = Utterance(f"u{number}", "PCMU", words=True)
        utterances[utterance.id] = ServedUtterance(utterance, Loudness("PCMU"), 100 * SECOND)
        scheduler.submit(Request(utterance.id, 1, Lane.WORDS, True, each * SECOND, 0.0, align=True))
    return Alignments(HashAligner(), utterances), scheduler


def test_what_is_aligned_together_is_bounded_by_its_length() -> None:
    alignments, scheduler = to_align(20, 15, 10, 1)
    assert [each.utterance_id for each in alignments.choose(scheduler, Lane.WORDS)] == ["u0", "u2"], "30 s in all"
    assert [each.utterance_id for each in alignments.choose(scheduler, Lane.WORDS)] == ["u1", "u3"]
    assert alignments.choose(scheduler, Lane.WORDS) == []


def test_one_that_is_longer_than_all_together_is_aligned_alone() -> None:
    alignments, scheduler = to_align(100, 1)
    assert [each.utterance_id for each in alignments.choose(scheduler, Lane.WORDS)] == ["u0"]
