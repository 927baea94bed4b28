"""What a tower's leased rows are to the windows that lead them, whether they lie in host memory or on a device.

Rows are numbered by slots, which the sequencer gives out. Here, beside what holds them: the keys in the slots, and the
policies of a group, which hold on a tower as they do on the servers: keys without a row read zeros and are counted,
rows count shows and clicks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from torch import Tensor

from hetero.embedding.policies.admission import rule, units_of
from hetero.exchange.device_copies import Brought
from hetero.exchange.messages import Pending
from hetero.kernels.admission import count_slots_kernel, open_slots_kernel
from hetero.kernels.statistics import count_uses_kernel, decay_powers
from hetero.keys.numbering import grown
from hetero.keys.routing import mixed_seeds
from hetero.keys.windows import GroupMoves
from hetero.records import F32, I32, Clock, GroupSpec, KeySet


@dataclass(frozen=True, slots=True)
class Arrived:
    """Rows of one group that enter, float32 [n, W] in host memory. on_device: their weights [n, E] and state, on the
    way to the tower's device where it holds them."""

    rows: F32
    on_device: Brought | None = None


class Rejections(Protocol):
    """Which rows of an update were left as they are, since their gradients were not finite."""

    def here(self) -> bool:
        """Whether `result` would not wait."""

    def result(self) -> I32:
        """Positions among the updated rows, ascending."""


@dataclass(frozen=True, slots=True)
class Rejected:
    """Rejections that are known."""

    positions: I32

    def here(self) -> bool:
        return True

    def result(self) -> I32:
        return self.positions


class HeldGroup(Protocol):
    """The leased rows of one group, float32 [slots, W], as `hetero.optim.definition.lease_width` has them."""

    def take_out(self, moves: GroupMoves) -> Pending[F32]:
        """Copies of the rows that leave, float32 [n, W]; their slots are free."""

    def put_in(self, moves: GroupMoves, arrived: Arrived) -> None:
        """Let the rows that enter take their slots."""

    def held(self) -> tuple[KeySet, F32]:
        """All leased rows: their keys, and copies float32 [n, W]."""

    def held_keys(self) -> KeySet:
        """The keys of all leased rows."""

    def put_back(self, rows: F32) -> None:
        """Let rows float32 [n, W] take the slots that are filled, in the order of `held`."""

    def weights(self, slots: I32) -> Tensor:
        """Weights at slots that a step reads, float32 [n, E]; zeros for keys that have no row yet."""

    def picked(self, rows: Tensor, order: I32) -> Tensor:
        """rows[order]."""

    def placed(self, rows: Tensor, order: I32) -> Tensor:
        """The rows of which `picked` by the same order gives `rows`."""

    def merged(self, gradients: Tensor, local: I32, count: int) -> Tensor:
        """Sums over equal numbers in local int32 [n], in order of occurrence: float32 [count, E]."""

    def update(self, slots: I32, gradients: Tensor, *, step: int) -> Rejections:
        """Apply gradients float32 [n, E] to distinct slots, or [n, E + 2] with shows and clicks.

        Those not finite are left as they are. Keys without a row are counted.
        """


class SlotKeys:
    """Which keys are in which slots."""

    def __init__(self) -> None:
        self.tables = np.empty(0, np.uint16)
        self.keys = np.empty(0, np.uint64)
        self._filled = np.empty(0, np.bool_)

    def grow(self, slots: int) -> None:
        """Have room for so many."""
        self.tables, self.keys = grown(self.tables, slots), grown(self.keys, slots)
        self._filled = grown(self._filled, slots)

    def leave(self, moves: GroupMoves) -> None:
        self._filled[moves.leave_slots] = False

    def enter(self, moves: GroupMoves) -> None:
        slots = moves.enter_slots
        self.tables[slots], self.keys[slots] = moves.enter.tables, moves.enter.keys
        self._filled[slots] = True

    def slots(self) -> I32:
        """Those that are filled, ascending."""
        return np.flatnonzero(self._filled).astype(np.int32)

    def held(self) -> KeySet:
        """The keys in them."""
        slots = self.slots()
        return KeySet(self.tables[slots], self.keys[slots])


class HeldPolicies:
    """A group's policies over what its rows count, in columns of an array float32 [slots, P] by slot.

    first: the column in which a row's statistics begin. The last column counts for keys that wait for a row.
    """

    def __init__(self, spec: GroupSpec, *, clock: Clock | None, first: int) -> None:
        self._spec = spec
        self._clock = clock
        self._first = first
        self._rule = rule(spec.admission) if spec.admission else None
        self._seeds = mixed_seeds([spec])
        self._powers = decay_powers(spec.eviction.decay) if spec.eviction else None

    @property
    def admits(self) -> bool:
        """Whether there are keys without a row."""
        return self._rule is not None

    @property
    def counts(self) -> bool:
        """Whether rows or keys without one count anything."""
        return self._rule is not None or self._powers is not None

    def open(self, columns: F32, slots: I32, keys: SlotKeys, out: F32) -> None:
        """A step reads slots: out float32 [n, any] becomes zero where a key has no row yet."""
        assert self._rule is not None
        after, bound = self._rule
        open_slots_kernel(columns, slots, keys.tables, keys.keys, self._seeds, after, bound, out)

    def count(self, columns: F32, slots: I32, uses: F32, *, step: int) -> I32 | None:
        """A step has used slots. uses: shows and clicks, float32 [n, 2], or [n, 0].

        Returns the positions of slots with a row, None for all of them.
        """
        have: I32 | None = None
        if self._spec.admission is not None:
            room = np.empty(len(slots), np.int32)
            have = room[: count_slots_kernel(columns, slots, units_of(self._spec.admission, uses), room)]
            slots, uses = slots[have], uses[have]
        if self._powers is not None:
            day = self._clock.day_of(step) if self._clock else 0
            count_uses_kernel(columns, slots, self._first, np.ascontiguousarray(uses), day, self._powers)
        return have
