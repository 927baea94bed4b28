"""Opens a server's stores, one a group: in memory alone, or in tiers with the job's budgets split over them."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np

from hetero.embedding.policies.rows import PolicyRows
from hetero.embedding.resident import ROW_OVERHEAD_BYTES
from hetero.embedding.rows import Rows, TierRows
from hetero.embedding.ssd.layout import Layout
from hetero.embedding.ssd.rows import SsdRows
from hetero.embedding.store import RowStore
from hetero.embedding.tiered import TieredStore
from hetero.errors import UserError
from hetero.kernels.xxhash64 import hash_text
from hetero.keys.routing import mixed_seeds
from hetero.optim.definition import group_width
from hetero.records import GroupSpec, JobSpec, StorageSpec

_PREFIX = "hetero-rows-"
_LOCK = "lock"
_OLD_S = 60.0
_FIXED_BYTES = 2 << 20


def open_rows(job: JobSpec) -> list[Rows]:
    """The stores of one server, empty. Raises CapacityError for a budget without room for rows, UserError for a
    directory that cannot be used."""
    return [_with_policies(store, job, group) for store, group in zip(_tiers(job), job.groups, strict=True)]


def _with_policies(store: TierRows, job: JobSpec, group: GroupSpec) -> Rows:
    if group.admission is None and group.eviction is None:
        return store
    return PolicyRows(store, group, seeds=mixed_seeds([group]), shift=np.uint64(65 - job.buckets.bit_length()))


def _tiers(job: JobSpec) -> Sequence[TierRows]:
    if job.storage is None:
        return [RowStore(group, threads=job.servers.threads, buckets=job.buckets) for group in job.groups]
    for directory in job.storage.directories:
        _remove_left_behind(Path(directory))
    memory = budget_parts(job.groups, job.storage.memory_bytes)
    ssd = budget_parts(job.groups, job.storage.ssd_bytes)
    return [
        _opened(job, group, storage=replace(job.storage, memory_bytes=memory_bytes, ssd_bytes=ssd_bytes))
        for group, memory_bytes, ssd_bytes in zip(job.groups, memory, ssd, strict=True)
    ]


def budget_parts(groups: tuple[GroupSpec, ...], total: int) -> list[int]:
    """What each group gets of a budget: some for its buffers, the rest as if all tables had equally many rows."""
    fixed = min(_FIXED_BYTES, total // (2 * len(groups)))
    sizes = [len(group.tables) * (4 * group_width(group) + ROW_OVERHEAD_BYTES) for group in groups]
    return [fixed + int((total - fixed * len(groups)) * size / sum(sizes)) for size in sizes]


def _opened(job: JobSpec, group: GroupSpec, *, storage: StorageSpec) -> TieredStore:
    width = group_width(group)
    seeds, shift = mixed_seeds([group]), np.uint64(65 - job.buckets.bit_length())
    folders = [_new_folder(Path(directory)) for directory in storage.directories]
    layout = Layout.fitting(
        width=width,
        identity=hash_text("/".join(f"{table.index}:{table.seed}" for table in group.tables)),
        memory_bytes=storage.memory_bytes,
        ssd_bytes=storage.ssd_bytes,
    )
    with ExitStack() as undo:
        undo.callback(_remove, folders)
        ssd = SsdRows(layout, folders=folders, seeds=seeds, shift=shift, limit_bytes=storage.ssd_bytes, io=storage.io)
        undo.callback(ssd.close)
        store = TieredStore(
            group,
            ssd=ssd,
            seeds=seeds,
            shift=shift,
            memory_bytes=storage.memory_bytes,
            threads=job.servers.threads,
            buckets=job.buckets,
            folders=folders,
        )
        undo.pop_all()
    return store


def _remove(folders: list[Path]) -> None:
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


def _new_folder(directory: Path) -> Path:
    """A directory of one store's own; it goes with the store."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        return Path(tempfile.mkdtemp(prefix=_PREFIX, dir=directory))
    except OSError as error:
        raise UserError(
            f"storage.directories: {directory} cannot be used ({error.strerror}); give one that can be written"
        ) from error


def _remove_left_behind(directory: Path) -> None:
    """Delete what servers left that were killed: folders whose lock nobody has."""
    for folder in directory.glob(f"{_PREFIX}*"):
        try:
            if time.time() - folder.stat().st_mtime < _OLD_S:
                continue  # its server may not have locked it yet
            lock = os.open(folder / _LOCK, os.O_RDWR)
        except OSError:
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
        except OSError:
            pass  # in use
        finally:
            os.close(lock)
