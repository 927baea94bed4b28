"""Columns that go from the input to an output as they are, beside what was computed of their rows.

    input   user  item  x   label            kept = (item,)        output  item  label  prediction
            a     7     .1  1                                              7     1      .83
            b     ?     .2  0      <- row left out (malformed)             9     0      .12
            a     9     .3  0

They are read split by split once more, so that readers and towers need not carry them.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import numpy as np
import pyarrow as pa

from hetero.data.columns import Block
from hetero.data.filesystem import first_line
from hetero.data.numbers import numbers_of
from hetero.data.parse import read_blocks_of
from hetero.data.sources import first_schema
from hetero.errors import DataError
from hetero.records import DataSpec, SplitRef


class KeptColumns:
    """What an output takes over from its input: `columns` as they are, and `label` as float32, null where missing.

    Types are those of the first file, text files' are strings. Raises DataError for a column that is not there.
    """

    def __init__(self, data: DataSpec, *, columns: tuple[str, ...], label: str | None) -> None:
        keep = columns if label is None else (*columns, label)
        self._label = label
        self.spec = replace(
            data, dense=(), sparse=(), texts=(), tasks=(), label=None, weight=None, gauc_column=None, keep=keep
        )
        found = first_schema(data)
        missing = [name for name in keep if name not in found.names]
        if missing:
            raise DataError(
                f"{', '.join(data.paths)}: there is no column '{missing[0]}' to keep; the first file has "
                f"{', '.join(found.names)}: correct the name, or leave it out"
            )
        fields = [pa.field(name, pa.float32() if name == label else _plain(found.field(name).type)) for name in keep]
        self.schema = pa.schema(fields)

    def rows_of(self, ref: SplitRef, *, left_out: Collection[int]) -> pa.Table:
        """The columns of a split's good rows, in file order. left_out: the lines (`MalformedRow.line`) of the others.

        Raises DataError when the file cannot be read, or its columns cannot be had in the output's types.
        """
        parts = [self._part(block, ref=ref, left_out=left_out) for block in read_blocks_of(ref, spec=self.spec)]
        return pa.Table.from_batches(parts, self.schema)

    def _part(self, block: Block, *, ref: SplitRef, left_out: Collection[int]) -> pa.RecordBatch:
        arrays = [self._column(block.columns[field.name], field=field, ref=ref) for field in self.schema]
        part = pa.RecordBatch.from_arrays(arrays, schema=self.schema)
        if not left_out:
            return part
        good = ~np.isin(block.lines, np.fromiter(left_out, np.int64, len(left_out)))
        return part.filter(pa.array(good))

    def _column(self, array: pa.Array, *, field: pa.Field, ref: SplitRef) -> pa.Array:
        if field.name == self._label:
            return _numbers(array)
        try:
            return array if array.type == field.type else array.cast(field.type)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise DataError(
                f"{ref.path}: column '{field.name}' cannot be written as {field.type}, its type in the first file: "
                f"{first_line(error)}; leave it out of the columns to keep, or cast it where the file is written"
            ) from error


def _plain(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _numbers(array: pa.Array) -> pa.Array:
    """Labels as float32; null where one is missing or no number."""
    numbers = numbers_of(array)
    absent = np.zeros(len(array), np.bool_)
    for mask in (numbers.missing, numbers.invalid):
        if mask is not None:
            absent |= mask
    return pa.array(numbers.values.astype(np.float32), mask=absent)
