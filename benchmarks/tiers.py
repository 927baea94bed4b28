"""Tables larger than memory: what the SSD engine reaches alone, and what it costs training.

    python -m benchmarks.tiers [--quick] [--json] [--save] [--folder DIR]

Engine: rows of 17 floats appended to a file system against raw writes of the same chunks, and 50,000 random ones read
against raw preadv of the pages they lie in by as many threads. Cold passes the page cache by (O_DIRECT) on both
sides; warm goes through it, filled before. Recovery is timed from opening the directories to an index of all rows; its
seconds are held against 10^9 bytes of records (key, sequence number, checksum and row), which is all that was written
for the keys, and all of which is read and checked. RocksDB and LMDB stand in the table where `rocksdict` and `lmdb` can
be imported; hetero itself needs neither. io_uring is not measured: its one kept Python binding, `liburing`, calls
itself alpha and asks for Linux 6.14.

Training: trainers of the Criteo-like DLRM in one process, their tables filled with all rows that the measured steps
touch, which train on the same rows in turn, 8 steps at a time. One holds everything in memory, the others hold 10% and
2% of those rows; the rest is on SSD, cold or warm. The rows of a window of 8
steps are with the tower, in all of them. Beside its rows a budget holds the index and the buffers, as given in the
table. Losses are compared bit for bit.

Prediction: a run from empty tables, and what `hetero tiers` says of it from a tenth of the keys.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.report import Report, add_arguments, finish
from benchmarks.tier_peers import BINDINGS, measure_peer
from benchmarks.tier_prediction import measure_prediction
from benchmarks.tier_raw import raw_reads, raw_write
from hetero.embedding.answers import Create
from hetero.embedding.ssd.layout import Layout
from hetero.embedding.ssd.recovery import recover
from hetero.embedding.ssd.rows import DEFAULT_THREADS, SsdRows
from hetero.embedding.tier_budget import budget_for
from hetero.embedding.tiered import TieredStore, tier_counts
from hetero.exchange.client import ShardedRowClient
from hetero.exchange.lane_server import LaneServer
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
from hetero.records import DiskIo, JobSpec, KeySet, StorageSpec
from hetero.towers.build import make_tower
from pipelines.job import load_job
from pipelines.resolve import complete, resolve
from pipelines.synthetic import CriteoLike, make_criteo_like

WIDTH = 17
BATCH_ROWS = 50_000
BATCH, WINDOW, CHUNK_STEPS = 4096, 8, 8
SSD_BYTES = 1 << 34
QUICK_ROUNDS = 5
READ_ROUNDS = 6
EXAMPLE = Path(__file__).parents[1] / "examples" / "criteo_like_dlrm.yaml"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser)
    parser.add_argument(
        "--folder", type=Path, default=None, help="on the disk to be measured; default, the temporary one"
    )
    options = parser.parse_args()
    report = Report("tiers")
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        _warm_engine(Path(folder))
        measure_engine(report, Path(folder), rows=2_000_000 if options.quick else 20_000_000)
        measure_peers(report, Path(folder), rows=500_000 if options.quick else 2_000_000)
        measure_training(report, Path(folder), quick=options.quick)
    return finish(report, options)


def _row(report: Report, what: object, **figures: object) -> None:
    names = ("MB_per_s", "rows_per_s", "ratio", "memory_hits", "ssd_bytes_per_sample", "write_amplification")
    report.add(what=what, **{name: figures.get(name, "") for name in names})


def measure_peers(report: Report, folder: Path, *, rows: int) -> None:
    """RocksDB and LMDB where they are installed, on fewer rows."""
    keys, values = _made_rows(rows)
    for name, module in BINDINGS.items():
        speed = measure_peer(name, folder / name, keys, values, batch=BATCH_ROWS)
        if speed is None:
            _row(report, f"{name}: missing, `pip install {module}` in the benchmark's environment")
        else:
            _row(report, f"{name}, appends", rows_per_s=speed.appended)
            _row(report, f"{name}, reads of {BATCH_ROWS:,} rows, warm", rows_per_s=speed.read)


def _made_rows(rows: int) -> tuple[KeySet, np.ndarray]:
    keys = KeySet((np.arange(rows) % 26).astype(np.uint16), mix64_reference(np.arange(rows, dtype=np.uint64)))
    return keys, np.random.default_rng(0).normal(size=(BATCH_ROWS, WIDTH)).astype(np.float32)


def measure_engine(report: Report, folder: Path, *, rows: int) -> None:
    """Appends and reads, each beside its raw counterpart, in turn."""
    keys, values = _made_rows(rows)
    layout = Layout(width=WIDTH, identity=1)
    bytes_ = rows * layout.record_bytes
    raw_s, own_s = [], []
    for number in range(3):
        raw_s.append(raw_write(folder / "raw", bytes_))
        shutil.rmtree(folder / "store", ignore_errors=True)
        store = _store(layout, folder / "store", DiskIo.DIRECT)
        own_s.append(_append(store, keys, values))
        if number < 2:
            store.close()
    ratio = statistics.median(raw / own for raw, own in zip(raw_s, own_s, strict=True))
    _row(report, "raw sequential writes", MB_per_s=bytes_ / 1e6 / statistics.median(raw_s))
    own = statistics.median(own_s)
    _row(report, "appends", MB_per_s=bytes_ / 1e6 / own, rows_per_s=rows / own, ratio=ratio)
    report.check("appends / raw sequential writes", ratio, at_least=0.8)
    store.seal().release()
    store.close()
    for io in (DiskIo.DIRECT, DiskIo.CACHED):
        _measure_reads(report, folder / "store", layout, keys, io)
    shutil.rmtree(folder / "store")
    (folder / "raw").unlink()


def _warm_engine(folder: Path) -> None:
    """Compile what the engine runs."""
    keys = KeySet(np.zeros(1000, np.uint16), np.arange(1000, dtype=np.uint64))
    store = _store(Layout(width=WIDTH, identity=1), folder / "warm", DiskIo.DIRECT)
    _append(store, keys, np.zeros((1000, WIDTH), np.float32))
    store.take(keys)
    for _ in store.scan():
        pass
    store.close()
    recover(store.layout, folders=[folder / "warm"], seeds=_seeds(), shift=np.uint64(52), limit_bytes=1 << 40)[
        0
    ].close()
    shutil.rmtree(folder / "warm")


def _measure_reads(report: Report, folder: Path, layout: Layout, keys: KeySet, io: DiskIo) -> None:
    started = time.perf_counter()
    store, told = recover(layout, folders=[folder], seeds=_seeds(), shift=np.uint64(52), limit_bytes=1 << 40, io=io)
    name = "cold" if io is DiskIo.DIRECT else "warm"
    if io is DiskIo.DIRECT:
        seconds = time.perf_counter() - started
        size = told.records * layout.record_bytes
        _row(report, "recovery by scan", MB_per_s=size / 1e6 / seconds, rows_per_s=told.rows / seconds)
        report.check("recovery by scan, s per GB", seconds / (size / 1e9), at_most=1.0)
    else:
        for _ in store.scan():
            pass
    random = np.random.default_rng(1)
    raw_s: list[float] = []
    own_s: list[float] = []
    with ThreadPoolExecutor(DEFAULT_THREADS) as pool:
        for number in range(READ_ROUNDS + 1):
            first = raw_reads(store, pool, layout, random, rows=BATCH_ROWS) if number % 2 else None
            own = _reads(store, keys, random)
            raw = raw_reads(store, pool, layout, random, rows=BATCH_ROWS) if first is None else first
            if number:
                raw_s.append(raw)
                own_s.append(own)
    ratio = statistics.median(raw / own for raw, own in zip(raw_s, own_s, strict=True))
    _row(report, f"raw preadv, {name}", rows_per_s=BATCH_ROWS / statistics.median(raw_s))
    _row(report, f"reads of {BATCH_ROWS:,} rows, {name}", rows_per_s=BATCH_ROWS / statistics.median(own_s), ratio=ratio)
    report.check(f"random reads / raw preadv, {name}", ratio, at_least=0.8)
    store.close()


def _seeds() -> np.ndarray:
    return mix64_reference(np.arange(26, dtype=np.uint64))


def _store(layout: Layout, folder: Path, io: DiskIo) -> SsdRows:
    return SsdRows(layout, folders=[folder], seeds=_seeds(), shift=np.uint64(52), limit_bytes=1 << 40, io=io)


def _append(store: SsdRows, keys: KeySet, values: np.ndarray) -> float:
    uses = np.zeros(BATCH_ROWS, np.uint8)
    started = time.perf_counter()
    store.reserve(len(keys))
    for start in range(0, len(keys), BATCH_ROWS):
        part = keys[start : start + BATCH_ROWS]
        store.append(part, values[: len(part)], uses[: len(part)])
    store.sync()
    return time.perf_counter() - started


def _reads(store: SsdRows, keys: KeySet, random: np.random.Generator) -> float:
    picked = random.choice(len(keys), BATCH_ROWS, replace=False)
    part = keys[picked]
    started = time.perf_counter()
    read = store.read(part)
    seconds = time.perf_counter() - started
    assert read.found.all()
    return seconds


class FilledTrainer:
    """A trainer whose tables hold every row of the data before it starts."""

    def __init__(self, job: JobSpec, data: DataPass, touched: list[KeySet], *, share: float) -> None:
        self._server = RowServer(job)
        for store, keys in zip(self._server.stores, touched, strict=True):
            if isinstance(store, TieredStore):
                store.tiers.most_rows = int(share * len(keys))
        for store, keys in zip(self._server.stores, touched, strict=True):
            for start in range(0, len(keys), BATCH_ROWS):
                part = keys[start : start + BATCH_ROWS]
                store.pull(part, create=Create.YES)
        self._lane = LaneServer(self._server)
        clock = SpanClock()
        client = ShardedRowClient(job, tower=0, servers=[self._lane], clock=clock)
        module = make_tower(job)
        dense = dense_side(
            job, tower=0, module=module, client=client, servers=[self._lane], group=SoleTower(), clock=clock
        )
        self._tower = Tower(job, module=module, client=client, dense=dense, clock=clock)
        readers = [Reader(job, index=0, data=data.data, splits=data.splits)]
        sequencer = make_sequencer(job, data=data.data, splits=len(data.splits), epochs=1, max_steps=None, towers=1)
        batches = InlineWindows(job, sequencer, readers)
        self._source = LeasedRows(job, client=client, group=SoleTower(), windows=batches, clock=clock)
        self._batches: Iterator[Any] = iter(batches)
        self.samples = 0

    def train(self, steps: int) -> float:
        """Seconds a row of the next steps, reading included."""
        started, rows = time.perf_counter(), 0
        for _ in range(steps):
            spec, batch = next(self._batches)
            self._tower.train_step(spec, batch, self._source)
            rows += batch.rows
        self.samples += rows
        return (time.perf_counter() - started) / rows

    @property
    def losses(self) -> np.ndarray:
        return np.asarray(self._tower.log.losses, np.float64)

    def tiers(self) -> dict[str, int]:
        self._lane.wait()
        return tier_counts(self._server.stores)

    def close(self) -> None:
        self._lane.close()
        self._server.close()


def measure_training(report: Report, folder: Path, *, quick: bool) -> None:
    rounds = QUICK_ROUNDS if quick else 12
    torch.set_num_threads(1)
    make_criteo_like(
        folder,
        recipe=CriteoLike(rows=(CHUNK_STEPS * (rounds + 2) + 2 * WINDOW) * BATCH, test_rows=BATCH),
        progress=lambda _: None,
    )
    paths = [f"data.train={folder / 'train.parquet'}", f"data.test={folder / 'test.parquet'}"]
    job = resolve(complete(load_job(EXAMPLE, overrides=[*paths, f"train.window={WINDOW}"])))
    warm_kernels(job)
    data = DataPass.open(job.train, phase=Phase.TRAIN)
    touched = _touched(job, data)
    rows = sum(len(keys) for keys in touched)
    shares = {"10%": 0.1, "2%": 0.02}
    jobs: dict[str, JobSpec] = {"all in memory": job}
    held = {"all in memory": 1.0}
    for name, share in shares.items():
        for io in (DiskIo.DIRECT, DiskIo.CACHED):
            heat = "cold" if io is DiskIo.DIRECT else "warm"
            budget = memory_for(job, rows=int(share * rows), of=rows)
            storage = StorageSpec(memory_bytes=budget, directories=(str(folder),), ssd_bytes=SSD_BYTES, io=io)
            jobs[f"{name} in memory, {heat}"] = replace(job, storage=storage)
            held[f"{name} in memory, {heat}"] = share
    trainers = {name: FilledTrainer(spec, data, touched, share=held[name]) for name, spec in jobs.items()}
    seconds: dict[str, list[float]] = {name: [] for name in jobs}
    for trainer in trainers.values():
        trainer.train(CHUNK_STEPS)
    before = {name: trainer.tiers() for name, trainer in trainers.items()}
    for number in range(rounds):
        for name in jobs if number % 2 else reversed(jobs):
            seconds[name].append(trainers[name].train(CHUNK_STEPS))
    whole = trainers["all in memory"]
    predicted = replace(jobs["10% in memory, warm"], max_steps=CHUNK_STEPS * rounds)
    for figures in measure_prediction(report, predicted, memory_bytes=memory_for(job, rows=rows // 5, of=rows)):
        _row(report, **figures)
    for name, trainer in trainers.items():
        _training_row(report, name, trainer, seconds[name], seconds["all in memory"], rows=rows, before=before[name])
        if trainer is not whole:
            same = float((trainer.losses == whole.losses).all())
            report.check(f"{name}: losses equal bit for bit", same, at_least=1)
        trainer.close()


def _training_row(
    report: Report,
    name: str,
    trainer: FilledTrainer,
    seconds: list[float],
    whole: list[float],
    *,
    rows: int,
    before: dict[str, int],
) -> None:
    ratio = statistics.median(base / own for base, own in zip(whole, seconds, strict=True))
    after = trainer.tiers()
    counts = {key: after[key] - before[key] for key in after}
    figures: dict[str, object] = {"rows_per_s": 1 / statistics.median(seconds), "ratio": ratio}
    if after:
        samples = len(seconds) * CHUNK_STEPS * BATCH
        found = counts["memory_hits"] + counts["ssd_hits"]
        figures["memory_hits"] = counts["memory_hits"] / max(found, 1)
        figures["ssd_bytes_per_sample"] = (counts["disk_read_bytes"] + counts["disk_written_bytes"]) / samples
        figures["write_amplification"] = counts["disk_written_bytes"] / max(counts["evicted_bytes"], 1)
        name += (
            f" ({after['memory_rows']:,} of {rows:,} rows, {after['leased_rows']:,} with the tower, budget "
            f"{after['memory_budget_bytes'] / 2**20:.0f} MiB)"
        )
        target = 0.8 if name.startswith("10%") else 0.5
        if "cold" in name:
            report.check(f"{name.partition(' (')[0]}: samples/s / all in memory", ratio, at_least=target)
    _row(report, f"training, {name}", **figures)


def _touched(job: JobSpec, data: DataPass) -> list[KeySet]:
    """Every row that the data touch, per group."""
    reader = Reader(job, index=0, data=data.data, splits=data.splits)
    sequencer = make_sequencer(job, data=data.data, splits=len(data.splits), epochs=1, max_steps=None, towers=1)
    parts: list[list[KeySet]] = [[] for _ in job.groups]
    for _, batch in InlineWindows(replace(job, window=1), sequencer, [reader]):
        for group, keys in enumerate(batch.groups):
            parts[group].append(keys.unique)
    return [_united(keys) for keys in parts]


def _united(parts: list[KeySet]) -> KeySet:
    tables, keys = np.concatenate([part.tables for part in parts]), np.concatenate([part.keys for part in parts])
    order = np.lexsort((keys, tables))
    tables, keys = tables[order], keys[order]
    first = np.r_[True, (tables[1:] != tables[:-1]) | (keys[1:] != keys[:-1])]
    return KeySet(tables[first], keys[first])


def memory_for(job: JobSpec, *, rows: int, of: int) -> int:
    """A budget that holds so many rows of `of`, beside the index and leases of two windows."""
    leased = min(of, 2 * WINDOW * BATCH * len(job.lookups) // 2)
    return budget_for(job.groups[0], rows=rows, ssd_rows=of, leased_rows=leased, ssd_bytes=SSD_BYTES)


if __name__ == "__main__":
    sys.exit(main())
