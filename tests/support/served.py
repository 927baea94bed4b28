"""A trained model with everything an exported one is compared to, and rows it has never seen the like of."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from torch import nn

from hetero.checkpoint.snapshot import Snapshot
from hetero.checkpoint.tensors import read_module
from hetero.loops.protocols import Phase
from hetero.loops.run import DataPass
from hetero.records import F32, JobSpec, TowerSpec
from hetero.towers.build import make_tower
from tests.support.jobs import data_spec, small_job, write_data
from tests.support.runs import alive


@dataclass(frozen=True, kw_only=True)
class Trained:
    """A job trained in process. test: path of rows held out; scores: what the trainer gave them, float32 [R]."""

    job: JobSpec
    snapshot: Snapshot
    test: Path
    scores: F32

    def module(self) -> nn.Module:
        """The tower with the model's parameters."""
        module = make_tower(self.job)
        read_module(module, self.snapshot)
        return module


def held_out(path: Path, *, rows: int) -> Path:
    """Rows as `write_data` makes them, and some with ids no training data holds, with missing values, empty lists."""
    known = pq.read_table(write_data(path, rows=rows, seed=9, weights=False))
    strange = {
        "user": ["nobody", None, "u1", ""],
        "item": [10**15, -3, None, 5],
        "tags": [[10**6, 1], None, [], [2, 2, 2]],
        "history": [[-1, -2, -3, -4, -5, -6], [], None, [7]],
        "x": [0.0, 1e3, -2.0, None],
        "y": [None, None, 1.0, 2.0],
        "label": [0.0, 1.0, 0.0, 1.0],
    }
    pq.write_table(pa.concat_tables([known, pa.table(strange, schema=known.schema)]), path, row_group_size=97)
    return path


def train_and_score(folder: Path, *, tower: TowerSpec, rows: int = 1500) -> Trained:
    """Train `small_job` with a tower, score rows held out in the same process, and save the model."""
    train = write_data(folder / "train.parquet", rows=rows, seed=1, weights=False)
    test = held_out(folder / "test.parquet", rows=300)
    job = small_job(data_spec(train, weights=False), tower=tower, test=data_spec(test, weights=False))
    with alive(job, in_process=True) as run:
        run.train(DataPass.open(job.train, phase=Phase.TRAIN), watch=lambda _: None)
        scored = run.score(DataPass.open(data_spec(test, weights=False), phase=Phase.TEST), watch=lambda _: None)
        run.save(folder / "model")
    return Trained(job=job, snapshot=Snapshot.open(folder / "model"), test=test, scores=scored.predictions)
