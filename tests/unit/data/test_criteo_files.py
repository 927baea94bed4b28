"""Criteo's raw log and its Parquet form give the same columns, bit for bit."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from hetero.records import DenseFeature, DenseTransform, Format
from tests.unit.data.data_files import make_spec, read_one, sparse

FOLDER = Path(os.environ.get("HETERO_DATA", Path(__file__).parents[4] / "shared" / "data")) / "criteo_kaggle_10k"


@pytest.mark.skipif(not FOLDER.is_dir(), reason=f"{FOLDER} is absent; set HETERO_DATA")
def test_raw_and_parquet_are_identical() -> None:
    dense = tuple(
        DenseFeature(name=f"I{i}", column=f"I{i}", transform=list(DenseTransform)[i % 2]) for i in range(1, 14)
    )
    features = tuple(sparse(f"C{i}") for i in range(1, 27))
    raw, typed = (
        read_one(make_spec(FOLDER / name, format=kind, dense=dense, sparse=features))
        for name, kind in (("train_10k.tsv.gz", Format.CRITEO), ("train_10k.parquet", Format.AUTO))
    )
    assert raw.rows == typed.rows == 10_000
    assert raw.malformed == typed.malformed == ()
    assert raw.labels.mean() == pytest.approx(0.2182)
    assert np.array_equal(raw.labels, typed.labels)
    assert np.array_equal(raw.dense, typed.dense)
    assert all(np.array_equal(a.keys, b.keys) for a, b in zip(raw.sparse, typed.sparse, strict=True))
    assert sum(len(np.unique(jagged.keys)) for jagged in raw.sparse) == 43_591
