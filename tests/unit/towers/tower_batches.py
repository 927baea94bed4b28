"""Small jobs and batches for the tower tests, with the looked-up cells as plain lists for the oracles."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from hetero.records import (
    F32,
    Bags,
    Batch,
    DataSpec,
    DenseFeature,
    GroupBatch,
    GroupSpec,
    InitSpec,
    JobSpec,
    KeySet,
    LookupSpec,
    Pooling,
    RoleSpec,
    RowOptimizerSpec,
    SparseFeature,
    TableSpec,
    TowerSpec,
)
from hetero.towers.embeddings import EmbeddingLayout

Cell = list[tuple[int, float]]
Value = Tensor | list[Tensor]


@dataclass(frozen=True)
class Lookup:
    """One lookup of a test job: `group` picks the width."""

    name: str
    group: int
    pooling: Pooling = Pooling.SUM


@dataclass(frozen=True)
class Sample:
    """A batch with its rows. cells[name][b]: the (local id, weight) pairs that batch row b looks up."""

    job: JobSpec
    layout: EmbeddingLayout
    batch: Batch
    rows: list[F32]
    cells: dict[str, list[Cell]]

    def leaves(self) -> list[Tensor]:
        return [torch.from_numpy(rows.copy()).requires_grad_() for rows in self.rows]

    def reader(self, rows: Sequence[Tensor]) -> Callable[[str, int], Value]:
        """A second, plain lookup: value(name, b) from any tensors of rows, one cell at a time."""
        specs = {spec.name: spec for spec in self.job.lookups}

        def value(name: str, b: int) -> Value:
            spec = specs[name]
            terms = [rows[spec.group][local] * weight for local, weight in self.cells[name][b]]
            if spec.pooling is Pooling.NONE:
                return terms
            total = torch.zeros(spec.dim, dtype=rows[spec.group].dtype)
            for term in terms:
                total = total + term
            return total / len(terms) if spec.pooling is Pooling.MEAN and terms else total

        return value


def make_job(lookups: Sequence[Lookup], *, dims: Sequence[int], dense: int, tower: str = "fm") -> JobSpec:
    groups = tuple(
        GroupSpec(
            dim=dim,
            optimizer=RowOptimizerSpec(),
            init=InitSpec(),
            tables=(TableSpec(index=index, name=f"table{index}", seed=index),),
        )
        for index, dim in enumerate(dims)
    )
    return JobSpec(
        name="test",
        seed=0,
        train=DataSpec(
            paths=("data.parquet",),
            dense=tuple(DenseFeature(name=f"d{i}", column=f"d{i}") for i in range(dense)),
            sparse=tuple(SparseFeature(name=lookup.name, column=lookup.name) for lookup in lookups),
            label="label",
        ),
        test=None,
        groups=groups,
        lookups=tuple(
            LookupSpec(
                name=lookup.name,
                feature=index,
                group=lookup.group,
                table=lookup.group,
                dim=dims[lookup.group],
                pooling=lookup.pooling,
            )
            for index, lookup in enumerate(lookups)
        ),
        tower=TowerSpec(name=tower),
        batch_size=8,
        epochs=1,
        max_steps=None,
        readers=RoleSpec(),
        servers=RoleSpec(),
        towers=RoleSpec(),
    )


def make_batch(
    job: JobSpec, cells: dict[str, list[Cell]], *, unique: Sequence[int], dense: F32, weighted: bool
) -> Batch:
    """Lay cells out as the batch format wants them: pooled lookups of a group row-major, sequences apart."""
    groups = []
    for number, count in enumerate(unique):
        mine = [spec for spec in job.lookups if spec.group == number]
        pooled = [cells[spec.name] for spec in mine if spec.pooling is not Pooling.NONE]
        sequences = [cells[spec.name] for spec in mine if spec.pooling is Pooling.NONE]
        row_major = [column[b] for b in range(len(dense)) for column in pooled]
        keys = KeySet(np.full(count, number, np.uint16), np.arange(count, dtype=np.uint64))
        groups.append(
            GroupBatch(
                keys,
                to_bags(row_major, weighted=weighted),
                tuple(to_bags(cell, weighted=weighted) for cell in sequences),
            )
        )
    labels = np.zeros(len(dense), np.float32)
    return Batch(labels=labels, weights=None, dense=dense, groups=tuple(groups), gauc_ids=None)


def to_bags(cells: Sequence[Cell], *, weighted: bool) -> Bags:
    counts = [len(cell) for cell in cells]
    local = np.array([local for cell in cells for local, _ in cell], np.int32)
    weights = np.array([weight for cell in cells for _, weight in cell], np.float32)
    offsets = None if all(n == 1 for n in counts) else np.cumsum([0, *counts], dtype=np.int32)
    return Bags(local, offsets, weights if weighted else None)


def make_sample(
    lookups: Sequence[Lookup],
    *,
    dims: Sequence[int],
    dense: int = 0,
    rows: int = 6,
    seed: int = 0,
    single: bool = False,
    weighted: bool = False,
) -> Sample:
    """A random sample. Cells hold 0 to 3 keys with duplicates, or exactly one each with `single`."""
    rng = np.random.default_rng(seed)
    job = make_job(lookups, dims=dims, dense=dense)
    unique = [5 + number for number in range(len(dims))]
    cells: dict[str, list[Cell]] = {}
    for lookup in lookups:
        lengths = np.ones(rows, np.int64) if single else rng.integers(0, 4, rows)
        cells[lookup.name] = [
            [
                (
                    int(rng.integers(unique[lookup.group])),
                    float(np.float32(rng.standard_normal())) if weighted else 1.0,
                )
                for _ in range(length)
            ]
            for length in lengths
        ]
    values = rng.standard_normal((rows, dense)).astype(np.float32)
    return Sample(
        job=job,
        layout=EmbeddingLayout.from_job(job),
        batch=make_batch(job, cells, unique=unique, dense=values, weighted=weighted),
        rows=[
            (rng.standard_normal((count, dim)) / 2).astype(np.float32) for count, dim in zip(unique, dims, strict=True)
        ],
        cells=cells,
    )
