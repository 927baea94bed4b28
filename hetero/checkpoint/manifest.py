"""The manifest of a model: which files belong together, and how to know that they are whole.

    model/manifest.json                    tables, groups, parts with row counts and checksums
    model/rows/group-00.part-0000.parquet  `hetero.checkpoint.rows`
    model/dense.safetensors                `hetero.checkpoint.dense`

It holds what evaluation needs, and nothing that would resume training mid-way. Any number of servers can load it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hetero.errors import DataError
from hetero.records import JobSpec

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What a complete model consists of. dense_sha256: of the file of dense parameters."""

    parts: tuple[Part, ...]
    dense_sha256: str


def write_manifest(job: JobSpec, *, folder: Path, parts: Sequence[Part], dense_sha256: str) -> None:
    """Write the manifest, last, so that a folder with one is complete."""
    record = {
        "format": FORMAT,
        "buckets": job.buckets,
        "groups": _groups(job),
        "parts": [asdict(part) for part in parts],
        "dense": {"file": DENSE, "sha256": dense_sha256},
    }
    path = folder / MANIFEST
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    partial.replace(path)


def read_manifest(folder: Path, *, job: JobSpec | None = None) -> Manifest:
    """Read a model's manifest. Raises DataError when none can be read, or when its tables are not those of `job`."""
    path = folder / MANIFEST
    try:
        record: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: no complete model is here ({error}); train the job to its end first") from error
    found = record.get("format") if isinstance(record, dict) else None
    if found != FORMAT:
        raise DataError(f"{path}: is of format {found!r}, this version reads {FORMAT}")
    try:
        groups = record["groups"]
        manifest = Manifest(
            parts=tuple(Part(**part) for part in record["parts"]), dense_sha256=record["dense"]["sha256"]
        )
    except (KeyError, TypeError) as error:
        raise DataError(f"{path}: lacks what a manifest of format {FORMAT} holds ({error}); write it anew") from error
    if job is not None and groups != _groups(job):
        raise DataError(f"{path}: holds the tables of another job; evaluate with the job that trained it")
    return manifest


def check_file(path: Path, *, sha256: str) -> None:
    """Raises DataError when a file of a model is missing or was changed."""
    if not path.is_file():
        raise DataError(f"{path}: is missing, the manifest lists it")
    actual = file_sha256(path)
    if actual != sha256:
        raise DataError(
            f"{path}: was changed or damaged (SHA-256 {actual[:12]}..., the manifest says {sha256[:12]}...)"
        )


def file_sha256(path: Path) -> str:
    """SHA-256 of a file's bytes, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _groups(job: JobSpec) -> list[dict[str, Any]]:
    return [
        {
            "dim": group.dim,
            "optimizer": group.optimizer.kind.value,
            "tables": {str(table.index): table.name for table in group.tables},
        }
        for group in job.groups
    ]
