"""What pages are made of: sections with plots, tables and sentences."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A plot. name: stands in the page, for tests. svg: the `<svg>` element."""

    name: str
    svg: str
    caption: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TablePart:
    """A table. numbers: columns that hold numbers."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numbers: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Absent:
    """Why there is nothing to show."""

    text: str


@dataclass(frozen=True, slots=True)
class Told:
    """A sentence."""

    text: str
    is_warning: bool = False


Part = Figure | TablePart | Absent | Told


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """Parts under a title."""

    title: str
    parts: tuple[Part, ...]

    @property
    def anchor(self) -> str:
        return re.sub(r"\W+", "-", self.title.lower())
