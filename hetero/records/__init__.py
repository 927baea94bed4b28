"""Frozen records that pass between stages: the job as resolved, and what the arrows of the flow table carry.

Legend of shapes, used in every module:
    B  rows of a batch            D  dense features          F  pooled lookups of one group
    N  occurrences of keys        U  unique keys of a batch  L  longest sequence in a batch
    E  embedding width (`dim`)    W  row width: dim + optimizer state

All arrays are numpy, C-contiguous, on the CPU. Keys are uint64 end to end; signed keys are the same 64 bits.
"""

from __future__ import annotations

from hetero.records.arrays import F32, F64, I32, I64, U8, U16, U64
from hetero.records.features import DataSpec, DenseFeature, DenseTransform, Format, IdKind, Missing, SparseFeature
from hetero.records.flow import (
    START,
    Bags,
    Batch,
    BatchSpec,
    Cursor,
    GroupBatch,
    Jagged,
    KeySet,
    MalformedRow,
    ParsedSplit,
    Piece,
    SplitRef,
    SplitReport,
)
from hetero.records.job import (
    AUTO_WINDOW,
    DEFAULT_BUCKETS,
    DEFAULT_WINDOW_BYTES,
    HOST_DEVICE,
    DiskIo,
    GroupSpec,
    Initializer,
    InitSpec,
    JobSpec,
    LookupSpec,
    Mode,
    Pooling,
    Precision,
    RoleSpec,
    RowOptimizer,
    RowOptimizerSpec,
    ServersAt,
    SnapshotSpec,
    StorageSpec,
    TableSpec,
    TowerSpec,
    WarmStartSpec,
)
from hetero.records.placement import NodePlace, SharesFrom, ShareSpec
from hetero.records.policies import AdmissionSpec, Clock, EvictionSpec

__all__ = [
    "AUTO_WINDOW",
    "DEFAULT_BUCKETS",
    "DEFAULT_WINDOW_BYTES",
    "F32",
    "F64",
    "HOST_DEVICE",
    "I32",
    "I64",
    "START",
    "U8",
    "U16",
    "U64",
    "AdmissionSpec",
    "Bags",
    "Batch",
    "BatchSpec",
    "Clock",
    "Cursor",
    "DataSpec",
    "DenseFeature",
    "DenseTransform",
    "DiskIo",
    "EvictionSpec",
    "Format",
    "GroupBatch",
    "GroupSpec",
    "IdKind",
    "InitSpec",
    "Initializer",
    "Jagged",
    "JobSpec",
    "KeySet",
    "LookupSpec",
    "MalformedRow",
    "Missing",
    "Mode",
    "NodePlace",
    "ParsedSplit",
    "Piece",
    "Pooling",
    "Precision",
    "RoleSpec",
    "RowOptimizer",
    "RowOptimizerSpec",
    "ServersAt",
    "ShareSpec",
    "SharesFrom",
    "SnapshotSpec",
    "SparseFeature",
    "SplitRef",
    "SplitReport",
    "StorageSpec",
    "TableSpec",
    "TowerSpec",
    "WarmStartSpec",
]
