"""Frozen records that pass between stages: the job as resolved, and what the arrows of the flow table carry.

Legend of shapes, used in every module:
    B  rows of a batch            D  dense features          F  pooled lookups of one group
    N  occurrences of keys        U  unique keys of a batch  L  longest sequence in a batch
    E  embedding width (`dim`)    W  row width: dim + optimizer state

All arrays are numpy, C-contiguous, on the CPU. Keys are uint64 end to end; signed keys are the same 64 bits.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

import numpy as np
import numpy.typing as npt

U64 = npt.NDArray[np.uint64]
U16 = npt.NDArray[np.uint16]
I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]
F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]

DEFAULT_BUCKETS = 4096
DEFAULT_WINDOW_BYTES = 1 << 30
AUTO_WINDOW = -1
"""A window whose steps are found while training, see `hetero.exchange.window_size`."""


# ---------------------------------------------------------------------------------------------- features


class Format(Enum):
    """How files are laid out. AUTO decides by the file's ending; CRITEO is its raw tab-separated log."""

    AUTO = "auto"
    PARQUET = "parquet"
    CSV = "csv"
    TSV = "tsv"
    LIBSVM = "libsvm"
    CRITEO = "criteo"


class IdKind(Enum):
    """How values become 64-bit keys.

    AUTO: integers are keys as they are, everything else is hashed as its UTF-8 text (text files: always hashed).
    INTEGER: parsed and taken as they are, all of int64 and uint64. STRING: xxHash64 (seed 0) of the UTF-8 text.
    """

    AUTO = "auto"
    INTEGER = "integer"
    STRING = "string"


class Missing(Enum):
    """What a missing value of a scalar sparse column is: a key of its own, or no key (an all-zero embedding)."""

    KEY = "key"
    SKIP = "skip"


class DenseTransform(Enum):
    """NONE: x. LOG: sign(x) * log1p(|x|). STANDARD: (x - mean) / std."""

    NONE = "none"
    LOG = "log"
    STANDARD = "standard"


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseFeature:
    """One float column. `fill` replaces missing values before the transform; NaN in the file counts as malformed."""

    name: str
    column: str
    transform: DenseTransform = DenseTransform.NONE
    fill: float = 0.0
    mean: float = 0.0
    std: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SparseFeature:
    """One column of ids: scalar, multi-valued or a sequence (lists; in text files split at `separator`).

    max_length: lists longer than this keep their *last* values (the newest of a history); None keeps all.
    boundaries: the column is numeric and its key is the number of boundaries <= value (bucket transform).
    """

    name: str
    column: str
    ids: IdKind = IdKind.AUTO
    missing: Missing = Missing.KEY
    is_list: bool = False
    max_length: int | None = None
    separator: str = "|"
    boundaries: tuple[float, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSpec:
    """What to read and which columns mean what. Paths: local, globs, folders, or any pyarrow filesystem URI.

    gauc_column: the ids that group rows for GAUC (hashed like AUTO ids). columns: names for text files without a
    header. max_malformed_fraction: above it the job fails; malformed rows are always counted and written aside.
    text_block_bytes: size of a split of an uncompressed text file.
    """

    paths: tuple[str, ...]
    dense: tuple[DenseFeature, ...]
    sparse: tuple[SparseFeature, ...]
    label: str
    format: Format = Format.AUTO
    weight: str | None = None
    gauc_column: str | None = None
    columns: tuple[str, ...] | None = None
    max_malformed_fraction: float = 0.0
    text_block_bytes: int = 16 << 20
    shuffle: bool = False
    seed: int = 0


# ---------------------------------------------------------------------------------------------- tables


class Pooling(Enum):
    """How the rows of one multi-valued lookup become the tower's input. NONE hands over the whole sequence."""

    SUM = "sum"
    MEAN = "mean"
    NONE = "none"


class Initializer(Enum):
    """First values of a row, a function of (table seed, key) alone. NORMAL has standard deviation `scale`,
    UNIFORM lies in [-scale, scale)."""

    ZEROS = "zeros"
    UNIFORM = "uniform"
    NORMAL = "normal"


@dataclass(frozen=True, slots=True, kw_only=True)
class InitSpec:
    """How the `dim` weights of a new row begin; optimizer state begins as its optimizer says."""

    kind: Initializer = Initializer.UNIFORM
    scale: float = 0.01


class RowOptimizer(Enum):
    """Row optimizers. State floats per row: SGD 0, ADAGRAD dim, ROWWISE_ADAGRAD 1, ADAM 2 * dim + 2, FTRL 2 * dim."""

    SGD = "sgd"
    ADAGRAD = "adagrad"
    ROWWISE_ADAGRAD = "rowwise_adagrad"
    ADAM = "adam"
    FTRL = "ftrl"


@dataclass(frozen=True, slots=True, kw_only=True)
class RowOptimizerSpec:
    """Hyper-parameters; those another optimizer uses are ignored.

    initial_accumulator: Adagrad, row-wise Adagrad, FTRL. beta1, beta2: Adam. l1, l2, lr_power=-0.5 fixed, beta: FTRL
    (McMahan et al. 2013, "Ad click prediction: a view from the trenches"). l2 (other optimizers): L2 penalty on the
    rows a step touches, added to the gradient as l2 * w before the update.
    """

    kind: RowOptimizer = RowOptimizer.ROWWISE_ADAGRAD
    lr: float = 0.05
    eps: float = 1e-8
    initial_accumulator: float = 0.0
    beta1: float = 0.9
    beta2: float = 0.999
    l1: float = 0.0
    l2: float = 0.0
    beta: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSpec:
    """One logical table. `index` is its number in the job (stored beside the key of every row); `seed` is a hash of
    its name and the job's seed: routing and first values use it, so they do not depend on the order of tables."""

    index: int
    name: str
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSpec:
    """Tables fused physically: equal dim, optimizer and first values. A row's identity is (table index, key)."""

    dim: int
    optimizer: RowOptimizerSpec
    init: InitSpec
    tables: tuple[TableSpec, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LookupSpec:
    """One use of a feature: the rows of `table` at the keys of sparse feature number `feature`, pooled for the tower.

    group, table: indices into JobSpec.groups and of TableSpec.index.
    """

    name: str
    feature: int
    group: int
    table: int
    dim: int
    pooling: Pooling = Pooling.SUM


@dataclass(frozen=True, slots=True, kw_only=True)
class TowerSpec:
    """A built-in tower's name or an import path `package.module:Class`, its arguments and its dense optimizer."""

    name: str
    args: dict[str, object] = field(default_factory=dict)
    optimizer: str = "adam"
    lr: float = 1e-3
    weight_decay: float = 0.0
    loss: str = "bce"


class Precision(Enum):
    """Of towers' matrix products; all else is float32. AUTO: BF16 where every tower has it in hardware, else FP32."""

    AUTO = "auto"
    FP32 = "fp32"
    BF16 = "bf16"


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleSpec:
    """How many actors of a role and how many threads each of them computes with."""

    count: int = 1
    threads: int = 1


class Mode(Enum):
    """How towers keep in step: the trade between waiting for each other and reading what others have changed since.

    SYNC: gradients of all towers are merged and applied once a step. BOUNDED: rows take gradients as they arrive, a
    pull lags by at most k pushes. ASYNC: nobody waits for anybody, dense parameters are on the servers. GEO: towers
    train copies of their own and exchange differences every k steps.
    """

    SYNC = "sync"
    BOUNDED = "bounded"
    ASYNC = "async"
    GEO = "geo"

    @property
    def joint(self) -> bool:
        """Whether towers sum losses and dense gradients every step, and so wait for each other."""
        return self in (Mode.SYNC, Mode.BOUNDED)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """A job with nothing left to decide: what every role is constructed from. Picklable, pure data.

    window: steps for which towers lease rows (`sync` only), or AUTO_WINDOW; 0 pulls and pushes every step.
    window_bytes: the most a tower's leased rows may take, those that leave and enter included. staleness: k of BOUNDED
    and GEO, see `Mode`. geo_scale: factor on the differences a tower sends in GEO.
    """

    name: str
    seed: int
    train: DataSpec
    test: DataSpec | None
    groups: tuple[GroupSpec, ...]
    lookups: tuple[LookupSpec, ...]
    tower: TowerSpec
    batch_size: int
    epochs: int
    max_steps: int | None
    readers: RoleSpec
    servers: RoleSpec
    towers: RoleSpec
    window: int = 0
    window_bytes: int = DEFAULT_WINDOW_BYTES
    precision: Precision = Precision.AUTO
    mode: Mode = Mode.SYNC
    staleness: int = 0
    geo_scale: float = 1.0
    buckets: int = DEFAULT_BUCKETS
    deadline_s: float = 20.0


# ---------------------------------------------------------------------------------------------- data flow


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
    split's first line when the split does not begin the file, or 0-based row number inside a Parquet row group."""

    path: str
    split_start: int
    line: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedSplit:
    """The rows of one split, as columns. R good rows, in file order or permuted by (seed, epoch, split).

    labels float32 [R] in {0, 1}; weights float32 [R] or None; dense float32 [R, D]; sparse one per SparseFeature;
    gauc_ids uint64 [R] or None; malformed: every row left out.
    """

    ref: SplitRef
    epoch: int
    labels: F32
    weights: F32 | None
    dense: F32
    sparse: tuple[Jagged, ...]
    gauc_ids: U64 | None
    malformed: tuple[MalformedRow, ...]

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


@dataclass(frozen=True, slots=True)
class GroupBatch:
    """What a batch needs of one group: unique rows, pooled cells (B * F bags), its sequence lookups in job order."""

    unique: KeySet
    pooled: Bags
    sequences: tuple[Bags, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """The rows of one step for one tower (or a piece of them). groups: one per JobSpec.groups.

    labels float32 [B]; weights float32 [B] or None (all 1); dense float32 [B, D]; gauc_ids uint64 [B] or None.
    """

    labels: F32
    weights: F32 | None
    dense: F32
    groups: tuple[GroupBatch, ...]
    gauc_ids: U64 | None

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
class BatchSpec:
    """What one tower's batch of one step holds. weight_sum is over all towers' rows of the step."""

    step: int
    tower: int
    pieces: tuple[Piece, ...]
    weight_sum: float

    @property
    def rows(self) -> int:
        return sum(piece.stop - piece.start for piece in self.pieces)
