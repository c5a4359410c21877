"""Endpointing: speech probabilities, one per window of 32 ms, become utterances.

The one rule: a window is *voiced* when its probability reaches `enter`, or `exit` while the window before was voiced
too; counters of voiced and of silent windows turn that into an event, and `TABLE` says what an event does in a state.
The network knows a word that begins with a consonant late, so an end waits a little while there is a sound at all.

    IDLE    nothing                     ONSET   voiced, but not yet for `min_speech_ms`
    SPEECH  an utterance                PAUSED  an utterance, silent for `speculate_ms`

An utterance that would outgrow `max_utterance_s` is split at the quietest spot of its last third, in a call of its last
half second, because somebody waits for the text before the spot. What follows is the next utterance. `Endpointer` is
one leg in plain Python; `audio.endpointing.batch` runs the same table over all legs.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from audio.endpointing.detections import Detection, EndReason, SpeechOffset, SpeechOnset, SpeechPaused, SpeechResumed
from config import Endpointing

if TYPE_CHECKING:
    from audio.legs.leg import Leg

WINDOW = 256
"""Positions per window."""
WINDOW_MS = 32
LAPSE_WINDOWS = 3
"""An onset survives shorter gaps, so that a stop consonant does not swallow a "yes"."""
SILENT_WINDOWS = 16
"""After this many windows of digital silence the rest need not be heard. Half a second: as long as an utterance is
waited for."""
SPLIT_WINDOWS = 16
"""How far back a call is split at most. Half a second has a gap between two words or more."""
HOLD_WINDOWS = 6
"""The end of a call's utterance waits so long at most while there is a sound: 192 ms. The network knows a word that
begins with a consonant that late."""
RISE, FAINT = 10.0, 10**-4.5
"""A sound is 10 dB louder than the quietest window of the pause, and within 45 dB of the loudest of the utterance."""
NOWHERE = -1
LOUDEST = float("inf")


class EndpointState(IntEnum):
    IDLE = 0
    ONSET = 1
    SPEECH = 2
    PAUSED = 3


class EndpointEvent(IntEnum):
    QUIET = 0
    """A window that is not voiced."""
    LAPSE = 1
    """No voiced window for `LAPSE_WINDOWS`."""
    PAUSE = 2
    """No voiced window for `speculate_ms`."""
    END = 3
    """No voiced window for `min_silence_ms`."""
    VOICED = 4
    CONFIRMED = 5
    """Voiced, and `min_speech_ms` in all."""
    FULL = 6
    """Voiced, and the utterance has no room left."""


class Action(IntEnum):
    NONE = 0
    START = 1
    PAUSE = 2
    RESUME = 3
    END = 4
    SPLIT = 5
    RESUME_AND_SPLIT = 6


TABLE: dict[tuple[EndpointState, EndpointEvent], tuple[EndpointState, Action]] = {
    (EndpointState.IDLE, EndpointEvent.QUIET): (EndpointState.IDLE, Action.NONE),
    (EndpointState.IDLE, EndpointEvent.LAPSE): (EndpointState.IDLE, Action.NONE),
    (EndpointState.IDLE, EndpointEvent.PAUSE): (EndpointState.IDLE, Action.NONE),
    (EndpointState.IDLE, EndpointEvent.END): (EndpointState.IDLE, Action.NONE),
    (EndpointState.IDLE, EndpointEvent.VOICED): (EndpointState.ONSET, Action.NONE),
    (EndpointState.IDLE, EndpointEvent.CONFIRMED): (EndpointState.SPEECH, Action.START),
    (EndpointState.ONSET, EndpointEvent.QUIET): (EndpointState.ONSET, Action.NONE),
    (EndpointState.ONSET, EndpointEvent.LAPSE): (EndpointState.IDLE, Action.NONE),
    (EndpointState.ONSET, EndpointEvent.PAUSE): (EndpointState.IDLE, Action.NONE),
    (EndpointState.ONSET, EndpointEvent.END): (EndpointState.IDLE, Action.NONE),
    (EndpointState.ONSET, EndpointEvent.VOICED): (EndpointState.ONSET, Action.NONE),
    (EndpointState.ONSET, EndpointEvent.CONFIRMED): (EndpointState.SPEECH, Action.START),
    (EndpointState.SPEECH, EndpointEvent.QUIET): (EndpointState.SPEECH, Action.NONE),
    (EndpointState.SPEECH, EndpointEvent.LAPSE): (EndpointState.SPEECH, Action.NONE),
    (EndpointState.SPEECH, EndpointEvent.PAUSE): (EndpointState.PAUSED, Action.PAUSE),
    (EndpointState.SPEECH, EndpointEvent.END): (EndpointState.IDLE, Action.END),
    (EndpointState.SPEECH, EndpointEvent.CONFIRMED): (EndpointState.SPEECH, Action.NONE),
    (EndpointState.SPEECH, EndpointEvent.FULL): (EndpointState.SPEECH, Action.SPLIT),
    (EndpointState.PAUSED, EndpointEvent.PAUSE): (EndpointState.PAUSED, Action.NONE),
    (EndpointState.PAUSED, EndpointEvent.END): (EndpointState.IDLE, Action.END),
    (EndpointState.PAUSED, EndpointEvent.CONFIRMED): (EndpointState.SPEECH, Action.RESUME),
    (EndpointState.PAUSED, EndpointEvent.FULL): (EndpointState.SPEECH, Action.RESUME_AND_SPLIT),
}


def powers(windows: NDArray[np.float32]) -> NDArray[np.float32]:
    """The mean square of each row of samples."""
    squares: NDArray[np.float32] = np.vecdot(windows, windows)
    return squares / np.float32(windows.shape[1])


class UndefinedTransition(AssertionError):
    """An event that cannot happen in a state: a fault of this code, never of the audio."""


@dataclass(frozen=True, slots=True)
class Limits:
    """A profile in windows and positions; windows are rounded up."""

    enter: float
    exit: float
    min_speech_windows: int
    speculate_windows: int
    min_silence_windows: int
    pre_roll: int
    speculate: int
    room: int
    """How far voiced audio may reach from `audio_start`, so that with `speculate` it stays within `max_utterance_s`."""

    @property
    def split_from(self) -> int:
        """How far from `audio_start` a call may be split at the earliest."""
        return max(-(-2 * self.room // 3), self.room - SPLIT_WINDOWS * WINDOW)

    @classmethod
    def of(cls, profile: Endpointing) -> Limits:
        silence = max(1, -(-profile.min_silence_ms // WINDOW_MS))
        speculate_ms = min(profile.speculate_ms, max(profile.min_silence_ms, WINDOW_MS))
        longest = int(profile.max_utterance_s * 8000)
        room = max(longest - speculate_ms * 8, longest // 2)
        return cls(
            enter=profile.enter,
            exit=profile.exit,
            min_speech_windows=max(1, -(-profile.min_speech_ms // WINDOW_MS)),
            speculate_windows=min(-(-speculate_ms // WINDOW_MS), silence),
            min_silence_windows=silence,
            pre_roll=min(profile.pre_roll_ms * 8, room // 2),
            speculate=speculate_ms * 8,
            room=room,
        )


@dataclass(slots=True)
class UtteranceSpan:
    """The current utterance of a leg (valid outside IDLE), and where the one before it ended."""

    start: int = 0
    audio_start: int = 0
    end: int = 0
    """The end of the last voiced window."""
    quiet_at: int = NOWHERE
    """Middle of the quietest window so far, in calls of the least speech-like, from where on a split may be: where it
    would be."""
    previous_end: int = 0


def act(action: Action, leg: Leg, limits: Limits, utterance: UtteranceSpan) -> list[Detection]:
    """The detections of an action; moves `utterance` on where it ended or was split."""
    if action is Action.START:
        return [SpeechOnset(leg, utterance.start, utterance.audio_start, utterance.audio_start + limits.split_from)]
    if action is Action.PAUSE:
        return [SpeechPaused(leg, utterance.end)]
    if action is Action.RESUME:
        return [SpeechResumed(leg)]
    if action is Action.END:
        utterance.previous_end = utterance.end
        return [SpeechOffset(leg, utterance.start, utterance.end, utterance.end + limits.speculate, "endpoint")]
    assert action in (Action.SPLIT, Action.RESUME_AND_SPLIT), action
    spot = utterance.quiet_at if utterance.quiet_at != NOWHERE else utterance.end - WINDOW
    # A pause may have carried the search past the room; its beginning, which lies within, is as quiet.
    spot = min(spot, utterance.audio_start + limits.room)
    ended = SpeechOffset(leg, utterance.start, spot, spot, "max_length")
    utterance.start = utterance.audio_start = utterance.previous_end = spot
    utterance.quiet_at = NOWHERE
    split: list[Detection] = [ended, SpeechOnset(leg, spot, spot, spot + limits.split_from)]
    return split if action is Action.SPLIT else [SpeechResumed(leg), *split]


def finish(
    state: EndpointState, reason: EndReason, leg: Leg, limits: Limits, utterance: UtteranceSpan, consumed: int
) -> list[Detection]:
    """End what is open; the leg goes on from IDLE. An unconfirmed onset is no utterance."""
    if state not in (EndpointState.SPEECH, EndpointState.PAUSED):
        return []
    utterance.previous_end = utterance.end
    audio_end = min(utterance.end + limits.speculate, consumed)
    return [SpeechOffset(leg, utterance.start, utterance.end, audio_end, reason)]


class Endpointer:
    """The endpointing of one leg, window by window: the definition that `audio.endpointing.batch.BatchEndpointer` is
    tested against."""

    def __init__(self, profile: Endpointing, leg: Leg) -> None:
        self.limits, self.leg = Limits.of(profile), leg
        self.state = EndpointState.IDLE
        self.utterance = UtteranceSpan()
        self.consumed = 0
        self._voiced = self._silent = self._held = 0
        self._least = LOUDEST
        self._loudest, self._quietest = 0.0, LOUDEST

    def window(
        self, start: int, probability: float, power: float = 0.0, *, level: float | None = None
    ) -> list[Detection]:
        """The window [start, start + 256) with this speech probability and power; windows come in order.

        `level`: of a file, how loud it is; a long utterance is split where it is quietest.
        """
        limits, utterance, stop = self.limits, self.utterance, start + WINDOW
        split_from = limits.split_from if level is None else -(-2 * limits.room // 3)
        level = probability if level is None else level
        self.consumed = stop
        speaking = self.state in (EndpointState.ONSET, EndpointState.SPEECH) and not self._silent
        if probability >= (limits.exit if speaking else limits.enter):
            if self.state is EndpointState.IDLE:
                utterance.start = max(utterance.previous_end, start)  # after a change of codec a window reaches back
                utterance.audio_start = max(utterance.previous_end, start - limits.pre_roll)
                utterance.quiet_at, self._least = NOWHERE, LOUDEST
                self._loudest = 0.0
            utterance.end = stop
            self._voiced, self._silent, self._held = self._voiced + 1, 0, 0
            self._loudest, self._quietest = max(self._loudest, power), LOUDEST
            if (
                self.state in (EndpointState.SPEECH, EndpointState.PAUSED)
                and stop - utterance.audio_start > limits.room
            ):
                event = EndpointEvent.FULL
            else:
                event = EndpointEvent.CONFIRMED if self._voiced >= limits.min_speech_windows else EndpointEvent.VOICED
        else:
            self._silent += 1
            if self._silent >= limits.min_silence_windows and self._waits(power):
                self._silent, self._held = self._silent - 1, self._held + 1
            self._quietest = min(self._quietest, power)
            event = EndpointEvent.QUIET
            if self._silent >= limits.min_silence_windows:
                event = EndpointEvent.END
            elif self._silent >= limits.speculate_windows:
                event = EndpointEvent.PAUSE
            elif self._silent >= LAPSE_WINDOWS:
                event = EndpointEvent.LAPSE
        if (self.state, event) not in TABLE:
            raise UndefinedTransition(f"{event.name} in {self.state.name}")
        self.state, action = TABLE[self.state, event]
        detections = [] if action is Action.NONE else act(action, self.leg, limits, utterance)
        if action in (Action.SPLIT, Action.RESUME_AND_SPLIT):
            self._least = LOUDEST
        elif level < self._least and start - utterance.audio_start >= split_from:
            utterance.quiet_at, self._least = start + WINDOW // 2, level
        if self.state is EndpointState.IDLE:
            self._voiced = self._silent = 0
        return detections

    def _waits(self, power: float) -> bool:
        """Whether the end of an utterance is put off by a sound, which may be the beginning of a word."""
        open_ = self.state in (EndpointState.SPEECH, EndpointState.PAUSED)
        loud = power > max(RISE * self._quietest, FAINT * self._loudest)
        return open_ and loud and self._silent > 1 and self._held < HOLD_WINDOWS

    @property
    def at_rest(self) -> bool:
        return self.state is EndpointState.IDLE

    @property
    def earliest(self) -> int:
        """Audio before this position is of no utterance that is open or to come."""
        if self.at_rest:
            return max(self.utterance.previous_end, self.consumed - self.limits.pre_roll)
        return self.utterance.audio_start

    def finish(self, reason: EndReason) -> list[Detection]:
        """No more windows for now: ends the open utterance, if there is one."""
        detections = finish(self.state, reason, self.leg, self.limits, self.utterance, self.consumed)
        self.state, self._voiced, self._silent = EndpointState.IDLE, 0, 0
        return detections
