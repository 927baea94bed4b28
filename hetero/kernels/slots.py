"""Where keys stand in a sorted file: keys in order of their mix, with the first position of every slot.

    mixed = mix64(key ^ mixed_seed), slot = mixed >> shift        keys    [ k0 k1 | k2 | | k3 k4 k5 | ... ]
    slot s holds keys[starts[s]:starts[s + 1]]                    starts  [ 0, 2, 3, 3, 6, ... ]

Mixed keys are spread evenly whatever the keys are, so a slot is short and a lookup touches two places of the file.
"""

from __future__ import annotations

import numpy as np

from hetero.kernels.jit import kernel
from hetero.kernels.mix import mix64, mix64_reference
from hetero.records import I64, U64


@kernel
def find_in_slots(keys: U64, starts: I64, shift: np.uint64, mixed_seed: np.uint64, wanted: U64, found: I64) -> None:
    """found[i] = position of wanted[i] in keys, -1 where it is not. shift = 64 - log2(slots); at least two slots."""
    for i in range(len(wanted)):
        key = wanted[i]
        slot = mix64(key ^ mixed_seed) >> shift
        found[i] = -1
        for position in range(starts[slot], starts[slot + np.uint64(1)]):
            if keys[position] == key:
                found[i] = position
                break


def find_in_slots_reference(keys: U64, wanted: U64) -> I64:
    """What `find_in_slots` must find, in plain Python."""
    places = {key: position for position, key in enumerate(keys.tolist())}
    return np.array([places.get(key, -1) for key in wanted.tolist()], np.int64)


def slot_bits(rows: int) -> int:
    """log2 of the number of slots for a table of so many rows: about 4 to 8 rows a slot, at least two slots."""
    return max(1, (rows // 4).bit_length() - 1)


def slot_counts(keys: U64, *, mixed_seed: int, bits: int) -> I64:
    """How many of the keys each slot gets, int64 [2 ** bits]."""
    slots = mix64_reference(keys ^ np.uint64(mixed_seed)) >> np.uint64(64 - bits)
    return np.bincount(slots.astype(np.int64), minlength=1 << bits)
