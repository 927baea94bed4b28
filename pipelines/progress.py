"""How far training is, for people: live on a terminal, a log line every few seconds elsewhere, or nothing."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Protocol

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

LOGGER = logging.getLogger(__name__)
LINE_EVERY_S = 3.0
WORTH_NAMING = 0.005


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressRecord:
    """Where training stands. step: steps done. steps_total: None when not known yet. rows: trained so far.

    rows_per_s: of late. loss: of late, nats a row. seconds_left: None when not known.
    waits: share of the towers' time, 0 to 1, by the role they waited for, such as {"server": 0.12}.
    """

    step: int
    steps_total: int | None
    rows: int
    rows_per_s: float
    loss: float
    seconds_left: float | None
    waits: Mapping[str, float] = field(default_factory=dict)


class Progress(Protocol):
    """What a run reports to while it goes on."""

    def phase(self, text: str) -> None:
        """A new part of the run begins, such as `starting 1 reader, 2 servers, 1 tower`."""

    def update(self, record: ProgressRecord) -> None:
        """Training got further; called as often as every step."""


class Silent:
    """Shows nothing."""

    def phase(self, text: str) -> None:
        """Nothing."""

    def update(self, record: ProgressRecord) -> None:
        """Nothing."""

    def __enter__(self) -> Silent:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing is left open."""


class Lines(Silent):
    """A log line for every phase, and one for the training every few seconds."""

    def __init__(self, *, every_s: float = LINE_EVERY_S, now: Callable[[], float] = time.monotonic) -> None:
        self._every_s = every_s
        self._now = now
        self._last = float("-inf")

    def phase(self, text: str) -> None:
        LOGGER.info("%s", text)
        self._last = float("-inf")

    def update(self, record: ProgressRecord) -> None:
        now = self._now()
        if now - self._last >= self._every_s or record.step == record.steps_total:
            self._last = now
            LOGGER.info("%s", describe(record))


class OnTerminal(Silent):
    """Two lines that stay in place: the bar with steps and time left, and rows/s, loss and waits below it."""

    def __init__(self, console: Console) -> None:
        self._text = ""
        self._record: ProgressRecord | None = None
        self._spinner = Spinner("dots")
        self._live = Live(
            console=console, get_renderable=self.render, refresh_per_second=8, transient=True, vertical_overflow="crop"
        )

    def phase(self, text: str) -> None:
        self._text = text
        self._record = None

    def update(self, record: ProgressRecord) -> None:
        self._record = record

    def render(self) -> RenderableType:
        """What stands on the terminal now."""
        record = self._record
        if record is None:
            self._spinner.update(text=self._text)
            return self._spinner if self._text else Text()
        line = Table.grid(padding=(0, 1), expand=True)
        for ratio in (None, 1, None, None):
            line.add_column(ratio=ratio, no_wrap=True)
        pulse = record.steps_total is None
        bar = ProgressBar(total=record.steps_total, completed=record.step, pulse=pulse)
        line.add_row(self._text or "training", bar, _steps(record), _left(record))
        return Group(line, Text(_details(record), style="dim", no_wrap=True, overflow="ellipsis"))

    def __enter__(self) -> OnTerminal:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()


def progress_for(console: Console, *, silent: bool) -> Silent:
    """What fits the output: nothing when `silent`, live on a terminal, log lines elsewhere."""
    if silent:
        return Silent()
    return OnTerminal(console) if console.is_terminal else Lines()


def describe(record: ProgressRecord) -> str:
    """One line: `step 61/160, 85,300 rows/s, loss 0.6123, 12 s left, waits: server 12%`."""
    return ", ".join(part for part in (f"step {_count(record)}", _details(record), _left(record)) if part)


def duration(seconds: float) -> str:
    """Seconds as people say them: `8 s`, `3 min 20 s`, `2 h 5 min`."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def waits_text(waits: Mapping[str, float]) -> str:
    """Shares of time by who was waited for, largest first; empty when there is none to speak of."""
    shares = sorted(waits.items(), key=lambda item: -item[1])
    return ", ".join(f"{role} {share:.0%}" for role, share in shares if share >= WORTH_NAMING)


def _count(record: ProgressRecord) -> str:
    return f"{record.step:,}" + ("" if record.steps_total is None else f"/{record.steps_total:,}")


def _steps(record: ProgressRecord) -> str:
    return f"{_count(record)} steps"


def _left(record: ProgressRecord) -> str:
    return "" if record.seconds_left is None else f"{duration(record.seconds_left)} left"


def _details(record: ProgressRecord) -> str:
    waits = waits_text(record.waits)
    return f"{record.rows_per_s:,.0f} rows/s, loss {record.loss:.4f}, waits for {waits or 'nobody'}"
