"""The log of malformed rows: what it writes and when it ends a run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hetero.data.malformed import CheckPoint, MalformedLog
from hetero.errors import DataError
from hetero.records import MalformedRow


def bad_rows(count: int) -> tuple[MalformedRow, ...]:
    return tuple(MalformedRow(path="/d/a.csv", split_start=64, line=i, reason=f"reason {i}") for i in range(count))


def test_each_row_is_one_json_line(tmp_path: Path) -> None:
    path = tmp_path / "malformed.jsonl"
    log = MalformedLog(path, max_fraction=1.0)
    log.add((), rows_read=10)
    assert not path.exists()
    log.add(bad_rows(2), rows_read=20)
    log.add(bad_rows(1), rows_read=30)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert lines[1] == {"path": "/d/a.csv", "split_start": 64, "line": 1, "reason": "reason 1"}
    assert len(lines) == log.malformed == 3
    assert log.fraction == 0.1


def test_without_tolerance_any_bad_row_fails_at_once() -> None:
    log = MalformedLog(None, max_fraction=0.0)
    log.add((), rows_read=5)
    log.check(CheckPoint.PASS_END)
    log.add(bad_rows(1), rows_read=6)
    with pytest.raises(DataError, match="1 of 6 rows"):
        log.check(CheckPoint.EARLY)


def test_early_checks_wait_for_a_thousand_rows() -> None:
    log = MalformedLog(None, max_fraction=0.1)
    log.add(bad_rows(500), rows_read=999)
    log.check(CheckPoint.EARLY)
    with pytest.raises(DataError):
        log.check(CheckPoint.PASS_END)
    log.add((), rows_read=1000)
    with pytest.raises(DataError):
        log.check(CheckPoint.EARLY)


def test_a_fraction_that_is_just_allowed_passes() -> None:
    log = MalformedLog(None, max_fraction=0.01)
    log.add(bad_rows(10), rows_read=1000)
    log.check(CheckPoint.PASS_END)
    log.add(bad_rows(1), rows_read=1001)
    with pytest.raises(DataError):
        log.check(CheckPoint.PASS_END)


def test_the_message_has_both_numbers_and_three_examples(tmp_path: Path) -> None:
    log = MalformedLog(tmp_path / "m.jsonl", max_fraction=0.25)
    log.add(bad_rows(2), rows_read=4)
    log.add(bad_rows(5), rows_read=10)
    with pytest.raises(DataError) as caught:
        log.check(CheckPoint.PASS_END)
    message = str(caught.value)
    assert "7 of 10 rows (70.000%)" in message
    assert "0.25" in message
    assert message.count("/d/a.csv, line") == 3
    assert "from byte 64: reason 1" in message
    assert str(tmp_path / "m.jsonl") in message
    assert "data.max_malformed_fraction" in message


def test_nothing_read_is_no_fault() -> None:
    MalformedLog(None, max_fraction=0.0).check(CheckPoint.PASS_END)


def test_a_run_that_goes_on_counts_each_row_once(tmp_path: Path) -> None:
    """Rows of splits that were read before the cut and are read again stand in the file already."""
    path = tmp_path / "malformed.jsonl"
    MalformedLog(path, max_fraction=1.0).add(bad_rows(3), rows_read=30)
    log = MalformedLog(path, max_fraction=1.0, resumed=True)
    assert log.malformed == 3
    log.add(bad_rows(5), rows_read=50)
    assert log.malformed == 5
    assert len(path.read_text().splitlines()) == 5
    assert MalformedLog(path, max_fraction=1.0).malformed == 0
