"""The job as resolved: tables, lookups, tower, roles, and how towers keep in step."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from hetero.records.features import DataSpec
from hetero.records.mesh import LrSchedule, MeshSpec
from hetero.records.placement import NodePlace, ShareSpec
from hetero.records.policies import AdmissionSpec, Clock, EvictionSpec

DEFAULT_BUCKETS = 4096
DEFAULT_WINDOW_BYTES = 1 << 30
HOST_DEVICE = "host"
"""Towers compute on the CPU, and hold leased rows as arrays in host memory that CPU kernels work on."""
AUTO_WINDOW = -1
"""A window whose steps are found while training, see `hetero.exchange.window_size`."""


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
    """Tables fused physically: equal dim, optimizer, first values and policies. A row's identity is (table index, key).

    admission: None gives every key a row when it is first seen. eviction: None keeps all rows, and no statistics.
    """

    dim: int
    optimizer: RowOptimizerSpec
    init: InitSpec
    tables: tuple[TableSpec, ...]
    admission: AdmissionSpec | None = None
    eviction: EvictionSpec | None = None


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
class PartSpec:
    """A part of a tower with an optimizer of its own: the parameters whose names begin with `name.`.

    warmup: steps of linear growth to `lr`; then `schedule` lets it fall to final_lr_share * lr at step `steps`.
    weight_decay: of matrices; vectors have none. clip: most norm of the part's gradient, None leaves it. frozen: it
    stays as it begins. start: a deep job's run or snapshot whose model it begins with.
    """

    name: str
    optimizer: str = "adamw"
    lr: float = 1e-3
    weight_decay: float = 0.0
    warmup: int = 0
    schedule: LrSchedule = LrSchedule.CONSTANT
    steps: int = 1
    final_lr_share: float = 0.0
    clip: float | None = None
    frozen: bool = False
    start: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TowerSpec:
    """A built-in tower's name or an import path `package.module:Class`, its arguments and its dense optimizer, which
    has all parameters but those of `parts`. mesh: what the text half of a joint tower lies on, with a data way a tower;
    None keeps it whole in every tower. In one process it is whole in any case."""

    name: str
    args: dict[str, object] = field(default_factory=dict)
    optimizer: str = "adam"
    lr: float = 1e-3
    weight_decay: float = 0.0
    loss: str = "bce"
    parts: tuple[PartSpec, ...] = ()
    mesh: MeshSpec | None = None


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


@dataclass(frozen=True, slots=True, kw_only=True)
class ServersAt:
    """From `step` steps on there are to be `count` servers."""

    step: int
    count: int


class DiskIo(Enum):
    """DIRECT passes the system's page cache by, so that a memory budget is kept; CACHED goes through it."""

    DIRECT = "direct"
    CACHED = "cached"


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageSpec:
    """Budgets of one server, over all its tables. memory_bytes: of rows, index and buffers; the process itself comes on
    top. Rows beyond it lie in files in `directories`, of ssd_bytes at most, dead records included."""

    memory_bytes: int
    directories: tuple[str, ...]
    ssd_bytes: int
    io: DiskIo = DiskIo.DIRECT


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
class SnapshotSpec:
    """When a run takes snapshots: after every so many steps, after so many seconds without one, or both; None for
    neither, and then only one when it is stopped. keep: how many stay on disk. deltas: how many that hold only the rows
    changed since the one before may follow one that holds all."""

    every_steps: int | None = None
    every_s: float | None = None
    keep: int = 2
    deltas: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmStartSpec:
    """What a new run begins with instead of first values. path: of a snapshot. tables: names; None for all that the two
    have in common. dense: the tower's parameters and buffers too."""

    path: str
    tables: tuple[str, ...] | None = None
    dense: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """A job with nothing left to decide: what every role is constructed from. Picklable, pure data.

    window: steps for which towers lease rows (`sync` only), or AUTO_WINDOW; 0 pulls and pushes every step.
    window_bytes: the most a tower's leased rows may take, those that leave and enter included. staleness: k of BOUNDED
    and GEO, see `Mode`. geo_scale: factor on the differences a tower sends in GEO. storage: None keeps all rows in
    memory. clock: days, for policies that count them. server_schedule: changes of the number of servers while training
    goes on, by ascending step. nodes: which roles share which nodes; empty lets every actor be anywhere.
    pool_on_servers: in `sync` without windows servers send sums of rows where a group allows it.
    room_deadline_s: how long the run waits for room on the cluster; None for deadline_s.
    device: HOST_DEVICE, or the torch device on which towers compute and hold leased rows.
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
    snapshots: SnapshotSpec = SnapshotSpec()
    warm_start: WarmStartSpec | None = None
    buckets: int = DEFAULT_BUCKETS
    deadline_s: float = 20.0
    room_deadline_s: float | None = None
    storage: StorageSpec | None = None
    clock: Clock | None = None
    server_schedule: tuple[ServersAt, ...] = ()
    device: str = HOST_DEVICE
    nodes: tuple[NodePlace, ...] = ()
    pool_on_servers: bool = False
    shares: ShareSpec = field(default_factory=ShareSpec)

    def threads_of_tower(self, tower: int) -> int:
        """Threads that a tower computes with."""
        first = 0
        for node in self.nodes:
            if tower < first + node.towers:
                return node.tower_threads or self.towers.threads
            first += node.towers
        return self.towers.threads
