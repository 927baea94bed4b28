"""Snapshots beside the disk and memory: rates of saving and loading, the pause, memory, and layouts of rows in Parquet.

    python -m benchmarks.snapshots [--quick] [--json] [--save]

One server's store of rows of dim 16 with row-wise Adagrad (17 floats, 78 bytes with their keys): 10 M rows; --quick:
1 M. The floor of saving is what binds: writing as many bytes in order with fsync, or copying them in memory; that of
loading: reading files that are not in the page cache, or copying as many bytes into memory that the system has yet to
give, as rows need. (Virtual machines that return free pages to their host give it at .5 to 3 GB/s, others at 20.) The
disk alone stands in the table too. Sides alternate; medians of pairs.

The pause is measured while a lane pushes and pulls 8,192 rows every 50 ms, as a server's does: the cut, and how much
longer the longest call takes than before the snapshot. How much slower all calls are stands in the table: there is in
it what threads lose to each other where cores are few. Memory is the process's, sampled.
Layouts are measured in CPU time of one thread. Files lie in the system's folder for temporary ones (TMPDIR).
"""

from __future__ import annotations

import ctypes
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import psutil

from benchmarks.report import Report, arguments, finish, measure_pairs
from benchmarks.snapshot_layouts import measure_layouts
from hetero.checkpoint.parquet_rows import BUFFER_BYTES
from hetero.checkpoint.rows import FILE_BYTES
from hetero.checkpoint.server_rows import ServerSnapshots
from hetero.checkpoint.snapshot import Snapshot, SnapshotDraft
from hetero.checkpoint.write_behind import MOST_BYTES
from hetero.embedding.answers import Create
from hetero.embedding.shards import SHARDS
from hetero.embedding.store import RowStore
from hetero.kernels.mix import mix64_reference
from hetero.kernels.region import Region
from hetero.keys.routing import initial_owners
from hetero.records import (
    U64,
    DataSpec,
    GroupSpec,
    InitSpec,
    JobSpec,
    KeySet,
    RoleSpec,
    RowOptimizerSpec,
    TableSpec,
    TowerSpec,
)

DIM = 16
ROW_BYTES = 4 * (DIM + 1) + 10
FILL_ROWS = 1 << 18
LANE_ROWS = 8192
LANE_EVERY_S = 0.05
_BLOCK = 1 << 20
GROUP = GroupSpec(
    dim=DIM, optimizer=RowOptimizerSpec(), init=InitSpec(), tables=(TableSpec(index=0, name="rows", seed=5),)
)
JOB = JobSpec(
    name="snapshots",
    seed=0,
    train=DataSpec(paths=(), dense=(), sparse=(), label="label"),
    test=None,
    groups=(GROUP,),
    lookups=(),
    tower=TowerSpec(name="none"),
    batch_size=1,
    epochs=1,
    max_steps=None,
    readers=RoleSpec(),
    servers=RoleSpec(),
    towers=RoleSpec(),
)
OWNERS = initial_owners(JOB.buckets, 1)


def main() -> int:
    options = arguments(__doc__ or "")
    report = Report("snapshots")
    rows = 1_000_000 if options.quick else 10_000_000
    measure_layouts(report, rows=1 << 18 if options.quick else 1 << 20)
    keys = mix64_reference(np.arange(rows, dtype=np.uint64))
    with tempfile.TemporaryDirectory(prefix="hetero-snapshots-") as folder:
        store = filled(keys)
        snapshots = ServerSnapshots([store], JOB, server=0)
        measure_rates(report, snapshots, Path(folder), rows=rows, pairs=3 if options.quick else 5)
        measure_pause(report, store, snapshots, Path(folder), keys)
        measure_delta(report, store, snapshots, Path(folder), keys)
    return finish(report, options)


def filled(keys: U64) -> RowStore:
    """A store of these rows, trained a little."""
    store, random = RowStore(GROUP), np.random.default_rng(0)
    for start in range(0, len(keys), FILL_ROWS):
        part = key_set(keys[start : start + FILL_ROWS])
        store.push(part, random.normal(size=(len(part), DIM)).astype(np.float32))
    return store


def key_set(keys: U64) -> KeySet:
    return KeySet(np.zeros(len(keys), np.uint16), keys)


def save(snapshots: ServerSnapshots, folder: Path, *, name: str, base: Snapshot | None = None) -> Snapshot:
    """A snapshot of the rows, from cut to commit."""
    snapshots.cut(name, owners=OWNERS, base=None if base is None else base.name)
    return written(snapshots, folder, name=name, base=base)


def written(snapshots: ServerSnapshots, folder: Path, *, name: str, base: Snapshot | None = None) -> Snapshot:
    """A snapshot that is cut, written and committed."""
    with SnapshotDraft.begin(folder, name=name, step=0) as draft:
        rows = snapshots.write(folder=draft.path)
        return draft.commit(JOB, files=rows.files, held=rows.held, base=base)


def measure_rates(report: Report, snapshots: ServerSnapshots, folder: Path, *, rows: int, pairs: int) -> None:
    """Saving and loading beside the disk and memory."""
    size = rows * ROW_BYTES
    copy_s = copy_seconds(size)
    saved = [save(snapshots, folder, name="base")]

    def our_save(number: int) -> float:
        return seconds(lambda: saved.append(save(snapshots, folder, name="base")))

    def our_load(number: int) -> float:
        forget_pages(saved[-1])
        store = RowStore(GROUP)
        loading = ServerSnapshots([store], JOB, server=0)
        took = seconds(lambda: loading.load(saved[-1], owners=OWNERS))
        assert store.count() == rows
        return took

    reads: list[float] = []

    def disk_read(number: int) -> float:
        forget_pages(saved[-1])
        reads.append(seconds(lambda: read_files(saved[-1])))
        return max(copy_s, reads[-1], fresh_copy_seconds(size))

    def disk_write(number: int) -> float:
        return max(copy_s, seconds(lambda: write_file(folder / "plain", size)))

    for what, base, ours in (("save", disk_write, our_save), ("load", disk_read, our_load)):
        found = measure_pairs(base, ours, count=pairs)
        disk_s = statistics.median(reads) if base is disk_read else found.base_s
        binds = "memory copy" if found.base_s <= copy_s else "disk" if found.base_s <= disk_s else "fresh memory"
        report.add(
            what=f"{what} {rows:,} rows; {binds} binds",
            ours=f"{size / found.ours_s / 1e6:,.0f} MB/s",
            floor=f"{size / found.base_s / 1e6:,.0f} MB/s",
            ratio=found.ratio,
            spread=found.spread,
        )
        report.check(f"{what}: share of what binds", found.ratio, at_least=0.5)
    disk_s = statistics.median(reads)
    floor, ratio = f"{size / disk_s / 1e6:,.0f} MB/s", disk_s / found.ours_s
    report.add(
        what="load beside the disk alone",
        ours=f"{size / found.ours_s / 1e6:,.0f} MB/s",
        floor=floor,
        ratio=ratio,
        spread="",
    )
    report.add(what="copy in memory", ours="", floor=f"{size / copy_s / 1e6:,.0f} MB/s", ratio="", spread="")


@dataclass(slots=True)
class Lane:
    """A server's lane: pushes and pulls in a thread, at a pace. times: seconds each took. touched: positions pushed."""

    store: RowStore
    keys: U64
    times: list[float] = field(default_factory=list)
    touched: list[np.ndarray] = field(default_factory=list)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Work until the block ends."""
        stop = threading.Event()
        thread = threading.Thread(target=self._work, args=(stop,))
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()

    def _work(self, stop: threading.Event) -> None:
        random = np.random.default_rng(1)
        gradients = random.normal(size=(LANE_ROWS, DIM)).astype(np.float32)
        next_t = time.perf_counter()
        while not stop.is_set():
            picked = random.permutation(np.unique(random.integers(0, len(self.keys), LANE_ROWS)))
            keys = key_set(self.keys[picked])
            self.touched.append(picked)
            self.times.append(seconds(partial(self.store.pull, keys, create=Create.YES)))
            self.times.append(seconds(partial(self.store.push, keys, gradients[: len(keys)])))
            next_t = max(time.perf_counter(), next_t + LANE_EVERY_S)
            stop.wait(next_t - time.perf_counter())


@dataclass(slots=True)
class Peak:
    """The most memory of this process while a block runs, bytes beyond what there was."""

    grown_bytes: int = 0

    @contextmanager
    def watching(self) -> Iterator[None]:
        stop, process = threading.Event(), psutil.Process()
        before = process.memory_info().rss

        def watch() -> None:
            while not stop.wait(0.01):
                self.grown_bytes = max(self.grown_bytes, process.memory_info().rss - before)

        thread = threading.Thread(target=watch)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()


def measure_pause(report: Report, store: RowStore, snapshots: ServerSnapshots, folder: Path, keys: U64) -> None:
    """A snapshot under load: the cut, what the lane's calls lose, and memory."""
    before, during, peak = Lane(store, keys), Lane(store, keys), Peak()
    with before.running():
        time.sleep(3)
    with during.running(), peak.watching():
        cut_s = seconds(lambda: snapshots.cut("loaded", owners=OWNERS))
        took_s = cut_s + seconds(lambda: written(snapshots, folder, name="loaded"))
    lost_s = sum(
        float(np.sum(during.times[which::2]) - len(during.times[which::2]) * np.mean(before.times[which::2]))
        for which in (0, 1)
    )
    longest_s = max(during.times) - max(before.times)
    touched = len(np.unique(np.concatenate(during.touched)))
    allowed = touched * (ROW_BYTES + 6) + BUFFER_BYTES + MOST_BYTES + FILE_BYTES
    for what, value in (
        (f"snapshot of {len(keys):,} rows under load, s", took_s),
        ("cut, ms", cut_s * 1e3),
        ("lane's calls beside those before, % of the snapshot's time", 100 * lost_s / took_s),
        ("lane's longest call before, ms", max(before.times) * 1e3),
        ("lane's longest call during the snapshot, ms", max(during.times) * 1e3),
        ("rows touched meanwhile, thousands", touched / 1e3),
        ("memory grown, MiB", peak.grown_bytes / 2**20),
    ):
        report.add(what=what, ours=value, floor="", ratio="", spread="")
    report.check("pause: cut / time of the snapshot", cut_s / took_s, at_most=0.05)
    report.check("longest pause of the lane / time of the snapshot", (cut_s + max(0, longest_s)) / took_s, at_most=0.05)
    report.check("memory grown / (rows touched + buffers)", peak.grown_bytes / allowed, at_most=1)


def measure_delta(report: Report, store: RowStore, snapshots: ServerSnapshots, folder: Path, keys: U64) -> None:
    """A delta of 1% of the rows beside a base of all."""
    base = save(snapshots, folder, name="base")
    few = key_set(keys[::100])
    store.push(few, np.ones((len(few), DIM), np.float32))
    took_s = seconds(lambda: save(snapshots, folder, name="delta", base=base))
    delta = Snapshot.open(folder / "delta")
    size = sum(entry.bytes for entry in delta.manifest.files)
    assert sum(entry.rows for entry in delta.manifest.files) == len(few)
    report.add(what=f"delta of {len(few):,} rows, s", ours=took_s, floor="", ratio="", spread="")
    report.check(
        "delta of 1% of rows / bytes of its base", size / sum(e.bytes for e in base.manifest.files), at_most=0.02
    )


def seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def copy_seconds(size: int) -> float:
    """What it takes to copy as many bytes in memory, in blocks larger than the caches."""
    block = np.ones(1 << 25, np.uint8)
    target = block.copy()
    return min(seconds(lambda: np.copyto(target, block)) for _ in range(9)) * size / len(block)


def fresh_copy_seconds(size: int) -> float:
    """What it takes to copy as many bytes into memory that this process does not have yet, in as many parts as a
    store's."""
    block = np.ones(-(-size // SHARDS), np.uint8)
    regions = [Region(len(block)) for _ in range(SHARDS)]

    def fill() -> None:
        for region in regions:
            ctypes.memmove(region.address, block.ctypes.data, len(block))

    return seconds(fill)


def write_file(path: Path, size: int) -> None:
    block = np.random.default_rng(0).bytes(_BLOCK)
    with path.open("wb", buffering=0) as file:
        for start in range(0, size, _BLOCK):
            file.write(block[: size - start])
        os.fsync(file.fileno())
    path.unlink()


def files_of(snapshot: Snapshot) -> list[str]:
    return [snapshot.file(entry.file) for entry in snapshot.manifest.files]


def read_files(snapshot: Snapshot) -> None:
    block = bytearray(_BLOCK)
    for path in files_of(snapshot):
        with open(path, "rb", buffering=0) as file:
            while file.readinto(block):
                pass


def forget_pages(snapshot: Snapshot) -> None:
    """Have the system forget what it keeps of a snapshot's files."""
    for path in files_of(snapshot):
        descriptor = os.open(path, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


if __name__ == "__main__":
    sys.exit(main())
