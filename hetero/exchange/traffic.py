"""Bytes a tower moved to and from servers and other towers, by path: payload of keys, rows and dense values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass

from hetero.records import F32, KeySet


@dataclass(slots=True)
class Traffic:
    """pulled: rows fetched, with the keys that asked for them. pushed: gradients, differences or returned rows, with
    keys. dense_pulled, dense_pushed: dense parameters from servers, and their gradients or differences to them.
    swapped: rows and gradients sent to other towers of a window (`LeasedRows`). dense_summed: dense gradients this
    tower gave to the sum over towers. to_device, from_device: rows, indices and gradients' outcomes copied between host
    and the device that holds a tower's rows.
    """

    pulled: int = 0
    pushed: int = 0
    swapped: int = 0
    dense_pulled: int = 0
    dense_pushed: int = 0
    dense_summed: int = 0
    to_device: int = 0
    from_device: int = 0

    def to_dict(self) -> dict[str, int]:
        return asdict(self)


def bytes_of(parts: Iterable[KeySet | F32]) -> int:
    """Bytes of the arrays."""
    return sum(part.tables.nbytes + part.keys.nbytes if isinstance(part, KeySet) else part.nbytes for part in parts)


def total_traffic(parts: Sequence[Mapping[str, int]]) -> dict[str, int]:
    """Bytes of several towers together, by path."""
    return {path: sum(part.get(path, 0) for part in parts) for path in Traffic().to_dict()} if parts else {}
