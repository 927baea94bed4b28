"""Parquet files: row counts and types from the footer, one row group as one block."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from hetero.data.buffers import contiguous, is_list, is_text
from hetero.data.columns import Block
from hetero.data.faults import RowFaults
from hetero.data.filesystem import first_line, locate, open_file, reading
from hetero.data.schema import check_types, needed_columns
from hetero.errors import DataError
from hetero.records import DataSpec, SplitRef

_PLAIN_BYTES = 4


@lru_cache(maxsize=256)
def _footer(path: str, stamp: tuple[int, int | None]) -> Any:
    with open_file(path) as file:
        return pq.read_metadata(file)


def footer_of(path: str) -> Any:
    """The file's metadata, kept while size and time of change stay the same.

    Raises DataError when the file cannot be read, is empty, or is no complete Parquet file.
    """
    with reading(path):
        location = locate(path)
        info = location.filesystem.get_file_info(location.path)
        if info.size == 0:
            raise DataError(f"{path} is empty (0 bytes); write it again or take it out of the data's paths")
        try:
            return _footer(path, (info.size, info.mtime_ns))
        except pa.ArrowInvalid as error:
            raise DataError(
                f"{path} is not a complete Parquet file ({info.size} bytes): {first_line(error)}; it is truncated"
                " or of another format: write it again, or set data.format"
            ) from error


def row_groups(path: str, *, spec: DataSpec) -> list[tuple[int, int]]:
    """(row group, rows) of every row group with rows. Raises DataError when columns or types do not fit."""
    footer = footer_of(path)
    check_types(footer.schema.to_arrow_schema(), spec=spec, path=path)
    groups = ((i, footer.row_group(i).num_rows) for i in range(footer.num_row_groups))
    return [(i, rows) for i, rows in groups if rows > 0]


def read_row_group(ref: SplitRef, *, spec: DataSpec) -> Block:
    """The needed columns of one row group. Raises DataError when pages are damaged or types do not fit."""
    footer = footer_of(ref.path)
    names = list(needed_columns(spec))
    with reading(ref.path), open_file(ref.path) as source:
        check_types(footer.schema.to_arrow_schema(), spec=spec, path=ref.path)
        coded = _coded_text(footer, group=ref.part, names=names)
        file = pq.ParquetFile(source, metadata=footer, read_dictionary=coded)
        table = file.read_row_group(ref.part, columns=names, use_threads=False)
    columns = {name: contiguous(table.column(name)) for name in names}
    rows = table.num_rows
    return Block(columns=columns, rows=rows, lines=np.arange(rows, dtype=np.int64), faults=RowFaults(rows))


def _coded_text(footer: Any, *, group: int, names: list[str]) -> list[str]:
    """Paths of the needed text columns that are dictionary-coded throughout, to be hashed once per distinct value.

    Plain text takes 4 bytes a value for its length alone, so fewer bytes a value tell that codes are stored.
    """
    schema = footer.schema.to_arrow_schema()
    text = {name for name in names if _holds_text(schema.field(name).type)}
    row_group = footer.row_group(group)
    coded = []
    for i in range(row_group.num_columns if text else 0):
        chunk = row_group.column(i)
        path = chunk.path_in_schema
        if path not in text and path.split(".")[0] not in text:
            continue
        if chunk.has_dictionary_page and chunk.total_uncompressed_size < _PLAIN_BYTES * chunk.num_values:
            coded.append(path)
    return coded


def _holds_text(kind: pa.DataType) -> bool:
    return is_text(kind.value_type if is_list(kind) else kind)
