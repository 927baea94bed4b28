"""Unique rows of a batch with the inverse, in order of first occurrence, by open addressing in a scratch table.

Contract: occurrences (table uint16 [N], key uint64 [N]) -> unique tables [U], keys [U], local int32 [N] with
unique[local[i]] == occurrence i, unique rows in order of first occurrence.

A slot holds the number of a unique row, from 1, in its low bits, and bits of the row's hash above them, so that most
rows of other hashes are told apart without looking at their keys. Work goes in blocks, in passes whose branches a CPU
can guess: hash all and ask for their slots; compare all with the row at their first slot, where most duplicates are
found; then find or enter the others, most of which are new.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hetero.kernels.address import prefetch
from hetero.kernels.jit import always_inline, kernel
from hetero.kernels.mix import GOLDEN, mix64
from hetero.records import I32, U16, U64

U32 = npt.NDArray[np.uint32]
_BLOCK = 64
_EMPTY = np.uint32(0)


@kernel
def dedup_kernel(
    tables: U16, keys: U64, slots: U32, number_bits: int, unique_tables: U16, unique_keys: U64, local: I32
) -> int:
    """Fill unique_tables, unique_keys [N + 1] from place 1 on, and local [N].

    Returns U, or -1 when over a quarter of the slots would fill. slots: uint32, a power of two of them, overwritten.
    number_bits: enough for N + 1.
    """
    different = np.uint16(0)
    for i in range(len(tables)):
        different |= tables[i] ^ tables[0]
    if different:
        return _dedup(tables, keys, slots, number_bits, unique_tables, unique_keys, local, False)
    unique = _dedup(tables, keys, slots, number_bits, unique_tables, unique_keys, local, True)
    for i in range(1, unique + 1):
        unique_tables[i] = tables[0]
    return unique


@always_inline
def _dedup(
    tables: U16,
    keys: U64,
    slots: U32,
    number_bits: int,
    unique_tables: U16,
    unique_keys: U64,
    local: I32,
    one_table: bool,
) -> int:
    """See `dedup_kernel`. one_table: all rows are of one table; then tables are neither looked at nor written."""
    mask = np.uint64(len(slots) - 1)
    number_mask = np.uint32((1 << number_bits) - 1)
    tag_mask = ~number_mask
    first_slot = np.uint64(slots.ctypes.data)
    hashes, others = np.empty(_BLOCK, np.uint64), np.empty(_BLOCK, np.uint64)
    for every in range(len(slots)):
        slots[every] = _EMPTY
    unique = np.uint32(0)
    for start in range(0, len(keys), _BLOCK):
        count = min(_BLOCK, len(keys) - start)
        if 4 * (np.int64(unique) + count) > len(slots):
            return -1
        for i in range(count):
            at = np.uint64(start + i)  # unsigned, here and below: a signed index is first checked for being negative
            table = np.uint16(0) if one_table else tables[at]
            hashed = mix64(keys[at] ^ (np.uint64(table) * GOLDEN))
            hashes[np.uint64(i)] = hashed
            prefetch(first_slot + np.uint64(4) * (hashed & mask))
        left = np.uint64(0)
        for i in range(count):
            at = np.uint64(start + i)
            slot = slots[hashes[np.uint64(i)] & mask]
            found = np.uint64(slot & number_mask)
            same = (unique_keys[found] == keys[at]) & (slot != _EMPTY)
            if not one_table:
                same &= unique_tables[found] == tables[at]
            local[at] = np.int32(found) - np.int32(1)
            others[left] = np.uint64(i)
            left += np.uint64(not same)
        for other in range(left):
            i = others[np.uint64(other)]
            at, hashed = np.uint64(start) + i, hashes[i]
            key = keys[at]
            table = np.uint16(0) if one_table else tables[at]
            tag = np.uint32(hashed >> np.uint64(32)) & tag_mask
            place = hashed & mask
            slot = slots[place]
            while slot != _EMPTY:
                found = np.uint64(slot & number_mask)
                same = slot & tag_mask == tag and unique_keys[found] == key
                if same and (one_table or unique_tables[found] == table):
                    local[at] = np.int32(found) - np.int32(1)
                    break
                place = (place + np.uint64(1)) & mask
                slot = slots[place]
            else:
                unique += np.uint32(1)
                if not one_table:
                    unique_tables[np.uint64(unique)] = table
                unique_keys[np.uint64(unique)] = key
                local[at] = np.int32(unique) - np.int32(1)
                slots[place] = tag | unique
    return np.int64(unique)  # type: ignore[return-value]


def dedup_reference(tables: U16, keys: U64) -> tuple[U16, U64, I32]:
    """The contract in numpy: unique tables, keys and local."""
    pairs = np.empty(len(keys), [("table", np.uint16), ("key", np.uint64)])
    pairs["table"], pairs["key"] = tables, keys
    unique, first, inverse = np.unique(pairs, return_index=True, return_inverse=True)
    order = np.argsort(first, kind="stable")
    rank = np.empty(len(order), np.int32)
    rank[order] = np.arange(len(order), dtype=np.int32)
    return unique["table"][order], unique["key"][order], rank[inverse]
