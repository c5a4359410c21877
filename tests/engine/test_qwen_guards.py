"""What a language model says that nobody said is refused: from silence, from its prompt, and for ever."""

from __future__ import annotations

import unicodedata

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from asr import messages
from asr.engines.qwen.device.memory import Shape
from asr.engines.qwen.engine import QwenEngine
from asr.engines.qwen.model.prompt import MAX_CONTEXT, Prompts
from asr.engines.qwen.session import longest
from asr.inference.inference import Inference
from asr.utterance import Hypothesis, Utterance
from audio.codecs.g711 import ulaw_encode
from lab.engine.qwen_models import ends, loaded, noise, random_model, tokenizer

CONTEXT = "Names: Alice Miller, Bob Kovács. Product: Zypher"
PREVIOUS = "I would like to speak to somebody about my last bill"
LINE_NOISE = bytes(ulaw_encode((20 * np.random.default_rng(0).standard_normal(16000)).astype(np.int16)))
WHISPER = bytes(ulaw_encode((85 * np.random.default_rng(0).standard_normal(16000)).astype(np.int16)))
LOUD = noise(2.0, seed=1)


@pytest.fixture
def engine() -> QwenEngine:
    return QwenEngine(loaded(random_model()), Shape(slots=2, batch=2))


def saying(engine: QwenEngine, text: str) -> QwenEngine:
    """It says this instead of babbling, and computes all the same."""
    engine.prompts.read = lambda tokens, prompt: ("en", text)  # type: ignore[method-assign]
    return engine


def shown(engine: QwenEngine, audio: bytes, *, context: str = "", previous: str = "") -> list[Hypothesis]:
    """The partial and the final of an utterance."""
    inference = Inference(engine)
    inference.receive(messages.Open(Utterance("u", "PCMU", context=context, previous=previous)), 0.0)
    inference.receive(messages.Append("u", 0, audio), 0.0)
    heard: list[Hypothesis] = []
    for message in (
        messages.PartialRequest("u", 1, len(audio)),
        messages.FinalRequest("u", 2, len(audio), commit=True),
    ):
        inference.receive(message, 0.0)
        while chosen := inference.choose():
            for said in inference.perform(chosen):
                assert isinstance(said, messages.Heard)
                heard.append(said.hypothesis)
    assert [hypothesis.final for hypothesis in heard] == [False, True] and not len(engine.kv_cache)
    return heard


def texts(heard: list[Hypothesis]) -> set[str]:
    return {hypothesis.text for hypothesis in heard}


def test_silence_has_no_words_whatever_the_model_says(engine: QwenEngine) -> None:
    assert "" not in texts(shown(engine, LOUD)), "it babbles"
    assert texts(shown(engine, LINE_NOISE)) == {""}
    assert texts(shown(saying(engine, "Thank you."), LINE_NOISE)) == {""}
    assert texts(shown(engine, WHISPER)) == {"Thank you."}


def test_the_context_is_no_transcript_of_silence(engine: QwenEngine) -> None:
    echo = saying(engine, "Alice Miller, Bob Kovács")
    assert texts(shown(echo, WHISPER, context=CONTEXT)) == {""}
    assert texts(shown(echo, WHISPER)) == texts(shown(echo, LOUD, context=CONTEXT)) == {"Alice Miller, Bob Kovács"}


def test_the_whole_context_is_no_transcript_of_anything(engine: QwenEngine) -> None:
    assert texts(shown(saying(engine, CONTEXT), LOUD, context=CONTEXT)) == {""}


def test_the_previous_transcript_is_not_said_again_by_silence(engine: QwenEngine) -> None:
    echo = saying(engine, PREVIOUS)
    assert texts(shown(echo, WHISPER, previous=PREVIOUS)) == {""}
    assert texts(shown(echo, LOUD[:4800], previous=PREVIOUS)) == {""}, "nobody speaks so fast"
    assert texts(shown(echo, LOUD, previous=PREVIOUS)) == {PREVIOUS}


@pytest.mark.parametrize(("word", "times"), [("seven", 1), ("7", 16)])
def test_a_loop_is_stopped_and_words_of_it_shown_once(engine: QwenEngine, word: str, times: int) -> None:
    (token,) = engine.prompts._tokenizer(word, add_special_tokens=False)["input_ids"]
    head = torch.nn.Linear(48, len(engine.prompts._tokenizer))
    with torch.no_grad():
        head.weight.zero_()
        head.bias.zero_()[token] = 1.0
    engine.packed._head = head
    before = engine.packed.forwards
    assert texts(shown(engine, noise(10.0, seed=1))) == {word * times}
    assert engine.packed.forwards - before < 20 < longest(10.0), "a number may have been said, but not for ever"


PROMPTS = Prompts(tokenizer(), ends=ends())
ADDED = sorted(tokenizer().get_added_vocab())


@given(st.lists(st.one_of(st.sampled_from([*ADDED, "<", ">", "<asr", "_text>", " ", "Miller"]), st.text(max_size=5))))
@example(["<asr_text>"])
@example(["a ", "<asr_text>", "<timestamp>", "<|im_end|>"])
@example(["<asr_text<asr_text>>"])
def test_no_context_holds_a_special_token(parts: list[str]) -> None:
    """`<asr_text>` in a list of hotwords is text, and not the token that ends the name of the language."""
    context = "".join(parts)
    words = PROMPTS._words(context)
    assert not set(words) & set(tokenizer().get_added_vocab().values())
    if "\ufffd" not in context:
        assert tokenizer().decode(words) == unicodedata.normalize("NFC", context)


def test_a_context_of_any_length_is_cut_before_it_is_tokenised(monkeypatch: pytest.MonkeyPatch) -> None:
    """And remembered: a call opens many utterances with the same one."""
    prompts = Prompts(tokenizer(), ends=ends())
    long = "Miller and Sons " * 50_000
    seen: list[int] = []
    spelled = prompts._words
    monkeypatch.setattr(prompts, "_words", lambda context: seen.append(len(context)) or spelled(context))
    heads = [prompts.build(context=long).head for _ in range(3)]
    assert heads == [PROMPTS.build(context=long[:20_000]).head] * 3 and len(heads[0]) > MAX_CONTEXT
    assert len(seen) == 1 and seen[0] < 50_000
