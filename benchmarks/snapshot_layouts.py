"""Layouts of rows in Parquet, measured: how a row lies in a column, and what compression and encodings cost."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.report import Report, cpu_seconds
from hetero.records import F32

WIDTH = 17
ROW_GROUP = 1 << 16
CHOSEN = "fixed-size binary, plain"
_PLAIN: Mapping[str, Any] = {"compression": "none", "use_dictionary": False, "write_statistics": False}

Column = Callable[[F32], pa.RecordBatch]


def binary(rows: F32) -> pa.RecordBatch:
    kind = pa.binary(4 * WIDTH)
    return _batch({"row": pa.FixedSizeBinaryArray.from_buffers(kind, len(rows), [None, pa.py_buffer(rows)])})


def columns(rows: F32) -> pa.RecordBatch:
    return _batch({f"row_{number}": pa.array(np.ascontiguousarray(rows[:, number])) for number in range(WIDTH)})


def fixed_size_list(rows: F32) -> pa.RecordBatch:
    return _batch({"row": pa.FixedSizeListArray.from_arrays(pa.array(rows.reshape(-1)), WIDTH)})


def plain_list(rows: F32) -> pa.RecordBatch:
    offsets = np.arange(len(rows) + 1, dtype=np.int32) * WIDTH
    return _batch({"row": pa.ListArray.from_arrays(pa.array(offsets), pa.array(rows.reshape(-1)))})


def _batch(of_rows: Mapping[str, pa.Array]) -> pa.RecordBatch:
    count = len(next(iter(of_rows.values())))
    keys = np.random.default_rng(1).integers(0, 2**64, count, dtype=np.uint64)
    names = ["table", "key", *of_rows]
    arrays = [pa.array(np.zeros(count, np.uint16)), pa.array(keys), *of_rows.values()]
    schema = pa.schema([pa.field(name, array.type, nullable=False) for name, array in zip(names, arrays, strict=True)])
    return pa.record_batch(arrays, schema=schema)


LAYOUTS: Mapping[str, tuple[Column, Mapping[str, Any]]] = {
    CHOSEN: (binary, _PLAIN),
    "one column a float": (columns, _PLAIN),
    "fixed-size list": (fixed_size_list, _PLAIN),
    "list": (plain_list, _PLAIN),
    "binary, statistics": (binary, {**_PLAIN, "write_statistics": True}),
    "binary, dictionary": (binary, {**_PLAIN, "use_dictionary": True}),
    "binary, lz4": (binary, {**_PLAIN, "compression": "lz4"}),
    "binary, zstd 1": (binary, {**_PLAIN, "compression": "zstd", "compression_level": 1}),
    "binary, byte stream split": (binary, {**_PLAIN, "use_byte_stream_split": ["row"]}),
    "binary, byte stream split, zstd 1": (
        binary,
        {**_PLAIN, "use_byte_stream_split": ["row"], "compression": "zstd", "compression_level": 1},
    ),
}


def measure_layouts(report: Report, *, rows: int) -> None:
    """Every layout written to memory and read back, with its making from rows [n, W] and back to them."""
    values = np.random.default_rng(0).normal(scale=0.01, size=(rows, WIDTH)).astype(np.float32)
    size = rows * (4 * WIDTH + 10)
    rates: dict[str, tuple[float, float]] = {}
    for name, (column, options) in LAYOUTS.items():
        buffer = _write(column, options, values)
        write_s = min(cpu_seconds(partial(_write, column, options, values)) for _ in range(3))
        read_s = min(cpu_seconds(partial(_read, buffer)) for _ in range(3))
        rates[name] = (size / write_s / 1e6, size / read_s / 1e6)
        report.add(
            what=f"row as {name}: write, read MB/s of CPU time; size",
            ours=f"{rates[name][0]:,.0f}, {rates[name][1]:,.0f}; {buffer.size / size:.2f}",
            floor="",
            ratio="",
            spread="",
        )
    for number, what in enumerate(("write", "read")):
        best_list = max(rates["list"][number], rates["fixed-size list"][number])
        report.check(f"chosen layout, {what}: times the faster list", rates[CHOSEN][number] / best_list, at_least=2)


def _write(column: Column, options: Mapping[str, Any], values: F32) -> pa.Buffer:
    batch = column(values)
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, batch.schema, **options) as writer:
        for start in range(0, len(values), ROW_GROUP):
            writer.write_batch(batch.slice(start, ROW_GROUP))
    return sink.getvalue()


def _read(buffer: pa.Buffer) -> None:
    for batch in pq.ParquetFile(pa.BufferReader(buffer)).iter_batches(batch_size=ROW_GROUP, use_threads=False):
        of_rows = [batch.column(name) for name in batch.schema.names[2:]]
        if len(of_rows) > 1:
            np.stack([array.to_numpy() for array in of_rows], axis=1)
        elif pa.types.is_fixed_size_binary(of_rows[0].type):
            np.frombuffer(of_rows[0].buffers()[1], np.float32)
        else:
            of_rows[0].flatten().to_numpy(zero_copy_only=False)
