"""Which server holds which of a batch's unique rows: buckets, and a stable partition by owner. And rows spread over
the files of a snapshot."""

from __future__ import annotations

import numpy as np

from hetero.kernels.jit import kernel
from hetero.kernels.mix import mix64
from hetero.records import F32, I32, I64, U16, U64


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


@kernel
def spread_kernel(
    tables: U16,
    keys: U64,
    rows: F32,
    start: int,
    parts: I32,
    fill: I64,
    out_tables: U16,
    out_keys: U64,
    out_rows: F32,
    places: I64,
) -> int:
    """Append rows from `start` on to their parts' buffers until one of those is full; returns where that was.

    rows float32 [n, W]; parts int32 [n]; fill int64 [parts], rows in each buffer; out_* [parts, room] and [parts, room,
    W]. places int64 [n]: part * room + position of each row taken.
    """
    room = out_keys.shape[1]
    for i in range(start, len(keys)):
        part = parts[i]
        at = fill[part]
        if at == room:
            return i
        fill[part] = at + 1
        places[i] = np.int64(part) * room + at
        out_tables[part, at] = tables[i]
        out_keys[part, at] = keys[i]
        for j in range(rows.shape[1]):
            out_rows[part, at, j] = rows[i, j]
    return len(keys)
