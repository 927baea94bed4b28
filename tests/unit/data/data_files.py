"""Short ways to write input files and to read all of their rows."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from hetero.data.parse import parse_split
from hetero.data.sources import list_splits
from hetero.records import DataSpec, DenseFeature, ParsedSplit, SparseFeature


def make_spec(path: Path | str, **changes: Any) -> DataSpec:
    """A job's data: label, one dense column x, one id column id; `changes` replace fields."""
    fields: dict[str, Any] = {
        "paths": (str(path),),
        "dense": (DenseFeature(name="x", column="x"),),
        "sparse": (SparseFeature(name="id", column="id"),),
        "label": "label",
    }
    return DataSpec(**{**fields, **changes})


def sparse(column: str, **changes: Any) -> SparseFeature:
    """A sparse feature named like its column."""
    return SparseFeature(name=column, column=column, **changes)


def read_all(spec: DataSpec, *, epoch: int = 0) -> list[ParsedSplit]:
    """Every split of a pass, parsed, in file order."""
    return [parse_split(ref, spec=spec, epoch=epoch) for ref in list_splits(spec)]


def read_one(spec: DataSpec, *, epoch: int = 0) -> ParsedSplit:
    """The only split of a pass."""
    (split,) = read_all(spec, epoch=epoch)
    return split


def key_lists(split: ParsedSplit, feature: int = 0) -> list[list[int]]:
    """Keys of one sparse feature, row by row."""
    jagged = split.sparse[feature]
    keys = jagged.keys.tolist()
    if jagged.offsets is None:
        return [[key] for key in keys]
    offsets = jagged.offsets.tolist()
    return [keys[a:b] for a, b in itertools.pairwise(offsets)]


def write_parquet(folder: Path, columns: dict[str, Any], *, name: str = "a.parquet", group: int = 1000) -> Path:
    """Columns as one Parquet file."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path, row_group_size=group)
    return path


def write_text(folder: Path, content: str | bytes, *, name: str = "a.csv") -> Path:
    """Text or bytes as one file."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path
