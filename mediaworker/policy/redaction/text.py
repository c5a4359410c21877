"""Finds the private parts of a single text, and masks them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from config.settings import Privacy
from mediaworker.policy.phrases import TIMEOUT_S, PatternError, pattern
from mediaworker.policy.redaction import digits
from mediaworker.policy.redaction.digits import DigitRun

if TYPE_CHECKING:
    import regex

SHOWN_DIGITS = 6
"""The number of first digits that may be shown of a card number (PCI DSS 4.0, requirement 3.4.1), and of a run that may
become one."""
SHOWN_OVER_PAUSES = 12
"""The number of digits, those before a pause included, that may be shown of a run that may become a card number."""
ELLIPSIS = "…"


class MaskedSpan(NamedTuple):
    """A span of a text to mask: text[start:end], in code points. `kind` replaces it as `[kind]`."""

    start: int
    end: int
    kind: str


class Redactor:
    """The configured masking of texts. Raises PatternError, which names the pattern."""

    def __init__(self, settings: Privacy) -> None:
        self.cards = settings.cards
        self.patterns: list[tuple[str, regex.Pattern[str]]] = []
        for each in settings.patterns:
            try:
                self.patterns.append((each.name, pattern(each.pattern)))
            except PatternError as error:
                raise PatternError(f"{each.name}: {error}") from None

    def spans(self, text: str, runs: Sequence[DigitRun], *, masked_from: int | None = None) -> list[MaskedSpan]:
        """Return the spans to mask, ascending and disjoint. `runs`: the text's runs of digits; `masked_from`: the place
        from which all digits are masked; None: nowhere."""
        found = list(self._matches(text))
        for run in runs:
            if self.cards and digits.holds_card(run) and not (run.signed and len(run.digits) < 16):
                found.append(MaskedSpan(run.start, run.end, "card"))
            elif masked_from is not None and run.end > masked_from:
                start = next(at for at in range(max(run.start, masked_from), run.end) if text[at].isalnum())
                found.append(MaskedSpan(start, run.end, "digits"))
        return merged(found)

    def cut(self, text: str, runs: Sequence[DigitRun], carried: int = 0) -> int | None:
        """Return the place at which to cut a partial because its last digits may become a card number; None: nowhere.

        A partial shows a number while it is still being spoken, before its check digit can reveal a card.

        `carried`: the number of digits before a pause that the only run of the text may continue to a card number.
        """
        run = runs[-1] if self.cards and runs else None
        if run is None or run.signed:
            return None
        shown = digits.lead(run.digits) + SHOWN_DIGITS
        room = shown if digits.may_become_card(run.digits[shown - SHOWN_DIGITS :]) else len(run.digits)
        if carried:
            room = min(room, max(0, SHOWN_OVER_PAUSES - carried))
        if len(run.digits) <= room or not digits.is_open(text, run, growing=True):
            return None
        return run.ends[room - 1] if room else run.start

    def _matches(self, text: str) -> Iterable[MaskedSpan]:
        for kind, each in self.patterns:
            try:
                for match in each.finditer(text, timeout=TIMEOUT_S):
                    if match.end() > match.start():
                        yield MaskedSpan(match.start(), match.end(), kind)
            except TimeoutError:
                # A text that could not be searched may hold a private part, so all of it is masked.
                yield MaskedSpan(0, len(text), kind)


def merged(spans: Iterable[MaskedSpan]) -> list[MaskedSpan]:
    """Return the spans with overlapping ones joined under the kind of the first."""
    result: list[MaskedSpan] = []
    for span in sorted(spans):
        if result and span.start < result[-1].end:
            result[-1] = result[-1]._replace(end=max(result[-1].end, span.end))
        else:
            result.append(span)
    return result


def without(text: str, spans: Sequence[MaskedSpan]) -> str:
    """Return the text with `[kind]` in place of each span."""
    parts, last = [], 0
    for span in spans:
        parts += [text[last : span.start], f"[{span.kind}]"]
        last = span.end
    return "".join([*parts, text[last:]])


def stable(chars: int, spans: Sequence[MaskedSpan]) -> int:
    """Return the stable length of the masked text, where `chars` code points of the original text are stable."""
    moved = 0
    for span in spans:
        if span.end > chars:
            return min(chars, span.start) + moved
        moved += len(span.kind) + 2 - (span.end - span.start)
    return chars + moved
