"""One group's leased rows on a device: weights and optimizer state as two tensors by slot, updated there.

What rows count for policies lies in host memory, where the counting is: those columns are narrow, and a batch's shows
and clicks come from the host. Jobs with policies wait for the device once a step for that.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from hetero.exchange.device_copies import Copies, Landing, on_host
from hetero.exchange.held_rows import Arrived, HeldPolicies, Rejected, Rejections, SlotKeys
from hetero.exchange.messages import Pending
from hetero.kernels import pooling_torch
from hetero.keys.numbering import grown
from hetero.keys.windows import GroupMoves
from hetero.optim.definition import lease_width, row_width
from hetero.optim.device_path import RowUpdate
from hetero.records import F32, I32, Clock, GroupSpec, KeySet


@dataclass(frozen=True, slots=True)
class _Leaving:
    """Rows on their way to the host. counted: what they count, float32 [n, P]."""

    landing: Landing
    counted: F32

    def result(self) -> F32:
        rows: F32 = self.landing.result()
        return np.concatenate([rows, self.counted], axis=1) if self.counted.shape[1] else rows


@dataclass(frozen=True, slots=True)
class _Judged:
    """Rejections on their way to the host. have: the positions that were updated; None for all."""

    landing: Landing
    have: I32 | None

    def here(self) -> bool:
        return self.landing.here()

    def result(self) -> I32:
        bad = np.flatnonzero(self.landing.result()).astype(np.int32)
        return bad if self.have is None else self.have[bad]


class DeviceGroup:
    """A HeldGroup of tensors: weights float32 [slots, E], state float32 [slots, S]."""

    def __init__(self, spec: GroupSpec, *, copies: Copies, clock: Clock | None = None) -> None:
        self.dim = spec.dim
        self.update_rows = RowUpdate(spec.optimizer, copies.device)
        self._copies = copies
        self._width = row_width(spec.optimizer, spec.dim)
        self._policies = HeldPolicies(spec, clock=clock, first=0)
        self._weights = torch.empty((0, self.dim), device=copies.device)
        self._state = torch.empty((0, self._width - self.dim), device=copies.device)
        self._counted = np.empty((0, lease_width(spec) - self._width), np.float32)
        self._keys = SlotKeys()
        self._latest: tuple[I32, Tensor] | None = None

    def bring(self, rows: F32) -> Arrived:
        """Begin to bring rows that will enter, float32 [n, W]."""
        rows = np.array(rows)  # what came may be in the object store, which is not to be kept waiting
        parts = [rows[:, : self.dim], rows[:, self.dim : self._width]]
        return Arrived(rows, self._copies.bring(parts))

    def take_out(self, moves: GroupMoves) -> Pending[F32]:
        self._keys.leave(moves)
        return _Leaving(self._leaving(moves.leave_slots), self._counted[moves.leave_slots])

    def put_in(self, moves: GroupMoves, arrived: Arrived) -> None:
        if moves.capacity > len(self._weights):
            self._grow(moves.capacity)
        self._keys.enter(moves)
        brought = arrived.on_device
        assert brought is not None
        self._put(moves.enter_slots, brought.take(), arrived.rows)

    def held(self) -> tuple[KeySet, F32]:
        slots = self._keys.slots()
        return self._keys.held(), _Leaving(self._leaving(slots), self._counted[slots]).result()

    def held_keys(self) -> KeySet:
        return self._keys.held()

    def put_back(self, rows: F32) -> None:
        brought = self.bring(rows).on_device
        assert brought is not None
        self._put(self._keys.slots(), brought.take(), rows)

    def weights(self, slots: I32) -> Tensor:
        rows = self._weights.index_select(0, self._index(slots))
        if not self._policies.admits:
            return rows
        opened = np.ones((len(slots), 1), np.float32)
        self._policies.open(self._counted, slots, self._keys, opened)
        return torch.where(self._copies.here(opened) > 0, rows, 0.0)

    def picked(self, rows: Tensor, order: I32) -> Tensor:
        return rows.index_select(0, self._copies.here(order))

    def placed(self, rows: Tensor, order: I32) -> Tensor:
        return torch.empty_like(rows).index_copy_(0, self._copies.here(order).long(), rows)

    def merged(self, gradients: Tensor, local: I32, count: int) -> Tensor:
        terms = [(self._copies.here(local).long(), gradients)]
        return pooling_torch.merge_contributions(terms, unique=count, width=gradients.shape[1])

    def update(self, slots: I32, gradients: Tensor, *, step: int) -> Rejections:
        if not len(slots):
            return Rejected(np.empty(0, np.int32))
        index, have = self._index(slots), None
        if self._policies.counts:
            uses = on_host([gradients[:, self.dim :]])[0]
            have = self._policies.count(self._counted, slots, uses, step=step)
        if have is not None:
            chosen = self._copies.here(have)
            index, gradients = index.index_select(0, chosen), gradients.index_select(0, chosen)
        if gradients.shape[1] > self.dim:
            gradients = gradients[:, : self.dim].contiguous()
        rejected = self.update_rows(self._weights, self._state, index, gradients)
        return _Judged(self._copies.send(rejected), have)

    def _leaving(self, slots: I32) -> Landing:
        """Copies of weights and state, float32 [n, E + S], on their way to the host."""
        index = self._copies.here(slots)
        rows = [part.index_select(0, index) for part in (self._weights, self._state)]
        return self._copies.send(torch.cat(rows, dim=1))

    def _put(self, slots: I32, parts: tuple[Tensor, ...], rows: F32) -> None:
        index = self._copies.here(slots).long()
        self._weights.index_copy_(0, index, parts[0])
        self._state.index_copy_(0, index, parts[1])
        self._counted[slots] = rows[:, self._width :]

    def _grow(self, slots: int) -> None:
        """Have room for exactly so many: windows are cut for a device's memory (`hetero.exchange.window_size`)."""
        self._weights, self._state = _longer(self._weights, slots), _longer(self._state, slots)
        self._counted = grown(self._counted, slots)
        self._keys.grow(slots)

    def _index(self, slots: I32) -> Tensor:
        """Slots on the device. A step's gather and update ask for the same ones."""
        if self._latest is None or self._latest[0] is not slots:
            self._latest = slots, self._copies.here(slots)
        return self._latest[1]


def _longer(rows: Tensor, slots: int) -> Tensor:
    larger = rows.new_empty((slots, rows.shape[1]))
    larger[: len(rows)] = rows
    return larger
