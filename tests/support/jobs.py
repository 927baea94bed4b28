"""A small job with every kind of feature, and data for it, for tests of the whole flow."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from hetero.data.hashing import hash_text
from hetero.records import (
    DataSpec,
    DenseFeature,
    GroupSpec,
    Initializer,
    InitSpec,
    JobSpec,
    LookupSpec,
    Pooling,
    Precision,
    RoleSpec,
    RowOptimizer,
    RowOptimizerSpec,
    SparseFeature,
    TableSpec,
    TowerSpec,
)

WIDE, DEEP = 0, 1


def write_data(path: Path, *, rows: int, seed: int, row_group: int = 97, weights: bool = True) -> Path:
    """Rows with two scalar ids, a multi-valued one, a sequence, two dense columns, a label that depends on them."""
    random = np.random.default_rng(seed)
    user = random.zipf(1.3, rows) % 200
    item = random.zipf(1.2, rows) % 300
    tags = [random.integers(0, 30, random.integers(0, 4)).tolist() for _ in range(rows)]
    history = [(random.zipf(1.2, random.integers(0, 6)) % 300).tolist() for _ in range(rows)]
    x, y = random.normal(size=(2, rows))
    logit = 0.8 * ((user % 7) - 3) / 3 + 0.6 * ((item % 5) - 2) / 2 + 0.5 * x
    label = (random.random(rows) < 1 / (1 + np.exp(-logit))).astype(np.float32)
    columns = {
        "user": pa.array([f"u{value}" for value in user]),
        "item": pa.array(item.astype(np.int64)),
        "tags": pa.array(tags, pa.list_(pa.int64())),
        "history": pa.array(history, pa.list_(pa.int64())),
        "x": pa.array(x),
        "y": pa.array(y, mask=random.random(rows) < 0.1),
        "label": pa.array(label),
    }
    if weights:
        columns["weight"] = pa.array(random.uniform(0.5, 2.0, rows).astype(np.float32))
    pq.write_table(pa.table(columns), path, row_group_size=row_group)
    return path


def data_spec(*paths: Path, weights: bool = True, shuffle: bool = False) -> DataSpec:
    """How `write_data`'s files are read."""
    return DataSpec(
        paths=tuple(str(path) for path in paths),
        dense=(DenseFeature(name="x", column="x"), DenseFeature(name="y", column="y", fill=0.5)),
        sparse=(
            SparseFeature(name="user", column="user"),
            SparseFeature(name="item", column="item"),
            SparseFeature(name="tags", column="tags", is_list=True),
            SparseFeature(name="history", column="history", is_list=True, max_length=4),
        ),
        label="label",
        weight="weight" if weights else None,
        gauc_column="user",
        shuffle=shuffle,
        seed=3,
    )


def small_job(train: DataSpec, **changes: object) -> JobSpec:
    """Wide tables (FTRL) and deep ones (row-wise Adagrad) over those features; item and history share their rows."""
    names = ["wide/user", "wide/item", "deep/user", "deep/item", "deep/tags"]
    tables = [TableSpec(index=index, name=name, seed=hash_text(f"1/{name}")) for index, name in enumerate(names)]
    groups = (
        GroupSpec(
            dim=1,
            optimizer=RowOptimizerSpec(kind=RowOptimizer.FTRL, lr=0.1),
            init=InitSpec(kind=Initializer.ZEROS),
            tables=tuple(tables[:2]),
        ),
        GroupSpec(
            dim=4,
            optimizer=RowOptimizerSpec(kind=RowOptimizer.ROWWISE_ADAGRAD, lr=0.05),
            init=InitSpec(kind=Initializer.UNIFORM, scale=0.1),
            tables=tuple(tables[2:]),
        ),
    )
    lookups = (
        LookupSpec(name="user@wide", feature=0, group=WIDE, table=0, dim=1),
        LookupSpec(name="item@wide", feature=1, group=WIDE, table=1, dim=1),
        LookupSpec(name="user", feature=0, group=DEEP, table=2, dim=4),
        LookupSpec(name="item", feature=1, group=DEEP, table=3, dim=4),
        LookupSpec(name="tags", feature=2, group=DEEP, table=4, dim=4, pooling=Pooling.MEAN),
        LookupSpec(name="history", feature=3, group=DEEP, table=3, dim=4, pooling=Pooling.NONE),
    )
    job = JobSpec(
        name="small",
        seed=1,
        train=train,
        test=None,
        groups=groups,
        lookups=lookups,
        tower=TowerSpec(name="wide_and_deep", args={"hidden": [16, 8]}, lr=0.01),
        batch_size=64,
        epochs=1,
        max_steps=None,
        readers=RoleSpec(),
        servers=RoleSpec(),
        towers=RoleSpec(),
        precision=Precision.FP32,  # bf16, which `auto` takes where the CPU has it, makes no claim about bits
    )
    return replace(job, **changes)  # type: ignore[arg-type]
