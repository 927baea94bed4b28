"""One split to one `ParsedSplit`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from hetero.data.buffers import contiguous
from hetero.data.columns import Block, Rows, convert, join_blocks
from hetero.data.delimited import read_delimited
from hetero.data.faults import RowFaults
from hetero.data.jagged import freeze
from hetero.data.libsvm import read_libsvm
from hetero.data.parquet import read_row_group
from hetero.data.schema import check_fixed, check_types, needed_columns
from hetero.data.shuffle import row_order
from hetero.records import DataSpec, Format, MalformedRow, ParsedSplit, SplitRef

_IN_MEMORY = "rows"


def parse_split(ref: SplitRef, *, spec: DataSpec, epoch: int) -> ParsedSplit:
    """Reads one split. Rows that cannot be used are left out and told in `malformed`, in file order.

    Rows stand in file order or, with `spec.shuffle`, in an order drawn from (seed, epoch, position of the split).
    The arrays of `sparse` are read-only; int64 and uint64 ids of Parquet files are Arrow's memory, not copies.
    Raises DataError when the file cannot be read, or its columns or types do not fit the job.
    """
    parts: list[Rows] = []
    malformed: list[MalformedRow] = []
    for block in read_blocks_of(ref, spec=spec):
        parts.append(convert(block, spec=spec))
        malformed.extend(_malformed(block, ref=ref))
    rows = join_blocks(parts, spec=spec)
    del parts
    if spec.shuffle:
        rows = rows.take(row_order(len(rows.labels), spec=spec, epoch=epoch, position=ref.position))
    return _parsed(rows, ref=ref, epoch=epoch, malformed=malformed)


def parse_table(table: pa.Table, *, spec: DataSpec) -> ParsedSplit:
    """Rows that are in memory, by the rules for Parquet files; `malformed` tells them by row number, `path` is "rows".

    Raises DataError when a column is missing or of a type that does not fit its use.
    """
    check_types(table.schema, spec=spec, path=_IN_MEMORY)
    rows = table.num_rows
    columns = {name: contiguous(table.column(name)) for name in needed_columns(spec)}
    block = Block(columns=columns, rows=rows, lines=np.arange(rows, dtype=np.int64), faults=RowFaults(rows))
    ref = SplitRef(position=0, path=_IN_MEMORY, format=Format.PARQUET)
    good = convert(block, spec=spec)
    return _parsed(good, ref=ref, epoch=0, malformed=_malformed(block, ref=ref))


def _parsed(rows: Rows, *, ref: SplitRef, epoch: int, malformed: Sequence[MalformedRow]) -> ParsedSplit:
    return ParsedSplit(
        ref=ref,
        epoch=epoch,
        labels=rows.labels,
        weights=rows.weights,
        dense=rows.dense,
        sparse=tuple(freeze(jagged) for jagged in rows.sparse),
        gauc_ids=rows.gauc_ids,
        malformed=tuple(malformed),
        tokens=rows.tokens,
        tasks=rows.tasks,
    )


def read_blocks_of(ref: SplitRef, *, spec: DataSpec) -> Iterator[Block]:
    """The split's rows as read, block by block, before any rule. Raises DataError as `parse_split` does."""
    if ref.format is Format.PARQUET:
        yield read_row_group(ref, spec=spec)
    elif ref.format is Format.LIBSVM:
        check_fixed(spec, kind=ref.format, path=ref.path)
        yield from read_libsvm(ref)
    else:
        yield from read_delimited(ref, spec=spec)


def _malformed(block: Block, *, ref: SplitRef) -> list[MalformedRow]:
    places = [(int(block.lines[row]), reason) for row, reason in block.faults.reasons()]
    places.extend(block.dropped)
    return [
        MalformedRow(path=ref.path, split_start=ref.start, line=line, reason=reason, part=ref.part)
        for line, reason in sorted(places)
    ]
