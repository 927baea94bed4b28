"""Server kernels on one core: pulls and pushes beside plain random access, memory a row, dedup beside numpy.

    python -m benchmarks.kernels [--quick] [--json] [--save]

The floor of a pull is a random gather of rows from one array, of a push a random read-modify-write of rows: both know
where the row is, and pay the same cache misses. CPU time of one thread; sides alternate; medians of pairs, with the
ratio's 10% and 90%. In full: 31 pairs, and 1e8 rows loaded; --quick: 15 pairs.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import numba
import numpy as np
import psutil

from benchmarks.report import Report, arguments, cpu_seconds, finish, measure_pairs
from hetero.embedding.answers import Create
from hetero.embedding.store import RowStore
from hetero.hardware.probe import peak_rss_bytes
from hetero.kernels.mix import mix64_reference
from hetero.keys.dedup import Deduplicator
from hetero.records import F32, I64, U16, U64, GroupSpec, InitSpec, KeySet, RowOptimizerSpec, TableSpec
from pipelines.synthetic import CriteoLike

ROWS = 10_000_000
DIM = 16
WIDTH = DIM + 1
CALL_ROWS = 1 << 17
FILL_ROWS = 1 << 18
LOADED_ROWS = 100_000_000
LOAD_CHECK = "1e8 rows of dim 2: peak GiB resident"
_ODD = np.uint64(0xD6E8FEB86659FD93)


@numba.njit(nogil=True)
def gather(rows: F32, places: I64, out: F32) -> None:
    """The widths are constants, so that the loops over a row are the fastest there are."""
    for i in range(len(places)):
        for j in range(DIM):
            out[i, j] = rows[places[i], j]


@numba.njit(nogil=True)
def read_modify_write(rows: F32, places: I64, change: F32) -> None:
    for i in range(len(places)):
        for j in range(WIDTH):
            rows[places[i], j] += change[i, j]


def main() -> int:
    options = arguments(__doc__ or "")
    report = Report("kernels")
    count = 15 if options.quick else 31
    measure_rows(report, count=count)
    for batch in (4096, 16384):
        measure_dedup(report, batch=batch, count=count)
    if options.quick:
        report.not_run(LOAD_CHECK, target="<= 8", why="--quick")
    else:
        measure_load(report)
    return finish(report, options)


def measure_rows(report: Report, *, count: int) -> None:
    """Pull and push of random existing keys, drawn anew for every pair and side, and memory a row."""
    random = np.random.default_rng(0)
    keys = random.integers(0, 2**64, ROWS, dtype=np.uint64)
    before = psutil.Process().memory_info().rss
    store = RowStore(group_of(DIM))
    for start in range(0, ROWS, FILL_ROWS):
        store.pull(key_set(keys[start : start + FILL_ROWS]), create=Create.YES)
    per_row = (psutil.Process().memory_info().rss - before) / ROWS
    plain = np.ones((ROWS, WIDTH), np.float32)
    out, change = np.empty((CALL_ROWS, DIM), np.float32), np.ones((CALL_ROWS, WIDTH), np.float32)
    gradients = random.normal(size=(CALL_ROWS, DIM)).astype(np.float32)

    def places() -> I64:
        return random.permutation(np.unique(random.integers(0, ROWS, CALL_ROWS + 4096)))[:CALL_ROWS]

    def base_pull(number: int) -> float:
        chosen = places()
        return cpu_seconds(lambda: gather(plain, chosen, out))

    def our_pull(number: int) -> float:
        chosen = key_set(keys[places()])
        return cpu_seconds(lambda: store.pull(chosen, create=Create.YES))

    def base_push(number: int) -> float:
        chosen = places()
        return cpu_seconds(lambda: read_modify_write(plain, chosen, change))

    def our_push(number: int) -> float:
        chosen = key_set(keys[places()])
        return cpu_seconds(lambda: store.push(chosen, gradients))

    for what, base, ours in (("pull", base_pull, our_pull), ("push", base_push, our_push)):
        found = measure_pairs(base, ours, count=count)
        name = f"{what}, {ROWS:,} rows of dim {DIM}, M rows/s"
        our_rate, base_rate = CALL_ROWS / found.ours_s / 1e6, CALL_ROWS / found.base_s / 1e6
        report.add(what=name, ours=our_rate, plain=base_rate, ratio=found.ratio, spread=found.spread)
        report.check(f"{what}: share of plain random access", found.ratio, at_least=0.6)
    share = per_row / (4 * WIDTH)
    report.add(what="memory of a row of 68 bytes, bytes", ours=per_row, plain=float(4 * WIDTH), ratio=share, spread="")
    report.check("memory a row / bytes of the row", share, at_most=1.5)
    store.close()


def measure_dedup(report: Report, *, batch: int, count: int) -> None:
    """Unique rows with inverse of 26 features' ids, beside numpy's fastest form: unique of one mixed 64-bit array.

    Mixing is not counted, nor that numpy still owes the tables and keys of the rows it found.
    """
    tables, keys = zipf_ids(batch)
    mixed = keys + tables * _ODD
    dedup = Deduplicator()
    unique, _ = dedup(tables, keys)
    assert len(unique) == len(np.unique(mixed))
    found = measure_pairs(
        lambda _: cpu_seconds(lambda: np.unique(mixed, return_inverse=True)),
        lambda _: cpu_seconds(lambda: dedup(tables, keys)),
        count=count,
    )
    report.add(
        what=f"dedup of 26 x {batch} ids, {len(unique):,} distinct, M ids/s",
        ours=len(keys) / found.ours_s / 1e6,
        plain=len(keys) / found.base_s / 1e6,
        ratio=found.ratio,
        spread=found.spread,
    )
    report.check(f"dedup of 26 x {batch} ids: times numpy's unique", found.ratio, at_least=4)


def zipf_ids(batch: int) -> tuple[U16, U64]:
    """Tables and hashed ids, row after row, of 26 features with Criteo's cardinalities and exponent 1.05."""
    cardinalities = np.asarray(CriteoLike(rows=batch).cardinalities(), np.float64)
    draws = np.random.default_rng(1).random((batch, len(cardinalities)))
    ranks = (1 + draws * ((cardinalities + 1) ** -0.05 - 1)) ** (1 / -0.05)
    tables = np.tile(np.arange(len(cardinalities), dtype=np.uint16), batch)
    return tables, mix64_reference((ranks.astype(np.uint64) << np.uint64(8)).reshape(-1) + tables)


def measure_load(report: Report) -> None:
    """Rows of dim 2 in a process of its own, whose memory, everything included, is theirs."""
    ended = subprocess.run(
        [sys.executable, "-c", f"from benchmarks.kernels import load; load({LOADED_ROWS})"],
        cwd=Path(__file__).parents[1],
        stdout=subprocess.PIPE,
        text=True,
        timeout=1800,
        check=True,
    )
    loaded = json.loads(ended.stdout)
    assert loaded["rows"] == LOADED_ROWS
    rate, gib = loaded["rows"] / loaded["seconds"] / 1e6, loaded["peak_bytes"] / 2**30
    report.add(what="load of 1e8 rows of dim 2, M rows/s", ours=rate, plain="", ratio="", spread="")
    report.check(LOAD_CHECK, gib, at_most=8)


def load(rows: int) -> None:
    """Fill a store of dim 2 and print how many rows it holds, how long it took, and the most memory it needed."""
    store = RowStore(group_of(2))
    started = time.perf_counter()
    for start in range(0, rows, FILL_ROWS):
        keys = mix64_reference(np.arange(start, min(start + FILL_ROWS, rows), dtype=np.uint64))
        store.pull(key_set(keys), create=Create.YES)
    seconds = time.perf_counter() - started
    print(json.dumps({"rows": store.count(), "seconds": seconds, "peak_bytes": peak_rss_bytes()}))


def group_of(dim: int) -> GroupSpec:
    """One table with row-wise Adagrad."""
    table = TableSpec(index=0, name="rows", seed=5)
    return GroupSpec(dim=dim, optimizer=RowOptimizerSpec(), init=InitSpec(), tables=(table,))


def key_set(keys: U64) -> KeySet:
    return KeySet(np.zeros(len(keys), np.uint16), keys)


if __name__ == "__main__":
    sys.exit(main())
