"""Parsed splits held until they are no longer needed, and row ranges of them without copies."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import numpy.typing as npt

from hetero.data.jagged import slice_rows
from hetero.data.parse import parse_split
from hetero.errors import ProtocolError
from hetero.records import DataSpec, ParsedSplit, SplitRef, SplitReport


class SplitReader:
    """Parses splits of one `DataSpec` and holds them until released. Threads may load and look up at once."""

    def __init__(self, spec: DataSpec) -> None:
        self._spec = spec
        self._lock = threading.Lock()
        self._held: dict[tuple[int, int], ParsedSplit] = {}

    def load(self, ref: SplitRef, epoch: int) -> SplitReport:
        """Parses a split and holds it; a split already held is not parsed again. Raises DataError."""
        with self._lock:
            split = self._held.get((epoch, ref.position))
        if split is None:
            split = parse_split(ref, spec=self._spec, epoch=epoch)
            with self._lock:
                self._held[epoch, ref.position] = split
        return SplitReport.of(split)

    def held(self, epoch: int, position: int) -> ParsedSplit:
        """The split at `position` of pass `epoch`. Raises ProtocolError when it is not held."""
        with self._lock:
            split = self._held.get((epoch, position))
        if split is None:
            raise ProtocolError(f"split {position} of pass {epoch} is not held here: not loaded, or released already")
        return split

    def release(self, epoch: int, position: int) -> None:
        """Drops a split. Raises ProtocolError when it is not held."""
        with self._lock:
            if self._held.pop((epoch, position), None) is None:
                raise ProtocolError(f"split {position} of pass {epoch} is released but not held here")

    @property
    def held_bytes(self) -> int:
        """Bytes of the arrays of all splits held."""
        with self._lock:
            return sum(split_bytes(split) for split in self._held.values())


def split_bytes(split: ParsedSplit) -> int:
    """Bytes of a split's arrays."""
    arrays: list[npt.NDArray[Any] | None] = [split.labels, split.weights, split.dense, split.gauc_ids]
    for jagged in split.sparse:
        arrays += [jagged.keys, jagged.offsets, jagged.weights]
    return sum(array.nbytes for array in arrays if array is not None)


def slice_split(split: ParsedSplit, start: int, stop: int) -> ParsedSplit:
    """Rows [start, stop) as views of the split's arrays; only offsets of lists are new. `malformed` stays whole.

    Raises ProtocolError when the range is not within the split.
    """
    if not 0 <= start <= stop <= split.rows:
        raise ProtocolError(
            f"rows [{start}, {stop}) asked of split {split.ref.position}, which has {split.rows} good rows"
        )
    return replace(
        split,
        labels=split.labels[start:stop],
        weights=None if split.weights is None else split.weights[start:stop],
        dense=split.dense[start:stop],
        sparse=tuple(slice_rows(jagged, start, stop) for jagged in split.sparse),
        gauc_ids=None if split.gauc_ids is None else split.gauc_ids[start:stop],
    )
