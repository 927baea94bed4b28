"""An exported model: rows in, scores out, by the job's own rules for columns, keys and pooling.

Arrow rows -> keys, dense values       hetero.data
           -> unique keys              hetero.keys
           -> rows by memory map       hetero.serving.table
           -> pooled blocks            hetero.kernels
           -> probabilities            the exported graph
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Self

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from hetero.data.parse import parse_split, parse_table
from hetero.data.sources import list_splits
from hetero.kernels.pooling import pool_forward, sequence_forward, sequence_mask
from hetero.keys.assemble import BatchAssembler
from hetero.records import F32, Batch, DataSpec, Format, GroupBatch, KeySet, MalformedRow, ParsedSplit, Pooling
from hetero.serving.archive import Tower, load_tower
from hetero.serving.layout import TOWER, ServingSpec, check_file, check_sizes, read_manifest
from hetero.serving.table import MappedTable

ROWS_AT_ONCE = 8192


class Checks(Enum):
    """What is compared with the manifest when a model is opened. SIZES: every file's size, and the tower's checksum.
    ALL: every file's checksum too, for which all of it is read."""

    SIZES = "sizes"
    ALL = "all"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedScores:
    """predictions float32 [R]: the probability of each row, NaN where the row cannot be used; `malformed` says why."""

    predictions: F32
    malformed: tuple[MalformedRow, ...]


class ServedModel:
    """Scores rows. One thread at a time; processes of a machine share the mapped tables."""

    def __init__(self, spec: ServingSpec, *, tower: Tower, tables: Sequence[MappedTable]) -> None:
        self.spec = spec
        self._tower = tower
        self._tables = [[table for table in tables if table.spec.group == g] for g in range(len(spec.groups))]
        pooled = [lookup for lookup in spec.lookups if lookup.pooling is not Pooling.NONE]
        self._means = [
            np.array([lookup.pooling is Pooling.MEAN for lookup in pooled if lookup.group == g], np.bool_)
            for g in range(len(spec.groups))
        ]
        self._assembler = BatchAssembler(spec)

    @classmethod
    def open(cls, folder: str | Path, *, checks: Checks = Checks.SIZES) -> Self:
        """The model that `hetero export` wrote.

        Raises DataError when the folder holds none, or a file is missing, damaged or would run code.
        """
        folder = Path(folder)
        spec = read_manifest(folder)
        check_sizes(spec, folder=folder)
        for name in spec.files if checks is Checks.ALL else (TOWER,):
            check_file(name, spec.files[name], folder=folder)
        tables = [MappedTable(table, folder=folder) for table in spec.tables]
        return cls(spec, tower=load_tower(folder / TOWER), tables=tables)

    def score(self, rows: pa.Table | pa.RecordBatch) -> ServedScores:
        """Scores of Arrow rows that hold the columns of the job's features; others are ignored.

        An id never seen in training scores with the table's default, a missing value as in training.
        Raises DataError when a column is missing or of a type that does not fit its use.
        """
        table = pa.Table.from_batches([rows]) if isinstance(rows, pa.RecordBatch) else rows
        parsed = parse_table(table, spec=self.spec.data)
        predictions = np.full(table.num_rows, np.nan, np.float32)
        good = np.ones(table.num_rows, np.bool_)
        good[[row.line for row in parsed.malformed]] = False
        predictions[good] = self._score(parsed)
        return ServedScores(predictions=predictions, malformed=parsed.malformed)

    def score_files(self, paths: Sequence[str], *, data: DataSpec | None = None) -> Iterator[ServedScores]:
        """Scores of files of any format that jobs read, split by split in file order; good rows only.

        data: how to read them, such as names of columns; default: as Parquet or text with a header.
        Raises DataError as reading them does.
        """
        given = data or DataSpec(paths=(), dense=(), sparse=(), label=None, format=Format.AUTO)
        spec = replace(
            given, paths=tuple(paths), dense=self.spec.dense, sparse=self.spec.sparse, texts=self.spec.texts, label=None
        )
        for ref in list_splits(spec):
            parsed = parse_split(ref, spec=spec, epoch=0)
            yield ServedScores(predictions=self._score(parsed), malformed=parsed.malformed)

    def _score(self, parsed: ParsedSplit) -> F32:
        """Probabilities of all rows of a split, float32 [R]."""
        prepared = self._assembler.prepare(parsed)
        starts = range(0, parsed.rows, ROWS_AT_ONCE)
        parts = [
            self._score_batch(self._assembler.batch(prepared, start, min(start + ROWS_AT_ONCE, parsed.rows)))
            for start in starts
        ]
        return np.concatenate(parts) if parts else np.empty(0, np.float32)

    def _score_batch(self, batch: Batch) -> F32:
        blocks, sequences, masks = [], [], []
        for number, group in enumerate(batch.groups):
            rows = self._rows(number, group.unique)
            blocks.append(self._block(number, group, rows, rows_in_batch=batch.rows))
            sequences.append([torch.from_numpy(sequence_forward(rows, bags)) for bags in group.sequences])
            masks.append([torch.from_numpy(sequence_mask(bags)) for bags in group.sequences])
        tokens = [torch.from_numpy(np.ascontiguousarray(texts)) for texts in batch.tokens]
        with torch.no_grad():
            dense = torch.from_numpy(np.ascontiguousarray(batch.dense))
            scores = self._tower(dense, blocks, sequences, masks, *([tokens] if tokens else []))
        found: F32 = scores.numpy()
        return found

    def _block(self, number: int, group: GroupBatch, rows: F32, *, rows_in_batch: int) -> Tensor:
        means = self._means[number]
        pooled = torch.from_numpy(pool_forward(rows, group.pooled, mean=means))
        return pooled.view(rows_in_batch, len(means), self.spec.groups[number].dim)

    def _rows(self, number: int, keys: KeySet) -> F32:
        """Values of a group's unique keys, float32 [U, dim]."""
        tables = self._tables[number]
        if len(tables) == 1:
            return tables[0].lookup(keys.keys)
        values = np.zeros((len(keys), self.spec.groups[number].dim), np.float32)
        for table in tables:
            mine = keys.tables == table.spec.index
            values[mine] = table.lookup(keys.keys[mine])
        return values
