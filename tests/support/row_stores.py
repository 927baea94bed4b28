"""Stores of rows beside their oracle: three tables whose numbers have gaps, keys that are hard on an index."""

from __future__ import annotations

import numpy as np

from hetero.embedding.store import RowStore
from hetero.kernels.optimizers import LARGEST_GRADIENT
from hetero.records import (
    F32,
    GroupSpec,
    Initializer,
    InitSpec,
    KeySet,
    RowOptimizer,
    RowOptimizerSpec,
    TableSpec,
)
from tests.support.crafted_keys import colliding_hashes, keys_with_hashes
from tests.support.row_oracle import RowOracle, pairs
from tests.support.row_updates import assert_same_bits

SEEDS = {0: 11, 2: 2**64 - 1, 7: 0}
EXTREMES = [0, 1, 2**63 - 1, 2**63, 2**64 - 1]
BAD = [np.nan, np.inf, -np.inf, LARGEST_GRADIENT]


def group_of(
    kind: RowOptimizer = RowOptimizer.ROWWISE_ADAGRAD,
    *,
    dim: int = 3,
    first: Initializer = Initializer.UNIFORM,
    **hyper: float,
) -> GroupSpec:
    """Three tables whose numbers have gaps."""
    return GroupSpec(
        dim=dim,
        optimizer=RowOptimizerSpec(kind=kind, **hyper),
        init=InitSpec(kind=first, scale=0.1),
        tables=tuple(TableSpec(index=index, name=f"t{index}", seed=seed) for index, seed in SEEDS.items()),
    )


def key_pool(rows: int, *, seed: int) -> KeySet:
    """Extremes and colliding keys in every table, and random keys."""
    random = np.random.default_rng(seed)
    hard = np.concatenate(
        [np.array(EXTREMES, np.uint64), *(keys_with_hashes(colliding_hashes(12), seed=seed) for seed in SEEDS.values())]
    )
    easy = np.unique(random.integers(2, 2**63 - 1, rows, dtype=np.uint64))
    tables = np.concatenate(
        [np.repeat(np.array(list(SEEDS), np.uint16), len(hard)), random.choice(list(SEEDS), len(easy))]
    )
    order = random.permutation(len(tables))
    return KeySet(tables.astype(np.uint16)[order], np.concatenate([np.tile(hard, len(SEEDS)), easy])[order])


def some_of(pool: KeySet, count: int, random: np.random.Generator) -> KeySet:
    picked = random.choice(len(pool), min(count, len(pool)), replace=False)
    return pool[picked]


def some_gradients(keys: KeySet, dim: int, random: np.random.Generator, *, bad: float = 0.05) -> F32:
    gradients = random.normal(size=(len(keys), dim)).astype(np.float32)
    for row in np.flatnonzero(random.random(len(keys)) < bad):
        gradients[row, random.integers(dim)] = random.choice(BAD)
    return gradients


def everything(store: RowStore) -> dict[tuple[int, int], F32]:
    rows: dict[tuple[int, int], F32] = {}
    for keys, part in store.scan():
        for identity, row in zip(pairs(keys), part, strict=True):
            assert identity not in rows
            rows[identity] = row
    return rows


def assert_same_rows(store: RowStore, oracle: RowOracle) -> None:
    held = everything(store)
    assert held.keys() == oracle.rows.keys()
    assert store.count() == len(held)
    assert store.count_by_table() == oracle.count_by_table()
    if held:
        assert_same_bits(np.array([held[identity] for identity in oracle.rows]), np.array(list(oracle.rows.values())))
