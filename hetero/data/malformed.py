"""Malformed rows of a run: counted, written aside with file, line and reason, and the end of the run when too many."""

from __future__ import annotations

import json
from collections.abc import Sequence
from enum import Enum
from pathlib import Path

from hetero.errors import DataError
from hetero.records import MalformedRow

EARLY_ROWS = 1000
_EXAMPLES = 3


class CheckPoint(Enum):
    """When the fraction is judged. EARLY: once EARLY_ROWS rows have been read. PASS_END: whatever was read."""

    EARLY = "early"
    PASS_END = "pass_end"


class MalformedLog:
    """Counts malformed rows and writes each as one JSON line {"path", "split_start", "line", "reason"}.

    The file is made when the first row comes. Give each pass over the data once: rows are not told apart, but for those
    that stand in the file already when a run goes on (`resumed`): they are counted, and not again when they come again.
    """

    def __init__(self, path: Path | None, *, max_fraction: float, resumed: bool = False) -> None:
        self.path = path
        self.rows_read = 0
        self._known = _entries(path) if resumed and path is not None else frozenset()
        self.malformed = len(self._known)
        self._max_fraction = max_fraction
        self._examples: list[MalformedRow] = []

    @property
    def fraction(self) -> float:
        """Malformed rows per row read; 0 before any was."""
        return self.malformed / self.rows_read if self.rows_read else 0.0

    def add(self, malformed: Sequence[MalformedRow], *, rows_read: int) -> None:
        """Takes rows left out since the last call. rows_read: good and malformed rows read so far, in total."""
        self.rows_read = rows_read
        if self._known:
            malformed = [row for row in malformed if json.dumps(_entry(row)) not in self._known]
        self.malformed += len(malformed)
        self._examples.extend(malformed[: _EXAMPLES - len(self._examples)])
        if malformed and self.path is not None:
            with self.path.open("a", encoding="utf-8") as file:
                file.writelines(json.dumps(_entry(row)) + "\n" for row in malformed)

    def check(self, point: CheckPoint) -> None:
        """Raises DataError when more of the rows read are malformed than allowed.

        With an allowed fraction of 0 any malformed row fails at once, at either point.
        """
        if self.fraction <= self._max_fraction:
            return
        if point is CheckPoint.EARLY and self.rows_read < EARLY_ROWS and self._max_fraction > 0.0:
            return
        examples = "; ".join(f"{row.path}, {_place(row)}: {row.reason}" for row in self._examples)
        where = "" if self.path is None else f" All of them stand in {self.path}."
        raise DataError(
            f"{self.malformed} of {self.rows_read} rows ({self.fraction:.3%}) are malformed, more than the allowed"
            f" fraction of {self._max_fraction:g}. The first: {examples}.{where} Mend the data, correct the job's"
            " columns, or raise data.max_malformed_fraction"
        )


def _place(row: MalformedRow) -> str:
    return f"line {row.line}" + (f" from byte {row.split_start}" if row.split_start else "")


def _entry(row: MalformedRow) -> dict[str, object]:
    return {"path": row.path, "split_start": row.split_start, "line": row.line, "reason": row.reason}


def _entries(path: Path) -> frozenset[str]:
    return frozenset(path.read_text(encoding="utf-8").splitlines()) if path.is_file() else frozenset()
