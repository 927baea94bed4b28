"""Progress: lines at a pace, a live display that says it all, and durations as people say them."""

from __future__ import annotations

import io
import logging

import pytest
from rich.console import Console

from pipelines.progress import Lines, OnTerminal, ProgressRecord, Silent, describe, duration, progress_for


def record(step: int, *, total: int | None = 100, left: float | None = 12.0) -> ProgressRecord:
    return ProgressRecord(
        step=step,
        steps_total=total,
        rows=step * 1024,
        rows_per_s=85_300.4,
        loss=0.61234,
        seconds_left=left,
        waits={"reader": 0.031, "towers": 0.0, "server": 0.12},
    )


def terminal(*, width: int = 100) -> Console:
    return Console(
        file=io.StringIO(), force_terminal=True, width=width, height=20, color_system=None, legacy_windows=False
    )


def shown(display: OnTerminal, *, width: int = 100) -> str:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(display.render())
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_line_says_it_all() -> None:
    assert describe(record(61)) == (
        "step 61/100, 85,300 rows/s, loss 0.6123, waits for server 12%, reader 3%, 12 s left"
    )
    assert describe(record(61, total=None, left=None)).startswith("step 61, 85,300 rows/s")


@pytest.mark.parametrize(
    ("seconds", "text"), [(-1, "0 s"), (59.4, "59 s"), (59.6, "1 min 0 s"), (200, "3 min 20 s"), (7500, "2 h 5 min")]
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_lines_keep_their_pace_and_never_miss_the_last_step(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    lines = Lines(every_s=3.0, now=lambda: now)
    with caplog.at_level(logging.INFO, logger="pipelines.progress"), lines:
        lines.phase("training")
        for step in range(1, 101):
            now = step / 8
            lines.update(record(step))
    steps = [message.split(",")[0] for message in caplog.messages]
    assert steps == [
        "training",
        "step 1/100",
        "step 25/100",
        "step 49/100",
        "step 73/100",
        "step 97/100",
        "step 100/100",
    ]


def test_the_terminal_shows_phase_bar_steps_time_and_waits() -> None:
    display = OnTerminal(terminal())
    display.phase("starting 2 servers")
    assert "starting 2 servers" in shown(display)
    display.phase("training")
    display.update(record(61))
    first, second = shown(display).splitlines()
    assert first.startswith("training")
    assert first.rstrip().endswith("61/100 steps 12 s left")
    assert "━" in first
    assert second.rstrip() == "85,300 rows/s, loss 0.6123, waits for server 12%, reader 3%"


def test_a_narrow_terminal_still_has_two_lines() -> None:
    display = OnTerminal(terminal(width=50))
    display.phase("training")
    display.update(record(61, total=None))
    assert len(shown(display, width=50).splitlines()) == 2


def test_the_live_display_leaves_nothing_behind_on_errors() -> None:
    console = terminal()
    display = OnTerminal(console)

    def fail() -> None:
        with display:
            display.update(record(1))
            raise KeyError("x")

    with pytest.raises(KeyError):
        fail()
    assert not display._live.is_started


def test_what_fits_the_output() -> None:
    off_terminal = Console(file=io.StringIO())
    assert type(progress_for(terminal(), silent=True)) is Silent
    assert type(progress_for(terminal(), silent=False)) is OnTerminal
    assert type(progress_for(off_terminal, silent=False)) is Lines
