"""CSV, TSV and Criteo's raw log: lines to columns of bytes by Arrow's CSV reader, with every bad line accounted for.

Every cell is read as bytes and an empty cell is missing, so that one bad cell costs one row and has a place. Lines
end with a line feed (a carriage return before it is dropped); a quoted cell may hold the delimiter but no line break.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv

from hetero.data.buffers import U8, Bool, bytes_view, contiguous
from hetero.data.columns import Block
from hetero.data.faults import RowFaults
from hetero.data.filesystem import reading
from hetero.data.lines import LineBlock, first_line_of, read_blocks
from hetero.data.schema import CRITEO_COLUMNS, check_columns, check_fixed, needed_columns
from hetero.errors import DataError
from hetero.records import I64, DataSpec, Format, SplitRef

_NEWLINE, _RETURN, _QUOTE = 10, 13, 34
_PIECE_BYTES = 1 << 20
"""Arrow converts this much at a time; what fits the cache is faster by a third than whole splits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How lines of a file divide into columns. quote: the quote character, None where quotes mean nothing.
    header_lines: 1 when the file's first line names the columns, else 0."""

    names: tuple[str, ...]
    delimiter: str
    quote: str | None
    header_lines: int


def layout_of(path: str, *, kind: Format, spec: DataSpec) -> Layout:
    """The layout of one file: columns from its first line, from `spec.columns`, or Criteo's.

    Raises DataError when the file is empty or lacks a column the job needs (the nearest names are given).
    """
    if kind is Format.CRITEO:
        check_fixed(spec, kind=kind, path=path)
        return Layout(names=CRITEO_COLUMNS, delimiter="\t", quote=None, header_lines=0)
    delimiter = "," if kind is Format.CSV else "\t"
    names, header_lines = spec.columns, 0
    if names is None:
        names, header_lines = _header(path, delimiter=delimiter), 1
    check_columns(names, spec=spec, path=path)
    return Layout(names=names, delimiter=delimiter, quote='"', header_lines=header_lines)


def read_delimited(ref: SplitRef, *, spec: DataSpec) -> Iterator[Block]:
    """The blocks of a split. Raises DataError when the file cannot be read or divided into rows."""
    layout = layout_of(ref.path, kind=ref.format, spec=spec)
    wanted = list(needed_columns(spec))
    for lines in read_blocks(ref):
        data, first_line = lines.data, lines.first_line
        if layout.header_lines and ref.start == 0 and first_line == 1:
            data, first_line = data[data.find(b"\n") + 1 or len(data) :], 2
        yield _block(LineBlock(data, first_line), layout=layout, wanted=wanted, path=ref.path)


def _header(path: str, *, delimiter: str) -> tuple[str, ...]:
    line = first_line_of(path)
    if line is None:
        raise DataError(f"{path} is empty (0 bytes); write it again or take it out of the data's paths")
    if not line.strip():
        raise DataError(
            f"{path}: the first line is blank but should name the columns; write a header, or name the columns"
            " in data.columns"
        )
    names = next(csv.reader([line.decode(errors="replace")], delimiter=delimiter))
    return tuple(name.strip() for name in names)


@dataclass(frozen=True, slots=True)
class _Table:
    """What Arrow made of some lines: columns, rows, and (0-based line among those not blank, reason) left out."""

    columns: dict[str, pa.Array]
    rows: int
    left_out: list[tuple[int, str]]


def _block(lines: LineBlock, *, layout: Layout, wanted: list[str], path: str) -> Block:
    data, places, dropped = lines.data, _filled_lines(lines.data), list[tuple[int, str]]()
    if b"\r" in data:
        stray = _stray_returns(data)
        data, places, dropped = _without(
            data, places, dropped, bad=stray, reason="a carriage return stands inside the line"
        )
    table = _parse(data, layout=layout, wanted=wanted, path=path)
    if table.rows + len(table.left_out) != len(places) and layout.quote is not None:
        data, places, dropped = _without(
            data,
            places,
            dropped,
            bad=_open_quotes(data, delimiter=layout.delimiter),
            reason="a quote is opened and not closed in the line",
        )
        table = _parse(data, layout=layout, wanted=wanted, path=path)
    if table.rows + len(table.left_out) != len(places):
        raise DataError(
            f"{path}: {len(places)} lines from line {lines.first_line} of the split parse as"
            f" {table.rows + len(table.left_out)} rows; a quoted cell seems to hold a line break: write such"
            " cells without line breaks, or use Parquet"
        )
    numbers = places + lines.first_line
    out = [(int(numbers[row]), reason) for row, reason in table.left_out]
    out += [(line + lines.first_line, reason) for line, reason in dropped]
    if table.left_out:
        numbers = np.delete(numbers, [row for row, _ in table.left_out])
    return Block(
        columns=table.columns,
        rows=table.rows,
        lines=numbers,
        dropped=tuple(sorted(out)),
        faults=RowFaults(table.rows),
    )


def _parse(data: bytes, *, layout: Layout, wanted: list[str], path: str) -> _Table:
    if not data.strip(b"\r\n"):
        return _Table({name: pa.array([], pa.binary()) for name in wanted}, 0, [])
    try:
        return _parse_in_pieces(data, layout=layout, wanted=wanted, piece_bytes=_PIECE_BYTES)
    except pa.ArrowInvalid:
        pass
    with reading(path):  # a line may be longer than a piece
        return _parse_in_pieces(data, layout=layout, wanted=wanted, piece_bytes=len(data) + 1)


def _parse_in_pieces(data: bytes, *, layout: Layout, wanted: list[str], piece_bytes: int) -> _Table:
    left_out: list[tuple[int, str]] = []

    def leave_out(row: pacsv.InvalidRow) -> str:
        left_out.append((row.number - 1, f"{row.actual_columns} fields where {row.expected_columns} belong"))
        return "skip"

    table = pacsv.read_csv(
        pa.BufferReader(data),
        read_options=pacsv.ReadOptions(use_threads=False, block_size=piece_bytes, column_names=list(layout.names)),
        parse_options=pacsv.ParseOptions(
            delimiter=layout.delimiter,
            quote_char=layout.quote if layout.quote is not None else False,
            invalid_row_handler=leave_out,
        ),
        convert_options=pacsv.ConvertOptions(
            check_utf8=False,
            column_types={name: pa.binary() for name in wanted},
            include_columns=wanted,
            null_values=[""],
            strings_can_be_null=True,
        ),
    )
    return _Table({name: contiguous(table.column(name)) for name in wanted}, table.num_rows, left_out)


def _filled_lines(data: bytes) -> I64:
    """0-based numbers of the lines that are not blank."""
    lines = data.count(b"\n") + (0 if data.endswith(b"\n") or not data else 1)
    if b"\r" not in data and b"\n\n" not in data and not data.startswith(b"\n"):
        return np.arange(lines, dtype=np.int64)
    starts, stops = _line_spans(bytes_view(data))
    return np.flatnonzero(stops > starts).astype(np.int64)


def _line_spans(data: U8) -> tuple[I64, I64]:
    """Where each line starts, and where it stops before its line break, int64 [lines] both."""
    stops = np.flatnonzero(data == _NEWLINE)
    if len(data) and data[-1] != _NEWLINE:
        stops = np.append(stops, len(data))
    starts = np.concatenate([np.zeros(1, np.int64), stops[:-1] + 1])[: len(stops)]
    returns = (stops > starts) & (data[np.maximum(stops - 1, 0)] == _RETURN)
    return starts, stops - returns


def _stray_returns(data: bytes) -> Bool:
    """bool [lines]: the line holds a carriage return that does not end it."""
    view = bytes_view(data)
    starts, stops = _line_spans(view)
    at = np.flatnonzero(view == _RETURN)
    line = np.searchsorted(starts, at, side="right") - 1
    stray = np.zeros(len(starts), np.bool_)
    stray[line[at < stops[line]]] = True
    return stray


def _open_quotes(data: bytes, *, delimiter: str) -> Bool:
    """bool [lines]: an odd number of quotes, one of which begins a cell."""
    view = bytes_view(data)
    starts, _ = _line_spans(view)
    at = np.flatnonzero(view == _QUOTE)
    line = np.searchsorted(starts, at, side="right") - 1
    begins = (at == starts[line]) | (view[np.maximum(at - 1, 0)] == ord(delimiter))
    opened = np.zeros(len(starts), np.bool_)
    opened[line[begins]] = True
    odd = np.bincount(line, minlength=len(starts)) % 2 == 1
    return np.asarray(opened & odd)


def _without(
    data: bytes, places: I64, dropped: list[tuple[int, str]], *, bad: Bool, reason: str
) -> tuple[bytes, I64, list[tuple[int, str]]]:
    """The data without its bad lines (bool [lines of data]), the numbers of those kept, and the grown list."""
    if not bad.any():
        return data, places, dropped
    view = bytes_view(data)
    starts, stops = _line_spans(view)
    filled = stops > starts
    numbers = np.full(len(starts), -1, np.int64)
    numbers[filled] = places
    lengths = np.diff(np.append(starts, len(view)))
    kept = view[np.repeat(~bad, lengths)].tobytes()
    return kept, numbers[filled & ~bad], dropped + [(int(line), reason) for line in numbers[filled & bad]]
