"""One training run of this product or of a peer on the peers' workload, each in processes of its own.

Both sides are measured alike: rows/s of chunks of 81,920 rows (at least 4 steps), the first chunk left out; AUC on the
same 102,400 rows that follow. Variables that name OpenBLAS's kernels are taken from the environment of both: each side
uses the CPU as it would on a user's machine.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import yaml

from hetero.records import Precision

TEST_ROWS = 102_400
CHUNK_ROWS = 81_920
LEAST_CHUNK_STEPS = 4
MOST_ROWS = {"deepctr": CHUNK_ROWS, "paddle": 3 * CHUNK_ROWS}
"""Rows for systems so slow that more would take minutes a run."""
ROW_RATE, DENSE_RATE = 0.02, 0.007
"""Learning rates of ours; the peers have .01 for both. Row-wise Adagrad has one rate a row where the element-wise one
of plain torch has one a weight, and learns a little slower at the same rate: AUC after 327,680 rows .8208 at .01 and
.01, .8229 at these, .8235 with element-wise Adagrad at .01 (plain torch: .8232)."""
_AUTOCAST = Path(__file__).parent / "autocast"
_CHOOSES_KERNELS = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")
_DEADLINE_S = 900
_SPARSE, _DENSE = 26, 13
_DATA_ROWS = 2_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What is trained: the peers' tower (`dlrm`, `lr`), rows of a step, and training rows."""

    tower: str
    batch: int
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """What a run came to. summary: of this product's runs only."""

    samples_per_s: float
    auc: float
    summary: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One way to run a system. words: for the peer's script. waiting: of OpenMP's threads, for peers.

    precision: of matrix products, as a job file has it; of peers fp32, or bf16 by torch's autocast.
    """

    system: str
    label: str
    python: str
    words: tuple[str, ...] = ()
    waiting: str = "PASSIVE"
    threads: int = 1
    towers: int = 1
    precision: Precision = Precision.FP32

    def run(self, load: Load, *, peers: Path, data: Path) -> Ran:
        """Train and evaluate. Raises RuntimeError with the end of what it printed when it fails."""
        return _run_peer(self, load, peers, data) if self.words else _run_ours(self, load, data=data)

    def reached(self, load: Load, *, peers: Path, data: Path) -> float:
        """Rows/s of one run; 0 when it fails, so that another setting is taken."""
        try:
            return self.run(load, peers=peers, data=data).samples_per_s
        except RuntimeError as error:
            print(f"{self.system}, {self.label}: {error}", file=sys.stderr)
            return 0.0


def make_data(peers: Path, data: Path) -> None:
    """The peers' data by their own generator, and the same rows split into training and test files for this product.

    The peers hold their rows in memory before the clock starts; this product reads them all the while, from files as
    bare as Parquet has them.
    """
    if not (data / "train.parquet").exists():
        command = [sys.executable, "gen_data.py", "--out", str(data.absolute()), "--rows", str(_DATA_ROWS)]
        subprocess.run(command, cwd=peers, check=True, timeout=_DEADLINE_S, stdout=subprocess.DEVNULL)
    if (data / "hetero_test.parquet").exists():
        return
    columns = ["label", *(f"I{j}" for j in range(_DENSE)), *(f"C{f}" for f in range(_SPARSE))]
    table = pq.read_table(data / "train.parquet", columns=columns)
    for name, part in (
        ("hetero_train", table.slice(0, len(table) - TEST_ROWS)),
        ("hetero_test", table.slice(len(table) - TEST_ROWS)),
    ):
        pq.write_table(
            part,
            data / f"{name}.parquet",
            row_group_size=1 << 16,
            use_dictionary=False,
            compression="none",
        )


def job_of(setting: Setting, load: Load, *, data: Path, run: Path) -> dict[str, object]:
    """The job file of this product's side."""
    args = {"bottom": [512, 256], "top": [512, 256]} if load.tower == "dlrm" else {}
    return {
        "name": f"peers_{load.tower}",
        "seed": 7,
        "data": {
            "train": str(data.absolute() / "hetero_train.parquet"),
            "test": str(data.absolute() / "hetero_test.parquet"),
            "shuffle": False,
        },
        "features": {
            "sparse": [{"name": f"C{f}"} for f in range(_SPARSE)],
            "dense": [{"name": f"I{j}"} for j in range(_DENSE)],
        },
        "tables": [{"name": "deep", "dim": 16, "optimizer": {"name": "rowwise_adagrad", "lr": ROW_RATE}}],
        "tower": {
            "name": "dlrm" if load.tower == "dlrm" else "benchmarks.linear_tower:LinearTower",
            "args": args,
            "optimizer": {"name": "adagrad", "lr": DENSE_RATE},
        },
        "train": {
            "batch_size": load.batch * setting.towers,
            "max_steps": load.rows // (load.batch * setting.towers),
            "precision": setting.precision.value,
        },
        "roles": {"readers": 1, "servers": 1, "towers": {"count": setting.towers, "threads": setting.threads}},
        "run": {"folder": str(run)},
    }


def _run_ours(setting: Setting, load: Load, *, data: Path) -> Ran:
    with tempfile.TemporaryDirectory() as folder:
        job, run = Path(folder) / "job.yaml", Path(folder) / "run"
        job.write_text(yaml.safe_dump(job_of(setting, load, data=data, run=run)), encoding="utf-8")
        root = Path(__file__).parents[1]
        command = [sys.executable, "-c", "import sys; from pipelines.cli import main; sys.exit(main())"]
        _finished([*command, "train", str(job), "--json"], cwd=root, environment={})
        summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
        ends = np.load(run / "step_ends.npy")
    batch = load.batch * setting.towers
    steps = max(LEAST_CHUNK_STEPS, CHUNK_ROWS // batch)
    cuts = ends[::steps]
    rates = steps * batch / np.diff(cuts)
    return Ran(samples_per_s=float(statistics.median(rates)), auc=float(summary["auc"]), summary=summary)


def _run_peer(setting: Setting, load: Load, peers: Path, data: Path) -> Ran:
    words = [
        *setting.words,
        *("--data", str(data.absolute())),
        *("--batch", str(load.batch)),
        *("--tower", load.tower),
        *("--train-rows", str(min(load.rows, MOST_ROWS.get(setting.system, load.rows)))),
        *("--max-seconds", "600"),
    ]
    environment = {"OMP_WAIT_POLICY": setting.waiting}
    if setting.precision is Precision.BF16:
        environment["PYTHONPATH"] = str(_AUTOCAST)
    out = _finished([setting.python, *words], cwd=peers, environment=environment)
    lines = [line for line in out.splitlines() if '"system"' in line]
    if not lines:
        raise RuntimeError(f"{setting.system}, {setting.label}: printed no result: {out[-500:]}")
    record = json.loads(lines[-1])
    return Ran(samples_per_s=float(record["samples_per_s"]), auc=float(record["auc_or_loss"]))


def _finished(command: list[str], *, cwd: Path, environment: dict[str, str]) -> str:
    inherited = {name: value for name, value in os.environ.items() if name not in _CHOOSES_KERNELS}
    ended = subprocess.run(
        command,
        cwd=cwd,
        env={**inherited, **environment},
        capture_output=True,
        text=True,
        timeout=_DEADLINE_S,
        check=False,
    )
    if ended.returncode:
        raise RuntimeError(f"{' '.join(command[:4])} ended with {ended.returncode}: {ended.stderr[-800:]}")
    return ended.stdout
