"""Unique rows of a batch with the inverse, in order of first occurrence, by open addressing in a scratch table.

Contract: occurrences (table uint16 [N], key uint64 [N]) -> unique tables [U], keys [U], local int32 [N] with
unique[local[i]] == occurrence i, unique rows in order of first occurrence.

The scratch table is reused: a slot holds the number of the call that wrote it, so nothing is cleared between calls.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hetero.kernels.jit import kernel
from hetero.kernels.mix import GOLDEN, mix64
from hetero.records import I32, U16, U64

U32 = npt.NDArray[np.uint32]


@kernel
def dedup_kernel(
    tables: U16, keys: U64, stamps: U32, slots: I32, stamp: np.uint32, unique_tables: U16, unique_keys: U64, local: I32
) -> int:
    """Fill unique_tables, unique_keys [>= U] and local [N]; returns U.

    stamps, slots: the scratch table, a power of two of at least 2 N entries. stamp: unlike those of earlier calls.
    """
    mask = np.uint64(len(slots) - 1)
    unique = 0
    for i in range(len(keys)):
        key = keys[i]
        table = tables[i]
        at = mix64(key ^ (np.uint64(table) * GOLDEN)) & mask
        while True:
            if stamps[at] != stamp:
                stamps[at] = stamp
                slots[at] = unique
                unique_tables[unique] = table
                unique_keys[unique] = key
                local[i] = unique
                unique += 1
                break
            found = slots[at]
            if unique_keys[found] == key and unique_tables[found] == table:
                local[i] = found
                break
            at = (at + np.uint64(1)) & mask
    return unique


def dedup_reference(tables: U16, keys: U64) -> tuple[U16, U64, I32]:
    """The contract in numpy: unique tables, keys and local."""
    pairs = np.empty(len(keys), [("table", np.uint16), ("key", np.uint64)])
    pairs["table"], pairs["key"] = tables, keys
    unique, first, inverse = np.unique(pairs, return_index=True, return_inverse=True)
    order = np.argsort(first, kind="stable")
    rank = np.empty(len(order), np.int32)
    rank[order] = np.arange(len(order), dtype=np.int32)
    return unique["table"][order], unique["key"][order], rank[inverse]
