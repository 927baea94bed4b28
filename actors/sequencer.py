"""The sequencer as an actor: a lock around `hetero.keys.sequencer`, whose WAIT becomes a short wait for news."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from actors.context import RunContext
from hetero.errors import ProtocolError
from hetero.hardware.probe import peak_rss_bytes
from hetero.keys.sequencer import Claim, InputQuality, Sequencer, Turn
from hetero.loops.reader import make_sequencer
from hetero.loops.run import DataPass, RoleReport
from hetero.observe.spans import SpanTotals
from hetero.records import BatchSpec, SplitReport

T = TypeVar("T")

_LONGEST_WAIT_S = 0.5


@dataclass(frozen=True, slots=True)
class SequencerNews:
    """What the driver learns on each look."""

    steps_total: int | None
    quality: InputQuality
    waiting_for_readers: tuple[int, ...]


class SequencerActor:
    """Its calls may run at the same time; each caller waits for an answer before its next call."""

    def __init__(self, context: RunContext) -> None:
        context.enter()
        self._job = context.job
        self._news = threading.Condition()
        self._sequencer: Sequencer | None = None

    def ping(self) -> int:
        """Answer, with the number of this process."""
        return os.getpid()

    def open(self, data: DataPass) -> None:
        """Begin a phase."""
        with self._news:
            self._sequencer = make_sequencer(
                self._job,
                data=data.data,
                splits=len(data.splits),
                epochs=data.epochs,
                max_steps=data.max_steps,
                towers=self._job.towers.count,
            )

    def claim(self, reader: int) -> Claim:
        return self._when_there(lambda s: s.claim(reader), lambda claim: claim.split is Turn.WAIT and not claim.release)

    def report(self, reader: int, report: SplitReport) -> None:
        with self._news:
            self._opened().report(reader, report)
            self._news.notify_all()

    def take(self, tower: int, *, acknowledged: Sequence[int]) -> BatchSpec | Turn:
        with self._news:
            first = self._opened().take(tower, acknowledged=acknowledged)
            self._news.notify_all()
        if first is not Turn.WAIT:
            return first
        return self._when_there(lambda s: s.take(tower), lambda turn: turn is Turn.WAIT)

    def news(self) -> SequencerNews:
        with self._news:
            sequencer = self._opened()
            return SequencerNews(sequencer.estimated_steps(), sequencer.drain_quality(), sequencer.waiting_for())

    def role_report(self) -> RoleReport:
        return RoleReport(
            name="sequencer/0", spans=SpanTotals(), peak_rss_bytes=peak_rss_bytes(), cpu_s=time.process_time()
        )

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
