"""What calls of a store of rows are asked and answer, whatever tiers stand behind it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

import numpy as np

from hetero.records import F32, I32

MAX_EXAMPLES = 8


class Create(Enum):
    """What a pull does about rows that do not exist: make them with their first values, or read zeros."""

    YES = "yes"
    NO = "no"


@dataclass(frozen=True, slots=True, kw_only=True)
class PushReport:
    """applied, rejected: rows of a push; rejected ones had a gradient that is not finite. examples: (table, key).

    rejected_at: their positions in the push, int32, ascending.
    """

    applied: int
    rejected: int
    examples: tuple[tuple[str, int], ...]
    rejected_at: I32 = field(default_factory=lambda: np.empty(0, np.int32), compare=False)


@dataclass(frozen=True, slots=True)
class RowsRead:
    """rows float32 [U, W] with optimizer state, zeros where not found; found bool [U]."""

    rows: F32
    found: np.ndarray


@dataclass(slots=True)
class PushParts:
    """The report of a push that works part by part."""

    applied: int = 0
    rejected: int = 0
    examples: list[tuple[str, int]] = field(default_factory=list)
    rejected_at: list[I32] = field(default_factory=list)

    def add(self, part: PushReport, *, start: int) -> None:
        """Add a part that begins at a position of the push."""
        self.applied += part.applied
        self.rejected += part.rejected
        self.examples += part.examples
        self.rejected_at.append(part.rejected_at + np.int32(start))

    def report(self) -> PushReport:
        """Of all parts."""
        return PushReport(
            applied=self.applied,
            rejected=self.rejected,
            examples=tuple(self.examples[:MAX_EXAMPLES]),
            rejected_at=np.concatenate([np.empty(0, np.int32), *self.rejected_at]),
        )
