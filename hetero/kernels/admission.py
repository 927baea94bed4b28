"""Which keys get a row: by how often they were seen, or by a hash of seed, key and how often. No generator, no order.

    by count          seen for the `after`-th time, or later
    by probability    mix64((mix64(key ^ seed) + seen * GOLDEN) ^ SALT) < bound, in each step that sees it
    by score          never in a step: `after` is above all counts, and servers look when a day begins

`seen` counts steps, from 1, or units of score, up to MOST_SEEN. What is decided is the same wherever it is counted, on
a server or by the tower that leases the key.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hetero.kernels.jit import inline, kernel
from hetero.kernels.mix import GOLDEN, mix64
from hetero.records import F32, I32, U16, U64

MOST_SEEN = 1023
_SALT = np.uint64(0xA0761D6478BD642F)
_LIMIT = np.uint16(MOST_SEEN)


@inline
def admits(seen: np.uint16, mixed_seed: np.uint64, key: np.uint64, after: int, bound: np.uint64) -> bool:
    """Whether a key gets its row in a step that sees it for this time. after: 0 for admission by probability.

    mixed_seed: mix64 of the table's seed.
    """
    if after > 0:
        return bool(seen >= after)
    return bool(mix64((mix64(key ^ mixed_seed) + np.uint64(seen) * GOLDEN) ^ _SALT) < bound)


@kernel
def admitted_kernel(
    tables: U16, keys: U64, seen: U16, seeds: U64, after: int, bound: np.uint64, out: npt.NDArray[np.bool_]
) -> None:
    """out[i] = whether a key that was seen so often before gets a row in the step that sees it now."""
    for i in range(len(keys)):
        now = min(seen[i] + np.uint16(1), _LIMIT)
        out[i] = admits(np.uint16(now), seeds[tables[i]], keys[i], after, bound)


@kernel
def open_slots_kernel(
    buffer: F32, slots: I32, tables: U16, keys: U64, seeds: U64, after: int, bound: np.uint64, out: F32
) -> None:
    """A step reads leased rows: keys that get their row now have one from here on, the others read zeros.

    buffer: float32 [slots, W + 1], the last column 0 for keys with a row, else 1 + the steps that saw them. tables,
    keys: by slot. slots int32 [n]; out float32 [n, E] holds the rows' weights.
    """
    last = buffer.shape[1] - 1
    for i in range(len(slots)):
        slot = slots[i]
        seen = np.int64(buffer[slot, last])
        if seen == 0:
            continue
        if admits(np.uint16(min(int(seen), MOST_SEEN)), seeds[tables[slot]], keys[slot], after, bound):
            buffer[slot, last] = np.float32(0)
        else:
            for j in range(out.shape[1]):
                out[i, j] = np.float32(0)


@kernel
def count_slots_kernel(buffer: F32, slots: I32, units: U16, have: I32) -> int:
    """A step is over: add its units, uint16 [n], for keys without a row. Positions of the slots that have one go into
    have, int32 [n]; returns how many those are.
    """
    last = buffer.shape[1] - 1
    found = 0
    for i in range(len(slots)):
        seen = buffer[slots[i], last]
        if seen == np.float32(0):
            have[found] = i
            found += 1
        else:
            buffer[slots[i], last] = min(seen + np.float32(units[i]), np.float32(MOST_SEEN + 1))
    return found
