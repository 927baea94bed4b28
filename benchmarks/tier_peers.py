"""RocksDB and LMDB under the workload of `benchmarks.tiers`: rows by key appended and read in batches.

Their bindings are wanted in the benchmark's environment only: `pip install rocksdict lmdb`.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hetero.records import F32, KeySet

BINDINGS = {"RocksDB": "rocksdict", "LMDB": "lmdb"}
_MAP_BYTES = 1 << 36


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerSpeed:
    """Rows a second, appended in batches, and read by random batches with the files in the page cache."""

    appended: float
    read: float


def measure_peer(name: str, folder: Path, keys: KeySet, rows: F32, *, batch: int) -> PeerSpeed | None:
    """One peer's speed, or None where its binding is not installed. rows: float32 [batch, W], written over and over."""
    try:
        module = importlib.import_module(BINDINGS[name])
    except ImportError:
        return None
    names = np.zeros((len(keys), 10), np.uint8)
    names[:, :2] = keys.tables.byteswap().view(np.uint8).reshape(-1, 2)
    names[:, 2:] = keys.keys.byteswap().view(np.uint8).reshape(-1, 8)
    put, get, close = _OPENED[name](module, folder)
    values = [row.tobytes() for row in rows]
    started = time.perf_counter()
    for start in range(0, len(names), batch):
        part = [name.tobytes() for name in names[start : start + batch]]
        put(part, values[: len(part)])
    appended = len(names) / (time.perf_counter() - started)
    random, seconds = np.random.default_rng(2), []
    for _ in range(3):
        part = [names[at].tobytes() for at in random.choice(len(names), batch, replace=False)]
        started = time.perf_counter()
        found = get(part)
        seconds.append(time.perf_counter() - started)
        assert all(len(value) == len(values[0]) for value in found)
    close()
    return PeerSpeed(appended=appended, read=batch / min(seconds))


_Puts = Callable[[list[bytes], list[bytes]], None]
_Gets = Callable[[list[bytes]], list[bytes]]


def _rocksdb(module: Any, folder: Path) -> tuple[_Puts, _Gets, Callable[[], None]]:
    database = module.Rdict(str(folder), module.Options(raw_mode=True))

    def put(names: list[bytes], values: list[bytes]) -> None:
        batch = module.WriteBatch(raw_mode=True)
        for name, value in zip(names, values, strict=True):
            batch.put(name, value)
        database.write(batch)

    def get(names: list[bytes]) -> list[bytes]:
        return list(database.get(names))

    return put, get, database.close


def _lmdb(module: Any, folder: Path) -> tuple[_Puts, _Gets, Callable[[], None]]:
    database = module.open(str(folder), map_size=_MAP_BYTES, sync=False)

    def put(names: list[bytes], values: list[bytes]) -> None:
        with database.begin(write=True) as transaction, transaction.cursor() as cursor:
            cursor.putmulti(list(zip(names, values, strict=True)))

    def get(names: list[bytes]) -> list[bytes]:
        with database.begin(buffers=False) as transaction, transaction.cursor() as cursor:
            return [value for _, value in cursor.getmulti(names)]

    def close() -> None:
        database.sync(True)
        database.close()

    return put, get, close


_OPENED = {"RocksDB": _rocksdb, "LMDB": _lmdb}
