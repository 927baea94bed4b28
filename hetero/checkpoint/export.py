"""From a snapshot to a folder that `hetero.serving` scores with: weights alone, no optimizer state.

Rows go to disk in the order of their mixed keys. A snapshot is read by ranges of buckets, which are the top bits of the
mix, so ranges come out one after the other and memory holds one range at a time, whatever the table's size.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import nn

from hetero.checkpoint.scan import PART_BYTES, scan_rows
from hetero.checkpoint.snapshot import Snapshot
from hetero.errors import HeteroError, UserError
from hetero.kernels.mix import mix64_reference
from hetero.kernels.slots import slot_bits, slot_counts
from hetero.records import F32, U64, JobSpec, SparseFeature, TableSpec
from hetero.serving.layout import (
    KEYS,
    PARQUET,
    STARTS,
    TOWER,
    VALUES,
    FileRecord,
    GroupDim,
    ServedTable,
    ServingSpec,
    table_folder,
    write_manifest,
)
from hetero.towers.export import export_tower

_ROWS_PER_GROUP = 1 << 17
_KEYS_AT_ONCE = 1 << 20


def export_model(
    module: nn.Module,
    job: JobSpec,
    snapshot: Snapshot,
    *,
    folder: Path,
    sparse: Sequence[SparseFeature] | None = None,
    part_bytes: int = PART_BYTES,
) -> ServingSpec:
    """Write tower and tables of a snapshot. All of it is there when the folder is, under its name.

    module: the job's tower with the snapshot's parameters. sparse: the job's features with settled kinds of ids.
    Raises UserError when the folder exists, TowerError for a tower that cannot be exported, DataError for a damaged
    snapshot, HeteroError when the disk refuses.
    """
    folder = folder.absolute()
    if folder.exists():
        raise UserError(f"{folder}: exists, and was not touched; give a folder that is not there yet, or remove it")
    draft = folder.with_name(folder.name + ".partial")
    try:
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(parents=True)
        torch.export.save(export_tower(module, job), draft / TOWER)
        tables = _write_tables(snapshot, job, folder=draft, part_bytes=part_bytes)
        spec = ServingSpec(
            job=job.name,
            step=snapshot.manifest.step,
            digest=snapshot.manifest.digest,
            dense=job.train.dense,
            sparse=job.train.sparse if sparse is None else tuple(sparse),
            texts=job.train.texts,
            groups=tuple(GroupDim(dim=group.dim) for group in job.groups),
            lookups=job.lookups,
            tables=tables,
            files=_records(draft),
        )
        write_manifest(spec, folder=draft)
        _sync(draft)
        draft.rename(folder)
    except (OSError, pa.ArrowException) as error:
        raise HeteroError(
            f"{folder}: the model cannot be written ({error}); make room, or give another place"
        ) from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return spec


def _write_tables(snapshot: Snapshot, job: JobSpec, *, folder: Path, part_bytes: int) -> tuple[ServedTable, ...]:
    with ExitStack() as files:
        writers = {
            table.index: files.enter_context(_TableWriter(table, group=number, dim=group.dim, folder=folder))
            for number, group in enumerate(job.groups)
            for table in group.tables
        }
        for part in scan_rows(snapshot, job, part_bytes=part_bytes):
            group = job.groups[part.group]
            for table in group.tables:
                mine = part.keys.tables == table.index
                writers[table.index].add(part.keys.keys[mine], part.rows[mine, : group.dim])
        return tuple(writers[index].finish() for index in sorted(writers))


class _TableWriter:
    """The files of one table. Parts of it come in ascending order of the mixed keys."""

    def __init__(self, table: TableSpec, *, group: int, dim: int, folder: Path) -> None:
        self._table, self._group, self._dim = table, group, dim
        self._inside = folder / table_folder(table.index, table.name)
        self._seed = mix64_reference(np.array([table.seed], np.uint64))[0]
        self._rows = 0
        self._last = -1

    def __enter__(self) -> _TableWriter:
        with ExitStack() as opened:
            self._inside.mkdir(parents=True)
            self._keys = opened.enter_context(_GrowingArray(self._inside / KEYS, kind=np.uint64))
            self._values = opened.enter_context(_GrowingArray(self._inside / VALUES, kind=np.float32, width=self._dim))
            schema = pa.schema([("key", pa.uint64()), ("row", pa.list_(pa.float32(), self._dim))])
            self._parquet = opened.enter_context(
                pq.ParquetWriter(self._inside / PARQUET, schema, use_dictionary=False, compression="zstd")
            )
            self._opened = opened.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    def add(self, keys: U64, values: F32) -> None:
        """Rows of a range of buckets, in any order; values float32 [n, dim]."""
        mixed = mix64_reference(keys ^ self._seed)
        order = np.argsort(mixed)
        if len(order):
            assert int(mixed[order[0]]) > self._last, "ranges of buckets must ascend"
            self._last = int(mixed[order[-1]])
        keys, values = keys[order], np.ascontiguousarray(values[order])
        self._keys.append(keys)
        self._values.append(values)
        row = pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), self._dim)
        table = pa.table([pa.array(keys), row], schema=self._parquet.schema)
        self._parquet.write_table(table, row_group_size=_ROWS_PER_GROUP)
        self._rows += len(keys)

    def finish(self) -> ServedTable:
        """Complete the files, and note where every slot begins."""
        self._opened.close()
        bits = slot_bits(self._rows)
        counts = np.zeros(1 << bits, np.int64)
        keys = np.load(self._inside / KEYS, mmap_mode="r") if self._rows else np.empty(0, np.uint64)
        for start in range(0, self._rows, _KEYS_AT_ONCE):
            counts += slot_counts(keys[start : start + _KEYS_AT_ONCE], mixed_seed=int(self._seed), bits=bits)
        np.save(self._inside / STARTS, np.concatenate([[0], np.cumsum(counts)]).astype(np.int64))
        return ServedTable(
            name=self._table.name,
            index=self._table.index,
            group=self._group,
            dim=self._dim,
            seed=self._table.seed,
            rows=self._rows,
            slot_bits=bits,
            folder=table_folder(self._table.index, self._table.name),
        )


class _GrowingArray:
    """A .npy file that grows by rows; numpy leaves room in the header for the number of rows it comes to."""

    def __init__(self, path: Path, *, kind: type[np.generic], width: int | None = None) -> None:
        self._path, self._kind, self._width = path, np.dtype(kind), width
        self._rows = 0

    def __enter__(self) -> _GrowingArray:
        self._file: BinaryIO = self._path.open("wb")
        self._write_header()
        return self

    def __exit__(self, *_: object) -> None:
        if not self._file.closed:
            self._file.seek(0)
            self._write_header()
            self._file.close()

    def append(self, part: npt.NDArray[np.generic]) -> None:
        self._file.write(np.ascontiguousarray(part).reshape(-1).view(np.uint8).data)
        self._rows += len(part)

    def _write_header(self) -> None:
        shape = (self._rows,) if self._width is None else (self._rows, self._width)
        header = {"descr": np.lib.format.dtype_to_descr(self._kind), "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(self._file, header)


def _records(folder: Path) -> dict[str, FileRecord]:
    records = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        records[path.relative_to(folder).as_posix()] = FileRecord(bytes=path.stat().st_size, sha256=digest)
    return records


def _sync(folder: Path) -> None:
    """Have all of a folder on the disk."""
    for path in (*folder.rglob("*"), folder):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
