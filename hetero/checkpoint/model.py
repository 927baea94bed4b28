"""The model a finished run leaves behind: what evaluation needs, and nothing that would resume training mid-way.

    model/manifest.json                    tables, groups, parts with row counts and checksums
    model/rows/group-00.part-0000.parquet  table uint16, key uint64, row fixed_size_list<float32>[W]
    model/dense.safetensors                parameters and buffers of the tower

Rows carry the optimizer state. Any number of servers can load it: each takes the rows of its own buckets.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from safetensors.torch import load_file, save_file
from torch import nn

from hetero.embedding.store import RowStore
from hetero.errors import DataError, HeteroError
from hetero.keys.routing import Router, initial_owners
from hetero.records import GroupSpec, JobSpec, KeySet

FORMAT = 1
MANIFEST = "manifest.json"
DENSE = "dense.safetensors"


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One Parquet file of rows. sha256 is of the file's bytes."""

    file: str
    group: int
    rows: int
    sha256: str


def write_rows(stores: Sequence[RowStore], job: JobSpec, *, folder: Path, server: int) -> tuple[Part, ...]:
    """Write every row of one server, one file a group. Raises HeteroError naming the file when the disk refuses."""
    (folder / "rows").mkdir(parents=True, exist_ok=True)
    return tuple(
        _write_part(store, group, folder=folder, name=f"rows/group-{index:02d}.part-{server:04d}.parquet", index=index)
        for index, (store, group) in enumerate(zip(stores, job.groups, strict=True))
    )


def write_dense(module: nn.Module, *, folder: Path) -> str:
    """Write parameters and buffers of a tower; returns the file's SHA-256."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / DENSE
    save_file({name: tensor.detach().cpu().contiguous() for name, tensor in module.state_dict().items()}, path)
    return _sha256(path)


def write_manifest(job: JobSpec, *, folder: Path, parts: Sequence[Part], dense_sha256: str) -> None:
    """Write the manifest, last, so that a folder with one is complete."""
    record = {
        "format": FORMAT,
        "buckets": job.buckets,
        "groups": [
            {"dim": group.dim, "tables": {str(table.index): table.name for table in group.tables}}
            for group in job.groups
        ],
        "parts": [asdict(part) for part in parts],
        "dense": {"file": DENSE, "sha256": dense_sha256},
    }
    path = folder / MANIFEST
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    partial.replace(path)


def read_rows(stores: Sequence[RowStore], job: JobSpec, *, folder: Path, server: int, servers: int) -> int:
    """Load the rows whose buckets belong to `server` of `servers`; returns their number.

    Raises DataError for a folder without a manifest, a file that is missing or differs from its checksum, or tables
    that are not the job's.
    """
    router = Router(job.groups, job.buckets, initial_owners(job.buckets, servers))
    loaded = 0
    for part in _parts(folder, job):
        for keys, rows in _read_part(folder / part.file):
            mine = router.route(part.group, keys)[server]
            stores[part.group].write_rows(mine.keys, rows[mine.positions])
            loaded += len(mine.keys)
    return loaded


def read_dense(module: nn.Module, *, folder: Path) -> None:
    """Load parameters and buffers into a tower built from the same job. Raises DataError when they do not fit it."""
    path = folder / DENSE
    _check(path, _manifest(folder)["dense"]["sha256"])
    try:
        module.load_state_dict(load_file(path))
    except RuntimeError as error:
        raise DataError(f"{path}: does not fit the tower of this job: {error}") from error


def _write_part(store: RowStore, group: GroupSpec, *, folder: Path, name: str, index: int) -> Part:
    path = folder / name
    written = 0
    try:
        with pq.ParquetWriter(path, _schema(store.width)) as writer:
            for keys, rows in store.scan():
                values = pa.FixedSizeListArray.from_arrays(pa.array(rows.reshape(-1)), store.width)
                columns = [pa.array(keys.tables), pa.array(keys.keys), values]
                writer.write_batch(pa.record_batch(columns, schema=_schema(store.width)))
                written += len(keys)
    except OSError as error:
        raise HeteroError(f"{path}: rows of {group.tables[0].name} could not be written: {error}") from error
    return Part(file=name, group=index, rows=written, sha256=_sha256(path))


def _schema(width: int) -> pa.Schema:
    return pa.schema([("table", pa.uint16()), ("key", pa.uint64()), ("row", pa.list_(pa.float32(), width))])


def _read_part(path: Path) -> Iterator[tuple[KeySet, np.ndarray]]:
    for batch in pq.ParquetFile(path).iter_batches(batch_size=1 << 18):
        rows = batch.column("row")
        width = rows.type.list_size
        keys = KeySet(np.array(batch.column("table")), np.array(batch.column("key")))
        yield keys, np.array(rows.flatten()).reshape(-1, width)


def _parts(folder: Path, job: JobSpec) -> Iterator[Part]:
    manifest = _manifest(folder)
    expected = [
        {"dim": group.dim, "tables": {str(table.index): table.name for table in group.tables}} for group in job.groups
    ]
    if manifest["groups"] != expected:
        raise DataError(f"{folder / MANIFEST}: holds the tables of another job; evaluate with the job that trained it")
    for record in manifest["parts"]:
        part = Part(**record)
        _check(folder / part.file, part.sha256)
        yield part


def _manifest(folder: Path) -> dict:
    path = folder / MANIFEST
    try:
        manifest: dict = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: no complete model is here ({error}); train the job to its end first") from error
    if manifest.get("format") != FORMAT:
        raise DataError(f"{path}: format {manifest.get('format')!r}, this version reads {FORMAT}")
    return manifest


def _check(path: Path, sha256: str) -> None:
    if not path.is_file():
        raise DataError(f"{path}: is missing, the manifest lists it")
    actual = _sha256(path)
    if actual != sha256:
        raise DataError(f"{path}: was changed or damaged (SHA-256 {actual[:12]}…, the manifest says {sha256[:12]}…)")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
