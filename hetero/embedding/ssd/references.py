"""What keeps segment files from being deleted: cuts that snapshots and scans refer to."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from hetero.embedding.ssd.files import Segment, sync_names


@dataclass(frozen=True, slots=True, kw_only=True)
class CutSegment:
    """One file of a cut: how many records of it belong to it, and how many of those an earlier crash has torn."""

    path: Path
    records: int
    holes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """All rows on SSD at one moment. sequence: records from it on came later."""

    sequence: int
    segments: tuple[CutSegment, ...]


class Hold:
    """Keeps the files of a cut until it is released. A context manager."""

    def __init__(self, cut: Cut, segments: list[Segment]) -> None:
        self.cut = cut
        self.segments = segments

    def link_into(self, folder: Path) -> None:
        """Give every file of the cut a second name in a folder of the same file system, and put that on disk.

        Raises OSError, for another file system say.
        """
        for segment in self.segments:
            os.link(segment.path, folder / segment.path.name)
        sync_names(folder)

    def release(self) -> None:
        """The files may go; a second call does nothing."""
        for segment in self.segments:
            segment.let_go()
        self.segments = []

    def __enter__(self) -> Hold:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
