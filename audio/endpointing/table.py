"""Endpointing: speech probabilities, one per window of 32 ms, become utterances.

One rule decides: a window is *voiced* if its probability reaches `enter`, or `exit` while the previous window was
voiced. Counters of voiced and silent windows turn that into an event, and `TABLE` defines the transition of each state
for each event. The network recognises a word that begins with a consonant late, so an end waits a little during sounds.

    IDLE    nothing                     ONSET   voiced, but not yet for `min_speech_ms`
    SPEECH  an utterance                PAUSED  an utterance, silent for `speculate_ms`

An utterance that would exceed `max_utterance_s` is split at the quietest spot of its last third. In a call only its
last half second is searched, because a reader waits for the text before the spot. The rest becomes the next utterance.
`Endpointer` is one leg in plain Python; `audio.endpointing.batch` runs the same table over all legs.
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
"""The positions per window."""
WINDOW_MS = 32
LAPSE_WINDOWS = 3
"""An onset survives gaps shorter than this, so that a stop consonant does not swallow a "yes"."""
SILENT_WINDOWS = 16
"""The number of windows of digital silence after which the VAD may be skipped: half a second, which by default ends any
utterance."""
SPLIT_WINDOWS = 16
"""The windows before the limit in which a call's utterance is split. Half a second contains a gap between two words."""
HOLD_WINDOWS = 6
"""The most windows by which a sound delays the end of a call's utterance: 192 ms. That is how late the network
recognises a word that begins with a consonant."""
RISE, FAINT = 10.0, 10**-4.5
"""A sound is at least 10 dB louder than the quietest window of the pause, and within 45 dB of the utterance's loudest.
"""
NOWHERE = -1
LOUDEST = float("inf")


class EndpointState(IntEnum):
    IDLE = 0
    ONSET = 1
    SPEECH = 2
    PAUSED = 3


class EndpointEvent(IntEnum):
    QUIET = 0
    """The window is not voiced."""
    LAPSE = 1
    """There was no voiced window for `LAPSE_WINDOWS`."""
    PAUSE = 2
    """There was no voiced window for `speculate_ms`."""
    END = 3
    """There was no voiced window for `min_silence_ms`."""
    VOICED = 4
    CONFIRMED = 5
    """The window is voiced, and `min_speech_ms` of speech have been reached."""
    FULL = 6
    """The window is voiced, and the utterance has reached its maximum length."""


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
    """An event has no transition in a state: a bug in this code, never caused by audio."""


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
    """The most voiced positions after `audio_start`, so that with `speculate` they stay within `max_utterance_s`."""

    @property
    def split_from(self) -> int:
        """The earliest split of a call's utterance, in positions after `audio_start`."""
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
    """The current utterance of a leg (valid outside IDLE), and the end of the previous one."""

    start: int = 0
    audio_start: int = 0
    end: int = 0
    """The end of the last voiced window."""
    quiet_at: int = NOWHERE
    """Where a split would be: the middle of the quietest window since the earliest split (in calls, the window with the
    lowest probability)."""
    previous_end: int = 0


def act(action: Action, leg: Leg, limits: Limits, utterance: UtteranceSpan) -> list[Detection]:
    """The detections of an action; updates `utterance` if it ended or was split."""
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
    # In a pause the search may have gone beyond the limit; the pause's beginning, within the limit, is as quiet.
    spot = min(spot, utterance.audio_start + limits.room)
    ended = SpeechOffset(leg, utterance.start, spot, spot, "max_length")
    utterance.start = utterance.audio_start = utterance.previous_end = spot
    utterance.quiet_at = NOWHERE
    split: list[Detection] = [ended, SpeechOnset(leg, spot, spot, spot + limits.split_from)]
    return split if action is Action.SPLIT else [SpeechResumed(leg), *split]


def finish(
    state: EndpointState, reason: EndReason, leg: Leg, limits: Limits, utterance: UtteranceSpan, consumed: int
) -> list[Detection]:
    """End the open utterance, if any; the leg continues from IDLE. An unconfirmed onset is no utterance."""
    if state not in (EndpointState.SPEECH, EndpointState.PAUSED):
        return []
    utterance.previous_end = utterance.end
    audio_end = min(utterance.end + limits.speculate, consumed)
    return [SpeechOffset(leg, utterance.start, utterance.end, audio_end, reason)]


class Endpointer:
    """The endpointing of one leg, window by window. Tests compare `audio.endpointing.batch.BatchEndpointer` with it."""

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
        """Process the window [start, start + 256) with this speech probability and power; windows must be in order.

        `level`: the loudness of the window in a file, whose long utterances are split where it is lowest.
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
        """Whether a sound, which may begin a word, delays the end of the utterance."""
        open_ = self.state in (EndpointState.SPEECH, EndpointState.PAUSED)
        loud = power > max(RISE * self._quietest, FAINT * self._loudest)
        return open_ and loud and self._silent > 1 and self._held < HOLD_WINDOWS

    @property
    def at_rest(self) -> bool:
        return self.state is EndpointState.IDLE

    @property
    def earliest(self) -> int:
        """The position before which audio belongs to no open or future utterance."""
        if self.at_rest:
            return max(self.utterance.previous_end, self.consumed - self.limits.pre_roll)
        return self.utterance.audio_start

    def finish(self, reason: EndReason) -> list[Detection]:
        """End the open utterance, if any, because no more windows follow for now."""
        detections = finish(self.state, reason, self.leg, self.limits, self.utterance, self.consumed)
        self.state, self._voiced, self._silent = EndpointState.IDLE, 0, 0
        return detections
