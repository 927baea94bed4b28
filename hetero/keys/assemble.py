"""From parsed splits to batches whose keys are deduplicated: everything a tower needs to know of the sparse features.

Consumes   ParsedSplit (columns of one split)
Produces   PreparedSplit (once a split): keys of each group in the order of bags
           Batch (per piece): unique keys, local ids
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import numpy as np

from hetero.keys.blocks import Blocks
from hetero.keys.dedup import Deduplicator
from hetero.records import (
    F32,
    I32,
    I64,
    U16,
    U64,
    Bags,
    Batch,
    GroupBatch,
    Jagged,
    LookupSpec,
    ParsedSplit,
    Pooling,
)

_TILE_ROWS = 1024


class Lookups(Protocol):
    """What a batch looks up: a `JobSpec`, or what is left of it where a model is only served."""

    @property
    def groups(self) -> Sequence[object]: ...

    @property
    def lookups(self) -> Sequence[LookupSpec]: ...


@dataclass(frozen=True, slots=True)
class Occurrences:
    """Keys of some lookups of one group over a whole split, bag after bag; `bags` bags a row.

    tables uint16 [N], keys uint64 [N]; offsets int64 [R * bags + 1], or None when every bag has one key; weights
    float32 [N] or None.
    """

    bags: int
    tables: U16
    keys: U64
    offsets: I64 | None
    weights: F32 | None

    def span(self, start: int, stop: int) -> slice:
        """Where the occurrences of rows [start, stop) stand."""
        if self.offsets is None:
            return slice(start * self.bags, stop * self.bags)
        return slice(int(self.offsets[start * self.bags]), int(self.offsets[stop * self.bags]))

    def bags_of(self, start: int, stop: int, local: I32) -> Bags:
        """The bags of rows [start, stop) around their local ids."""
        weights = None if self.weights is None else self.weights[self.span(start, stop)]
        if self.offsets is None:
            return Bags(local, None, weights)
        offsets = self.offsets[start * self.bags : stop * self.bags + 1]
        return Bags(local, (offsets - offsets[0]).astype(np.int32), weights)


@dataclass(frozen=True, slots=True)
class PreparedSplit:
    """A split ready for batches to be cut. groups: per group its pooled occurrences, then one per sequence lookup."""

    split: ParsedSplit
    groups: tuple[tuple[Occurrences, ...], ...]


class BatchAssembler:
    """Prepares splits and cuts batches from them. Keeps scratch memory: one thread at a time."""

    def __init__(self, job: Lookups) -> None:
        self._lookups = [
            [lookup for lookup in job.lookups if lookup.group == number] for number in range(len(job.groups))
        ]
        self._dedup = Deduplicator()
        self._blocks = Blocks()

    def prepare(self, split: ParsedSplit) -> PreparedSplit:
        """Bring the keys of every group into the order of bags; done once a split."""
        groups = []
        for lookups in self._lookups:
            pooled = [lookup for lookup in lookups if lookup.pooling is not Pooling.NONE]
            sequences = [lookup for lookup in lookups if lookup.pooling is Pooling.NONE]
            parts = [self._interleave(pooled, split), *(self._interleave([lookup], split) for lookup in sequences)]
            groups.append(tuple(parts))
        return PreparedSplit(split, tuple(groups))

    def batch(self, prepared: PreparedSplit, start: int, stop: int) -> Batch:
        """Rows [start, stop) of a split. Unique keys in order of first occurrence: pooled bags, then sequences."""
        split = prepared.split
        return Batch(
            labels=split.labels[start:stop],
            weights=None if split.weights is None else split.weights[start:stop],
            dense=split.dense[start:stop],
            groups=tuple(self._group(parts, start, stop) for parts in prepared.groups),
            gauc_ids=None if split.gauc_ids is None else split.gauc_ids[start:stop],
            tokens=tuple(tokens[start:stop] for tokens in split.tokens),
            tasks=None if split.tasks is None else split.tasks[start:stop],
        )

    def unite(self, batches: Sequence[Batch]) -> Batch:
        """Consecutive pieces as one batch; a single one is returned as it is.

        The same keys, bags and rows as one cut over all of them, up to the order of unique keys. At least one piece.
        """
        if len(batches) == 1:
            return batches[0]
        weights = [batch.weights for batch in batches if batch.weights is not None]
        gauc_ids = [batch.gauc_ids for batch in batches if batch.gauc_ids is not None]
        tasks = [batch.tasks for batch in batches if batch.tasks is not None]
        return Batch(
            labels=np.concatenate([batch.labels for batch in batches]),
            weights=np.concatenate(weights) if weights else None,
            dense=np.concatenate([batch.dense for batch in batches]),
            groups=tuple(
                self._unite_group([batch.groups[number] for batch in batches]) for number in range(len(self._lookups))
            ),
            gauc_ids=np.concatenate(gauc_ids) if gauc_ids else None,
            tokens=tuple(np.concatenate(texts) for texts in zip(*(batch.tokens for batch in batches), strict=True)),
            tasks=np.concatenate(tasks) if tasks else None,
        )

    def _group(self, parts: Sequence[Occurrences], start: int, stop: int) -> GroupBatch:
        spans = [part.span(start, stop) for part in parts]
        if len(parts) == 1:
            unique, local = self._dedup(parts[0].tables[spans[0]], parts[0].keys[spans[0]])
        else:
            unique, local = self._dedup(
                np.concatenate([part.tables[span] for part, span in zip(parts, spans, strict=True)]),
                np.concatenate([part.keys[span] for part, span in zip(parts, spans, strict=True)]),
            )
        bags, at = [], 0
        for part, span in zip(parts, spans, strict=True):
            count = span.stop - span.start
            bags.append(part.bags_of(start, stop, local[at : at + count]))
            at += count
        return GroupBatch(unique, bags[0], tuple(bags[1:]))

    def _interleave(self, lookups: Sequence[LookupSpec], split: ParsedSplit) -> Occurrences:
        """The lookups' keys, row after row and within a row lookup after lookup."""
        columns = [split.sparse[lookup.feature] for lookup in lookups]
        numbers = tuple(lookup.table for lookup in lookups)
        if all(column.offsets is None for column in columns):
            keys = self._blocks.empty(split.rows, len(columns))
            for start in range(0, split.rows, _TILE_ROWS):  # a tile stays in the cache while all columns are written
                tile = keys[start : start + _TILE_ROWS]
                for number, column in enumerate(columns):
                    tile[:, number] = column.keys[start : start + _TILE_ROWS]
            weights = _interleaved_weights(columns, None, split.rows)
            return Occurrences(len(columns), _repeated(numbers, split.rows), keys.reshape(-1), None, weights)
        lengths = np.stack([_lengths(column, split.rows) for column in columns], axis=1)
        offsets = np.concatenate([[0], np.cumsum(lengths.reshape(-1))])
        keys = np.empty(offsets[-1], np.uint64)
        for number, column in enumerate(columns):
            keys[_targets(lengths, offsets, number)] = column.keys
        weights = _interleaved_weights(columns, (lengths, offsets), split.rows)
        owner = np.tile(np.arange(len(columns)), split.rows)
        tables = np.array(numbers, np.uint16)[np.repeat(owner, lengths.reshape(-1))]
        return Occurrences(len(columns), tables, keys, offsets, weights)

    def _unite_group(self, groups: Sequence[GroupBatch]) -> GroupBatch:
        unique, place = self._dedup(
            np.concatenate([group.unique.tables for group in groups]),
            np.concatenate([group.unique.keys for group in groups]),
        )
        ends = np.cumsum([len(group.unique) for group in groups])
        places = [place[end - len(group.unique) : end] for group, end in zip(groups, ends, strict=True)]
        sequences = range(len(groups[0].sequences))
        return GroupBatch(
            unique,
            _joined_bags([group.pooled for group in groups], places),
            tuple(_joined_bags([group.sequences[n] for group in groups], places) for n in sequences),
        )


@lru_cache(maxsize=4)
def _repeated(tables: tuple[int, ...], rows: int) -> U16:
    """The tables of every row's lookups, uint16 [rows * lookups]; most splits have as many rows as the one before."""
    return np.tile(np.array(tables, np.uint16), rows)


def _lengths(column: Jagged, rows: int) -> I64:
    return np.ones(rows, np.int64) if column.offsets is None else np.diff(column.offsets).astype(np.int64)


def _targets(lengths: I64, offsets: I64, number: int) -> I64:
    """Where the keys of lookup `number` go, in their order."""
    own = lengths[:, number]
    begins = offsets[number : -1 : lengths.shape[1]]
    before = np.cumsum(own) - own
    targets: I64 = np.repeat(begins - before, own) + np.arange(int(own.sum()))
    return targets


def _interleaved_weights(columns: Sequence[Jagged], layout: tuple[I64, I64] | None, rows: int) -> F32 | None:
    if all(column.weights is None for column in columns):
        return None
    if layout is None:
        weights = np.ones((rows, len(columns)), np.float32)
        for number, column in enumerate(columns):
            if column.weights is not None:
                weights[:, number] = column.weights
        return weights.reshape(-1)
    lengths, offsets = layout
    flat = np.ones(int(offsets[-1]), np.float32)
    for number, column in enumerate(columns):
        if column.weights is not None:
            flat[_targets(lengths, offsets, number)] = column.weights
    return flat


def _joined_bags(bags: Sequence[Bags], places: Sequence[I32]) -> Bags:
    local = np.concatenate([place[part.local] for place, part in zip(places, bags, strict=True)])
    weights = None
    if any(part.weights is not None for part in bags):
        filled = [np.ones(len(part.local), np.float32) if part.weights is None else part.weights for part in bags]
        weights = np.concatenate(filled)
    if all(part.offsets is None for part in bags):
        return Bags(local, None, weights)
    lengths = [np.ones(len(part.local), np.int32) if part.offsets is None else np.diff(part.offsets) for part in bags]
    offsets = np.concatenate([[0], np.cumsum(np.concatenate(lengths))]).astype(np.int32)
    return Bags(local, offsets, weights)
