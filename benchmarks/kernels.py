"""Server kernels on one core: pulls and pushes beside plain random access, memory a row, dedup beside numpy.

    python -m benchmarks.kernels [--quick] [--json] [--save]

The floor of a pull is a random gather of the same rows from one array, of a push a random read-modify-write: both
know where the row is, and pay the same cache misses. Sides alternate; medians of pairs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

import numba
import numpy as np
import psutil

from benchmarks.report import Report, arguments, finish, pairs
from hetero.embedding.store import Create, RowStore
from hetero.keys.dedup import Deduplicator
from hetero.records import F32, I64, GroupSpec, InitSpec, KeySet, RowOptimizerSpec, TableSpec
from pipelines.synthetic import CriteoLike

DIM = 16
WIDTH = DIM + 1
CALL_ROWS = 1 << 17
FILL_ROWS = 1 << 18
LOAD_LIMIT_GIB = 8.0


@numba.njit(nogil=True)
def gather(rows: F32, places: I64, out: F32) -> None:
    for i in range(len(places)):
        for j in range(out.shape[1]):
            out[i, j] = rows[places[i], j]


@numba.njit(nogil=True)
def read_modify_write(rows: F32, places: I64, change: F32) -> None:
    for i in range(len(places)):
        for j in range(change.shape[1]):
            rows[places[i], j] += change[i, j]


def main() -> int:
    options = arguments(__doc__ or "")
    report = Report("kernels")
    measure_rows(report, rows=10_000_000, count=9 if options.quick else 21)
    for batch in (4096, 16384):
        measure_dedup(report, batch=batch, count=9 if options.quick else 21)
    if options.quick:
        report.not_run("1e8 rows of dim 2, GiB resident", target="<= 8", why="--quick")
    else:
        measure_load(report)
    return finish(report, options)


def measure_rows(report: Report, *, rows: int, count: int) -> None:
    """Pull and push of random existing keys, and memory a row."""
    random = np.random.default_rng(0)
    keys = random.integers(0, 2**64, rows, dtype=np.uint64)
    before = psutil.Process().memory_info().rss
    store = filled(keys, dim=DIM)
    per_row = (psutil.Process().memory_info().rss - before) / rows
    plain = np.ones((rows, WIDTH), np.float32)
    out, change = np.empty((CALL_ROWS, DIM), np.float32), np.ones((CALL_ROWS, WIDTH), np.float32)
    gradients = random.normal(size=(CALL_ROWS, DIM)).astype(np.float32)
    places = [random.choice(rows, CALL_ROWS, replace=False) for _ in range(8)]
    asked = [KeySet(np.zeros(CALL_ROWS, np.uint16), keys[place]) for place in places]
    plain_places = [random.permutation(place) for place in places]

    def base_pull(number: int) -> float:
        return timed(lambda: gather(plain, plain_places[number % 8], out))

    def our_pull(number: int) -> float:
        return timed(lambda: store.pull(asked[(number + 4) % 8], create=Create.YES))

    def base_push(number: int) -> float:
        return timed(lambda: read_modify_write(plain, plain_places[number % 8], change))

    def our_push(number: int) -> float:
        return timed(lambda: store.push(asked[(number + 4) % 8], gradients))

    for what, base, ours in (("pull", base_pull, our_pull), ("push", base_push, our_push)):
        base(0), ours(0)
        base_s, our_s, ratio = pairs(base, ours, count=count)
        report.add(
            what=f"{what}, {rows:,} rows of dim {DIM}",
            ours_m_per_s=CALL_ROWS / our_s / 1e6,
            floor_m_per_s=CALL_ROWS / base_s / 1e6,
            ratio=ratio,
        )
        report.check(f"{what}: share of plain random access ({rows:,} rows)", ratio, at_least=0.6)
    report.add(what=f"memory, bytes a row of {4 * WIDTH}", ours_m_per_s="", floor_m_per_s="", ratio=per_row)
    report.check(f"memory a row / bytes of the row ({rows:,} rows)", per_row / (4 * WIDTH), at_most=1.5)
    store.close()


def measure_dedup(report: Report, *, batch: int, count: int) -> None:
    """Dedup with inverse of 26 features' Zipf ids, beside numpy's unique on one mixed 64-bit array."""
    random = np.random.default_rng(1)
    keys, tables = zipf_keys(batch, random)
    mixed = keys + tables.astype(np.uint64)
    dedup = Deduplicator()
    unique, _ = dedup(tables, keys)
    base_s, our_s, ratio = pairs(
        lambda _: timed(lambda: np.unique(mixed, return_inverse=True)),
        lambda _: timed(lambda: dedup(tables, keys)),
        count=count,
    )
    report.add(
        what=f"dedup of 26 x {batch}, {len(unique):,} distinct",
        ours_m_per_s=len(keys) / our_s / 1e6,
        floor_m_per_s=len(keys) / base_s / 1e6,
        ratio=ratio,
    )
    report.check(f"dedup of 26 x {batch}, times numpy's unique", ratio, at_least=4)


def zipf_keys(batch: int, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Keys of 26 features, Criteo's cardinalities scaled to 10 M rows, exponent 1.05, row after row; their tables."""
    cardinalities = CriteoLike(rows=batch).cardinalities()
    draws = random.random((batch, len(cardinalities)))
    ranks = (1 + draws * ((np.asarray(cardinalities) + 1.0) ** -0.05 - 1)) ** (1 / -0.05)
    tables = np.tile(np.arange(len(cardinalities), dtype=np.uint16), batch)
    return ranks.astype(np.uint64).reshape(-1) * np.uint64(0x9E3779B97F4A7C15), tables


def measure_load(report: Report) -> None:
    """1e8 rows of dim 2 in a process of its own: its resident memory."""
    ended = subprocess.run(
        [sys.executable, "-m", "benchmarks.kernels"],
        env={**os.environ, "HETERO_BENCHMARK_LOAD": "100000000"},
        capture_output=True,
        text=True,
        timeout=1800,
        check=True,
    )
    loaded = json.loads(ended.stdout)
    rate = loaded["rows"] / loaded["seconds"] / 1e6
    report.add(what="load of 1e8 rows of dim 2", ours_m_per_s=rate, floor_m_per_s="", ratio=loaded["gib"])
    report.check("1e8 rows of dim 2, GiB resident", loaded["gib"], at_most=LOAD_LIMIT_GIB)


def load(rows: int) -> int:
    """Fill a store of dim 2 and print its resident memory, everything included."""
    random = np.random.default_rng(2)
    store = RowStore(group_of(2))
    started = time.perf_counter()
    for start in range(0, rows, FILL_ROWS):
        keys = random.integers(0, 2**64, min(FILL_ROWS, rows - start), dtype=np.uint64)
        store.pull(KeySet(np.zeros(len(keys), np.uint16), keys), create=Create.YES)
    seconds = time.perf_counter() - started
    gib = psutil.Process().memory_info().rss / 2**30
    print(json.dumps({"rows": store.count(), "seconds": seconds, "gib": gib}))
    return 0


def group_of(dim: int) -> GroupSpec:
    table = TableSpec(index=0, name="rows", seed=5)
    return GroupSpec(dim=dim, optimizer=RowOptimizerSpec(), init=InitSpec(), tables=(table,))


def filled(keys: np.ndarray, *, dim: int) -> RowStore:
    store = RowStore(group_of(dim))
    for start in range(0, len(keys), FILL_ROWS):
        part = keys[start : start + FILL_ROWS]
        store.pull(KeySet(np.zeros(len(part), np.uint16), part), create=Create.YES)
    return store


def timed(work: object) -> float:
    assert callable(work)
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


if __name__ == "__main__":
    wanted = os.environ.get("HETERO_BENCHMARK_LOAD")
    sys.exit(load(int(wanted)) if wanted else main())
