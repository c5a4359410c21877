"""One timer for the silence of all streams: 20 ms each, in four phases, however late the timer is."""

from __future__ import annotations

from collections.abc import Callable

from audio.rtp.silence_ticker import PTIME_S, SilenceTicker


class Loop:
    """Virtual time."""

    def __init__(self) -> None:
        self.now = 100.0
        self.due: tuple[float, Callable[[int], object], int] | None = None

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, callback: Callable[[int], object], index: int, /) -> Loop:
        assert self.due is None, "one timer"
        self.due = (when, callback, index)
        return self

    def cancel(self) -> None:
        self.due = None

    def run(self, until: float, late_s: float = 0.0) -> None:
        while self.due is not None and self.due[0] + late_s <= until + 1e-9:
            (when, callback, index), self.due = self.due, None
            self.now = max(self.now, when + late_s)
            callback(index)
        self.now = max(self.now, until)


class Sender:
    def __init__(self, loop: Loop) -> None:
        self.loop, self.sent = loop, list[tuple[float, int]]()

    def send_silence(self, periods: int) -> None:
        self.sent.append((round(self.loop.now - 100.0, 3), periods))


def test_each_stream_sends_every_20_ms_and_phases_share_the_work() -> None:
    loop = Loop()
    ticker, senders = SilenceTicker(loop), [Sender(loop) for _ in range(8)]
    for sender in senders:
        ticker.add(sender)
        ticker.add(sender)
    assert len(ticker) == 8 and all(ticker.has(sender) for sender in senders)
    loop.run(100.2)
    for sender in senders:
        times = [time for time, _ in sender.sent]
        assert 10 <= len(times) <= 11 and all(periods == 1 for _, periods in sender.sent)
        assert all(abs(b - a - PTIME_S) < 1e-6 for a, b in zip(times, times[1:], strict=False))
    starts = [sender.sent[0][0] for sender in senders]
    assert sorted(starts) == [0.0, 0.0, 0.005, 0.005, 0.01, 0.01, 0.015, 0.015]


def test_a_late_tick_says_how_much_it_missed_and_moves_no_other() -> None:
    loop = Loop()
    ticker, sender = SilenceTicker(loop), Sender(loop)
    ticker.add(sender)
    loop.run(100.041)
    loop.now = 100.129
    loop.run(100.161)
    assert sender.sent == [(0.0, 1), (0.02, 1), (0.04, 1), (0.129, 4), (0.14, 1), (0.16, 1)]


def test_without_streams_there_is_no_timer() -> None:
    loop = Loop()
    ticker, first, second = SilenceTicker(loop), Sender(loop), Sender(loop)
    ticker.add(first)
    ticker.add(second)
    ticker.remove(first)
    assert loop.due is not None and not ticker.has(first) and len(ticker) == 1
    ticker.remove(first)
    ticker.remove(second)
    assert loop.due is None and len(ticker) == 0
    loop.now = 200.0
    ticker.add(first)
    loop.run(200.021)
    assert [time for time, _ in first.sent] == [100.0, 100.02]
