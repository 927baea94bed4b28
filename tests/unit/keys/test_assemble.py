"""Batches against a naive assembly, one key at a time: what each cell holds, however the rows are cut."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero.keys.assemble import BatchAssembler
from hetero.records import (
    F32,
    I32,
    U64,
    Bags,
    Batch,
    DataSpec,
    Format,
    GroupBatch,
    GroupSpec,
    InitSpec,
    Jagged,
    JobSpec,
    LookupSpec,
    ParsedSplit,
    Pooling,
    RowOptimizerSpec,
    SplitRef,
    TableSpec,
)
from tests.support.jobs import small_job

# A cell: its (table, key, weight) in order. A row of a group: the cells of its pooled lookups, then of its sequences.
Cell = list[tuple[int, int, float]]


def group(tables: Sequence[int]) -> GroupSpec:
    specs = tuple(TableSpec(index=index, name=f"t{index}", seed=index) for index in tables)
    return GroupSpec(dim=2, optimizer=RowOptimizerSpec(), init=InitSpec(), tables=specs)


def lookup(feature: int, group: int, table: int, pooling: Pooling) -> LookupSpec:
    return LookupSpec(name=f"{feature}@{table}", feature=feature, group=group, table=table, dim=2, pooling=pooling)


def job_of(groups: Sequence[GroupSpec], lookups: Sequence[LookupSpec]) -> JobSpec:
    nothing = DataSpec(paths=(), dense=(), sparse=(), label="label")
    return small_job(nothing, groups=tuple(groups), lookups=tuple(lookups))


JOBS = {
    "scalars": job_of(
        [group([0, 1])], [lookup(0, 0, 0, Pooling.SUM), lookup(1, 0, 1, Pooling.SUM), lookup(0, 0, 1, Pooling.SUM)]
    ),
    "everything": job_of(
        [group([0, 3]), group([1, 2])],
        [
            lookup(0, 0, 0, Pooling.SUM),
            lookup(2, 1, 2, Pooling.MEAN),
            lookup(3, 0, 3, Pooling.NONE),
            lookup(1, 1, 1, Pooling.SUM),
            lookup(2, 0, 0, Pooling.SUM),
            lookup(3, 1, 1, Pooling.NONE),
            lookup(2, 1, 1, Pooling.NONE),
        ],
    ),
    "sequences alone": job_of([group([0])], [lookup(3, 0, 0, Pooling.NONE), lookup(1, 0, 0, Pooling.NONE)]),
    "one list": job_of([group([0])], [lookup(2, 0, 0, Pooling.MEAN)]),
    "a group without lookups": job_of([group([0]), group([1])], [lookup(0, 1, 1, Pooling.SUM)]),
}


@st.composite
def splits(draw: st.DrawFn, *, rows: int | None = None, layout: tuple[bool, ...] | None = None) -> ParsedSplit:
    """Four features: two that are scalar columns or (with missing values) lists of at most one, two that are lists.

    layout: for the scalars, whether they are lists; for every feature, whether it has weights; whether rows have.
    """
    count = draw(st.integers(0, 7)) if rows is None else rows
    flags = draw(st.tuples(*[st.booleans()] * 7)) if layout is None else layout
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    sparse = []
    for feature in range(4):
        longest = 4 if feature >= 2 else 1
        as_list = feature >= 2 or flags[feature]
        lengths = random.integers(0, longest + 1, count) if as_list else np.ones(count, np.int64)
        total = int(lengths.sum())
        keys = random.choice(np.array([0, 2**64 - 1, 2**63, 1, 2, 3, 4, 5], np.uint64), total)
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32) if as_list else None
        weights = random.choice(np.array([0, 1, -2.5, 0.125], np.float32), total) if flags[2 + feature] else None
        sparse.append(Jagged(keys, offsets, weights))
    return ParsedSplit(
        ref=SplitRef(position=0, path="invented", format=Format.PARQUET),
        epoch=0,
        labels=random.random(count).astype(np.float32),
        weights=random.random(count).astype(np.float32) if flags[6] else None,
        dense=random.random((count, 2)).astype(np.float32),
        sparse=tuple(sparse),
        gauc_ids=random.integers(0, 9, count).astype(np.uint64) if flags[6] else None,
        malformed=(),
        tokens=(
            random.integers(-1, 9, (count, 3)).astype(np.int32),
            random.integers(-1, 9, (count, 1)).astype(np.int32),
        ),
        tasks=random.choice(np.array([0, 1, np.nan], np.float32), (count, 2)) if flags[6] else None,
    )


def cell_of(column: Jagged, row: int, table: int) -> Cell:
    begin, end = (row, row + 1) if column.offsets is None else (int(column.offsets[row]), int(column.offsets[row + 1]))
    weights = [1.0] * (end - begin) if column.weights is None else column.weights[begin:end].tolist()
    return [(table, int(key), weight) for key, weight in zip(column.keys[begin:end], weights, strict=True)]


def naive(job: JobSpec, split: ParsedSplit, number: int, rows: range) -> list[list[list[Cell]]]:
    """Of one group: pooled cells row after row, then each sequence lookup's cells."""
    mine = [lookup for lookup in job.lookups if lookup.group == number]
    pooled = [lookup for lookup in mine if lookup.pooling is not Pooling.NONE]
    sequences = [lookup for lookup in mine if lookup.pooling is Pooling.NONE]
    cells = [[[cell_of(split.sparse[each.feature], row, each.table)] for each in pooled] for row in rows]
    flat = [[cell for row in cells for [cell] in row]]
    return [flat, *([[cell_of(split.sparse[each.feature], row, each.table) for row in rows]] for each in sequences)]


def cells_of(bags: Bags, unique: GroupBatch, *, count: int) -> list[Cell]:
    """What a tower makes of bags."""
    keys = unique.unique
    offsets: I32 = np.arange(count + 1, dtype=np.int32) if bags.offsets is None else bags.offsets
    weights: F32 = np.ones(len(bags.local), np.float32) if bags.weights is None else bags.weights
    assert len(offsets) == count + 1
    assert (offsets[0], offsets[-1]) == (0, len(bags.local))
    return [
        [
            (int(keys.tables[bags.local[at]]), int(keys.keys[bags.local[at]]), float(weights[at]))
            for at in range(begin, end)
        ]
        for begin, end in pairwise(offsets.tolist())
    ]


def assert_batch_is(batch: Batch, job: JobSpec, split: ParsedSplit, rows: range, *, in_order: bool) -> None:
    columns = [
        (getattr(batch, name), getattr(split, name)) for name in ("labels", "weights", "dense", "gauc_ids", "tasks")
    ]
    for got, whole in [*columns, *zip(batch.tokens, split.tokens, strict=True)]:
        assert (got is None) == (whole is None)
        if got is not None:
            np.testing.assert_array_equal(got, whole[rows.start : rows.stop])
            assert got.dtype == whole.dtype
    assert batch.rows == len(rows)
    for number, made in enumerate(batch.groups):
        [pooled], *sequences = naive(job, split, number, rows)
        assert cells_of(made.pooled, made, count=len(pooled)) == pooled
        assert len(made.sequences) == len(sequences)
        for bags, [want] in zip(made.sequences, sequences, strict=True):
            assert cells_of(bags, made, count=len(want)) == want
        seen = list(
            dict.fromkeys(
                (table, key) for part in (pooled, *(s for [s] in sequences)) for c in part for table, key, _ in c
            )
        )
        unique = list(zip(made.unique.tables.tolist(), made.unique.keys.tolist(), strict=True))
        assert (unique if in_order else sorted(unique)) == (seen if in_order else sorted(seen))
        for bags in (made.pooled, *made.sequences):
            assert bags.local.dtype == np.int32
            assert bags.offsets is None or bags.offsets.dtype == np.int32
            assert bags.weights is None or bags.weights.dtype == np.float32


@pytest.mark.parametrize("job", JOBS.values(), ids=JOBS.keys())
def test_any_cut_of_a_split_holds_what_a_naive_assembly_gives(job: JobSpec) -> None:
    assembler = BatchAssembler(job)

    @settings(max_examples=40, deadline=None)
    @given(splits(), st.data())
    def check(split: ParsedSplit, data: st.DataObject) -> None:
        start = data.draw(st.integers(0, split.rows))
        stop = data.draw(st.integers(start, split.rows))
        batch = assembler.batch(assembler.prepare(split), start, stop)
        assert_batch_is(batch, job, split, range(start, stop), in_order=True)

    check()


def joined(parts: Sequence[ParsedSplit]) -> ParsedSplit:
    """Splits of one layout as one."""

    def column(number: int) -> Jagged:
        columns = [part.sparse[number] for part in parts]
        keys: U64 = np.concatenate([each.keys for each in columns])
        offsets = None
        if columns[0].offsets is not None:
            lengths = np.concatenate([np.diff(each.offsets) for each in columns if each.offsets is not None])
            offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        weights = [each.weights for each in columns if each.weights is not None]
        return Jagged(keys, offsets, np.concatenate(weights) if weights else None)

    def rows(name: str) -> np.ndarray | None:
        arrays = [getattr(part, name) for part in parts]
        return None if arrays[0] is None else np.concatenate(arrays)

    labels, dense, weights, gauc_ids = rows("labels"), rows("dense"), rows("weights"), rows("gauc_ids")
    assert labels is not None
    assert dense is not None
    return ParsedSplit(
        ref=parts[0].ref,
        epoch=0,
        labels=labels,
        weights=weights,
        dense=dense,
        sparse=tuple(column(number) for number in range(4)),
        gauc_ids=gauc_ids,
        malformed=(),
        tokens=tuple(np.concatenate(texts) for texts in zip(*(part.tokens for part in parts), strict=True)),
        tasks=rows("tasks"),
    )


@pytest.mark.parametrize("job", JOBS.values(), ids=JOBS.keys())
def test_pieces_united_are_one_cut_whatever_the_pieces(job: JobSpec) -> None:
    """Up to the order of unique keys, on which nothing depends."""
    assembler = BatchAssembler(job)

    @settings(max_examples=40, deadline=None)
    @given(st.tuples(*[st.booleans()] * 7), st.lists(st.integers(0, 5), min_size=1, max_size=4), st.data())
    def check(layout: tuple[bool, ...], sizes: list[int], data: st.DataObject) -> None:
        parts = [data.draw(splits(rows=size, layout=layout)) for size in sizes]
        whole = joined(parts)
        pieces = [assembler.batch(assembler.prepare(part), 0, part.rows) for part in parts]
        united = assembler.unite(pieces)
        assert_batch_is(united, job, whole, range(whole.rows), in_order=False)
        again = assembler.unite([assembler.unite(pieces[:2]), *pieces[2:]])
        assert_batch_is(again, job, whole, range(whole.rows), in_order=False)

    check()
