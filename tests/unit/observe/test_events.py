"""The event log: whole lines from many threads, plain JSON whatever is put in, and reading it back."""

from __future__ import annotations

import json
import threading
from enum import Enum
from pathlib import Path

import numpy as np
import pytest

from hetero.errors import DataError, HeteroError
from hetero.observe.events import Event, EventKind, EventLog, plain, read_events
from hetero.observe.spans import Span


class Colour(Enum):
    RED = "red"


def test_lines_hold_the_fixed_names_first_and_read_back(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    with EventLog(path, run="demo", role="driver", clock=lambda: 12.5) as log:
        log.event("run.started", placement="ray")
        log.span(Span.ROWS_PULL, seconds=0.25, role="tower/0")
        log.step(7, loss=0.5, rows=1024)
    first = path.read_text().splitlines()[0]
    assert first.startswith('{"t": 12.500000, "run": "demo", "role": "driver", "kind": "event", "name": "run.started"')
    assert list(read_events(path)) == [
        Event(t=12.5, run="demo", role="driver", kind=EventKind.EVENT, name="run.started", fields={"placement": "ray"}),
        Event(t=12.5, run="demo", role="tower/0", kind=EventKind.SPAN, name="rows.pull", fields={"seconds": 0.25}),
        Event(
            t=12.5,
            run="demo",
            role="driver",
            kind=EventKind.STEP,
            name="step",
            fields={"step": 7, "loss": 0.5, "rows": 1024},
        ),
    ]


def test_plain_takes_numpy_and_turns_what_is_not_finite_into_null() -> None:
    assert plain({"a": np.float32("nan"), "b": [float("inf"), np.int64(3)], "c": np.arange(2)}) == {
        "a": None,
        "b": [None, 3],
        "c": [0, 1],
    }
    assert plain({Colour.RED: Path("x/y"), "u": np.uint64(2**64 - 1)}) == {"red": "x/y", "u": 2**64 - 1}
    with pytest.raises(TypeError, match="object has no form in JSON"):
        plain(object())


def test_threads_never_mix_their_lines(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    log = EventLog(path, run="r", role="driver")

    def write(number: int) -> None:
        for step in range(200):
            log.step(step, role=f"tower/{number}", filler="x" * (step % 50))

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    log.close()
    steps: dict[str, list[object]] = {}
    for line in path.read_text().splitlines():
        record = json.loads(line)
        steps.setdefault(record["role"], []).append(record["step"])
    assert steps == {f"tower/{number}": list(range(200)) for number in range(4)}


def test_two_logs_append_to_one_file(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    with EventLog(path, run="r", role="a") as one, EventLog(path, run="r", role="b") as other:
        one.event("x")
        other.event("y")
        one.event("z")
    assert [(event.role, event.name) for event in read_events(path)] == [("a", "x"), ("b", "y"), ("a", "z")]


def test_a_closed_log_refuses(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "e", run="r", role="a")
    log.close()
    log.close()
    with pytest.raises(HeteroError, match=r"run\.finished.*after the log was closed"):
        log.event("run.finished")


def test_fields_may_not_take_the_fixed_names(tmp_path: Path) -> None:
    with EventLog(tmp_path / "e", run="r", role="a") as log, pytest.raises(ValueError, match="'run' is one of"):
        log.event("x", run="other")


def test_an_unfinished_last_line_is_left_out_and_a_strange_one_is_named(tmp_path: Path) -> None:
    path = tmp_path / "e"
    with EventLog(path, run="r", role="a") as log:
        log.event("x")
    whole = path.read_text()
    path.write_text(whole + whole[:20])
    assert [event.name for event in read_events(path)] == ["x"]
    path.write_text(whole + '{"t": 1}\n')
    with pytest.raises(DataError, match="line 2: not an event"):
        list(read_events(path))
