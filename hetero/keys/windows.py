"""Windows: the working set of a few consecutive steps of all towers, who owns its rows, and what moves between windows.

Consumes   unique keys per step and tower (from readers, by way of the sequencer)
Produces   per tower a TowerWindow: rows to fetch, rows to give back, and for every step which rows go where

Each row of a job has one owner among the towers, by its bucket; the owner keeps it in a numbered slot of its buffer
from the window in which it enters to the one in which it leaves. Between two windows first the leaving rows are read
out, then the new ones take their slots: rows in both stay where they are, and no device needs a hash table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hetero.errors import ProtocolError
from hetero.keys.dedup import Deduplicator
from hetero.keys.routing import bucket_of, mixed_seeds
from hetero.records import I32, I64, BatchSpec, JobSpec, KeySet

_NO_IDS = np.empty(0, np.int32)


@dataclass(frozen=True, slots=True)
class GroupMoves:
    """What one owner does with one group's rows before a window's first step.

    leave, leave_slots: rows of the window before that this one does not need. enter, enter_slots: rows to fetch.
    capacity: slots the buffer must have.
    """

    leave: KeySet
    leave_slots: I32
    enter: KeySet
    enter_slots: I32
    capacity: int


@dataclass(frozen=True, slots=True)
class StepRoute:
    """Which rows of one group one tower needs in one step, and which it serves to the others and to itself.

    order int32 [U]: the batch's unique rows sorted by owner. need_counts int64 [T]: how many of them each owner holds.
    serve_slots int32 [S]: this owner's rows that are asked for, tower after tower. serve_counts int64 [T].
    merged_slots int32 [M], merged_local int32 [S]: the distinct slots among them, and which each is.
    Where there is one tower, order and merged_local would count up, and are empty.
    """

    order: I32
    need_counts: I64
    serve_slots: I32
    serve_counts: I64
    merged_slots: I32
    merged_local: I32


@dataclass(frozen=True, slots=True, kw_only=True)
class TowerWindow:
    """One tower's part of a window. moves: per group. routes: per step, per group. Without steps: everything leaves.

    flush: the step before which everything leaves so that a day can begin; training goes on with the next window.
    """

    index: int
    specs: tuple[BatchSpec, ...]
    moves: tuple[GroupMoves, ...]
    routes: tuple[tuple[StepRoute, ...], ...]
    flush: int | None = None

    @property
    def is_last(self) -> bool:
        """Whether no window comes after this one."""
        return not self.specs and self.flush is None


@dataclass(slots=True)
class _GroupState:
    """The rows of the latest window of one group: keys, owners and slots, and the slots each owner has free."""

    keys: KeySet
    owners: I32
    slots: I32
    free: list[I32]
    used: list[int]


@dataclass(frozen=True, slots=True)
class _Union:
    """The rows of a window and of the one before it: owners int32 [n], slots int32 [n]; ids: each batch's rows."""

    owners: I32
    slots: I32
    ids: list[I32]


class WindowBuilder:
    """Builds the windows of one phase in order; keeps only keys, owners and slots of the latest."""

    def __init__(self, job: JobSpec) -> None:
        self._towers = job.towers.count
        self._buckets = job.buckets
        self._seeds = mixed_seeds(job.groups)
        self._dedup = Deduplicator()
        self._index = 0
        none = KeySet(np.empty(0, np.uint16), np.empty(0, np.uint64))
        self._groups = [
            _GroupState(none, _NO_IDS, _NO_IDS, [_NO_IDS] * self._towers, [0] * self._towers) for _ in job.groups
        ]

    def build(
        self,
        specs: Sequence[Sequence[BatchSpec]],
        keys: Sequence[Sequence[Sequence[KeySet]]],
        *,
        flush: int | None = None,
    ) -> tuple[TowerWindow, ...]:
        """The next window. specs[step][tower]; keys[step][tower][group]: unique rows of that batch, in its order.

        Returns one TowerWindow per tower. Without any steps every row leaves. flush: as in `TowerWindow`.
        """
        if len(specs) != len(keys):
            raise ProtocolError(f"window {self._index}: {len(specs)} steps of specs, {len(keys)} of keys")
        moves: list[list[GroupMoves]] = [[] for _ in range(self._towers)]
        routes: list[list[list[StepRoute]]] = [[[] for _ in specs] for _ in range(self._towers)]
        for number, state in enumerate(self._groups):
            batches = [keys[step][tower][number] for step in range(len(specs)) for tower in range(self._towers)]
            union = self._advance(state, batches, moves)
            for step in range(len(specs)):
                of_step = union.ids[step * self._towers : (step + 1) * self._towers]
                for tower, route in enumerate(self._routes(union, of_step)):
                    routes[tower][step].append(route)
        index, self._index = self._index, self._index + 1
        return tuple(
            TowerWindow(
                index=index,
                specs=tuple(step[tower] for step in specs),
                moves=tuple(moves[tower]),
                routes=tuple(tuple(step) for step in routes[tower]),
                flush=flush,
            )
            for tower in range(self._towers)
        )

    def _advance(self, state: _GroupState, batches: Sequence[KeySet], moves: list[list[GroupMoves]]) -> _Union:
        """Make the batches' rows the state's; add every owner's moves. Returns where the batches' rows are."""
        before = len(state.keys)
        union, local = self._dedup(
            np.concatenate([state.keys.tables, *(batch.tables for batch in batches)]),
            np.concatenate([state.keys.keys, *(batch.keys for batch in batches)]),
        )
        needed = np.zeros(len(union), np.bool_)
        needed[local[before:]] = True
        leaving, entering = np.flatnonzero(~needed[:before]), np.arange(before, len(union))
        fresh = union[before:]
        owners = np.concatenate([state.owners, self._owners_of(fresh)])
        slots = np.concatenate([state.slots, np.empty(len(fresh), np.int32)])
        for owner in range(self._towers):
            gone, come = leaving[owners[leaving] == owner], entering[owners[entering] == owner]
            slots[come] = self._take_slots(state, owner, slots[gone], len(come))
            moves[owner].append(
                GroupMoves(
                    leave=union[gone],
                    leave_slots=slots[gone],
                    enter=union[come],
                    enter_slots=slots[come],
                    capacity=state.used[owner],
                )
            )
        kept = np.flatnonzero(needed)
        state.keys = union[kept]
        state.owners, state.slots = owners[kept], slots[kept]
        ends = before + np.cumsum([len(batch) for batch in batches], dtype=np.int64)
        ids = [local[end - len(batch) : end] for batch, end in zip(batches, ends, strict=True)]
        return _Union(owners, slots, ids)

    def _take_slots(self, state: _GroupState, owner: int, freed: I32, count: int) -> I32:
        """Slots for `count` rows: those just freed, those free before, then new ones."""
        free = np.concatenate([freed, state.free[owner]])
        taken, state.free[owner] = free[:count], free[count:]
        more = count - len(taken)
        first = state.used[owner]
        state.used[owner] += more
        return np.concatenate([taken, np.arange(first, first + more, dtype=np.int32)])

    def _owners_of(self, keys: KeySet) -> I32:
        if self._towers == 1:
            return np.zeros(len(keys), np.int32)
        buckets = bucket_of(keys, seeds=self._seeds, buckets=self._buckets)
        return (buckets * self._towers // self._buckets).astype(np.int32)

    def _routes(self, union: _Union, ids: Sequence[I32]) -> list[StepRoute]:
        """One step's routes of one group, per tower. ids: per tower, its batch's rows among the union's."""
        if self._towers == 1:
            served, count = union.slots[ids[0]], np.array([len(ids[0])], np.int64)
            return [StepRoute(_NO_IDS, count, served, count, served, _NO_IDS)]
        towers = range(self._towers)
        orders = [np.argsort(union.owners[own], kind="stable").astype(np.int32) for own in ids]
        counts = np.stack([np.bincount(union.owners[own], minlength=self._towers) for own in ids])
        begins = np.concatenate([np.zeros((self._towers, 1), np.int64), np.cumsum(counts, axis=1)], axis=1)
        routes = []
        for owner in towers:
            asked = [ids[t][orders[t][begins[t, owner] : begins[t, owner + 1]]] for t in towers]
            served = union.slots[np.concatenate(asked)]
            merged, local = _distinct(served, self._dedup)
            routes.append(
                StepRoute(orders[owner], counts[owner], served, np.ascontiguousarray(counts[:, owner]), merged, local)
            )
        return routes


def _distinct(slots: I32, dedup: Deduplicator) -> tuple[I32, I32]:
    """Distinct slots in order of first occurrence, and which each of `slots` is."""
    unique, local = dedup(np.zeros(len(slots), np.uint16), slots.astype(np.uint64))
    return unique.keys.astype(np.int32), local
