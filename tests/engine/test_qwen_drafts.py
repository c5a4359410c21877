"""Drafts and evictions: an utterance that loses its slot goes on behind what it has verified, and so it ends."""

from __future__ import annotations

from asr.engines.qwen.device.memory import Shape
from asr.engines.qwen.engine import QwenEngine
from asr.scheduling.request import Lane, Request
from asr.scheduling.scheduler import Scheduler
from asr.utterance import Utterance
from lab.engine.qwen_models import check_said, loaded, noise, random_model

UTTERANCES, SLOTS = 256, 32
SECONDS = 0.1


def test_equal_deadlines_and_evictions_end() -> None:
    """Those that wait come in turn, so that each has lost its slot when its turn comes again; and what is suggested to
    them is wrong, but for its beginning."""
    reference = random_model()
    made = QwenEngine(loaded(random_model()), Shape(slots=SLOTS, batch=SLOTS))
    made.prompts.read = lambda tokens, prompt: ("", " ".join(map(str, tokens)))  # type: ignore[method-assign]
    sounds = [noise(SECONDS, seed=seed) for seed in range(4)]
    scheduler = Scheduler()
    for number in range(UTTERANCES):
        name = str(number)
        made.open(Utterance(name, "PCMU", language="en"))
        made.append(name, sounds[number % 4])
        made.suggest(name, [1 + number % 50] * 40)
        scheduler.submit(Request(name, 1, Lane.FINAL, True, len(sounds[0]), 5.0))
    answers: dict[str, list[int]] = {}
    for _ in range(UTTERANCES // SLOTS * 50):
        chosen = scheduler.take(SLOTS, runnable=made.runnable)
        answered = made.step(chosen)
        for answer in answered:
            scheduler.finish(answer.request)
            made.close(answer.request.utterance_id)
            answers[answer.request.utterance_id] = [int(token) for token in answer.text.split()]
        for request in chosen:
            scheduler.put_back(request)
        if not len(scheduler):
            break
    assert len(answers) == UTTERANCES, "it goes on for ever"
    prompt = made.prompts.build(language="en")
    for number in range(4):
        check_said(answers[str(number)], reference, sounds[number], prompt, len(answers[str(number)]))


def test_what_is_verified_replaces_the_beginning_of_a_draft() -> None:
    made = QwenEngine(loaded(random_model()), Shape(slots=1, batch=1))
    sound = noise(1.0, seed=3)
    made.open(Utterance("a", "PCMU"))
    made.append("a", sound)
    request = Request("a", 1, Lane.FINAL, True, len(sound), 0.0)
    made.suggest("a", [7] * 20)
    assert not made.step([request])
    session = made._sessions["a"]
    said = list(session.work.tokens)
    assert 0 < len(said) < 20
    session.evict()
    assert made.last_tokens("a") == [*said, *[7] * (20 - len(said))]


def test_a_finished_window_keeps_no_more_than_itself() -> None:
    """Of the buffer of a whole pass, which many utterances share."""
    made = QwenEngine(loaded(random_model()), Shape(slots=4, batch=4))
    requests = []
    for name in "abc":
        sound = noise(8.5, seed=1)
        made.open(Utterance(name, "PCMU"))
        made.append(name, sound)
        requests.append(Request(name, 1, Lane.FIRST_PARTIAL, False, len(sound), 0.0))
    made.step(requests)
    for name in "abc":
        windows = made._sessions[name].audio.windows
        assert windows, "one is finished"
        for window in windows.values():
            kept = window.tokens
            assert kept.untyped_storage().nbytes() == kept.numel() * kept.element_size()


def test_the_head_of_a_prompt_is_read_once_as_long_as_its_slot_is_kept() -> None:
    reference, context = random_model(), "names " * 40
    made = QwenEngine(loaded(random_model()), Shape(slots=1, batch=1))
    made.prompts.read = lambda tokens, prompt: ("", " ".join(map(str, tokens)))  # type: ignore[method-assign]
    sound = noise(1.5, seed=5)
    made.open(Utterance("a", "PCMU", language="en", context=context))
    prompt = made.prompts.build(language="en", context=context)
    head = len(prompt.head)
    assert head > 40
    fed = []
    for revision, end in enumerate((4000, 8000, 12000)):
        made.append("a", sound[end - 4000 : end])
        if revision == 2:
            made._sessions["a"].evict()
            made.allocator.release("a")
        before, answers = made.packed.positions, []
        request = Request("a", revision, Lane.FINAL, True, end, 0.0)
        while not answers:
            answers = made.step([request])
        said = [int(token) for token in answers[0].text.split()]
        check_said(said, reference, sound[:end], prompt, len(said))
        fed.append(made.packed.positions - before)
    assert fed[1] < head < fed[0] and fed[2] > head, "and again when the slot was another's meanwhile"
