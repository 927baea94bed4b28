"""One group's leased rows in the host memory of a tower: one array by slot, worked on by CPU kernels."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from hetero.exchange.held_rows import Arrived, HeldPolicies, Rejected, SlotKeys
from hetero.exchange.messages import Done, Pending
from hetero.kernels.leased import gather_kernel, merge_kernel, scatter_rows, update_slots_kernel
from hetero.kernels.optimizers import update_room
from hetero.kernels.rows import over_rows
from hetero.keys.windows import GroupMoves
from hetero.optim.definition import KIND, hyper_array, lease_width, row_width
from hetero.records import F32, I32, Clock, GroupSpec, KeySet

_BLOCK_ROWS = 2048
"""Fewer rows are not worth waking a thread for."""


class LeasedGroup:
    """A HeldGroup of arrays; its tensors share their memory."""

    def __init__(self, spec: GroupSpec, *, clock: Clock | None = None) -> None:
        self.dim = spec.dim
        self._width = lease_width(spec)
        self._policies = HeldPolicies(spec, clock=clock, first=row_width(spec.optimizer, spec.dim))
        self._kind = KIND[spec.optimizer.kind]
        self._hyper = hyper_array(spec.optimizer)
        self._buffer = np.empty((0, self._width), np.float32)
        self._keys = SlotKeys()

    def take_out(self, moves: GroupMoves) -> Pending[F32]:
        self._keys.leave(moves)
        return Done(self._gather(moves.leave_slots, self._width))

    def put_in(self, moves: GroupMoves, arrived: Arrived) -> None:
        if moves.capacity > len(self._buffer):
            larger = np.empty((max(moves.capacity, len(self._buffer) * 5 // 4), self._width), np.float32)
            larger[: len(self._buffer)] = self._buffer
            self._buffer = larger
            self._keys.grow(len(larger))
        self._keys.enter(moves)
        scatter_rows(self._buffer, moves.enter_slots, arrived.rows)

    def held(self) -> tuple[KeySet, F32]:
        return self._keys.held(), self._gather(self._keys.slots(), self._width)

    def held_keys(self) -> KeySet:
        return self._keys.held()

    def put_back(self, rows: F32) -> None:
        scatter_rows(self._buffer, self._keys.slots(), rows)

    def weights(self, slots: I32) -> Tensor:
        out = self._gather(slots, self.dim)
        if self._policies.admits:
            self._policies.open(self._buffer, slots, self._keys, out)
        return torch.from_numpy(out)

    def picked(self, rows: Tensor, order: I32) -> Tensor:
        return torch.from_numpy(rows.numpy()[order])

    def placed(self, rows: Tensor, order: I32) -> Tensor:
        out = np.empty(tuple(rows.shape), np.float32)
        out[order] = rows.numpy()
        return torch.from_numpy(out)

    def merged(self, gradients: Tensor, local: I32, count: int) -> Tensor:
        out = np.zeros((count, gradients.shape[1]), np.float32)
        merge_kernel(local, gradients.numpy(), out)
        return torch.from_numpy(out)

    def update(self, slots: I32, gradients: Tensor, *, step: int) -> Rejected:
        given: F32 = gradients.numpy()
        have = None
        if self._policies.counts:
            have = self._policies.count(self._buffer, slots, given[:, self.dim :], step=step)
        if have is not None:
            slots, given = slots[have], given[have]
        if given.shape[1] > self.dim:
            given = np.ascontiguousarray(given[:, : self.dim])
        rejected = self._apply(slots, given)
        return Rejected(rejected if have is None else have[rejected])

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

    def _gather(self, slots: I32, columns: int) -> F32:
        out = np.empty((len(slots), columns), np.float32)
        over_rows(
            lambda start, stop: gather_kernel(self._buffer, slots[start:stop], out[start:stop]),
            len(slots),
            threads=torch.get_num_threads(),
            block=_BLOCK_ROWS,
        )
        return out
