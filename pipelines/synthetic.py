"""Makes Criteo-shaped data of any size, for benchmarks and trials: Parquet files, and beside them what is known.

Threads make parts of row groups while this thread writes the row group before; the files' bytes depend on the recipe
(and on pyarrow's version, which stands in their footers) alone, not on threads or the size of parts.
"""

from __future__ import annotations

import json
import math
import shutil
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from hetero.errors import CapacityError, DataError, UserError
from hetero.hardware.probe import usable_cores
from hetero.kernels.synthetic import DENSE, MAX_CARDINALITY, SPARSE, SyntheticRows, fill_rows
from hetero.metrics.bucketed import BucketedAuc
from hetero.metrics.report import MetricReport, evaluate_predictions
from hetero.records import F32, F64, I64

NAME = "criteo-like"
VERSION = 1
"""Raised whenever the same recipe makes other bytes, so that old files are made again."""

# Distinct values of the 26 categorical columns of Criteo's Kaggle log (45.8 M rows), as published with DLRM.
KAGGLE_CARDINALITIES = (
    *(1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194),
    *(27, 14992, 5461306, 10, 5652, 2173, 4, 7046547, 18, 15, 286181, 105, 142572),
)
MIN_TOTAL = 40_000
_THRESHOLDS = (1_000_000, 100_000, 10_000)

ROW_GROUP = 1 << 16
PART_ROWS = 1 << 14
BATCH = 4096
META = "meta.json"
COLUMNS = ("label", *(f"I{j}" for j in range(1, DENSE + 1)), *(f"C{f}" for f in range(1, SPARSE + 1)))
BYTES_PER_ROW = 4 + 4 * DENSE + 8 * SPARSE

_BUFFERS = 3
_AUC_BUCKETS = 1 << 14
_SCHEMA = pa.schema(
    pa.field(name, pa.int64() if name.startswith("C") else pa.float32(), nullable=False) for name in COLUMNS
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CriteoLike:
    """What to make. rows, test_rows: of train.parquet and of test.parquet, which goes on where training ends.

    total: ids of all 26 columns together. zipf: exponent of their law, 0 is uniform. seed: of everything.
    Raises UserError when a value is out of its range.
    """

    rows: int = 2_000_000
    test_rows: int = 102_400
    total: int = 10_000_000
    zipf: float = 1.05
    seed: int = 7

    def __post_init__(self) -> None:
        for name in ("rows", "test_rows"):
            if getattr(self, name) < 1:
                raise UserError(f"{NAME}: {name} is {getattr(self, name)}; give at least 1")
        if not MIN_TOTAL <= self.total <= MAX_CARDINALITY:
            raise UserError(
                f"{NAME}: total is {self.total}; give {MIN_TOTAL} to {MAX_CARDINALITY} ids: the small ones of the 26"
                " columns keep their sizes, and the others share what is left"
            )
        if not (math.isfinite(self.zipf) and self.zipf >= 0):
            raise UserError(f"{NAME}: zipf is {self.zipf}; give an exponent of 0 (all ids equally frequent) or above")
        if not 0 <= self.seed < 1 << 64:
            raise UserError(f"{NAME}: seed is {self.seed}; give 0 to {(1 << 64) - 1}")

    def cardinalities(self) -> tuple[int, ...]:
        """Ids of each column, together `total`.

        Kaggle's, of which those above a threshold shrink (or grow) in proportion. The threshold is a million, and a
        tenth or a hundredth of that where the columns it would keep take more than half of the total.
        """
        for threshold in _THRESHOLDS:
            kept = sum(size for size in KAGGLE_CARDINALITIES if size <= threshold)
            if 2 * kept <= self.total:
                break
        scale = (self.total - kept) / (sum(KAGGLE_CARDINALITIES) - kept)
        sizes = [size if size <= threshold else round(size * scale) for size in KAGGLE_CARDINALITIES]
        sizes[sizes.index(max(sizes))] += self.total - sum(sizes)
        return tuple(sizes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What is known of the data; `meta.json` beside them.

    best_auc, best_logloss: of the planted probability on test.parquet, which no model can beat but by luck; None when
    its rows have one class. best_auc_train: likewise on train.parquet, within 1e-4. distinct_keys: of the
    26 * batch_rows ids in the first `batch_rows` training rows. file_bytes: size of each file.
    """

    name: str = NAME
    version: int = VERSION
    recipe: CriteoLike
    cardinalities: tuple[int, ...]
    positive_rate: float
    test_positive_rate: float
    best_auc: float | None
    best_logloss: float | None
    best_auc_train: float | None
    batch_rows: int
    distinct_keys: int
    file_bytes: dict[str, int]

    def to_dict(self) -> dict[str, object]:
        """One flat record for JSON."""
        record = asdict(self)
        return {**record.pop("recipe"), **record}

    @classmethod
    def from_dict(cls, record: dict[str, Any]) -> Facts:
        """What `to_dict` wrote. Raises TypeError, KeyError or UserError for any other record."""
        recipe = CriteoLike(**{one.name: record.pop(one.name) for one in fields(CriteoLike)})
        return cls(recipe=recipe, **{**record, "cardinalities": tuple(record["cardinalities"])})


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """Where the data lie. seconds: spent making and writing rows, compilation left out; None when they were there."""

    folder: Path
    train: Path
    test: Path
    facts: Facts
    seconds: float | None

    @property
    def rows_per_s(self) -> float | None:
        """Rows of both files made a second; None when they were there."""
        rows = self.facts.recipe.rows + self.facts.recipe.test_rows
        return None if self.seconds is None else rows / self.seconds

    def to_dict(self) -> dict[str, object]:
        """One flat record for JSON."""
        files = {"folder": str(self.folder), "files": [str(self.train), str(self.test)]}
        pace = {"reused": self.seconds is None, "seconds": self.seconds, "rows_per_s": self.rows_per_s}
        return {**files, **pace, **self.facts.to_dict()}

    def describe(self) -> str:
        """What was made, as people read it."""
        facts, recipe = self.facts, self.facts.recipe
        size = {name: f"{count / 1e6:,.1f} MB" for name, count in facts.file_bytes.items()}
        ids = SPARSE * facts.batch_rows
        best = "none, as test.parquet has one class only"
        if facts.best_auc is not None and facts.best_logloss is not None:
            best = f"{facts.best_auc:.4f} on test.parquet, with log loss {facts.best_logloss:.4f}"
        pace = "was there already"
        if self.seconds is not None and self.rows_per_s is not None:
            pace = f"made in {self.seconds:.1f} s, {self.rows_per_s / 1e6:.2f} M rows/s"
        return "\n".join(
            (
                f"{self.folder}: {pace}",
                f"train.parquet  {recipe.rows:,} rows, {size[self.train.name]}, {facts.positive_rate:.1%} with label 1",
                f"test.parquet   {recipe.test_rows:,} rows, {size[self.test.name]}, {facts.test_positive_rate:.1%}",
                f"ids            {recipe.total:,} in {SPARSE} columns, Zipf exponent {recipe.zipf:g};"
                f" {facts.distinct_keys:,} distinct of {ids:,} in the first {facts.batch_rows:,} rows",
                f"best AUC       {best}",
            )
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Workers:
    """What makes rows: a pool of threads that each fill a part of a row group at a time."""

    recipe: CriteoLike
    cardinalities: I64
    pool: ThreadPoolExecutor
    part_rows: int

    def row_groups(self, *, first: int, rows: int) -> Iterator[SyntheticRows]:
        """Rows first .. first + rows of the stream in groups of ROW_GROUP, each good until the next is asked for."""
        free = [SyntheticRows.empty(min(ROW_GROUP, rows)) for _ in range(_BUFFERS)]
        begun: deque[tuple[SyntheticRows, int, list[Future[None]]]] = deque()
        for start in range(first, first + rows, ROW_GROUP):
            if not free:
                buffer, count, parts = begun.popleft()
                yield _when_done(buffer, count, parts)
                free.append(buffer)
            count = min(ROW_GROUP, first + rows - start)
            buffer = free.pop()
            begun.append((buffer, count, self._begin(buffer, first=start, rows=count)))
        for buffer, count, parts in begun:
            yield _when_done(buffer, count, parts)

    def _begin(self, buffer: SyntheticRows, *, first: int, rows: int) -> list[Future[None]]:
        """Have rows first .. first + rows made into the buffer."""
        return [
            self.pool.submit(self.fill, buffer, first + at, at, min(self.part_rows, rows - at))
            for at in range(0, rows, self.part_rows)
        ]

    def fill(self, buffer: SyntheticRows, first: int, at: int, rows: int) -> None:
        """Make rows first .. first + rows into the buffer's positions from `at`."""
        recipe, out = self.recipe, (buffer.dense, buffer.keys, buffer.labels, buffer.chances)
        fill_rows(np.uint64(recipe.seed), self.cardinalities, float(recipe.zipf), first, at, rows, *out)


def _when_done(buffer: SyntheticRows, rows: int, parts: list[Future[None]]) -> SyntheticRows:
    for part in parts:
        part.result()
    return buffer.head(rows)


def make_criteo_like(
    folder: Path,
    *,
    recipe: CriteoLike,
    threads: int | None = None,
    part_rows: int = PART_ROWS,
    progress: Callable[[int], None] = lambda rows: None,
) -> Made:
    """`folder`/train.parquet, test.parquet and meta.json; what is there already by the same recipe is reused.

    Columns: label float32; I1 to I13 float32; C1 to C26 int64, all 64 bits in use (see `hetero.kernels.synthetic`).
    threads: that make rows; default, the cores at hand. part_rows: of one task. progress: told the rows made so far.
    Raises DataError when the folder cannot be written or holds other data, CapacityError when the disk is too full.
    """
    train, test = folder / "train.parquet", folder / "test.parquet"
    known = _known_facts(folder, recipe)
    if known is not None:
        return Made(folder=folder, train=train, test=test, facts=known, seconds=None)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _check_folder(folder, recipe)
        with ThreadPoolExecutor(threads or max(1, math.floor(usable_cores())), "synthetic") as pool:
            cardinalities = np.array(recipe.cardinalities(), np.int64)
            workers = _Workers(recipe=recipe, cardinalities=cardinalities, pool=pool, part_rows=part_rows)
            facts, seconds = _make(workers, train=train, test=test, progress=progress)
    except OSError as error:
        raise DataError(f"{folder}: cannot be written ({error.strerror or error}); choose another folder") from error
    return Made(folder=folder, train=train, test=test, facts=facts, seconds=seconds)


def _make(workers: _Workers, *, train: Path, test: Path, progress: Callable[[int], None]) -> tuple[Facts, float]:
    """Both files and meta.json, under their names only once all is there; and how long it took, in seconds."""
    recipe = workers.recipe
    batch = SyntheticRows.empty(min(BATCH, recipe.rows))
    workers.fill(batch, 0, 0, len(batch.labels))
    train_auc, tested = BucketedAuc(_AUC_BUCKETS), _Tested()
    parts = {train: train.with_name(f".{train.name}.part"), test: test.with_name(f".{test.name}.part")}
    began = time.perf_counter()
    try:
        done = 0
        for rows in _written(parts[train], workers.row_groups(first=0, rows=recipe.rows)):
            train_auc.update(rows.labels, rows.chances)
            progress(done := done + len(rows.labels))
        for rows in _written(parts[test], workers.row_groups(first=recipe.rows, rows=recipe.test_rows)):
            tested.add(rows)
            progress(done := done + len(rows.labels))
        seconds = time.perf_counter() - began
        scores = tested.scores()
        facts = Facts(
            recipe=recipe,
            cardinalities=recipe.cardinalities(),
            positive_rate=float(train_auc.positives.sum()) / recipe.rows,
            test_positive_rate=scores.mean_label or 0.0,
            best_auc=scores.auc,
            best_logloss=scores.logloss,
            best_auc_train=train_auc.value(),
            batch_rows=len(batch.labels),
            distinct_keys=len(np.unique(batch.keys)),
            file_bytes={path.name: part.stat().st_size for path, part in parts.items()},
        )
        _publish(parts, facts)
    finally:
        for part in parts.values():
            part.unlink(missing_ok=True)
    return facts, seconds


class _Tested:
    """Labels and planted probabilities of the test rows."""

    def __init__(self) -> None:
        self._labels: list[F32] = []
        self._chances: list[F64] = []

    def add(self, rows: SyntheticRows) -> None:
        self._labels.append(rows.labels.copy())
        self._chances.append(rows.chances.copy())

    def scores(self) -> MetricReport:
        return evaluate_predictions(np.concatenate(self._labels), np.concatenate(self._chances))


def _written(path: Path, groups: Iterator[SyntheticRows]) -> Iterator[SyntheticRows]:
    """Write row groups to a Parquet file, and hand on each.

    Plain values, uncompressed, no null: 264 bytes a row at 0.15 us of CPU time. (Measured: LZ4 160 bytes at 0.65 us,
    Zstandard 117 bytes at 1.1 us, dictionaries 125 bytes at 1.6 us.)
    """
    options = {"compression": "none", "use_dictionary": False, "write_statistics": False, "store_schema": False}
    with pq.ParquetWriter(path, _SCHEMA, write_batch_size=ROW_GROUP, **options) as writer:
        for rows in groups:
            columns = [rows.labels, *rows.dense, *rows.keys.view(np.int64)]
            batch = pa.record_batch([pa.array(column) for column in columns], schema=_SCHEMA)
            writer.write_batch(batch, row_group_size=ROW_GROUP)
            yield rows


def _publish(parts: dict[Path, Path], facts: Facts) -> None:
    """Give the files their names. In between, meta.json says whose the folder is, and describes no files."""
    meta = next(iter(parts)).with_name(META)
    meta.write_text(json.dumps({"name": NAME}))
    for path, part in parts.items():
        part.replace(path)
    meta.write_text(json.dumps(facts.to_dict(), indent=2) + "\n")


def _known_facts(folder: Path, recipe: CriteoLike) -> Facts | None:
    """The facts of the data in the folder, when they are those the recipe would make and the files are whole."""
    try:
        facts = Facts.from_dict(json.loads((folder / META).read_text()))
        sizes = {name: (folder / name).stat().st_size for name in facts.file_bytes}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, UserError):
        return None
    alike = (facts.name, facts.version, facts.recipe) == (NAME, VERSION, recipe)
    return facts if alike and sizes == facts.file_bytes else None


def _check_folder(folder: Path, recipe: CriteoLike) -> None:
    """Raises DataError when the folder holds data of another origin, CapacityError when the disk lacks room."""
    there = [name for name in ("train.parquet", "test.parquet", META) if (folder / name).exists()]
    if there and not _is_ours(folder / META):
        raise DataError(
            f"{folder} holds {', '.join(there)} of another origin, which would be overwritten; choose another folder,"
            " or move them away"
        )
    needed = (recipe.rows + recipe.test_rows) * BYTES_PER_ROW
    room = shutil.disk_usage(folder).free
    if needed > room:
        raise CapacityError(
            f"{folder}: {recipe.rows + recipe.test_rows} rows take {needed / 1e9:.1f} GB, the disk has"
            f" {room / 1e9:.1f} GB left; make fewer rows, or choose a folder on another disk"
        )


def _is_ours(meta: Path) -> bool:
    try:
        return bool(json.loads(meta.read_text())["name"] == NAME)
    except (OSError, ValueError, KeyError, TypeError):
        return False
