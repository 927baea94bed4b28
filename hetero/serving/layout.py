"""An exported model on disk: what its folder holds, and the manifest that says how rows become the tower's inputs.

    manifest.json                       features, transforms, hashing, lookups, tables; size and SHA-256 of every file
    tower.pt2                           `torch.export`: dense, pooled blocks, sequences, masks -> probabilities
    tables/<number>-<name>/rows.parquet     key uint64, row list<float32>[dim]: for any Parquet tool
    tables/<number>-<name>/keys.npy         uint64 [N], in order of the mixed key      } mapped into memory
    tables/<number>-<name>/values.npy       float32 [N, dim], in the same order        } by the loader
    tables/<number>-<name>/starts.npy       int64 [slots + 1]: `hetero.kernels.slots`  }

Parquet cannot be looked up in place: its pages must be decoded first. The arrays are what a lookup needs and no more:
a mapped page is shared by all processes of a machine, opening takes no time, and a table may be larger than memory.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from hetero.errors import DataError
from hetero.records import (
    DataSpec,
    DenseFeature,
    DenseTransform,
    IdKind,
    LookupSpec,
    Missing,
    Pooling,
    SparseFeature,
    TextFeature,
)

FORMAT = 1
MANIFEST = "manifest.json"
TOWER = "tower.pt2"
PARQUET, KEYS, VALUES, STARTS = "rows.parquet", "keys.npy", "values.npy", "starts.npy"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedTable:
    """One table. index: its number in the job. seed: of the mix. default: every value of a key that is not there."""

    name: str
    index: int
    group: int
    dim: int
    seed: int
    rows: int
    slot_bits: int
    folder: str
    default: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRecord:
    """One file. sha256: of its bytes, in hexadecimal."""

    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDim:
    """A group of tables, as `hetero.keys.assemble` counts them."""

    dim: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingSpec:
    """How rows become scores. job, step, digest: the job's name, and the model that was exported.

    dense, sparse, texts: what columns mean, as in `DataSpec`. files: all but the manifest, by path inside the folder.
    """

    job: str
    step: int
    digest: str
    dense: tuple[DenseFeature, ...]
    sparse: tuple[SparseFeature, ...]
    groups: tuple[GroupDim, ...]
    lookups: tuple[LookupSpec, ...]
    tables: tuple[ServedTable, ...]
    files: Mapping[str, FileRecord]
    texts: tuple[TextFeature, ...] = ()

    @property
    def data(self) -> DataSpec:
        """How rows are parsed."""
        return DataSpec(paths=(), dense=self.dense, sparse=self.sparse, texts=self.texts, label=None)


def table_folder(index: int, name: str) -> str:
    """Where a table lies inside the folder of an exported model."""
    return f"tables/{index:03d}-{re.sub(r'[^A-Za-z0-9_.-]', '-', name)}"


def write_manifest(spec: ServingSpec, *, folder: Path) -> None:
    """Write the manifest of an exported model."""
    record = {"format": FORMAT, **asdict(spec)}
    (folder / MANIFEST).write_text(json.dumps(_plain(record), indent=1) + "\n", encoding="utf-8")


def read_manifest(folder: Path) -> ServingSpec:
    """Read it. Raises DataError when the folder holds no exported model, or one of another format."""
    path = folder / MANIFEST
    try:
        record: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: no exported model is here ({error}); make one with `hetero export`") from error
    found = record.get("format") if isinstance(record, dict) else None
    if found != FORMAT or "sparse" not in record:
        raise DataError(f"{path}: is no manifest of an exported model of format {FORMAT} (it says {found!r})")
    try:
        return _spec(record)
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{path}: lacks what a manifest of format {FORMAT} holds ({error}); export anew") from error


def check_sizes(spec: ServingSpec, *, folder: Path) -> None:
    """Raises DataError when a file is missing or of another size."""
    for name, record in spec.files.items():
        path = folder / name
        if not path.is_file():
            raise DataError(f"{path}: is missing, the manifest lists it; export anew")
        if path.stat().st_size != record.bytes:
            raise DataError(f"{path}: has {path.stat().st_size} bytes, the manifest says {record.bytes}; export anew")


def check_file(name: str, record: FileRecord, *, folder: Path) -> None:
    """Raises DataError when a file's bytes are not those that were written."""
    with (folder / name).open("rb") as file:
        actual = hashlib.file_digest(file, "sha256").hexdigest()
    if actual != record.sha256:
        raise DataError(
            f"{folder / name}: was changed or damaged (SHA-256 {actual[:12]}..., the manifest says "
            f"{record.sha256[:12]}...); export anew"
        )


def _spec(record: dict[str, Any]) -> ServingSpec:
    return ServingSpec(
        job=record["job"],
        step=record["step"],
        digest=record["digest"],
        dense=tuple(
            DenseFeature(**{**feature, "transform": DenseTransform(feature["transform"])})
            for feature in record["dense"]
        ),
        sparse=tuple(_sparse(feature) for feature in record["sparse"]),
        groups=tuple(GroupDim(**group) for group in record["groups"]),
        lookups=tuple(LookupSpec(**{**lookup, "pooling": Pooling(lookup["pooling"])}) for lookup in record["lookups"]),
        tables=tuple(ServedTable(**table) for table in record["tables"]),
        files={name: FileRecord(**file) for name, file in record["files"].items()},
        texts=tuple(TextFeature(**text) for text in record.get("texts", ())),
    )


def _sparse(record: dict[str, Any]) -> SparseFeature:
    boundaries = record["boundaries"]
    kinds = {"ids": IdKind(record["ids"]), "missing": Missing(record["missing"])}
    return SparseFeature(**{**record, **kinds, "boundaries": None if boundaries is None else tuple(boundaries)})


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value.value if isinstance(value, Enum) else value
