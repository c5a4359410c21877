"""One WebSocket channel of Asterisk as a state machine without I/O.

MEDIA_START opens its leg. The protocol has no hang-up other than the end of the connection. Asterisk generates silence
while it receives nothing, so this session sends no audio.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Unpack

from config import Settings
from config.metrics.counters import counter, counter_by
from mediaworker.ingress.asterisk import messages
from mediaworker.ingress.asterisk.calls import AsteriskCalls
from mediaworker.ingress.counters import IngressCounters
from mediaworker.ingress.outbox import GOING_AWAY, NORMAL, UNSUPPORTED
from mediaworker.ingress.session import Hooks, Session, SessionState

EARLY_BYTES = 32_000
"""The most bytes of audio that wait for MEDIA_START, a second of slin16. Asterisk 22.7 may send audio first under load.
"""
SILENT_S = 60.0
"""How long a channel may send nothing before Asterisk is asked for its status. A held channel sends no audio."""
PROBE_S = 10.0
FORGOTTEN_S = 3600.0
"""How long a channel that still answers may send no audio before it is hung up, as a SIP call on hold is. By then its
far end is probably gone, and nothing has removed the channel from its bridge."""


@dataclass(slots=True)
class AsteriskCounters(IngressCounters):
    """The totals over all channels since the start of the worker, for `/metrics`."""

    refused: Counter[str] = counter_by("reason", "Counts refused channels of Asterisk by reason.")
    events: int = counter("Counts control messages received on Asterisk's WebSocket channels.")
    started: int = counter("Counts channels of Asterisk that became a leg.")
    joined: int = counter("Counts channels that joined a call which another channel had opened.")
    hangups: int = counter("Counts channels that Asterisk hung up.")
    silent: int = counter(
        "Counts channels that were ended because Asterisk stopped answering or sent no audio for an hour."
    )
    probes: int = counter("Counts how often a silent channel of Asterisk was asked for its status.")
    malformed: int = counter("Counts messages on Asterisk's channels that are malformed.")
    unknown: int = counter("Counts messages of unknown events on Asterisk's channels.")
    unexpected: int = counter("Counts messages in the wrong state and errors reported by Asterisk on its channels.")
    implausible: int = counter("Counts digits on Asterisk's channels that came faster than any phone sends them.")
    early: int = counter("Counts audio messages that arrived before MEDIA_START.")
    early_lost: int = counter("Counts audio messages before MEDIA_START that were dropped because there were too many.")


class AsteriskSession(Session[AsteriskCounters]):
    """One channel, which is one leg of a call that it may share with other channels."""

    new_counters = AsteriskCounters
    naming = "{} of Asterisk's"
    connection_word = "channel"
    first_message = "MEDIA_START"

    def __init__(
        self, settings: Settings, owner: str, calls: AsteriskCalls, now: float, **hooks: Unpack[Hooks]
    ) -> None:
        """`owner` is the API key's name, or `loopback`."""
        super().__init__(now, settings.media.start_timeout_s, **hooks)
        self._answers, self._owner, self._calls = settings.asterisk.answer, owner, calls
        self._early = b""
        self._json = self._probed = False
        self._audio_s = now
        """When the latest audio arrived."""

    @property
    def deadline(self) -> float | None:
        if self.state is not SessionState.STREAMING:
            return super().deadline
        return min(self._active_s + SILENT_S + PROBE_S * self._probed, self._audio_s + FORGOTTEN_S)

    # -- messages of the peer -----------------------------------------------------------------------------------------

    def read(self, message: str | bytes) -> object:
        """The message as audio (bytes) or as a parsed event (text)."""
        if self.state is SessionState.STREAMING:
            self._active_s, self._probed = self._now, False
        if isinstance(message, bytes):
            self._audio_s = self._now
            return message
        self.counters.events += 1
        return messages.parse(message)

    def _start(self, start: messages.MediaStart) -> None:
        self._json = start.json
        form = messages.FORMATS.get(start.format.lower())
        if form is None:
            self.refuse("format", UNSUPPORTED, f"format {start.format[:20]!r} is not supported")
            return
        opened = self.try_open(lambda: self._calls.join(self._owner, start, form.codec, self))
        if opened is None:
            return
        call, leg, joined = opened
        self.counters.joined += joined
        self.begin(call, (leg,), form)
        self._audio_s = self._now
        if self._answers:
            self._command(messages.ANSWER)
        self._stream(self._early)
        self._early = b""

    def _start_again(self, start: messages.MediaStart) -> None:
        self._unexpected("MEDIA_START again")

    def _keep_early(self, data: bytes) -> None:
        self.counters.early += 1
        if len(self._early) + len(data) <= EARLY_BYTES:
            self._early += data
        else:
            self.counters.early_lost += 1

    def _stream(self, data: bytes) -> None:
        if data:
            self.receive_audio(data)

    def _digit(self, event: messages.DtmfEnd) -> None:
        self._receive_digit(self._legs[0], event.digit)

    def _early_digit(self, event: messages.DtmfEnd) -> None:
        self.counters.unexpected += 1

    def _notice(self, event: messages.Notice) -> None:
        if event.event == "ERROR":
            self.counters.unexpected += 1
            self._on_problem("Asterisk reports an error", event.text)

    # -- deadlines and ends -------------------------------------------------------------------------------------------

    def _on_unread(self) -> None:
        self._active_s = self._audio_s = self._now

    def _on_silent(self) -> None:
        if self._now >= self._audio_s + FORGOTTEN_S:
            self.counters.silent += 1
            self._on_problem("channel of Asterisk's is forgotten", f"no audio for {FORGOTTEN_S:g} s")
            self._command(messages.HANGUP)
            self.leave("media_timeout", NORMAL, "no audio")
        elif not self._probed:
            self._probed = True
            self.counters.probes += 1
            self._command(messages.GET_STATUS)
        else:
            self.counters.silent += 1
            self._on_problem("Asterisk is silent", f"no answer within {PROBE_S:g} s")
            self.leave("media_timeout", GOING_AWAY, "no answer")

    def _disconnected(self, broken: bool) -> str:
        self.counters.hangups += 1
        return "hangup"

    def _end(self, reason: str) -> None:
        assert self.call is not None
        self._calls.leave(self.call, self._legs, self, reason)

    def _send_goodbye(self) -> None:
        self._command(messages.HANGUP)

    def _command(self, name: str) -> None:
        self.outbox.send(messages.command(name, json=self._json))

    table = {
        (SessionState.WAITING, bytes): _keep_early,
        (SessionState.WAITING, messages.MediaStart): _start,
        (SessionState.WAITING, messages.DtmfEnd): _early_digit,
        (SessionState.WAITING, messages.Notice): _notice,
        (SessionState.STREAMING, bytes): _stream,
        (SessionState.STREAMING, messages.MediaStart): _start_again,
        (SessionState.STREAMING, messages.DtmfEnd): _digit,
        (SessionState.STREAMING, messages.Notice): _notice,
    }
