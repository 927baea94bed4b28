"""Look into a model: the whole, one table, or one key with its row, its place, and why it is or is not there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from hetero.checkpoint.scan import FoundRow, find_row, scan_rows
from hetero.checkpoint.snapshot import Snapshot, list_snapshots
from hetero.checkpoint.tensors import DENSE, read_tensors
from hetero.data.id_kinds import Reading, keys_of_value, settled_features
from hetero.errors import DataError, UserError
from hetero.keys.routing import bucket_of, initial_owners, mixed_seeds
from hetero.optim.definition import group_width, state_parts
from hetero.records import F32, I32, GroupSpec, JobSpec, KeySet, TableSpec
from pipelines.models import SNAPSHOTS, Model, find_model
from pipelines.policy_view import absence, row_story

_KEYS = 1 << 64


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupView:
    """Tables that share files, as their rows are alike. width: floats of a row, `dim` weights and optimizer state."""

    tables: tuple[str, ...]
    dim: int
    width: int
    optimizer: str
    rows: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelView:
    """A model. bases: snapshots it is based on. dense: shape of every dense parameter. bytes: of its own files."""

    path: str
    job: str
    tower: str
    step: int
    kind: str
    bases: tuple[str, ...]
    written_t: float
    buckets: int
    servers: int
    groups: tuple[GroupView, ...]
    dense: dict[str, tuple[int, ...]]
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TableView:
    """One table. norms: of the rows' weights, their length, at the named places of the distribution.

    zero_rows: rows whose weights are all zero. server_rows: of each server when the snapshot was taken. features: who
    uses it.
    """

    path: str
    table: str
    features: tuple[str, ...]
    dim: int
    width: int
    optimizer: str
    rows: int
    bytes: int
    zero_rows: int
    norms: dict[str, float]
    buckets_used: int
    buckets: int
    server_rows: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RowView:
    """One key in one table. came: when it came, as far as the run's snapshots tell. why: why it is there or is not.

    weights, state, statistics: None when it is not there; state by the names of `hetero.optim.definition`.
    """

    table: str
    key: int
    signed_key: int
    taken: str
    bucket: int
    server: int
    held: bool
    weights: tuple[float, ...] | None
    state: dict[str, tuple[float, ...]] | None
    statistics: dict[str, float | int] | None
    file: str | None
    came: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyView:
    """A key as it was given, and its row in every table it may be in."""

    path: str
    given: str
    rows: tuple[RowView, ...]


View = ModelView | TableView | KeyView


def inspect_model(model: Path, *, table: str | None = None, key: str | None = None) -> View:
    """Look at the model at `model` (see `find_model`), at one of its tables, or at one key.

    key: a number, which is the key itself, or `feature=value`, which becomes a key as the job makes it one. table: with
    a key, look in this table only. Raises UserError for a table, feature or key that cannot be, DataError for a damaged
    model.
    """
    found = find_model(model)
    if key is not None:
        return _key_view(found, key, table=table)
    return _model_view(found) if table is None else _table_view(found, table)


def to_dict(view: View) -> dict[str, object]:
    """The view as plain values."""
    return asdict(view)


def _model_view(found: Model) -> ModelView:
    snapshot, spec = found.snapshot(), found.spec
    different = snapshot.manifest.job.difference(spec)
    if different:
        raise DataError(f"{snapshot.path}: holds the tables of another job than {found.run} ({different})")
    manifest = snapshot.manifest
    return ModelView(
        path=snapshot.path,
        job=manifest.job.name,
        tower=spec.tower.name,
        step=manifest.step,
        kind=manifest.kind.value,
        bases=tuple(ref.name for ref in manifest.bases),
        written_t=manifest.written_t,
        buckets=manifest.job.buckets,
        servers=int(_owners(found).max()) + 1,
        groups=tuple(_group_view(group, rows) for group, rows in zip(spec.groups, manifest.held, strict=True)),
        dense={name: tuple(tensor.shape) for name, tensor in read_tensors(snapshot, name=DENSE).items()},
        bytes=sum(entry.bytes for entry in manifest.files),
    )


def _group_view(group: GroupSpec, rows: int) -> GroupView:
    width = group_width(group)
    return GroupView(
        tables=tuple(table.name for table in group.tables),
        dim=group.dim,
        width=width,
        optimizer=group.optimizer.kind.value,
        rows=rows,
        bytes=4 * width * rows,
    )


def _table_view(found: Model, name: str) -> TableView:
    spec = found.spec
    group, table = _table(found, name)
    norms, rows_of_bucket = [np.empty(0, np.float32)], np.zeros(spec.buckets, np.int64)
    for part in scan_rows(found.snapshot(), spec):
        if spec.groups[part.group] is not group:
            continue
        mine = part.keys.tables == table.index
        keys = part.keys[mine]
        buckets = bucket_of(keys, seeds=mixed_seeds(spec.groups), buckets=spec.buckets)
        rows_of_bucket += np.bincount(buckets, minlength=spec.buckets)
        norms.append(np.linalg.norm(part.rows[mine, : group.dim], axis=1).astype(np.float32))
    lengths, width = np.concatenate(norms), group_width(group)
    owners = _owners(found)
    return TableView(
        path=str(found.path),
        table=name,
        features=_features_of(spec, table),
        dim=group.dim,
        width=width,
        optimizer=group.optimizer.kind.value,
        rows=len(lengths),
        bytes=4 * width * len(lengths),
        zero_rows=int((lengths == 0).sum()),
        norms=_spread(lengths),
        buckets_used=int((rows_of_bucket > 0).sum()),
        buckets=spec.buckets,
        server_rows=tuple(int(rows) for rows in np.bincount(owners, weights=rows_of_bucket)),
    )


def _owners(found: Model) -> I32:
    """The server of each bucket when the snapshot was taken, int32 [buckets of the job]."""
    spec, manifest = found.spec, found.snapshot().manifest
    owners = initial_owners(manifest.job.buckets, spec.servers.count)
    for entry in manifest.files:
        if entry.server is not None:
            for start, stop in entry.buckets:
                owners[start:stop] = entry.server
    now: I32 = owners[np.arange(spec.buckets) * manifest.job.buckets // spec.buckets]
    return now


def _key_view(found: Model, given: str, *, table: str | None) -> KeyView:
    name, is_value, value = given.partition("=")
    if is_value:
        readings, tables = _readings_of_value(found, name, value), _tables_of_feature(found, name)
    else:
        readings = (Reading(how="the key itself", key=_key_number(given)),)
        tables = [(group, one) for group in found.spec.groups for one in group.tables]
    if table is not None:
        wanted = _table(found, table)
        if wanted not in tables:
            raise UserError(
                f"--table {table}: feature '{name}' does not use it; it uses {', '.join(t.name for _, t in tables)}"
            )
        tables = [wanted]
    rows = [_row_view(found, group, one, reading) for group, one in tables for reading in readings]
    return KeyView(path=str(found.path), given=given, rows=tuple(rows))


def _readings_of_value(found: Model, name: str, value: str) -> tuple[Reading, ...]:
    features = settled_features(found.spec.train) or found.spec.train.sparse
    feature = next((feature for feature in features if feature.name == name), None)
    if feature is None:
        raise UserError(
            f"--key {name}={value}: the job has no sparse feature '{name}'; it has "
            f"{', '.join(feature.name for feature in features)}"
        )
    return keys_of_value(value, feature=feature)


def _tables_of_feature(found: Model, name: str) -> list[tuple[GroupSpec, TableSpec]]:
    number = next(n for n, feature in enumerate(found.spec.train.sparse) if feature.name == name)
    places = dict.fromkeys((lookup.group, lookup.table) for lookup in found.spec.lookups if lookup.feature == number)
    groups = found.spec.groups
    return [(groups[g], next(t for t in groups[g].tables if t.index == table)) for g, table in places]


def _key_number(text: str) -> int:
    try:
        number = int(text, 0)
    except ValueError:
        number = None
    if number is None or not -(_KEYS >> 1) <= number < _KEYS:
        raise UserError(f"--key {text}: is no 64-bit integer; give one, or `feature=value` such as item={text}")
    return number % _KEYS


def _row_view(found: Model, group: GroupSpec, table: TableSpec, reading: Reading) -> RowView:
    spec, key = found.spec, reading.key
    there = find_row(found.snapshot(), spec, table=table.index, key=key)
    keys = KeySet(np.array([table.index], np.uint16), np.array([key], np.uint64))
    bucket = int(bucket_of(keys, seeds=mixed_seeds(spec.groups), buckets=spec.buckets)[0])
    chunk = there.row
    story = None
    if chunk is not None and group.eviction is not None:
        story = row_story(found.snapshot(), spec, group, keys=keys, row=chunk.rows)
    return RowView(
        table=table.name,
        key=key,
        signed_key=key - _KEYS if key >= _KEYS >> 1 else key,
        taken=reading.how,
        bucket=bucket,
        server=int(_owners(found)[bucket]),
        held=chunk is not None,
        weights=None if chunk is None else tuple(chunk.rows[0, : group.dim].tolist()),
        state=None if chunk is None else _state(group, chunk.rows[0]),
        statistics=story.statistics if story else None if chunk is None else {},
        file=there.file,
        came=story.came if story else _came(found, table, key, there),
        why=story.why if story else _why(found, group, table, key, there),
    )


def _state(group: GroupSpec, row: F32) -> dict[str, tuple[float, ...]]:
    state, at = {}, group.dim
    for name, size in state_parts(group.optimizer, group.dim):
        state[name] = tuple(row[at : at + size].tolist())
        at += size
    return state


def _came(found: Model, table: TableSpec, key: int, there: FoundRow) -> str:
    """Between which of the run's snapshots the key came, as far as they are still there."""
    if there.row is None:
        return "never, up to this model" if not there.deleted else f"and went, by {there.snapshot}"
    before: Snapshot | None = None
    for snapshot in _earlier(found):
        try:
            held = find_row(snapshot, found.spec, table=table.index, key=key).row is not None
        except DataError:
            continue
        if held:
            if before is None:
                return f"by step {snapshot.manifest.step}, the oldest snapshot there is"
            return f"between step {before.manifest.step} and step {snapshot.manifest.step}"
        before = snapshot
    step = found.snapshot().manifest.step
    return f"by step {step}" if before is None else f"between step {before.manifest.step} and step {step}"


def _earlier(found: Model) -> Iterator[Snapshot]:
    """The run's snapshots up to the model, oldest first; damaged ones are passed over, here and where they are read."""
    step = found.snapshot().manifest.step
    for name in list_snapshots(found.run / SNAPSHOTS):
        try:
            snapshot = Snapshot.open(found.run / SNAPSHOTS / name)
        except DataError:
            continue
        if snapshot.manifest.step < step:
            yield snapshot


def _why(found: Model, group: GroupSpec, table: TableSpec, key: int, there: FoundRow) -> str:
    if there.row is not None:
        return f"a batch of training looked it up; {table.name} has no policy that drops rows, so it stays"
    absent = absence(found.snapshot(), found.spec, group, table, key)
    if absent is not None:
        return absent
    if there.deleted:
        return f"it was dropped: {there.snapshot} lists it among the deleted"
    step = found.snapshot().manifest.step
    return f"no batch up to step {step} looked it up in {table.name}; it scores with the table's default, zeros"


def _table(found: Model, name: str) -> tuple[GroupSpec, TableSpec]:
    tables = {table.name: (group, table) for group in found.spec.groups for table in group.tables}
    if name not in tables:
        raise UserError(f"--table {name}: the model has no such table; it has {', '.join(tables)}")
    return tables[name]


def _features_of(spec: JobSpec, table: TableSpec) -> tuple[str, ...]:
    return tuple(spec.train.sparse[lookup.feature].name for lookup in spec.lookups if lookup.table == table.index)


def _spread(lengths: F32) -> dict[str, float]:
    if not len(lengths):
        return {}
    places = {"min": 0, "p50": 50, "p90": 90, "p99": 99, "max": 100}
    return {name: float(np.percentile(lengths, place)) for name, place in places.items()}
