"""One group's leased rows in a tower: the buffer, its slots, and what a step does with them.

The policies of the group hold here as they do on the servers: keys without a row read zeros and are counted, rows count
shows and clicks.
"""

from __future__ import annotations

import numpy as np
import torch

from hetero.embedding.policies.admission import rule, units_of
from hetero.kernels.admission import count_slots_kernel, open_slots_kernel
from hetero.kernels.leased import gather_kernel, scatter_kernel, update_slots_kernel
from hetero.kernels.optimizers import update_room
from hetero.kernels.rows import over_rows
from hetero.kernels.statistics import count_uses_kernel, decay_powers
from hetero.keys.numbering import grown
from hetero.keys.routing import mixed_seeds
from hetero.keys.windows import GroupMoves
from hetero.optim.definition import KIND, hyper_array, lease_width, row_width
from hetero.records import F32, I32, Clock, GroupSpec, KeySet

_BLOCK_ROWS = 2048
"""Fewer rows are not worth waking a thread for."""


class LeasedGroup:
    """The leased rows of one group, float32 [slots, W], as `hetero.optim.definition.lease_width` has them."""

    def __init__(self, spec: GroupSpec, *, clock: Clock | None = None) -> None:
        self.dim = spec.dim
        self._spec = spec
        self._width = lease_width(spec)
        self._clock = clock
        self._admission = rule(spec.admission) if spec.admission else None
        self._seeds = mixed_seeds([spec])
        self._powers = decay_powers(spec.eviction.decay) if spec.eviction else None
        self._first_statistic = row_width(spec.optimizer, spec.dim)
        self._kind = KIND[spec.optimizer.kind]
        self._hyper = hyper_array(spec.optimizer)
        self._buffer = np.empty((0, self._width), np.float32)
        self._tables = np.empty(0, np.uint16)
        self._keys = np.empty(0, np.uint64)
        self._filled = np.empty(0, np.bool_)

    def take_out(self, moves: GroupMoves) -> F32:
        """Copies of the rows that leave, float32 [n, W]; their slots are free."""
        self._filled[moves.leave_slots] = False
        return self._gather(moves.leave_slots, self._width)

    def put_in(self, moves: GroupMoves, rows: F32) -> None:
        """Let the rows that enter take their slots."""
        if moves.capacity > len(self._buffer):
            larger = np.empty((max(moves.capacity, len(self._buffer) * 5 // 4), self._width), np.float32)
            larger[: len(self._buffer)] = self._buffer
            self._buffer = larger
            self._tables, self._keys = grown(self._tables, len(larger)), grown(self._keys, len(larger))
            self._filled = grown(self._filled, len(larger))
        slots = moves.enter_slots
        self._tables[slots], self._keys[slots] = moves.enter.tables, moves.enter.keys
        self._filled[slots] = True
        scatter_kernel(self._buffer, moves.enter_slots, rows)

    def held(self) -> tuple[KeySet, F32]:
        """All leased rows: their keys, and copies float32 [n, W]."""
        return self.held_keys(), self._gather(self._filled_slots(), self._width)

    def held_keys(self) -> KeySet:
        """The keys of all leased rows."""
        slots = self._filled_slots()
        return KeySet(self._tables[slots], self._keys[slots])

    def put_back(self, rows: F32) -> None:
        """Let rows float32 [n, W] take the slots that are filled, in the order of `held`."""
        scatter_kernel(self._buffer, self._filled_slots(), rows)

    def weights(self, slots: I32) -> F32:
        """Weights at slots that a step reads, float32 [n, E]; zeros for keys that have no row yet."""
        out = self._gather(slots, self.dim)
        if self._admission is not None:
            after, bound = self._admission
            open_slots_kernel(self._buffer, slots, self._tables, self._keys, self._seeds, after, bound, out)
        return out

    def update(self, slots: I32, gradients: F32, *, step: int) -> I32:
        """Apply gradients float32 [n, E] to distinct slots, or [n, E + 2] with shows and clicks.

        Returns positions of those not finite, left as they are. Keys without a row are counted.
        """
        places = None
        if self._spec.admission is not None:
            have = np.empty(len(slots), np.int32)
            units = units_of(self._spec.admission, gradients[:, self.dim :])
            places = have[: count_slots_kernel(self._buffer, slots, units, have)]
            slots, gradients = slots[places], gradients[places]
        if self._powers is not None:
            day = self._clock.day_of(step) if self._clock else 0
            counts = np.ascontiguousarray(gradients[:, self.dim :])
            count_uses_kernel(self._buffer, slots, self._first_statistic, counts, day, self._powers)
        if gradients.shape[1] > self.dim:
            gradients = np.ascontiguousarray(gradients[:, : self.dim])
        rejected = self._apply(slots, gradients)
        return rejected if places is None else places[rejected]

    @property
    def leased_bytes(self) -> int:
        return self._buffer.nbytes

    def _apply(self, slots: I32, gradients: F32) -> I32:
        """Apply gradients float32 [n, E]; positions of those not finite, ascending."""
        bad: dict[int, I32] = {}

        def part(start: int, stop: int) -> None:
            rejected = np.empty(stop - start, np.int32)
            room = update_room(self.dim)
            own, given = slots[start:stop], gradients[start:stop]
            count = update_slots_kernel(self._buffer, own, given, self._kind, self._hyper, rejected, room)
            if count:
                bad[start] = rejected[:count] + np.int32(start)

        over_rows(part, len(slots), threads=torch.get_num_threads(), block=_BLOCK_ROWS)
        return np.concatenate([np.empty(0, np.int32), *(bad[start] for start in sorted(bad))])

    def _filled_slots(self) -> I32:
        return np.flatnonzero(self._filled).astype(np.int32)

    def _gather(self, slots: I32, columns: int) -> F32:
        out = np.empty((len(slots), columns), np.float32)
        over_rows(
            lambda start, stop: gather_kernel(self._buffer, slots[start:stop], out[start:stop]),
            len(slots),
            threads=torch.get_num_threads(),
            block=_BLOCK_ROWS,
        )
        return out
