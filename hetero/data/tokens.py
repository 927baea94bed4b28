"""A column of token ids to a matrix: texts cut to one length, filled up behind their end."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from hetero.data.faults import RowFaults
from hetero.data.ids import list_keys
from hetero.records import I32, NO_TOKEN, IdKind, SparseFeature, TextFeature


def token_rows(array: pa.Array, *, feature: TextFeature, faults: RowFaults) -> I32:
    """The first `length` ids of each row, NO_TOKEN behind them: int32 [rows, length]. A missing list is an empty text.

    A row with something that is no id below `vocabulary` is marked as a fault.
    """
    jagged = list_keys(array, feature=as_ids(feature), faults=faults)
    offsets = np.zeros(len(array) + 1, np.int32) if jagged.offsets is None else jagged.offsets
    lengths = np.diff(offsets)
    owner = np.repeat(np.arange(len(array)), lengths)
    outside = np.flatnonzero(jagged.keys >= np.uint64(feature.vocabulary))
    if len(outside):
        worst = dict(zip(owner[outside][::-1].tolist(), jagged.keys[outside][::-1].tolist(), strict=True))
        bad = np.zeros(len(array), np.bool_)
        bad[list(worst)] = True
        faults.mark(
            bad,
            describe=lambda row: (
                f"column '{feature.column}': token {np.uint64(worst[row]).astype(np.int64)} is not from 0 to "
                f"{feature.vocabulary - 1}; text feature '{feature.name}' has a vocabulary of {feature.vocabulary}"
            ),
        )
    tokens = np.full((len(array), feature.length), NO_TOKEN, np.int32)
    place = np.arange(len(jagged.keys)) - np.repeat(offsets[:-1], lengths)
    kept = (place < feature.length) & (jagged.keys < np.uint64(feature.vocabulary))
    tokens[owner[kept], place[kept]] = jagged.keys[kept].astype(np.int32)
    return tokens


def as_ids(feature: TextFeature) -> SparseFeature:
    """The column as a list of integers, which is how it is read and checked."""
    return SparseFeature(
        name=feature.name, column=feature.column, ids=IdKind.INTEGER, is_list=True, separator=feature.separator
    )
