"""The endpointers of all legs as arrays: `audio.endpointing.table.TABLE` applied to all due legs at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from audio.endpointing.detections import Detection, EndReason
from audio.endpointing.table import (
    FAINT,
    HOLD_WINDOWS,
    LAPSE_WINDOWS,
    LOUDEST,
    NOWHERE,
    RISE,
    TABLE,
    WINDOW,
    Action,
    EndpointEvent,
    EndpointState,
    Limits,
    UndefinedTransition,
    UtteranceSpan,
    act,
    finish,
)

if TYPE_CHECKING:
    from audio.legs.leg import Leg

_UNDEFINED = 255
_IDLE = int(EndpointState.IDLE)
# The table flat, indexed by state · number of events + event.
_NEXT = np.full(len(EndpointState) * len(EndpointEvent), _UNDEFINED, np.uint8)
_ACTION = np.zeros(len(EndpointState) * len(EndpointEvent), np.uint8)
for (_state, _event), (_next, _action) in TABLE.items():
    _NEXT[_state * len(EndpointEvent) + _event], _ACTION[_state * len(EndpointEvent) + _event] = _next, _action
Rows = NDArray[np.intp]
Legs = Mapping[int, "Leg"]


class BatchEndpointer:
    """`rows` endpointers, which detect exactly what one `audio.endpointing.table.Endpointer` per row would."""

    def __init__(self, rows: int) -> None:
        self._limits: dict[int, Limits] = {}
        self._enter, self._exit = np.zeros(rows), np.zeros(rows)
        self._min_speech = np.zeros(rows, np.int32)
        # The numbers of silent windows from which LAPSE, PAUSE and END hold; the count of those reached is the event.
        self._silences = np.zeros((rows, 3), np.int32)
        self._pre_roll, self._room = np.zeros(rows, np.int64), np.zeros(rows, np.int64)
        self._split_from = np.zeros(rows, np.int64)
        self._state = np.zeros(rows, np.uint8)
        self._states: Any = memoryview(self._state)  # type: ignore[arg-type]
        self._voiced, self._silent = np.zeros(rows, np.int32), np.zeros(rows, np.int32)
        self._start, self._audio_start = np.zeros(rows, np.int64), np.zeros(rows, np.int64)
        self._end, self._previous_end = np.zeros(rows, np.int64), np.zeros(rows, np.int64)
        self._quiet_at, self._quiet_p = np.zeros(rows, np.int64), np.zeros(rows)
        # The power of the loudest voiced window, and of the quietest window since the last voiced one.
        self._loudest, self._quietest = np.zeros(rows), np.zeros(rows)
        self._held = np.zeros(rows, np.uint8)
        """The number of windows by which a sound has delayed the end of the utterance."""

    def open(self, row: int, limits: Limits) -> None:
        """Reset the endpointer of this row."""
        self.limit(row, limits)
        for values in self._values():
            values[row] = 0

    def limit(self, row: int, limits: Limits) -> None:
        """Set another profile. The row must be fresh or `idle`: other states may have no transition for its events."""
        self._limits[row] = limits
        self._enter[row], self._exit[row] = limits.enter, limits.exit
        self._min_speech[row] = limits.min_speech_windows
        end, pause = limits.min_silence_windows, min(limits.speculate_windows, limits.min_silence_windows)
        self._silences[row] = min(LAPSE_WINDOWS, pause), pause, end
        self._pre_roll[row], self._room[row] = limits.pre_roll, limits.room
        self._split_from[row] = limits.split_from

    def move(self, row: int, other_row: int) -> None:
        """Continue in `row` with the endpointer of `other_row`."""
        self.open(row, self._limits.pop(other_row))
        for values in self._values():
            values[row] = values[other_row]

    def bar(self, row: int, position: int) -> None:
        """Keep utterances of this row from reaching back before `position`."""
        self._previous_end[row] = max(int(self._previous_end[row]), position)

    def idle(self, row: int) -> bool:
        """Whether the row is neither in an utterance nor at its onset."""
        state: int = self._states[row]
        return state == _IDLE

    def at_rest(self, rows: Rows) -> NDArray[np.bool_]:
        """`idle` for each of the rows."""
        rest: NDArray[np.bool_] = self._state[rows] == _IDLE
        return rest

    def step(
        self,
        rows: Rows,
        starts: NDArray[np.int64],
        probabilities: NDArray[np.float32],
        powers: NDArray[np.float32],
        legs: Legs,
    ) -> list[Detection]:
        """Process one window for each of `rows` (distinct), beginning at `starts`.

        `powers` are the windows' mean squares, and `legs` maps a row to its leg.
        """
        state, silent = self._state[rows], self._silent[rows]
        speaking = ((state == EndpointState.ONSET) | (state == EndpointState.SPEECH)) & (silent == 0)
        voiced = probabilities >= np.where(speaking, self._exit[rows], self._enter[rows])
        stops = starts + WINDOW
        silent = np.where(voiced, 0, silent + 1)
        silences = self._silences[rows]
        self._wait(rows, state, voiced, silent, silences[:, 2], powers)
        event = (silent[:, None] >= silences).sum(axis=1)
        if voiced.any():
            event[voiced] = self._voiced_events(rows[voiced], state[voiced], starts[voiced])
        key = state * len(EndpointEvent) + event
        following = _NEXT[key]
        if (following == _UNDEFINED).any():
            first = int(key[following == _UNDEFINED][0])
            raise UndefinedTransition(
                f"{EndpointEvent(first % len(EndpointEvent)).name} in {EndpointState(first // len(EndpointEvent)).name}"
            )
        self._state[rows] = following
        busy = following != EndpointState.IDLE
        self._silent[rows] = np.where(busy, silent, 0)
        self._voiced[rows[~busy]] = 0

        late = starts - self._audio_start[rows] >= self._split_from[rows]
        acting = np.flatnonzero(_ACTION[key])
        detections: list[Detection] = []
        for index in acting.tolist():
            action = Action(int(_ACTION[key[index]]))
            detections += self._act(int(rows[index]), action, legs)
            # A split restarts the search for a quiet spot, from the next window on.
            late[index] &= action not in (Action.SPLIT, Action.RESUME_AND_SPLIT)
        quieter = np.flatnonzero(late & busy & (probabilities < self._quiet_p[rows]))
        if len(quieter):
            self._quiet_at[rows[quieter]] = stops[quieter] - WINDOW // 2
            self._quiet_p[rows[quieter]] = probabilities[quieter]
        return detections

    def _wait(
        self,
        rows: Rows,
        state: NDArray[np.uint8],
        voiced: NDArray[np.bool_],
        silent: NDArray[np.int32],
        ends: NDArray[np.int32],
        powers: NDArray[np.float32],
    ) -> None:
        """Delay the end of an utterance, due after `ends` silent windows, during a sound that may begin a word."""
        quietest = self._quietest[rows]
        if (ending := silent >= ends).any():
            loud = powers > np.maximum(RISE * quietest, FAINT * self._loudest[rows])
            waiting = ending & loud & (silent > 1) & (state >= EndpointState.SPEECH)
            waiting &= self._held[rows] < HOLD_WINDOWS
            silent[waiting] -= 1
            self._held[rows[waiting]] += 1
        self._quietest[rows] = np.where(voiced, LOUDEST, np.minimum(quietest, powers))
        voiced_rows = rows[voiced]
        before = np.where(state[voiced] == EndpointState.IDLE, 0, self._loudest[voiced_rows])
        self._loudest[voiced_rows], self._held[voiced_rows] = np.maximum(before, powers[voiced]), 0

    def _voiced_events(self, rows: Rows, state: NDArray[np.uint8], starts: NDArray[np.int64]) -> NDArray[np.int64]:
        """The events of voiced windows."""
        stops = starts + WINDOW
        fresh = state == EndpointState.IDLE
        if fresh.any():
            new, begin = rows[fresh], starts[fresh]
            before = self._previous_end[new]
            self._start[new] = np.maximum(before, begin)
            self._audio_start[new] = np.maximum(before, begin - self._pre_roll[new])
            self._quiet_at[new], self._quiet_p[new] = NOWHERE, 2.0
        self._end[rows] = stops
        self._voiced[rows] += 1
        confirmed = self._voiced[rows] >= self._min_speech[rows]
        full = (state >= EndpointState.SPEECH) & (stops - self._audio_start[rows] > self._room[rows])
        return np.where(full, EndpointEvent.FULL, np.where(confirmed, EndpointEvent.CONFIRMED, EndpointEvent.VOICED))

    def _act(self, row: int, action: Action, legs: Legs) -> list[Detection]:
        leg, limits, utterance = legs[row], self._limits[row], self._utterance(row)
        detections = act(action, leg, limits, utterance)
        self._store(row, utterance)
        if action in (Action.SPLIT, Action.RESUME_AND_SPLIT):
            self._quiet_p[row] = 2.0
        return detections

    def finish(self, row: int, reason: EndReason, leg: Leg, consumed: int) -> list[Detection]:
        """End the row's open utterance, if any; the row continues from IDLE."""
        limits, utterance = self._limits[row], self._utterance(row)
        detections = finish(EndpointState(int(self._state[row])), reason, leg, limits, utterance, consumed)
        self._store(row, utterance)
        self._state[row] = EndpointState.IDLE
        self._voiced[row] = self._silent[row] = 0
        return detections

    def _values(self) -> tuple[NDArray[np.generic], ...]:
        return (
            self._state, self._voiced, self._silent, self._start, self._audio_start, self._end, self._previous_end,
            self._quiet_at, self._quiet_p, self._loudest, self._quietest, self._held,
        )  # fmt: skip

    def _utterance(self, row: int) -> UtteranceSpan:
        return UtteranceSpan(
            start=int(self._start[row]), audio_start=int(self._audio_start[row]), end=int(self._end[row]),
            quiet_at=int(self._quiet_at[row]), previous_end=int(self._previous_end[row]),
        )  # fmt: skip

    def _store(self, row: int, utterance: UtteranceSpan) -> None:
        self._start[row], self._audio_start[row] = utterance.start, utterance.audio_start
        self._end[row], self._previous_end[row] = utterance.end, utterance.previous_end
        self._quiet_at[row] = utterance.quiet_at
