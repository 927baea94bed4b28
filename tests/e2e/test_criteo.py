"""Criteo's raw log trains directly, and its Parquet form gives the identical loss."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from tests.support.cli import hetero_here, write_job

DATA = (
    Path(os.environ.get("HETERO_DATA", Path(__file__).resolve().parents[3] / "shared" / "data")) / "criteo_kaggle_10k"
)

pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason=f"the Criteo sample is not at {DATA}")


def test_raw_log_and_parquet_give_the_same_losses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    features = {
        "sparse": [{"name": f"C{n}"} for n in range(1, 27)],
        "dense": [{"name": f"I{n}", "transform": "log"} for n in range(1, 14)],
    }
    losses = {}
    for kind, file in (("criteo", "train_10k.tsv.gz"), ("parquet", "train_10k.parquet")):
        job = write_job(
            tmp_path / f"{kind}.yaml",
            name=kind,
            data={"train": str(DATA / file), "format": kind, "shuffle": False},
            features=features,
            tables=[{"name": "deep", "dim": 8}],
            tower={"name": "dlrm", "args": {"bottom": [32], "top": [32]}},
            train={"batch_size": 512, "epochs": 1},
        )
        ran = hetero_here("train", job.name, "--in-process", "--json")
        assert ran.code == 0, ran.err
        assert ran.json["samples"] == 10_000
        losses[kind] = np.load(tmp_path / "runs" / kind / "losses.npy")
    np.testing.assert_array_equal(losses["criteo"], losses["parquet"])
    assert losses["criteo"][-3:].mean() < losses["criteo"][:3].mean()
