"""Entries of an index without rows: a uint16 of its own beside each (table, key). See `hetero.kernels.index`."""

from __future__ import annotations

import numpy as np

from hetero.kernels.address import uint16_at, uint64_at
from hetero.kernels.index import HEADER_BYTES
from hetero.kernels.jit import kernel
from hetero.records import U16, U64


@kernel
def entries_kernel(shards: U64, shard: int, tables: U16, keys: U64, words: U16) -> None:
    """Copy all entries of a shard of width 0 out, [n] each."""
    for i in range(len(keys)):
        record = shards[shard, 2] + np.uint64(i * HEADER_BYTES)
        keys[i] = uint64_at(record, 1)[0]
        table_and_word = uint16_at(record + np.uint64(8), 2)
        tables[i] = table_and_word[0]
        words[i] = table_and_word[1]
