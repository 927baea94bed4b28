"""Predictions of towers to one Parquet file, in the order of the input's rows, whatever the number of towers.

Consumes   ScoredPart, in any order          from towers
           MalformedRow, before the parts that hold rows of their split
Produces   <columns kept>, <label>, prediction, <text>_embedding     row groups of equal size
Waits for  nobody; a part that comes early is held until those before it are there
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from hetero.data.filesystem import absolute, first_line, is_uri, locate
from hetero.data.kept import KeptColumns
from hetero.errors import DataError, HeteroError, ProtocolError
from hetero.loops.results import ScoredPart
from hetero.records import F32, MalformedRow, Piece, SplitRef

PREDICTION = "prediction"
EMBEDDING = "_embedding"
"""Ends the name of a column of vectors, after the text's."""
ROWS_PER_GROUP = 1 << 18


class PredictionFile:
    """A Parquet file that is there under its name only when it is complete: written beside it, then renamed.

    output: a path or URI. splits: of the data that is scored, in file order. towers: how many score. texts: those whose
    vectors stand there too. Closing without `finish` removes what was written.
    Raises HeteroError naming the file when it cannot be written.
    """

    def __init__(
        self,
        output: str,
        *,
        kept: KeptColumns,
        splits: Sequence[SplitRef],
        towers: int,
        texts: Sequence[str] = (),
        rows_per_group: int = ROWS_PER_GROUP,
    ) -> None:
        self.path = absolute(output)
        self.rows = 0
        self.prediction_sum = 0.0
        self._kept = kept
        self._splits = splits
        self._towers = towers
        self._rows_per_group = rows_per_group
        self._next = (0, 0)
        self._early: dict[tuple[int, int], ScoredPart] = {}
        self._left_out: dict[tuple[str, int, int], set[int]] = {}
        self._current: tuple[int, pa.Table] | None = None
        self._buffered: list[pa.Table] = []
        self._buffered_rows = 0
        self._schema = kept.schema.append(pa.field(PREDICTION, pa.float32()))
        for text in texts:
            self._schema = self._schema.append(pa.field(text + EMBEDDING, pa.list_(pa.float32())))
        location = locate(self.path)
        self._filesystem, self._final = location.filesystem, location.path
        self._partial = f"{self._final}.partial"
        with self._writing():
            if not is_uri(self.path):
                Path(self._final).parent.mkdir(parents=True, exist_ok=True)
            self._stream = self._filesystem.open_output_stream(self._partial)
            self._writer: Any = pq.ParquetWriter(self._stream, self._schema, compression="zstd")

    def note_malformed(self, rows: Sequence[MalformedRow]) -> None:
        """Rows of the input that have no prediction and are left out."""
        for row in rows:
            self._left_out.setdefault((row.path, row.part, row.split_start), set()).add(row.line)

    def add(self, parts: Sequence[ScoredPart]) -> None:
        """Write the parts that are next in order, and hold the others.

        Raises DataError when a split no longer holds the rows that were scored, HeteroError as the class does.
        """
        for part in parts:
            self._early[(part.step, part.tower)] = part
        while (part_next := self._early.pop(self._next, None)) is not None:
            step, tower = self._next
            self._next = (step, tower + 1) if tower + 1 < self._towers else (step + 1, 0)
            at = 0
            for piece in part_next.pieces:
                count = piece.stop - piece.start
                rows = slice(at, at + count)
                self._append(piece, part_next.predictions[rows], [values[rows] for values in part_next.vectors])
                at += count

    def finish(self) -> None:
        """Write what is left and give the file its name. Raises ProtocolError when parts are missing."""
        if self._early:
            raise ProtocolError(f"predictions: step {self._next[0]} of tower {self._next[1]} never came")
        self._flush(everything=True)
        with self._writing():
            self._writer.close()
            self._stream.close()
            if not is_uri(self.path):
                _sync(self._partial)
            self._filesystem.move(self._partial, self._final)

    def close(self) -> None:
        """Let go of the file and remove what is not finished; closing twice does nothing."""
        with contextlib.suppress(OSError, pa.ArrowException):
            self._writer.close()
        with contextlib.suppress(OSError, pa.ArrowException):
            self._stream.close()
        with contextlib.suppress(OSError):
            self._filesystem.delete_file(self._partial)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _append(self, piece: Piece, predictions: F32, vectors: Sequence[F32]) -> None:
        table = self._kept_rows(piece).append_column(self._schema.field(PREDICTION), pa.array(predictions))
        for values in vectors:
            offsets = np.arange(len(values) + 1, dtype=np.int32) * values.shape[1]
            column = pa.ListArray.from_arrays(pa.array(offsets), pa.array(np.ascontiguousarray(values).reshape(-1)))
            table = table.append_column(self._schema.field(table.num_columns), column)
        self._buffered.append(table)
        self._buffered_rows += len(predictions)
        self.rows += len(predictions)
        self.prediction_sum += float(predictions.sum(dtype=np.float64))
        if self._buffered_rows >= self._rows_per_group:
            self._flush(everything=False)

    def _kept_rows(self, piece: Piece) -> pa.Table:
        count = piece.stop - piece.start
        if not self._kept.schema.names:
            return pa.table({"rows": pa.nulls(count)}).select([])
        if self._current is None or self._current[0] != piece.position:
            ref = self._splits[piece.position]
            left_out = self._left_out.pop((ref.path, ref.part, ref.start), set())
            self._current = (piece.position, self._kept.rows_of(ref, left_out=left_out))
        rows = self._current[1].slice(piece.start, count)
        if rows.num_rows != count:
            raise DataError(
                f"{self._splits[piece.position].path}: held at least {piece.stop} good rows in one split when it was "
                f"scored and {self._current[1].num_rows} when its columns were read; score it when nobody writes to it"
            )
        return rows

    def _flush(self, *, everything: bool) -> None:
        table = pa.concat_tables(self._buffered) if self._buffered else self._schema.empty_table()
        at = 0
        with self._writing():
            while table.num_rows - at >= self._rows_per_group or (everything and at < table.num_rows):
                self._writer.write_table(table.slice(at, self._rows_per_group), row_group_size=self._rows_per_group)
                at += self._rows_per_group
        rest = table.slice(at)
        self._buffered, self._buffered_rows = [rest], rest.num_rows

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except (OSError, pa.ArrowException) as error:
            raise HeteroError(
                f"{self.path}: predictions cannot be written ({first_line(error)}); give another place, or make room"
            ) from error


def _sync(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
