"""The job file as typed sections: what may be written, its defaults and its limits.

Every section refuses names it does not know. Defaults that depend on other fields are filled in on reading, so that
a `Job` has nothing left open but what only the data can say (mean and standard deviation of dense features).
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, Strict, field_validator, model_validator

from hetero.records import (
    DEFAULT_BUCKETS,
    DEFAULT_WINDOW_BYTES,
    DenseTransform,
    Format,
    IdKind,
    Initializer,
    Missing,
    Pooling,
    Precision,
)
from hetero.records.policies import LEAST_PROBABILITY
from pipelines.values import (
    Beta,
    Count,
    Flag,
    Fraction,
    Name,
    NotNegative,
    Number,
    Paths,
    Positive,
    Section,
    Text,
)

DEFAULT_WINDOW: Literal["auto"] = "auto"
DEFAULT_STALENESS = {"bounded": 4, "geo": 100}
GEO_SCALES = ("1", "1/towers")
LEAST_CAPACITY = 16 * DEFAULT_BUCKETS
"""A table's capacity is kept bucket by bucket; with fewer rows a bucket, chance would decide what goes."""


def _scale(value: object) -> object:
    """A scale of 1 may be written as a number."""
    return "1" if value == 1 and not isinstance(value, bool) else value


class Data(Section):
    """What to read. Paths may be files, folders, globs or URIs of a pyarrow file system, and hold `${VAR}`.

    A relative path is looked for in the current directory first, then beside the job file.
    label: column of 0 and 1. weight: column of sample weights. gauc: column whose values group rows for GAUC.
    columns: names, for text files without a header. max_malformed_fraction: above it the run fails.
    text_block_bytes: size of the parts that text files are read in.
    """

    train: Annotated[Paths, Field(min_length=1)]
    test: Paths = ()
    format: Format = Format.AUTO
    label: Text = "label"
    weight: Text | None = None
    gauc: Text | None = None
    columns: tuple[Text, ...] | None = None
    max_malformed_fraction: Fraction = 0.0
    shuffle: Flag = True
    text_block_bytes: Annotated[int, Strict(), Field(ge=1 << 10)] = 16 << 20


class Sparse(Section):
    """A column of ids.

    column: default, the feature's name. keys_as: another feature whose rows this one shares. tables: default, every
    table (for a sequence, every table of dim above 1). list: several values a row. pooling: how they become
    one input; `none` hands the tower the sequence. max_length: longer lists keep their last values. ids: how
    values become keys. missing: of a scalar column, `key` (a key of its own) or `skip` (zeros). separator: of
    lists in text files. buckets: the column is a number and its key is how many of these boundaries are <= it.
    """

    name: Name
    column: str = ""
    keys_as: Name | None = None
    tables: tuple[Name, ...] | None = None
    is_list: Flag = Field(default=False, alias="list")
    pooling: Pooling = Pooling.SUM
    max_length: Count | None = None
    ids: IdKind = IdKind.AUTO
    missing: Missing = Missing.KEY
    separator: Annotated[str, Strict(), Field(min_length=1, max_length=1)] = "|"
    buckets: Annotated[tuple[Number, ...], Field(min_length=1)] | None = None

    @model_validator(mode="before")
    @classmethod
    def _column_is_name(cls, raw: object) -> object:
        return _with_default(raw, "column", lambda given: given.get("name"))

    @field_validator("buckets")
    @classmethod
    def _increasing(cls, buckets: tuple[float, ...] | None) -> tuple[float, ...] | None:
        for left, right in zip(buckets or (), (buckets or ())[1:], strict=False):
            if right <= left:
                raise ValueError(f"must increase, got {left:g} before {right:g}")
        return buckets


class Dense(Section):
    """A column of numbers. column: default, the feature's name. transform: none, log (sign(x) log(1 + |x|)) or
    standard ((x - mean) / std). fill: stands for a missing value, before the transform. mean, std: of `standard`;
    default, those of the training data."""

    name: Name
    column: str = ""
    transform: DenseTransform = DenseTransform.NONE
    fill: Number = 0.0
    mean: Number | None = None
    std: Positive | None = None

    @model_validator(mode="before")
    @classmethod
    def _column_is_name(cls, raw: object) -> object:
        return _with_default(raw, "column", lambda given: given.get("name"))

    @model_validator(mode="after")
    def _both_or_neither(self) -> Dense:
        if (self.mean is None) != (self.std is None):
            raise ValueError("mean and std go together; give both, or neither to take them from the training data")
        if self.mean is not None and self.transform is not DenseTransform.STANDARD:
            raise ValueError(f"mean and std have no effect with transform `{self.transform.value}`; use `standard`")
        return self


class Features(Section):
    """Columns the model sees; their order is that of the tower's inputs."""

    sparse: tuple[Sparse, ...] = ()
    dense: tuple[Dense, ...] = ()


class Sgd(Section):
    """w -= lr * g."""

    name: Literal["sgd"] = "sgd"
    lr: Positive = 0.05
    l2: NotNegative = 0.0


class Adagrad(Section):
    """One accumulator a weight."""

    name: Literal["adagrad"] = "adagrad"
    lr: Positive = 0.05
    eps: NotNegative = 1e-8
    initial_accumulator: NotNegative = 0.0
    l2: NotNegative = 0.0


class RowwiseAdagrad(Section):
    """One accumulator a row, of the mean squared gradient."""

    name: Literal["rowwise_adagrad"] = "rowwise_adagrad"
    lr: Positive = 0.05
    eps: NotNegative = 1e-8
    initial_accumulator: NotNegative = 0.0
    l2: NotNegative = 0.0


class Adam(Section):
    """Adam on the rows a step touches; each row counts its own steps."""

    name: Literal["adam"] = "adam"
    lr: Positive = 0.001
    eps: NotNegative = 1e-8
    beta1: Beta = 0.9
    beta2: Beta = 0.999
    l2: NotNegative = 0.0


class Ftrl(Section):
    """FTRL-proximal, as in McMahan et al. 2013; lr is its alpha."""

    name: Literal["ftrl"] = "ftrl"
    lr: Positive = 0.1
    beta: NotNegative = 1.0
    l1: NotNegative = 0.0
    l2: NotNegative = 0.0
    initial_accumulator: NotNegative = 0.0


RowOptimizerSection = Annotated[Sgd | Adagrad | RowwiseAdagrad | Adam | Ftrl, Field(discriminator="name")]


class Init(Section):
    """First weights of a row: zeros, uniform in [-scale, scale), or normal with standard deviation scale."""

    kind: Initializer = Initializer.UNIFORM
    scale: NotNegative = 0.01


class Admission(Section):
    """When a key gets a row. after: in the step that sees it for the n-th time, up to 1000. probability: instead, of
    getting it in a step that sees it, by a hash, from 0.01. score: instead, when a day begins, of 0.1 a show and 1 a
    click, up to 100: lazy wide vectors, beside a table of dim 1. forget_days: a key without a row that was not seen
    for so many days (train.day_steps) is counted anew; null remembers all."""

    after: Annotated[int, Strict(), Field(ge=1, le=1000)] | None = None
    probability: Annotated[float, Strict(), Field(ge=LEAST_PROBABILITY, le=1)] | None = None
    score: Annotated[float, Strict(), Field(ge=0.1, le=100)] | None = None
    forget_days: Annotated[int, Strict(), Field(ge=1, le=60)] | None = None

    @model_validator(mode="after")
    def _one_rule(self) -> Admission:
        if sum(rule is not None for rule in (self.after, self.probability, self.score)) != 1:
            raise ValueError("give `after`, `probability` or `score`, one of them")
        return self


class Eviction(Section):
    """Which rows are dropped when a day begins (train.day_steps): expire_days: not seen for more days. min_score: of a
    lower score. capacity: beyond so many rows of a logical table, the lowest scores first. score: show_weight *
    (shows - clicks) + click_weight * clicks, both counts multiplied by decay every day."""

    expire_days: Count | None = None
    min_score: Positive | None = None
    capacity: Annotated[int, Strict(), Field(ge=LEAST_CAPACITY)] | None = None
    decay: Annotated[float, Strict(), Field(gt=0, le=1)] = 0.98
    show_weight: NotNegative = 0.1
    click_weight: NotNegative = 1.0

    @model_validator(mode="after")
    def _some_rule(self) -> Eviction:
        if self.expire_days is None and self.min_score is None and self.capacity is None:
            raise ValueError("drops nothing; give expire_days, min_score or capacity, or leave eviction out")
        return self


class Table(Section):
    """A template: each feature that uses it gets a logical table `<table>/<feature>` of its own, so that equal ids of
    unlike features never meet in a row; features with `keys_as` share theirs. Logical tables of equal dim, optimizer
    and init are stored together. init: default, zeros for dim 1 and uniform 0.01 above."""

    name: Name
    dim: Annotated[int, Strict(), Field(ge=1, le=4096)]
    optimizer: RowOptimizerSection = RowwiseAdagrad()
    init: Init = Init()
    admission: Admission | None = None
    eviction: Eviction | None = None

    @model_validator(mode="before")
    @classmethod
    def _init_by_dim(cls, raw: object) -> object:
        return _with_default(raw, "init", lambda given: {"kind": "zeros"} if given.get("dim") == 1 else {})


class TowerOptimizer(Section):
    """Optimizer of the tower's dense parameters."""

    name: Literal["adam", "adamw", "adagrad", "sgd"] = "adam"
    lr: Positive = 1e-3
    weight_decay: NotNegative = 0.0


class Tower(Section):
    """The dense model. name: a built-in tower, or `package.module:Class` of an nn.Module of one's own. args: its
    keyword arguments, plain values only. In Python `{"class": MyTower}` or the class itself stands for its name."""

    name: Text
    args: dict[Text, object] = Field(default_factory=dict)
    optimizer: TowerOptimizer = TowerOptimizer()
    loss: Literal["bce"] = "bce"

    @model_validator(mode="before")
    @classmethod
    def _name_or_class(cls, raw: object) -> object:
        if isinstance(raw, str):
            return {"name": raw}
        if isinstance(raw, type):
            return {"name": import_path(raw)}
        if isinstance(raw, Mapping) and "class" in raw:
            if "name" in raw:
                raise ValueError("give `name` or `class`, not both")
            rest = {key: value for key, value in raw.items() if key != "class"}
            return {"name": import_path(raw["class"]), **rest}
        return raw

    @field_validator("args")
    @classmethod
    def _plain(cls, args: dict[str, object]) -> dict[str, object]:
        return {name: _plain_value(name, value) for name, value in args.items()}


class Train(Section):
    """batch_size: rows of one step, all towers together. max_steps: stop there, whatever the epochs.

    mode: how towers keep in step. staleness: of `bounded`, the most pushes by other towers that a pulled row may lag
    by, default 4; of `geo`, the steps between a tower's exchanges with the servers, default 100. geo_scale: of `geo`,
    the factor on the differences a tower sends, 1 or `1/towers`. window: of `sync`, steps for which towers lease the
    rows they need, with optimizer state, so that fetching overlaps with training: a number, or `auto`, found from
    measured times and memory; 0 pulls and pushes every step, and is the only choice in other modes. Bits are the same
    for any window. window_bytes: most memory of a tower's leased rows. precision: of the towers' matrix products;
    `auto` takes bf16 where every tower has it in hardware, else fp32. day_steps: steps of a day, the clock of tables'
    policies; rows are dropped where one begins. pooling: where lists become one vector, on the `tower` or on the
    `server`, which then sends sums of rows; the latter only in `sync` and with window 0.
    """

    batch_size: Count = 1024
    epochs: Count = 1
    max_steps: Count | None = None
    mode: Literal["sync", "bounded", "async", "geo"] = "sync"
    staleness: Count | None = None
    geo_scale: Annotated[Literal["1", "1/towers"], BeforeValidator(_scale)] | None = None
    window: Literal["auto"] | Annotated[int, Strict(), Field(ge=0, le=4096)] = DEFAULT_WINDOW
    window_bytes: Annotated[int, Strict(), Field(ge=1 << 20)] = DEFAULT_WINDOW_BYTES
    precision: Precision = Precision.AUTO
    day_steps: Count | None = None
    pooling: Literal["tower", "server"] = "tower"

    @model_validator(mode="before")
    @classmethod
    def _by_mode(cls, raw: object) -> object:
        """Defaults that depend on the mode, and on where lists are pooled."""
        if isinstance(raw, Mapping) and raw.get("pooling") == "server":
            raw = {"window": 0, **raw}
        if not isinstance(raw, Mapping) or raw.get("mode", "sync") == "sync":
            return raw
        filled: dict[str, object] = {"window": 0, **raw}
        if (staleness := DEFAULT_STALENESS.get(str(raw["mode"]))) and filled.get("staleness") is None:
            filled["staleness"] = staleness
        if raw["mode"] == "geo" and filled.get("geo_scale") is None:
            filled["geo_scale"] = GEO_SCALES[1]
        return filled


def import_path(tower: object) -> str:
    """`module:Class` of a class that can be imported by it, those of `__main__` included.

    Raises ValueError for anything else, such as a class made inside a function.
    """
    if not isinstance(tower, type):
        raise ValueError(f"`class` must be a class, got {tower!r}; in a job file write `name: package.module:Class`")
    here: object = sys.modules.get(tower.__module__)
    for part in tower.__qualname__.split("."):
        here = getattr(here, part, None)
    if here is not tower:
        raise ValueError(
            f"class {tower.__qualname__} of {tower.__module__} cannot be imported by its name, so actors could not "
            "build it; define it at the top level of a module"
        )
    return f"{tower.__module__}:{tower.__qualname__}"


def _with_default(raw: object, name: str, make: object) -> object:
    """`raw` with `name` filled in when a mapping lacks it. make: from the mapping to the value; None fills nothing."""
    if not isinstance(raw, Mapping) or name in raw or not callable(make):
        return raw
    value = make(raw)
    return {**raw, name: value} if isinstance(value, (str, dict)) else raw


def _plain_value(name: str, value: object) -> object:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)):
        return [_plain_value(name, item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): _plain_value(name, item) for key, item in value.items()}
    raise ValueError(
        f"`{name}` is a {type(value).__name__}; a job file cannot hold it, give numbers, text, lists or mappings"
    )
