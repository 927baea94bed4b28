"""A small job of text and clicks, and data for it: the label depends on tokens, on ids and on a number."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from hetero.records import DataSpec, JobSpec, PartSpec, Precision, TaskSpec, TextFeature, TowerSpec
from hetero.records.mesh import LrSchedule
from tests.support.jobs import data_spec, small_job, write_data

VOCABULARY = 24
LENGTH = 8
SIZES: dict[str, object] = {"layers": 2, "width": 16, "heads": 2}
PARTS = (
    PartSpec(name="text", optimizer="adamw", lr=0.01, warmup=5, schedule=LrSchedule.COSINE, steps=40, clip=1.0),
    PartSpec(name="wide", optimizer="sgd", lr=0.1),
)


def write_joint_data(path: Path, *, rows: int, seed: int) -> Path:
    """`write_data`'s columns, `tokens` (lists of 0 to 11 ids), `bought` (0, 1 or missing); the label is drawn anew:
    token 3 in a text speaks for it, token 4 against it."""
    table = pq.read_table(write_data(path, rows=rows, seed=seed, weights=False))
    random = np.random.default_rng(seed + 100)
    texts = [random.integers(0, VOCABULARY - 1, random.integers(0, 12)) for _ in range(rows)]
    pull = np.array([2.5 * ((text[:LENGTH] == 3).sum() - (text[:LENGTH] == 4).sum()) for text in texts])
    logit = pull + 0.6 * ((table["item"].to_numpy() % 5) - 2) / 2 + 0.5 * table["x"].to_numpy()
    label = (random.random(rows) < 1 / (1 + np.exp(-logit))).astype(np.float32)
    bought = pa.array((random.random(rows) < 0.2 + 0.5 * label).astype(np.int8), mask=label == 0)
    table = table.set_column(table.column_names.index("label"), "label", pa.array(label))
    table = table.append_column("tokens", pa.array([text.tolist() for text in texts], pa.list_(pa.int32())))
    pq.write_table(table.append_column("bought", bought), path, row_group_size=97)
    return path


def joint_data(*paths: Path, shuffle: bool = True) -> DataSpec:
    """How these files are read."""
    text = TextFeature(name="review", column="tokens", length=LENGTH, vocabulary=VOCABULARY, mask=VOCABULARY - 1)
    task = TaskSpec(name="bought", column="bought", weight=0.5)
    return replace(data_spec(*paths, weights=False, shuffle=shuffle), texts=(text,), tasks=(task,))


def joint_job(train: DataSpec, *, parts: tuple[PartSpec, ...] = PARTS, **changes: object) -> JobSpec:
    """Everything at once: attention of text over history, two labels by experts, hidden tokens on the side."""
    args: dict[str, object] = {
        "transformer": SIZES,
        "history": ["history"],
        "hidden": [16],
        "experts": 2,
        "task_hidden": [8],
        "masked": {"share": 0.2, "weight": 0.1},
    }
    tower = TowerSpec(name="joint", args=args, lr=0.01, parts=parts)
    return small_job(train, tower=tower, precision=Precision.FP32, **changes)
