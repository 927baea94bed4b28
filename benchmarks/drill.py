"""Does a run survive whatever is done to its actors? Random faults, and what became of every row.

    python -m benchmarks.drill [--quick] [--json] [--save]

Runs of one job, each hit several times at random steps, while snapshots are written and while the test data are scored:
a role's process is killed (SIGKILL) or stopped (SIGSTOP), or the raylet of its node is killed. Every row has a key of
its own in a table with Adam, whose state tells how often it was trained in the history that the model comes from.
In full 50 faults over four kinds of run; --quick: 8 over two.
"""

from __future__ import annotations

import logging
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from actors.faults import DrillCluster, Fault, drill_cluster
from actors.naming import Role
from benchmarks.report import Report, arguments, finish
from pipelines.drill import Drilled, Hit, Undisturbed, disturbed, hardened, node_cpus, undisturbed
from pipelines.job import Job
from pipelines.progress import Silent

ROWS = 12_000
TEST_ROWS = 10_000
BATCH = 32
EPOCHS = 2
STEPS = EPOCHS * -(-ROWS // BATCH)
EVERY_STEPS = 50
RUN_LIMIT_S = 420.0
MOST_LOST_S = 60.0
SEED = 20260117
ROLES = (Role.READER, Role.SEQUENCER, Role.SERVER, Role.TOWER)
FAULTS = (Fault.KILL,) * 5 + (Fault.STOP,) * 3 + (Fault.RAYLET,) * 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind of run. sections: of the job, over those that all have. runs: faults of each run, in full."""

    name: str
    sections: Mapping[str, object]
    towers: int
    runs: tuple[int, ...]


def kinds(folder: Path) -> list[Kind]:
    ssd = {"memory_bytes": 4 << 20, "directories": [str(folder / "ssd")], "ssd_bytes": 1 << 28, "io": "cached"}
    return [
        Kind(name="one tower, leases", sections={}, towers=1, runs=(5, 5, 5)),
        Kind(name="two towers, leases", sections={}, towers=2, runs=(5, 5, 5)),
        Kind(name="one tower, pulls and deltas", sections={"window": 0, "deltas": 2}, towers=1, runs=(5, 5)),
        Kind(name="one tower, rows on SSD", sections={"storage": ssd}, towers=1, runs=(5, 5)),
    ]


def main() -> int:
    options = arguments(__doc__ or "")
    logging.getLogger("hetero").setLevel(logging.ERROR)
    report = Report("drill")
    results: list[tuple[Kind, Drilled]] = []
    with tempfile.TemporaryDirectory(prefix="hetero-drill-") as name:
        folder = Path(name)
        write_rows(folder / "train.parquet", rows=ROWS, seed=1)
        write_rows(folder / "test.parquet", rows=TEST_ROWS, seed=2)
        chosen = kinds(folder)
        plans = [(kind, kind.runs) for kind in chosen] if not options.quick else [(kind, (4,)) for kind in chosen[:2]]
        cpus = node_cpus([job_of(kind, folder) for kind, _ in plans])
        with drill_cluster(nodes=3, cpus=cpus, token=f"drill-{time.time_ns()}") as cluster:
            for kind, drilled in run_all(plans, folder=folder, cluster=cluster):
                results.append((kind, drilled))
                add_row(report, kind, drilled)
            left = cluster.close()
    add_times(report, [drilled for _, drilled in results])
    add_checks(report, results, left=left, faults=sum(sum(runs) for _, runs in plans))
    if options.quick:
        report.not_run("faults over all kinds of run", target=">= 50", why="--quick")
    return finish(report, options)


def run_all(
    plans: Sequence[tuple[Kind, tuple[int, ...]]], *, folder: Path, cluster: DrillCluster
) -> Iterator[tuple[Kind, Drilled]]:
    dice = random.Random(SEED)
    for number, (kind, runs) in enumerate(plans):
        job = job_of(kind, folder)
        cluster.await_nodes()
        whole: Undisturbed = undisturbed(job, folder=folder / f"whole-{number}", progress=Silent())
        for run, faults in enumerate(runs):
            hits = random_hits(faults, kind=kind, dice=dice)
            cluster.await_nodes()
            drilled = disturbed(
                job,
                hits,
                folder=folder / f"run-{number}-{run}",
                cluster=cluster,
                whole=whole,
                progress=Silent(),
                limit_s=RUN_LIMIT_S,
            )
            yield kind, drilled


def random_hits(count: int, *, kind: Kind, dice: random.Random) -> list[Hit]:
    """One in every part of the run, the last while the test data are scored; of the others one just as a snapshot is
    cut."""
    hits = []
    counts = {Role.READER: 2, Role.SERVER: 2, Role.TOWER: kind.towers}
    part = STEPS // count
    for number in range(count):
        step: int | None = dice.randrange(number * part + 1, (number + 1) * part)
        if number == count - 1:
            step = None
        elif number == 1 and step is not None:
            step = max(EVERY_STEPS, step - step % EVERY_STEPS)
        role = dice.choice(ROLES)
        index = dice.randrange(counts.get(role, 1))
        hits.append(Hit(fault=dice.choice(FAULTS), role=role, index=index, step=step))
    return hits


def job_of(kind: Kind, folder: Path) -> Job:
    """A small job in which every row of data has a row of its own in the table `count`."""
    sections = dict(kind.sections)
    train = {"batch_size": BATCH, "epochs": EPOCHS, "precision": "fp32", "window": sections.pop("window", 4)}
    snapshots = {"every_steps": EVERY_STEPS, "every_s": None, "deltas": sections.pop("deltas", 0)}
    job = Job(
        **{
            "name": "drilled",
            "seed": 5,
            "data": {"train": str(folder / "train.parquet"), "test": str(folder / "test.parquet"), "shuffle": True},
            "features": {
                "sparse": [
                    {"name": "sample", "tables": ["count"]},
                    {"name": "user", "tables": ["deep"]},
                    {"name": "item", "tables": ["deep"]},
                ]
            },
            "tables": [
                {"name": "count", "dim": 1, "optimizer": {"name": "adam", "lr": 1e-5}},
                {"name": "deep", "dim": 8, "optimizer": {"name": "rowwise_adagrad"}},
            ],
            "tower": {"name": "wide_and_deep", "args": {"hidden": [32, 16]}},
            "train": train,
            "snapshots": snapshots,
            "roles": {"readers": 2, "servers": 2, "towers": kind.towers},
            **sections,
        }
    )
    return hardened(job, folder=folder / "run")


def write_rows(path: Path, *, rows: int, seed: int) -> None:
    """Rows with a number of their own, a user and an item, labelled by what the two have in common."""
    random_ = np.random.default_rng(seed)
    users, items = random_.zipf(1.2, rows) % 5000, random_.zipf(1.2, rows) % 3000
    scores = np.sin(users * 0.7) + np.cos(items * 1.3)
    labels = (random_.random(rows) < 1 / (1 + np.exp(-scores))).astype(np.float32)
    table = pa.table({"sample": np.arange(rows) + seed * 10**6, "user": users, "item": items, "label": labels})
    pq.write_table(table, path, row_group_size=1000)


def add_row(report: Report, kind: Kind, drilled: Drilled) -> None:
    report.add(
        run=kind.name,
        faults="; ".join(str(hit) for hit in drilled.hits),
        recovered=len(drilled.recoveries),
        seconds=drilled.seconds,
        longest_s=max((float(str(r["lost_s"] or 0.0)) for r in drilled.recoveries), default=0.0),
        steps_repeated=drilled.steps_repeated,
        lost=drilled.rows_lost,
        twice=drilled.rows_trained_twice,
        loss=f"{drilled.final_loss}",
        same="bits" if drilled.same_bits else f"{drilled.loss_difference:.1e}",
        error=drilled.error or "",
    )


def add_times(report: Report, results: Sequence[Drilled]) -> None:
    """A row for each thing that was done about a loss: how often, and seconds until the run stood there again."""
    lost: dict[str, list[float]] = {}
    for drilled in results:
        for recovery in drilled.recoveries:
            if recovery["lost_s"] is not None:
                lost.setdefault(str(recovery["action"]), []).append(float(str(recovery["lost_s"])))
    for action, seconds in lost.items():
        figures: dict[str, object] = dict.fromkeys(report.rows[0], "")
        figures |= {"run": f"all: {action}", "faults": "median and longest seconds", "recovered": len(seconds)}
        report.add(**(figures | {"seconds": statistics.median(seconds), "longest_s": max(seconds)}))


def add_checks(report: Report, results: Sequence[tuple[Kind, Drilled]], *, left: Sequence[str], faults: int) -> None:
    all_ = [drilled for _, drilled in results]
    ended = [drilled for drilled in all_ if drilled.error is None]
    report.check("faults done to runs", sum(len(d.hits) - len(d.missed) for d in all_), at_least=faults)
    report.check("runs that did not come to their end", len(all_) - len(ended), at_most=0)
    report.check("runs that hung", sum("hangs" in (d.error or "") for d in all_), at_most=0)
    one = [drilled for kind, drilled in results if kind.towers == 1]
    report.check("one tower: runs with other bits", sum(not drilled.same_bits for drilled in one), at_most=0)
    several = [drilled.loss_difference for kind, drilled in results if kind.towers > 1]
    report.check("several towers: difference of final losses, relative", max(several, default=0.0), at_most=1e-4)
    report.check("rows lost", sum(drilled.rows_lost for drilled in all_), at_most=0)
    report.check("rows trained twice", sum(drilled.rows_trained_twice for drilled in all_), at_most=0)
    report.check(
        "runs whose rows were counted one by one",
        sum(d.counted_by.startswith("updates") for d in all_),
        at_least=len(all_),
    )
    behind = sum(len(drilled.left_behind) for drilled in all_) + len(left)
    report.check("processes left behind", behind, at_most=0)
    times = [float(str(r["lost_s"] or 0.0)) for drilled in all_ for r in drilled.recoveries]
    report.check("longest time to recover, seconds", max(times, default=0.0), at_most=MOST_LOST_S)


if __name__ == "__main__":
    sys.exit(main())
