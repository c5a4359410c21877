"""Screens the events of a call: it masks private parts of texts and the values of keyed digits.

Every event passes through it before it is stored and before any subscriber sees it.
"""

from __future__ import annotations

import re
from collections import Counter, OrderedDict
from dataclasses import dataclass

import structlog
from msgspec.structs import replace

from config import ConfigError, Settings
from config.settings import Privacy
from mediaworker.events import schema as events
from mediaworker.policy.inverse_normalisation import span_as_spoken, wants_digits, with_digits
from mediaworker.policy.phrases import PatternError, Search, search
from mediaworker.policy.redaction import digits
from mediaworker.policy.redaction.digits import DigitRun
from mediaworker.policy.redaction.text import ELLIPSIS, MaskedSpan, Redactor, merged, stable, without
from mediaworker.policy.turns import Transcript, Turn, Turns, is_interrupted

log = structlog.get_logger()

MASKED = "X"
"""The value of a masked digit, on the wire and in the store."""
KEYS = 32
"""The number of latest keyed digits that are searched for a sequence that begins or ends masking."""
WAIT_MS = 8000
"""The longest pause over which a number continues in the leg's next utterance."""
GROUP = 4
REMEMBERED = 64
"""The number of utterances whose original texts are kept until their words arrive."""
FOR_EVER = float("inf")


class Policy:
    """The settings of `privacy` with compiled patterns, shared by all calls. Raises ConfigError."""

    def __init__(self, settings: Settings) -> None:
        privacy = self.settings = settings.privacy
        self.digits = wants_digits(settings)
        try:
            self.redactor = Redactor(privacy)
        except PatternError as error:
            raise ConfigError("privacy.patterns", None, str(error)) from None
        self.mask = _compiled("mask_after_phrases", privacy)
        self.unmask = _compiled("unmask_after_phrases", privacy)
        self.masked_ms = privacy.mask_s * 1000 or FOR_EVER
        for name in ("mask_after_digits", "unmask_after_digits"):
            for keys in getattr(privacy, name):
                if not re.fullmatch(f"[0-9A-D*#]{{1,{KEYS}}}", keys):
                    raise ConfigError(f"privacy.{name}", keys, f"expected 1 to {KEYS} of 0-9 * # A-D")


def _compiled(key: str, privacy: Privacy) -> Search | None:
    try:
        return search(getattr(privacy, key))
    except PatternError as error:
        raise ConfigError(f"privacy.{key}", list(getattr(privacy, key)), str(error)) from None


@dataclass(slots=True)
class _Sequence:
    """Digits that may be one number, spoken in one utterance or over pauses."""

    digits: str = ""
    in_fours: bool = True
    asked: int = 0
    """The number of its digits that were spoken before another leg last spoke; 0: no other leg has."""

    def __add__(self, run: DigitRun) -> _Sequence:
        return _Sequence(self.digits + run.digits, self.in_fours and run.in_fours, self.asked)

    def is_card(self, before: int) -> bool:
        """Return whether the digits are a card number or most of one; the first `before` digits have been shown."""
        if self.in_fours and before >= 2 * GROUP and digits.may_become_card(self.digits):
            return True
        if digits.checks(self.digits) or digits.checks(self.digits[digits.lead(self.digits) :]):
            return True
        first = self.asked or before
        second = len(self.digits) - first
        telephones = digits.are_telephones(first, second) and (self.asked > 0 or first == second)
        return digits.is_card(self.digits) and not telephones


@dataclass(slots=True)
class _Tail:
    """The number in which a leg's latest utterance ended."""

    end_ms: int
    sequences: list[_Sequence]
    """The number, read from each digit at which it may begin: its first, and the first after another leg spoke."""


class CallPrivacy:
    """The screening of one call. `masked` counts the masked parts of all calls, by kind."""

    def __init__(self, policy: Policy, masked: Counter[str]) -> None:
        self._policy, self._masked = policy, masked
        always = policy.settings.dtmf == "mask"
        self._keys = ""
        self._keys_hidden = always
        self._since_ms, self._until_ms = FOR_EVER, -FOR_EVER
        """The times in the call between which digits are masked."""
        self._begun_ms = -FOR_EVER
        """The time at which masking last began."""
        self._turns = Turns()
        self._likely: dict[str, int] = {}
        """For each utterance without a final whose partials have a phrase that begins masking, the end of the first
        such partial."""
        self._tails: dict[str, _Tail] = {}
        self._spoke: dict[str, tuple[int, int]] = {}
        """For each leg the start and end of its latest final with words."""
        self._spoken: OrderedDict[str, tuple[str, list[MaskedSpan]]] = OrderedDict()
        """For each utterance with masked spans its original text and those spans, until its words arrive."""

    def screen(self, at_ms: int, body: events.EventBody) -> events.EventBody:
        """Return the event without its private parts. If the screening itself fails, the event loses its whole text, so
        that a fault of this program never publishes a private part and never stops the call."""
        try:
            return self._screened(at_ms, body)
        except Exception:
            log.exception("an event could not be screened: its text is left out")
            match body:
                case events.Dtmf():
                    return replace(body, digit=MASKED, masked=True)
                case events.TranscriptPartial() | events.TranscriptFinal():
                    return replace(body, text="", stable_chars=0)
                case events.TranscriptWords():
                    return replace(body, words=[])
            return body

    def written(self, body: events.EventBody) -> events.EventBody:
        """Return a screened final with its numbers in digits, if the settings ask for them; every other event as it is.

        What is masked has been masked in both forms already, so that digits show no more than words.
        """
        if not self._policy.digits or not isinstance(body, events.TranscriptFinal):
            return body
        masks = "|".join(re.escape(f"[{each.kind}]") for each in body.redactions)
        parts = re.split(f"({masks})", body.text) if masks else [body.text]
        text = "".join(part if at % 2 else with_digits(part, body.language) for at, part in enumerate(parts))
        return body if text == body.text else replace(body, text=text, stable_chars=len(text), spoken=body.text)

    def _screened(self, at_ms: int, body: events.EventBody) -> events.EventBody:
        match body:
            case events.Dtmf():
                return self._key(at_ms, body)
            case events.TranscriptPartial():
                return self._partial(body)
            case events.TranscriptFinal():
                return self._final(body)
            case events.TranscriptWords():
                return self._words(body)
        return body

    # -- keys ---------------------------------------------------------------------------------------------------------

    def _key(self, at_ms: int, body: events.Dtmf) -> events.Dtmf:
        settings = self._policy.settings
        hidden = self._keys_hidden or self._masks(at_ms, at_ms)
        self._keys = (self._keys + body.digit)[-KEYS:]
        if self._keys.endswith(settings.mask_after_digits):
            self._begin(at_ms)
        elif self._keys.endswith(settings.unmask_after_digits):
            self._end(at_ms)
        if not hidden:
            return body
        self._masked["dtmf"] += 1
        return replace(body, digit=MASKED, masked=True)

    def _begin(self, at_ms: int) -> None:
        self._since_ms = min(self._since_ms, at_ms)
        self._until_ms = max(self._until_ms, at_ms + self._policy.masked_ms)
        self._begun_ms = max(self._begun_ms, at_ms)

    def _end(self, at_ms: int) -> None:
        """End masking at `at_ms`, unless it began after that: a final arrives after its speech, and a key may have
        begun masking in the meantime."""
        if at_ms >= self._begun_ms:
            self._until_ms = min(self._until_ms, at_ms)

    def _masks(self, start_ms: int, end_ms: int, utterance_id: str = "") -> bool:
        """Return whether digits of this time are masked. `utterance_id`: the utterance of the digits; a phrase in it
        does not count here, because it masks only the digits after it."""
        if self._since_ms <= end_ms and start_ms < self._until_ms:
            return True
        return any(since_ms <= end_ms for name, since_ms in self._likely.items() if name != utterance_id)

    # -- texts --------------------------------------------------------------------------------------------------------

    def _partial(self, body: events.TranscriptPartial) -> events.TranscriptPartial:
        text, chars = body.text, body.stable_chars
        begun, _ = self._phrases(body)
        if begun is None:
            self._likely.pop(body.utterance_id, None)
        else:
            self._likely.setdefault(body.utterance_id, body.end_ms)
        runs, spans = self._find(body, begun)
        known = runs and spans and spans[-1].end >= runs[-1].end
        cut = None if known else self._policy.redactor.cut(text, runs, self._carried(body, runs))
        if cut is not None:
            text, chars = text[:cut] + ELLIPSIS, min(chars, cut)
            spans = [span._replace(end=min(span.end, cut)) for span in spans if span.start < cut]
        elif not spans:
            return body
        return replace(body, text=without(text, spans), stable_chars=stable(chars, spans))

    def _final(self, body: events.TranscriptFinal) -> events.TranscriptFinal:
        begun, ended = self._phrases(body)
        runs, spans = self._find(body, begun)
        self._tails[body.leg] = self._tail(body, runs)
        if not digits.is_only_filler(body.text):
            self._spoke[body.leg] = body.start_ms, body.end_ms
        likely_ms = self._likely.pop(body.utterance_id, body.end_ms)
        if ended is not None and (begun is None or begun < ended):
            self._end(body.end_ms)
        elif begun is not None:
            self._begin(body.end_ms)
            self._since_ms = min(self._since_ms, likely_ms)
        if not spans:
            return body
        self._spoken[body.utterance_id] = (body.text, spans)
        while len(self._spoken) > REMEMBERED:
            self._spoken.popitem(last=False)
        text = without(body.text, spans)
        kinds = [span.kind for span in spans]
        self._masked.update(kinds)
        redactions = [events.Redaction(kind, body.start_ms, body.end_ms) for kind in dict.fromkeys(kinds)]
        return replace(body, text=text, stable_chars=len(text), redactions=redactions)

    def _phrases(self, body: Transcript) -> tuple[int | None, int | None]:
        """Return the places at which the last phrases end that begin and that end masking; None: there is none."""
        mask, unmask = self._policy.mask, self._policy.unmask
        if mask is None and unmask is None:
            return None, None
        if isinstance(body, events.TranscriptPartial):
            return _end_of(mask, body, self._turns.on_partial(body)), None
        turn = self._turns.on_final(body)
        return _end_of(mask, body, turn), _end_of(unmask, body, turn, unknown=None)

    def _find(self, body: Transcript, begun: int | None) -> tuple[list[DigitRun], list[MaskedSpan]]:
        """Return the text's runs of digits, if they may matter, and the spans to mask. Digits after `begun` are
        masked."""
        redactor, tail = self._policy.redactor, self._tails.get(body.leg)
        masked_from = 0 if self._masks(body.start_ms, body.end_ms, body.utterance_id) else begun
        carried = len(tail.sequences[0].digits) if tail is not None and tail.sequences else 0
        some = digits.at_most(body.text)
        # A partial is searched only when it may show too much of a card number. A final is searched when it has any
        # digit, because its last digits may begin a number that continues after a pause.
        many = redactor.cards and (carried + some >= GROUP or (some > 0 and isinstance(body, events.TranscriptFinal)))
        runs = list(digits.runs(body.text)) if many or masked_from is not None else []
        spans = redactor.spans(body.text, runs, masked_from=masked_from)
        if self._policy.digits and (redactor.cards or redactor.patterns):
            spans = merged([*spans, *self._in_digits(body)])
        if (more := self._continued(body, runs)) is not None:
            spans = merged([*spans, more])
        return runs, spans

    def _in_digits(self, body: Transcript) -> list[MaskedSpan]:
        """Return the spans of the text that are private once its numbers are written in digits, as a pattern sees."""
        text = with_digits(body.text, body.language)
        found = self._policy.redactor.spans(text, list(digits.runs(text))) if text != body.text else []
        return [MaskedSpan(*span_as_spoken(body.text, text, (each.start, each.end)), each.kind) for each in found]

    def _continued(self, body: Transcript, runs: list[DigitRun]) -> MaskedSpan | None:
        """Return the span of the first digits if they complete a card number that began before the pause."""
        if not self._policy.redactor.cards or not runs:
            return None
        head, begun = runs[0], self._begun(body, runs[0])
        if any((each + head).is_card(len(each.digits)) for each in begun if each.digits):
            return MaskedSpan(head.start, head.end, "card")
        return None

    def _carried(self, body: Transcript, runs: list[DigitRun]) -> int:
        """Return the number of digits before the pause that the text's only run may continue to a card number."""
        begun = self._begun(body, runs[0]) if len(runs) == 1 else []
        return max((len(each.digits) for each in begun if digits.may_become_card(each.digits)), default=0)

    def _begun(self, body: Transcript, head: DigitRun) -> list[_Sequence]:
        """Return the sequences that the utterance's first digits may continue."""
        tail = self._tails.get(body.leg)
        if tail is None or body.start_ms - tail.end_ms > WAIT_MS or head.signed:
            return []
        if any(each.isalnum() for each in body.text[: head.start]):
            return []
        return [each for each in self._sequences(body, tail) if len(each.digits) < digits.MAX_CARD]

    def _sequences(self, body: Transcript, tail: _Tail) -> list[_Sequence]:
        """Those of the tail, with one more that begins now if somebody else has spoken since."""
        if not is_interrupted(self._spoke, tail.end_ms, body):
            return tail.sequences
        begun = [each for each in tail.sequences if each.digits]
        return [*(_Sequence(each.digits, each.in_fours, len(each.digits)) for each in begun), _Sequence()]

    def _tail(self, body: events.TranscriptFinal, runs: list[DigitRun]) -> _Tail:
        before = self._tails.get(body.leg)
        if before is not None and digits.is_only_filler(body.text):  # noise such as a cough does not end a number
            return _Tail(body.end_ms, self._sequences(body, before))
        run = runs[-1] if runs else None
        if run is None or run.signed or not digits.is_open(body.text, run):
            return _Tail(body.end_ms, [])
        return _Tail(body.end_ms, [each + run for each in self._begun(body, run) or [_Sequence()]])

    # -- times of words -----------------------------------------------------------------------------------------------

    def _words(self, body: events.TranscriptWords) -> events.TranscriptWords:
        text, spans = self._spoken.pop(body.utterance_id, ("", []))
        if not spans:  # nothing was masked in the final, or its text is no longer kept
            text = " ".join(word.word for word in body.words)
            spans = self._policy.redactor.spans(text, list(digits.runs(text)))
        if not spans:
            return body
        words: list[events.Word] = []
        redactions: list[events.Redaction] = []
        open_span: MaskedSpan | None = None
        for word, place in zip(body.words, _places(text, body.words), strict=True):
            span = next((each for each in spans if place[0] < each.end and each.start < place[1]), None)
            if span is None:
                words.append(word)
            elif span is open_span:
                words[-1] = replace(words[-1], end_ms=word.end_ms)
                redactions[-1] = replace(redactions[-1], end_ms=word.end_ms)
            else:
                words.append(events.Word(f"[{span.kind}]", word.start_ms, word.end_ms))
                redactions.append(events.Redaction(span.kind, word.start_ms, word.end_ms))
            open_span = span
        return replace(body, words=words, redactions=redactions)


def _places(text: str, words: list[events.Word]) -> list[tuple[int, int]]:
    """Return the place of each word in the text, without punctuation. A word that is not found has the whole rest of
    the text as its place, so that it is masked if anything there is."""
    places, at = [], 0
    for word in words:
        start = None
        place = at
        for char in word.word:
            place = text.find(char, place)
            if place < 0:
                break
            start = place if start is None else start
            place += 1
        if place < 0 or start is None:
            places.append((at, len(text)))
        else:
            places.append((start, place))
            at = place
    return places


def _end_of(search: Search | None, body: Transcript, turn: Turn | None, *, unknown: int | None = 0) -> int | None:
    """Return the end of the last match in the text, which may begin earlier in the turn; `unknown` if the search times
    out."""
    if search is None or turn is None:
        return None
    before = turn.latest - (len(body.text) - len(body.text.lstrip()))
    try:
        ends = [end for _, end in search.finditer(body.text, body.language)]
        if turn.latest:
            ends += [end - before for _, end in search.finditer(turn.text, body.language, turn.latest)]
    except TimeoutError:
        return unknown
    return max(ends, default=None)
