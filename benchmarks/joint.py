"""Does a joint step cost no more than the slower of its halves? Text on one core, all that is sparse on the other.

    python -m benchmarks.joint [--quick] [--json] [--save]

Criteo-like rows (26 ids, 13 numbers) with 32 tokens each, batches of 512, through Ray: towers are pinned to the first
core this process may use, readers, servers and sequencer to the second. Seconds a step, medians over the steps after
the first ten, of three jobs under the same pinning, in turn: the text half alone (the joint tower without ids), the
sparse half alone (Wide & Deep on the same ids), and both as one. The text half is whole in its tower. --quick: fewer
steps and one round.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from actors.naming import Role
from actors.supervisor import RayRun
from benchmarks.report import Report, arguments, finish
from hetero.loops.protocols import Phase
from hetero.loops.run import DataPass
from hetero.loops.warm import warm_kernels
from hetero.records import JobSpec
from pipelines.build import Placement, opened_run, reached
from pipelines.job import Job
from pipelines.resolve import complete, resolve
from pipelines.synthetic import CriteoLike, make_criteo_like

BATCH, TOKENS, VOCABULARY = 512, 32, 8000
SKIPPED = 10
MOST = 1.1
PARTS = ("text half alone", "sparse half alone", "joint")
TRANSFORMER = {"layers": 2, "width": 64, "heads": 4}


def main() -> int:
    options = arguments(__doc__ or "")
    steps, rounds = (40, 1) if options.quick else (100, 3)
    report = Report("joint")
    cores = sorted(os.sched_getaffinity(0))
    name = "joint step / the slower half's, text on one core and all else on another"
    if len(cores) < 2:
        report.not_run(name, target=f"<= {MOST}", why="this process may use one core only")
        return finish(report, options)
    found: dict[str, list[float]] = {part: [] for part in PARTS}
    with tempfile.TemporaryDirectory() as folder:
        data = made_data(Path(folder), rows=steps * BATCH)
        jobs = {part: resolve(complete(job_of(part, data))) for part in PARTS}
        for number in range(rounds):
            for part, job in jobs.items():
                print(f"round {number + 1}: {part}", file=sys.stderr, flush=True)
                found[part].append(step_s(job, name=f"joint-{number}-{part.split()[0]}", cores=cores[:2]))
    add_rows(report, found)
    slower = max(statistics.median(found[part]) for part in PARTS[:2])
    report.check(name, statistics.median(found["joint"]) / slower, at_most=MOST)
    return finish(report, options)


def made_data(folder: Path, *, rows: int) -> Path:
    """Criteo-like rows with a column of random tokens."""
    make_criteo_like(folder, recipe=CriteoLike(rows=rows, test_rows=BATCH), progress=lambda _: None)
    table = pq.read_table(folder / "train.parquet")
    tokens = np.random.default_rng(1).integers(0, VOCABULARY, rows * TOKENS).astype(np.int32)
    column = pa.FixedSizeListArray.from_arrays(pa.array(tokens), TOKENS)
    path = folder / "with_tokens.parquet"
    pq.write_table(table.append_column("tokens", column), path, row_group_size=4 * BATCH)
    return path


def job_of(part: str, data: Path) -> Job:
    """One of `PARTS` as a job."""
    sparse = [{"name": f"C{number}"} for number in range(1, 27)]
    dense = [{"name": f"I{number}"} for number in range(1, 14)]
    text: list[Any] = [{"name": "query", "column": "tokens", "length": TOKENS, "vocabulary": VOCABULARY}]
    tables = [{"name": "wide", "dim": 1}, {"name": "deep", "dim": 16}]
    joint: Mapping[str, Any] = {"name": "joint", "args": {"transformer": TRANSFORMER, "hidden": [256, 128]}}
    wide = {"name": "wide_and_deep", "args": {"hidden": [256, 128]}}
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
        train={"batch_size": BATCH, "window": 4, "precision": "fp32"},
        roles={"readers": 1, "servers": 2, "towers": 1},
    )


def step_s(job: JobSpec, *, name: str, cores: list[int]) -> float:
    """Seconds a step, the median after the first ones, with every role pinned."""
    warm_kernels(job)
    placement = Placement()
    with reached(job, placement=placement), opened_run(job, name=name, placement=placement) as run:
        assert isinstance(run, RayRun)
        for member, pid in run.processes().items():
            pin(pid, cores[0] if member.role is Role.TOWER else cores[1])
        outcome = run.train(DataPass.open(job.train, phase=Phase.TRAIN), watch=lambda _: None)
    return float(np.median(np.diff(outcome.step_ends_t)[SKIPPED:]))


def pin(pid: int, core: int) -> None:
    """Let all threads of a process run on one core."""
    for thread in os.listdir(f"/proc/{pid}/task"):
        os.sched_setaffinity(int(thread), {core})


def add_rows(report: Report, found: Mapping[str, list[float]]) -> None:
    for part, seconds in found.items():
        report.add(
            job=part,
            step_ms=f"{1e3 * statistics.median(seconds):.1f}",
            lowest=f"{1e3 * min(seconds):.1f}",
            highest=f"{1e3 * max(seconds):.1f}",
        )


if __name__ == "__main__":
    raise SystemExit(main())
