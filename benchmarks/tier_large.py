"""A table far larger than its memory: filled, trained, snapshotted, resumed; memory and disk within their budgets.

    python -m benchmarks.tier_large [--scale 1.0] [--steps 500] [--folder DIR] [--quick] [--json] [--save]

At scale 1, 40 M rows of dim 128 (21.8 GB of records) and 2 GiB of memory, the index of what is on SSD included; the
scale multiplies both, and the rows of a batch (1024), and --quick is a tenth. Every row that the data could ask for is
there before the first step, put in by the loader of snapshots; then a DLRM trains in one process, and takes a snapshot
when four fifths of the steps are done. A second process takes that up and trains the rest: its losses are the first
one's, bit for bit. Memory for tables
is the most that the process has, without the most it had in a few steps from empty tables, their rows left out; disk is
the files of the store. --folder needs room for about three times the records.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import psutil
import torch

from benchmarks.report import Report, add_arguments, finish
from hetero.checkpoint.search import latest_good
from hetero.embedding.rows import Rows
from hetero.kernels.mix import mix64_reference
from hetero.loops.local import LocalRun
from hetero.loops.protocols import Phase
from hetero.loops.run import DataPass
from hetero.loops.snapshots import SnapshotPlace
from hetero.loops.tower_state import ResumePoint
from hetero.loops.warm import warm_kernels
from hetero.records import JobSpec, KeySet, SnapshotSpec, StorageSpec
from hetero.towers.build import make_tower
from pipelines.job import load_job
from pipelines.resolve import complete, resolve
from pipelines.synthetic import CriteoLike, make_criteo_like

ROWS, DIM = 40_000_000, 128
MEMORY_BYTES = 2 << 30
BATCH, WINDOW = 1024, 4
SSD_FACTOR = 2.2
OVER = 1.1
_FILL_ROWS = 1 << 13
_WARM_STEPS = 24
_LOOK_EVERY_S = 0.1
_EXAMPLE = Path(__file__).parents[1] / "examples" / "criteo_like_dlrm.yaml"


@dataclass(frozen=True, kw_only=True)
class Part:
    """What one process did. rss_bytes: of memory for tables. losses: of all steps, as hex, to the bit."""

    seconds_filled: float
    seconds_trained: float
    rss_bytes: int
    disk_bytes: int
    rows: int
    memory_rows: int
    losses: list[str]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser)
    parser.add_argument("--scale", type=float, default=None, help="of rows and memory; default 1, with --quick 0.1")
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument(
        "--folder", type=Path, default=None, help="on the disk to be measured; default, the temporary one"
    )
    parser.add_argument("--part", choices=("fill", "resume"), default=None, help=argparse.SUPPRESS)
    options = parser.parse_args()
    scale = options.scale or (0.1 if options.quick else 1.0)
    if options.part:
        print(
            json.dumps(
                asdict(run_part(options.folder, scale=scale, steps=options.steps, resumed=options.part == "resume"))
            )
        )
        return 0
    report = Report("tier_large")
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        measure(report, Path(folder), scale=scale, steps=options.steps)
    return finish(report, options)


def measure(report: Report, folder: Path, *, scale: float, steps: int) -> None:
    rows, memory = int(ROWS * scale), int(MEMORY_BYTES * scale)
    record_bytes = 24 + 4 * (DIM + 2)
    needed, free = int(3.2 * rows * record_bytes), shutil.disk_usage(folder).free
    if needed > free:
        report.not_run(
            "the run", target="done", why=f"{folder} has {free >> 30} GiB free, about {needed >> 30} are needed"
        )
        return
    make_criteo_like(
        folder, recipe=CriteoLike(rows=_batch(scale) * steps, test_rows=BATCH, total=rows), progress=lambda _: None
    )
    parts = {name: _process(folder, name, scale=scale, steps=steps) for name in ("fill", "resume")}
    for name, part in parts.items():
        report.add(
            what=f"{name}: {part.rows:,} rows, {part.memory_rows:,} in memory",
            filled_s=part.seconds_filled,
            trained_s=part.seconds_trained,
            rss_mib=part.rss_bytes / 2**20,
            disk_gb=part.disk_bytes / 1e9,
        )
        report.check(f"{name}: memory for tables / budget of {memory >> 20} MiB", part.rss_bytes / memory, at_most=OVER)
        report.check(f"{name}: files / limit", part.disk_bytes / _ssd_bytes(rows), at_most=1)
    report.check("steps trained", len(parts["fill"].losses), at_least=steps)
    report.check(
        "losses after resuming equal bit for bit", float(parts["fill"].losses == parts["resume"].losses), at_least=1
    )


def _process(folder: Path, part: str, *, scale: float, steps: int) -> Part:
    """One part in a process of its own, whose memory is its alone."""
    words = ["--part", part, "--folder", str(folder), "--scale", str(scale), "--steps", str(steps)]
    command = [sys.executable, "-m", "benchmarks.tier_large", *words]
    ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=3600, check=True)
    return Part(**json.loads(ended.stdout.splitlines()[-1]))


def run_part(folder: Path, *, scale: float, steps: int, resumed: bool) -> Part:
    """Fill, train all steps and take a snapshot; or take it up and train the rest."""
    torch.set_num_threads(1)
    job = job_in(folder, scale=scale, steps=steps)
    warm_kernels(job)
    alone = _rss_alone(job, folder)
    data = DataPass.open(job.train, phase=Phase.TRAIN, max_steps=steps)
    with _highest_rss() as most, _opened(job) as run:
        started = time.perf_counter()
        if resumed:
            snapshot = latest_good(folder / "snapshots", job=job).good
            assert snapshot is not None
            run.restore(snapshot)
            data = replace(data, start=ResumePoint.of(snapshot).cursor)
        else:
            fill(run.servers.servers[0].stores[0], CriteoLike(rows=1, total=int(ROWS * scale)).cardinalities())
        filled = time.perf_counter()
        place = SnapshotPlace(folder=str(folder / ("again" if resumed else "snapshots")))
        outcome = run.train(data, watch=lambda _: None, snapshots=place)
        trained = time.perf_counter()
        tiers = run.report().tiers
    return Part(
        seconds_filled=filled - started,
        seconds_trained=trained - filled,
        rss_bytes=most[0] - alone,
        disk_bytes=tiers["disk_bytes"],
        rows=tiers["memory_rows"] + tiers["ssd_rows"],
        memory_rows=tiers["memory_rows"],
        losses=[float(loss).hex() for loss in outcome.losses],
    )


def job_in(folder: Path, *, scale: float, steps: int) -> JobSpec:
    """The example with rows of dim 128 and the budgets."""
    paths = [f"data.train={folder / 'train.parquet'}", f"data.test={folder / 'test.parquet'}"]
    changes = [
        f"tables[0].dim={DIM}",
        f"train.batch_size={_batch(scale)}",
        f"train.window={WINDOW}",
        "train.precision=fp32",
    ]
    tower = [f"tower.args.bottom=[512, {DIM}]", "tower.args.top=[256]"]
    job = resolve(complete(load_job(_EXAMPLE, overrides=[*paths, *changes, *tower])))
    rows = int(ROWS * scale)
    storage = StorageSpec(
        memory_bytes=int(MEMORY_BYTES * scale), directories=(str(folder / "ssd"),), ssd_bytes=_ssd_bytes(rows)
    )
    return replace(job, storage=storage, max_steps=steps, snapshots=SnapshotSpec(every_steps=4 * steps // 5, keep=1))


def _batch(scale: float) -> int:
    """Rows of a step: what calls work on comes on top of a budget, so both are of one scale."""
    return max(64, int(BATCH * scale))


def _ssd_bytes(rows: int) -> int:
    """Room for the rows' records twice, and for segments under way."""
    return int(SSD_FACTOR * rows * (24 + 4 * (DIM + 2))) + (1 << 29)


def fill(store: Rows, cardinalities: tuple[int, ...]) -> None:
    """Every row that the data could ask for, with random weights, by the loader of snapshots."""
    weights = np.random.default_rng(0).uniform(-0.01, 0.01, (_FILL_ROWS, store.width)).astype(np.float32)
    weights[:, DIM:] = 0
    store.reserve(sum(cardinalities))
    for table, count in enumerate(cardinalities):
        for start in range(0, count, _FILL_ROWS):
            ranks = np.arange(start, min(start + _FILL_ROWS, count), dtype=np.uint64)
            keys = mix64_reference((np.uint64(table + 1) << np.uint64(40)) | ranks)
            store.load_rows(KeySet(np.full(len(keys), table, np.uint16), keys), weights[: len(keys)])


def _rss_alone(job: JobSpec, folder: Path) -> int:
    """Bytes of this process in a few steps and a snapshot with all rows in memory, but for those rows: what reading,
    the tower, its windows and the writing of a snapshot take whatever the tables do."""
    few = replace(job, storage=None, max_steps=_WARM_STEPS, snapshots=SnapshotSpec(every_steps=_WARM_STEPS // 2))
    with _highest_rss() as most, _opened(few) as run:
        data = DataPass.open(few.train, phase=Phase.TRAIN, max_steps=_WARM_STEPS)
        run.train(data, watch=lambda _: None, snapshots=SnapshotPlace(folder=str(folder / "warm")))
        rows = sum(store.count() * 4 * store.width for store in run.servers.servers[0].stores)
    shutil.rmtree(folder / "warm")
    return most[0] - rows


@contextmanager
def _opened(job: JobSpec) -> Iterator[LocalRun]:
    run = LocalRun(job, make_tower=lambda: make_tower(job))
    try:
        yield run
    finally:
        run.close()


@contextmanager
def _highest_rss() -> Iterator[list[int]]:
    """The most memory that this process has, looked at ten times a second."""
    process, ended, most = psutil.Process(), threading.Event(), [0]

    def look() -> None:
        while not ended.wait(_LOOK_EVERY_S):
            most[0] = max(most[0], process.memory_info().rss)

    watching = threading.Thread(target=look, daemon=True)
    watching.start()
    try:
        yield most
    finally:
        ended.set()
        watching.join()


if __name__ == "__main__":
    sys.exit(main())
