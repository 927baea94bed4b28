"""The sequencer as an actor: a lock around `hetero.keys.sequencer`, whose WAIT becomes a short wait for news."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from actors.clients import Peer, RemoteReader
from actors.context import RunContext
from actors.metrics import RayMetrics
from actors.processes import work_ahead
from hetero.errors import ProtocolError
from hetero.exchange.window_size import WindowChoice, WindowSize
from hetero.hardware.heap import keep_freed_memory
from hetero.hardware.probe import peak_rss_bytes
from hetero.keys.sequencer import Claim, HeldSplit, InputQuality, Sequencer, Turn
from hetero.keys.windows import TowerWindow
from hetero.loops.meeting import Absent, Meetings
from hetero.loops.protocols import Phase
from hetero.loops.pulses import RolePulses
from hetero.loops.reader import make_sequencer
from hetero.loops.run import DataPass, RoleReport
from hetero.loops.warm_keys import warm_sequencer_kernels
from hetero.loops.windows import WindowCutter
from hetero.observe.metrics import Pulse
from hetero.observe.spans import Span, SpanClock
from hetero.records import BatchSpec, SharesFrom, SplitReport

T = TypeVar("T")

_LONGEST_WAIT_S = 0.5
_WINDOWS_READY = 1


@dataclass(frozen=True, slots=True)
class SequencerNews:
    """What the driver learns on each look."""

    steps_total: int | None
    quality: InputQuality
    waiting_for_readers: tuple[int, ...]
    shares: tuple[SharesFrom, ...] = ()


class SequencerActor:
    """Its calls may run at the same time; each caller waits for an answer before its next call."""

    def __init__(self, context: RunContext) -> None:
        keep_freed_memory()
        context.enter()
        work_ahead()
        warm_sequencer_kernels(context.job)
        self._job = context.job
        self._news = threading.Condition()
        self._sequencer: Sequencer | None = None
        self._readers: list[RemoteReader] = []
        self._lives = [0] * context.job.readers.count
        self._patience_s = context.reader_patience_s
        self._windows: list[deque[TowerWindow]] = []
        self._given_back: set[int] = set()  # towers that have the window after which nothing is leased
        self._window_failure: Exception | None = None
        self._window_size: WindowSize | None = None
        self._meetings = Meetings(towers=context.job.towers.count)
        self._phase = 0
        self._clock = SpanClock()
        self._pulses = RolePulses("sequencer/0")
        self._metrics = RayMetrics(context.run)

    def ping(self) -> int:
        """Answer, with the number of this process."""
        return os.getpid()

    def open(self, data: DataPass, readers: Sequence[Peer]) -> None:
        """Begin a phase. In training with windows a thread of its own builds them, from the keys that readers give."""
        with self._news:
            self._phase += 1
            self._sequencer = make_sequencer(
                self._job,
                data=data.data,
                splits=len(data.splits),
                epochs=data.epochs,
                max_steps=data.max_steps,
                towers=self._job.towers.count,
                start=data.start,
                shares=self._job.shares if data.phase is Phase.TRAIN else None,
            )
            self._windows = [deque() for _ in range(self._job.towers.count)]
            self._given_back = set()
            self._meetings = Meetings(towers=self._job.towers.count)
        self._readers = [RemoteReader(peer, patience_s=self._patience_s) for peer in readers]
        if self._job.window and data.phase is Phase.TRAIN:
            self._window_size = WindowSize(self._job)
            cutter = WindowCutter(
                self._job,
                next_spec=self._next_spec,
                readers=self._readers,
                size=self._window_size,
                begin=self._begin_window,
            )
            threading.Thread(target=self._build_windows, args=(cutter, self._phase), daemon=True).start()

    def claim(self, reader: int, life: int) -> Claim:
        """A reader asks what to parse; of one that another took the place of, nothing is heard any more."""

        def claimed(sequencer: Sequencer) -> Claim:
            return sequencer.claim(reader) if life == self._lives[reader] else Claim(Turn.END, ())

        return self._when_there(claimed, lambda claim: claim.split is Turn.WAIT and not claim.release)

    def report(self, reader: int, report: SplitReport, life: int) -> None:
        with self._news:
            if life == self._lives[reader]:
                self._opened().report(reader, report)
            self._news.notify_all()

    def take_over(self, reader: int, life: int) -> tuple[HeldSplit, ...]:
        """What the reader must hold that comes in this one's place, its life the `life`-th. Calls of lives before are
        of no effect from here on."""
        with self._news:
            self._lives[reader] = life
            return self._opened().take_over(reader)

    def reader_replaced(self, reader: int, peer: Peer) -> None:
        """Another is there and holds what it must: ask it for what the lost one has not answered."""
        self._readers[reader].replaced(peer)

    def take(self, tower: int, *, acknowledged: Sequence[int]) -> BatchSpec | Turn:
        with self._news:
            first = self._opened().take(tower, acknowledged=acknowledged)
            self._news.notify_all()
        if first is not Turn.WAIT:
            return first
        return self._when_there(lambda s: s.take(tower), lambda turn: turn is Turn.WAIT)

    def take_window(self, tower: int, *, acknowledged: Sequence[int], crossed: float | None) -> TowerWindow | Turn:
        """A tower's part of the next window; the last one has no steps, after it comes the end."""
        deadline = time.monotonic() + _LONGEST_WAIT_S
        with self._news:
            for step in acknowledged:
                self._opened().acknowledge(tower, step)
            if crossed is not None and self._window_size is not None:
                self._window_size.crossed(crossed)
            self._news.notify_all()
            queue = self._windows[tower]
            while not queue:
                if tower in self._given_back:
                    return Turn.END
                if self._window_failure is not None:
                    raise self._window_failure
                left = deadline - time.monotonic()
                if left <= 0:
                    return Turn.WAIT
                self._news.wait(timeout=left)
            window = queue.popleft()
            if window.is_last:
                self._given_back.add(tower)
            self._news.notify_all()
            return window

    def meet(self, tower: int, *, number: int, value: int) -> int | Absent:
        """A tower comes to a meeting, and waits a moment for the others."""
        deadline = time.monotonic() + _LONGEST_WAIT_S
        with self._news:
            met = self._meetings.meet(tower, number=number, value=value)
            self._news.notify_all()
            while met is Absent.YET and (left := deadline - time.monotonic()) > 0:
                self._news.wait(timeout=left)
                met = self._meetings.meet(tower, number=number, value=value)
            return met

    def leave(self, tower: int) -> None:
        """A tower comes to no further meeting."""
        with self._news:
            self._meetings.leave(tower)
            self._news.notify_all()

    def stop(self) -> None:
        """End the phase: the towers were cut and train no further."""
        with self._news:
            self._opened().stop()
            self._given_back = set(range(self._job.towers.count))
            self._windows = [deque() for _ in self._windows]
            self._phase += 1
            self._news.notify_all()

    def news(self) -> SequencerNews:
        with self._news:
            sequencer = self._opened()
            return SequencerNews(
                sequencer.estimated_steps(),
                sequencer.drain_quality(),
                sequencer.waiting_for(),
                sequencer.division.drain_changes(),
            )

    def ask_shares(self, parts: tuple[int, ...]) -> None:
        """Divide batches among towers by other parts, from the next window on."""
        with self._news:
            self._opened().division.ask(parts)

    def window_choice(self) -> WindowChoice | None:
        """How long windows were; None without any."""
        return None if self._window_size is None else self._window_size.choice()

    def pulse(self) -> Pulse:
        """How the sequencer stands."""
        return self._metrics.publish(self._pulses.of_role(self._clock.so_far()))

    def role_report(self) -> RoleReport:
        return RoleReport(
            name="sequencer/0", spans=self._clock.totals(), peak_rss_bytes=peak_rss_bytes(), cpu_s=time.process_time()
        )

    def _begin_window(self) -> None:
        with self._news:
            self._opened().division.begin_window()

    def _next_spec(self, tower: int) -> BatchSpec | None:
        with self._news:
            while (turn := self._opened().take(tower)) is Turn.WAIT:
                self._news.wait(timeout=_LONGEST_WAIT_S)
            self._news.notify_all()
        return turn if isinstance(turn, BatchSpec) else None

    def _build_windows(self, cutter: WindowCutter, phase: int) -> None:
        """Keep a window ready for every tower until the phase ends. Readers hold the batches of all that are built."""
        try:
            ended = False
            while not ended:
                with self._news:
                    while phase == self._phase and any(len(queue) >= _WINDOWS_READY for queue in self._windows):
                        self._news.wait(timeout=_LONGEST_WAIT_S)
                with self._clock.span(Span.KEYS_WINDOW):
                    windows = cutter.build()
                ended = windows[0].is_last
                with self._news:
                    if phase != self._phase:
                        return
                    for queue, window in zip(self._windows, windows, strict=True):
                        queue.append(window)
                    self._news.notify_all()
        except Exception as error:  # raised where the next window is taken
            with self._news:
                self._window_failure = error
                self._news.notify_all()

    def _when_there(self, ask: Callable[[Sequencer], T], is_wait: Callable[[T], bool]) -> T:
        deadline = time.monotonic() + _LONGEST_WAIT_S
        with self._news:
            while True:
                answer = ask(self._opened())
                left = deadline - time.monotonic()
                if not is_wait(answer) or left <= 0:
                    return answer
                self._news.wait(timeout=left)

    def _opened(self) -> Sequencer:
        if self._sequencer is None:
            raise ProtocolError("sequencer: asked before a phase was opened")
        return self._sequencer
