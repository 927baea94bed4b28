"""Does a joint step cost no more than the slower of its halves? Text on one core, all that is sparse on the other.

    python -m benchmarks.joint [--only wide] [--quick] [--json] [--save]

Criteo-like rows (26 ids, 13 numbers) with a text and lists of ids each, batches of 512, through Ray. What reads texts
is pinned to the first core this process may use: the tower's steps, with head, losses and the dense update. What is
sparse is pinned to the second: readers, sequencer, servers, and the tower's thread for rows. Seconds a step, medians
over windows after the first ten steps, of three jobs under that pinning, in turn: the text half alone (the joint tower
without ids), the sparse half alone (Wide & Deep on the same ids, its tower sparse as well), and both as one. Two sizes:
`wide`, with 250 more ids a row in lists, so that texts and rows one after the other would be far off; and `deep`, with
longer texts and no lists. --quick: fewer steps and one round.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from actors.naming import Role
from actors.supervisor import RayRun
from benchmarks.report import Report, add_arguments, finish
from hetero.loops.protocols import Phase
from hetero.loops.run import DataPass, TrainingRun, TrainOutcome
from hetero.loops.sparse_lane import THREAD
from hetero.loops.warm import warm_kernels
from hetero.records import JobSpec
from pipelines.build import Placement, opened_run, reached
from pipelines.job import Job
from pipelines.resolve import complete, resolve
from pipelines.synthetic import CriteoLike, make_criteo_like

BATCH, VOCABULARY = 512, 8000
LIST_IDS = 100_000
SKIPPED = 10
WINDOW = 4
MOST = 1.1
PARTS = ("text half alone", "sparse half alone", "joint")


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """tokens: of a text. lists: of `length` ids in a row. steps: of a run."""

    tokens: int
    layers: int
    width: int
    lists: int
    length: int
    steps: int


SIZES = {
    "wide": Size(tokens=8, layers=2, width=64, lists=5, length=50, steps=80),
    "deep": Size(tokens=32, layers=2, width=64, lists=0, length=0, steps=40),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser)
    parser.add_argument("--only", default=",".join(SIZES), help="sizes, with commas between")
    options = parser.parse_args()
    report = Report("joint")
    os.environ.setdefault("RAY_worker_niceness", "0")  # Ray's workers would yield to whatever else the machine runs
    cores = sorted(os.sched_getaffinity(0))
    for name, size in SIZES.items():
        what = f"{name}: joint step / the slower half's, text on one core and all else on another"
        if len(cores) < 2:
            report.not_run(what, target=f"<= {MOST}", why="this process may use one core only")
        elif name not in options.only.split(","):
            report.not_run(what, target=f"<= {MOST}", why="--only")
        else:
            found = measured(name, size, rounds=1 if options.quick else 3, cores=cores[:2])
            add_rows(report, name, found)
            slower = max(statistics.median(found[part]) for part in PARTS[:2])
            report.check(what, statistics.median(found["joint"]) / slower, at_most=MOST)
    return finish(report, options)


def measured(name: str, size: Size, *, rounds: int, cores: list[int]) -> dict[str, list[float]]:
    """Seconds a step of each part, a round each."""
    found: dict[str, list[float]] = {part: [] for part in PARTS}
    with tempfile.TemporaryDirectory() as folder:
        data = made_data(Path(folder), size)
        jobs = {part: resolve(complete(job_of(part, data, size))) for part in PARTS}
        for number in range(rounds):
            for part, job in jobs.items():
                found[part].append(step_s(job, name=f"joint-{name}-{number}-{part.split()[0]}", cores=cores))
                took = f"{1e3 * found[part][-1]:.1f} ms a step, load {os.getloadavg()[0]:.1f}"
                print(f"{name}, round {number + 1}: {part}: {took}", file=sys.stderr, flush=True)
    return found


def made_data(folder: Path, size: Size) -> Path:
    """Criteo-like rows with a column of random tokens, and of lists of ids, few of which are frequent."""
    rows = size.steps * BATCH
    make_criteo_like(folder, recipe=CriteoLike(rows=rows, test_rows=BATCH), progress=lambda _: None)
    table, random = pq.read_table(folder / "train.parquet"), np.random.default_rng(1)
    tokens = random.integers(0, VOCABULARY, rows * size.tokens).astype(np.int32)
    table = table.append_column("tokens", pa.FixedSizeListArray.from_arrays(pa.array(tokens), size.tokens))
    for number in range(size.lists):
        ids = (LIST_IDS ** random.random(rows * size.length)).astype(np.int64)  # density 1 / id
        table = table.append_column(f"H{number}", pa.FixedSizeListArray.from_arrays(pa.array(ids), size.length))
    path = folder / "with_tokens.parquet"
    pq.write_table(table, path, row_group_size=4 * BATCH)
    return path


def job_of(part: str, data: Path, size: Size) -> Job:
    """One of `PARTS` as a job."""
    sparse: list[Any] = [{"name": f"C{number}"} for number in range(1, 27)]
    sparse += [
        {"name": f"H{number}", "list": True, "pooling": "mean", "max_length": size.length, "tables": ["deep"]}
        for number in range(size.lists)
    ]
    dense = [{"name": f"I{number}"} for number in range(1, 14)]
    text: list[Any] = [{"name": "query", "column": "tokens", "length": size.tokens, "vocabulary": VOCABULARY}]
    tables = [{"name": "wide", "dim": 1}, {"name": "deep", "dim": 16}]
    transformer = {"layers": size.layers, "width": size.width, "heads": 4}
    joint: Mapping[str, Any] = {"name": "joint", "args": {"transformer": transformer, "hidden": [64, 32]}}
    wide = {"name": "wide_and_deep", "args": {"hidden": [64, 32]}}
    features: Mapping[str, Any] = {
        "text half alone": {"text": text},
        "sparse half alone": {"sparse": sparse, "dense": dense},
        "joint": {"sparse": sparse, "dense": dense, "text": text},
    }[part]
    return Job(
        name="joint",
        data={"train": str(data), "shuffle": False},
        features=features,
        tables=tables if "sparse" in features else [],
        tower=joint if "text" in features else wide,
        train={"batch_size": BATCH, "window": WINDOW, "precision": "fp32"},
        roles={"readers": 1, "servers": 2, "towers": 1},
    )


def step_s(job: JobSpec, *, name: str, cores: list[int]) -> float:
    """Seconds a step, with every role pinned: the median over windows after the first steps. Steps between boundaries
    of windows cost less."""
    warm_kernels(job)
    placement = Placement()
    with reached(job, placement=placement), opened_run(job, name=name, placement=placement) as run:
        assert isinstance(run, RayRun)
        for member, pid in run.processes().items():
            reads_texts = member.role is Role.TOWER and bool(job.train.texts)
            pin(pid, core=cores[0] if reads_texts else cores[1], sparse_core=cores[1])
        outcome = run.train(DataPass.open(job.train, phase=Phase.TRAIN), watch=lambda _: None)
        tell(run, outcome)
    return float(np.median(np.diff(outcome.step_ends_t[SKIPPED::WINDOW]))) / WINDOW


def tell(run: TrainingRun, outcome: TrainOutcome) -> None:
    """Where a run's time went, on standard error."""
    spans = {role.name: role.spans.by_name() for role in run.report().roles}
    for what, seconds in {"waits": outcome.waits, "CPU": outcome.cpu_s, **spans}.items():
        per_step = {name: round(1e3 * spent / len(outcome.losses), 1) for name, spent in seconds.items()}
        print(f"  ms a step, {what}: {per_step}", file=sys.stderr, flush=True)


def pin(pid: int, *, core: int, sparse_core: int) -> None:
    """Let the threads of a process run on one core, the one for rows on the sparse side's."""
    for thread in os.listdir(f"/proc/{pid}/task"):
        name = Path(f"/proc/{pid}/task/{thread}/comm").read_text(encoding="utf-8").strip()
        os.sched_setaffinity(int(thread), {sparse_core if name == THREAD else core})


def add_rows(report: Report, name: str, found: Mapping[str, list[float]]) -> None:
    for part, seconds in found.items():
        report.add(
            size=name,
            job=part,
            step_ms=f"{1e3 * statistics.median(seconds):.1f}",
            lowest=f"{1e3 * min(seconds):.1f}",
            highest=f"{1e3 * max(seconds):.1f}",
        )


if __name__ == "__main__":
    raise SystemExit(main())
