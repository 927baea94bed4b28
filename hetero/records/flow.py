"""What the arrows of the flow table carry: splits, batches and the keys they need."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hetero.records.arrays import F32, F64, I32, U16, U64
from hetero.records.features import Format


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitRef:
    """A part of the input that parses on its own. `position` numbers the splits of one pass in file order.

    Parquet: `part` is the row group. Text: bytes [start, stop) own the lines that *begin* there.
    Compressed text: the whole file (start 0, stop = file size).
    """

    position: int
    path: str
    format: Format
    part: int = 0
    start: int = 0
    stop: int = 0


@dataclass(frozen=True, slots=True)
class Jagged:
    """Keys of one sparse feature, row after row; row b owns keys[offsets[b]:offsets[b + 1]].

        row   keys                 keys    = [7, 8, 3]
        0     7 8                  offsets = [0, 2, 2, 3]
        1     (none)
        2     3

    keys: uint64 [N]. offsets: int32 [R + 1], or None when every row has exactly one key.
    weights: float32 [N], a factor on each key's row (libsvm values), or None for 1.
    """

    keys: U64
    offsets: I32 | None = None
    weights: F32 | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MalformedRow:
    """Where a row was left out and why. line: 1-based line of a text file (compressed ones too) relative to the
    split's first line when the split does not begin the file, or 0-based row number inside a Parquet row group, `part`.
    """

    path: str
    split_start: int
    line: int
    reason: str
    part: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedSplit:
    """The rows of one split, as columns. R good rows, in file order or permuted by (seed, epoch, split).

    labels float32 [R] in {0, 1}, or NaN where none are read; weights float32 [R] or None; dense float32 [R, D]; sparse
    one per SparseFeature; gauc_ids uint64 [R] or None; malformed: every row left out. tokens: one a TextFeature, int32
    [R, length], NO_TOKEN behind the end of a text; tasks float32 [R, K], labels of `TaskSpec`s, NaN where missing, or
    None without any.
    """

    ref: SplitRef
    epoch: int
    labels: F32
    weights: F32 | None
    dense: F32
    sparse: tuple[Jagged, ...]
    gauc_ids: U64 | None
    malformed: tuple[MalformedRow, ...]
    tokens: tuple[I32, ...] = ()
    tasks: F32 | None = None

    @property
    def rows(self) -> int:
        return len(self.labels)


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitReport:
    """What the sequencer learns of a parsed split: counts, no payload.

    rows: good rows. malformed: every row left out. weight_prefix: float64 [rows + 1], sums of the first n weights, or
    None when all weights are 1.
    """

    position: int
    epoch: int
    rows: int
    malformed: tuple[MalformedRow, ...]
    weight_prefix: F64 | None

    @staticmethod
    def of(split: ParsedSplit) -> SplitReport:
        """The report of a split just parsed."""
        prefix = None if split.weights is None else np.concatenate([[0.0], np.cumsum(split.weights, dtype=np.float64)])
        return SplitReport(
            position=split.ref.position,
            epoch=split.epoch,
            rows=split.rows,
            malformed=split.malformed,
            weight_prefix=prefix,
        )


@dataclass(frozen=True, slots=True)
class Bags:
    """Which unique rows are pooled into which cell. Bag i pools rows local[offsets[i]:offsets[i + 1]].

    Pooled lookups of a group share one Bags in row-major order: bag b * F + f is lookup f of batch row b. A sequence
    lookup has a Bags of its own with one bag a batch row.
    local: int32 [N], positions in KeySet.keys. offsets: int32 [bags + 1], or None when every bag holds exactly one.
    weights: float32 [N] or None.
    """

    local: I32
    offsets: I32 | None = None
    weights: F32 | None = None


@dataclass(frozen=True, slots=True)
class KeySet:
    """Unique rows a batch needs of one group, in order of first occurrence. tables uint16 [U], keys uint64 [U]."""

    tables: U16
    keys: U64

    def __len__(self) -> int:
        return len(self.keys)

    def __getitem__(self, picked: slice | np.ndarray) -> KeySet:
        """The rows at a slice, at positions (any integer dtype) or under a mask (bool [U])."""
        return KeySet(self.tables[picked], self.keys[picked])


@dataclass(frozen=True, slots=True)
class GroupBatch:
    """What a batch needs of one group: unique rows, pooled cells (B * F bags), its sequence lookups in job order."""

    unique: KeySet
    pooled: Bags
    sequences: tuple[Bags, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """The rows of one step for one tower (or a piece of them). groups: one per JobSpec.groups.

    labels float32 [B]; weights float32 [B] or None (all 1); dense float32 [B, D]; gauc_ids uint64 [B] or None; tokens
    int32 [B, length] each; tasks float32 [B, K] or None; see `ParsedSplit`.
    """

    labels: F32
    weights: F32 | None
    dense: F32
    groups: tuple[GroupBatch, ...]
    gauc_ids: U64 | None
    tokens: tuple[I32, ...] = ()
    tasks: F32 | None = None

    @property
    def rows(self) -> int:
        return len(self.labels)


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows [start, stop) of the split at `position` of pass `epoch`, held by `reader`."""

    reader: int
    epoch: int
    position: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Cursor:
    """How far the joint stream of rows is used at a step boundary: enough to go on without reading what is behind.

    step: steps done. splits: whole splits behind, over all passes; row: rows used of the split after them. rows: good
    rows used, over all passes. read, malformed: rows of the first pass in the splits behind, good and malformed ones
    together, and the malformed ones alone.
    """

    step: int = 0
    splits: int = 0
    row: int = 0
    rows: int = 0
    read: int = 0
    malformed: int = 0


START = Cursor()
"""Before the first step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSpec:
    """What one tower's batch of one step holds. weight_sum is over all towers' rows of the step.

    after: where the stream stands when the step is done, for all towers alike.
    """

    step: int
    tower: int
    pieces: tuple[Piece, ...]
    weight_sum: float
    after: Cursor

    @property
    def rows(self) -> int:
        return sum(piece.stop - piece.start for piece in self.pieces)
