"""Does the cost of a row stay flat while tables and servers grow? Does memory grow by the rows alone?

    python -m benchmarks.scaling [--quick] [--json] [--save]

Tables: three trainers in one process, whose tables hold 1 M, 10 M and 100 M rows before the clock starts, train on the
same rows in turn; CPU time a row. Servers: runs through Ray with 1, 2 and 4 servers in turn; CPU time of all roles a
row. --quick: 1 M and 10 M rows, 1 and 4 servers.
"""

from __future__ import annotations

import gc
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import torch
import yaml

from benchmarks.report import Report, arguments, finish
from hetero.embedding.answers import Create
from hetero.exchange.client import LocalServer, ShardedRowClient
from hetero.exchange.leases import LeasedRows
from hetero.exchange.server import RowServer
from hetero.kernels.mix import mix64_reference
from hetero.loops.modes import dense_side
from hetero.loops.protocols import Phase
from hetero.loops.reader import Reader, make_sequencer
from hetero.loops.run import DataPass
from hetero.loops.tower import Tower
from hetero.loops.warm import warm_kernels
from hetero.loops.windows import InlineWindows
from hetero.observe.spans import SpanClock
from hetero.parallel.group import SoleTower
from hetero.records import JobSpec, KeySet
from hetero.towers.build import make_tower
from pipelines.job import Job, load_job
from pipelines.resolve import complete, resolve
from pipelines.synthetic import CriteoLike, make_criteo_like

FILL_ROWS = 1 << 18
WINDOW = 8
CHUNK_STEPS = 8
BATCH = 4096
MOST_SHARE = 1.1
EXAMPLE = Path(__file__).parents[1] / "examples" / "criteo_like_dlrm.yaml"


def main() -> int:
    options = arguments(__doc__ or "")
    report = Report("scaling")
    sizes = [1_000_000, 10_000_000] if options.quick else [1_000_000, 10_000_000, 100_000_000]
    servers = [1, 4] if options.quick else [1, 2, 4]
    rounds = 5 if options.quick else 9
    with tempfile.TemporaryDirectory() as folder:
        steps = max(CHUNK_STEPS * (rounds + 2), 24)
        job = made_job(Path(folder), rows=(steps + 2) * BATCH)
        measure_tables(report, resolve(complete(job)), sizes=sizes, rounds=rounds)
        measure_servers(report, job, folder=Path(folder), counts=servers, rounds=3 if options.quick else 5)
    if options.quick:
        report.not_run("100,000,000 rows: CPU time of a row / that at 1 M", target="<= 1.1", why="--quick")
    return finish(report, options)


def made_job(folder: Path, *, rows: int) -> Job:
    """The Criteo-like example on rows made for it."""
    make_criteo_like(folder, recipe=CriteoLike(rows=rows, test_rows=BATCH), progress=lambda _: None)
    overrides = [
        f"data.train={folder / 'train.parquet'}",
        f"data.test={folder / 'test.parquet'}",
        f"train.window={WINDOW}",
    ]
    return load_job(EXAMPLE, overrides=overrides)


class FilledTrainer:
    """A trainer in this process whose tables hold many rows that the data never ask for, beside those they do."""

    def __init__(self, job: JobSpec, data: DataPass, *, rows: int) -> None:
        before = psutil.Process().memory_info().rss
        server = RowServer(job)
        for start in range(0, rows, FILL_ROWS):
            numbers = np.arange(start, min(start + FILL_ROWS, rows), dtype=np.uint64)
            tables = (numbers % np.uint64(len(job.groups[0].tables))).astype(np.uint16)
            server.stores[0].pull(KeySet(tables, mix64_reference(numbers)), create=Create.YES)
        self.bytes_per_row = (psutil.Process().memory_info().rss - before) / rows
        self.row_bytes = 4 * server.stores[0].width
        clock = SpanClock()
        handles = [LocalServer(server)]
        client = ShardedRowClient(job, tower=0, servers=handles, clock=clock)
        module = make_tower(job)
        dense = dense_side(job, tower=0, module=module, client=client, servers=handles, group=SoleTower(), clock=clock)
        self._tower = Tower(job, module=module, client=client, dense=dense, clock=clock)
        readers = [Reader(job, index=0, data=data.data, splits=data.splits)]
        sequencer = make_sequencer(job, data=data.data, splits=len(data.splits), epochs=1, max_steps=None, towers=1)
        batches = InlineWindows(job, sequencer, readers)
        self._source = LeasedRows(job, client=client, group=SoleTower(), windows=batches, clock=clock)
        self._batches: Iterator[tuple[object, object]] = iter(batches)

    def train(self, steps: int) -> float:
        """CPU seconds a row of the next steps, reading included."""
        started, rows = time.process_time(), 0
        for _ in range(steps):
            spec, batch = next(self._batches)
            self._tower.train_step(spec, batch, self._source)  # type: ignore[arg-type]
            rows += batch.rows  # type: ignore[attr-defined]
        return (time.process_time() - started) / rows


def measure_tables(report: Report, job: JobSpec, *, sizes: list[int], rounds: int) -> None:
    torch.set_num_threads(1)
    warm_kernels(job)
    data = DataPass.open(job.train, phase=Phase.TRAIN)
    alone = replace(job, window=WINDOW)
    trainers = {size: FilledTrainer(alone, data, rows=size) for size in sizes}
    for trainer in trainers.values():
        trainer.train(CHUNK_STEPS)
    seconds: dict[int, list[float]] = {size: [] for size in sizes}
    for number in range(rounds):
        for size in sizes if number % 2 else reversed(sizes):
            seconds[size].append(trainers[size].train(CHUNK_STEPS))
    first = sizes[0]
    for size in sizes:
        ratio = statistics.median(ours / base for ours, base in zip(seconds[size], seconds[first], strict=True))
        report.add(
            what=f"{size:,} rows in the tables",
            cpu_us_per_row=1e6 * statistics.median(seconds[size]),
            ratio=ratio,
            bytes_per_row=trainers[size].bytes_per_row,
        )
        if size != first:
            report.check(f"{size:,} rows: CPU time of a row / that at 1 M", ratio, at_most=MOST_SHARE)
            share = trainers[size].bytes_per_row / trainers[size].row_bytes
            report.check(f"{size:,} rows: memory a row / bytes of the row", share, at_most=1.5)
    trainers.clear()
    gc.collect()


def measure_servers(report: Report, job: Job, *, folder: Path, counts: list[int], rounds: int) -> None:
    cost: dict[int, list[float]] = {count: [] for count in counts}
    for number in range(rounds):
        for count in counts if number % 2 else reversed(counts):
            cost[count].append(_through_ray(job, folder=folder / f"servers-{count}-{number}", servers=count))
    first = counts[0]
    for count in counts:
        ratio = statistics.median(ours / base for ours, base in zip(cost[count], cost[first], strict=True))
        report.add(
            what=f"{count} servers through Ray",
            cpu_us_per_row=1e6 * statistics.median(cost[count]),
            ratio=ratio,
            bytes_per_row="",
        )
        if count != first:
            report.check(f"{count} servers: CPU time of a row / that of 1", ratio, at_most=MOST_SHARE)


def _through_ray(job: Job, *, folder: Path, servers: int) -> float:
    """CPU seconds a row of all roles together."""
    folder.mkdir()
    record = job.model_dump(mode="json", by_alias=True)
    record["roles"]["servers"] = {"count": servers, "threads": 1}
    record["run"]["folder"] = str(folder / "run")
    (folder / "job.yaml").write_text(yaml.safe_dump(record), encoding="utf-8")
    code = "import sys; from pipelines.cli import main; sys.exit(main())"
    subprocess.run(
        [sys.executable, "-c", code, "train", str(folder / "job.yaml"), "--json"],
        cwd=Path(__file__).parents[1],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        timeout=600,
        check=True,
    )
    summary = json.loads((folder / "run" / "summary.json").read_text(encoding="utf-8"))
    return float(sum(summary["cpu_s"].values()) / summary["samples"])


if __name__ == "__main__":
    sys.exit(main())
