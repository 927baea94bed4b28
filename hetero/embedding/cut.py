"""A consistent cut of a store's rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from hetero.records import F32, KeySet


@dataclass(frozen=True, slots=True)
class RowChunk:
    """Some rows of a store: rows float32 [n, W]; statistics by name, one array [n] each, where there are any."""

    keys: KeySet
    rows: F32
    statistics: Mapping[str, np.ndarray] = field(default_factory=dict)


RowChunks = Iterator[RowChunk]
