"""Which server holds which of a batch's unique rows: buckets, and a stable partition by owner."""

from __future__ import annotations

import numpy as np

from hetero.kernels.jit import kernel
from hetero.kernels.mix import mix64
from hetero.records import I32, I64, U16, U64


@kernel
def owners_kernel(tables: U16, keys: U64, mixed_seeds: U64, shift: np.uint64, owner_of: I32, owners: I32) -> None:
    """owners[i] = owner_of[bucket of row i]. mixed_seeds [tables of the job]; shift = 64 - log2(buckets)."""
    for i in range(len(keys)):
        owners[i] = owner_of[mix64(keys[i] ^ mixed_seeds[tables[i]]) >> shift]


@kernel
def partition_kernel(
    tables: U16, keys: U64, owners: I32, starts: I64, positions: I32, out_tables: U16, out_keys: U64
) -> None:
    """Move rows to their owner's part, in their own order. starts int64 [owners]: where each part begins, advanced."""
    for i in range(len(keys)):
        at = starts[owners[i]]
        starts[owners[i]] = at + 1
        positions[at] = i
        out_tables[at] = tables[i]
        out_keys[at] = keys[i]
