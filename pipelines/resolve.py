"""From a job to the `JobSpec` every role is constructed from: paths found, tables numbered and fused, lookups named.

Names of lookups, which are what a tower sees: `<feature>` where the feature uses exactly one table of dim above 1, and
`<feature>@<table>` for all others. Built-in towers take lookups of dim 1 as their linear part, all others as the deep
part. Lookups stand group by group, within a group by feature, both in job order.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from hetero.records import (
    AUTO_WINDOW,
    AdmissionSpec,
    Clock,
    DataSpec,
    DenseFeature,
    DenseTransform,
    EvictionSpec,
    GroupSpec,
    InitSpec,
    JobSpec,
    LookupSpec,
    Mode,
    RoleSpec,
    RowOptimizer,
    RowOptimizerSpec,
    ServersAt,
    SnapshotSpec,
    SparseFeature,
    StorageSpec,
    TableSpec,
    TaskSpec,
    TowerSpec,
    WarmStartSpec,
)
from pipelines.checks import logical_tables
from pipelines.joint_resolve import absolute_parts, mesh_spec, part_spec, text_feature, with_tokenizers
from pipelines.placing import places_of, shares_of
from pipelines.problems import Problem, job_problems
from pipelines.run_schema import Role, Storage
from pipelines.schema import Admission, Dense, Eviction, RowOptimizerSection, Sparse, Table

if TYPE_CHECKING:
    from pipelines.job import Job

_VARIABLE = re.compile(r"\$\{([^}]*)\}")


def resolve(job: Job, *, folder: Path = Path()) -> JobSpec:
    """The job with nothing left to decide. folder: of the job file, where relative paths are tried second.

    Reads the training data when a `standard` dense feature has no mean and std yet. Raises JobError for a path that
    is not found and DataError for data that cannot be read.
    """
    job = complete(job, folder=folder)
    groups = _groups(job)
    test = data_spec(job, job.data.test, shuffle=False) if job.data.test else None
    return JobSpec(
        name=job.name,
        seed=job.seed,
        train=data_spec(job, job.data.train, shuffle=job.data.shuffle),
        test=test,
        groups=groups,
        lookups=_lookups(job, groups),
        tower=TowerSpec(
            name=job.tower.name,
            args=dict(job.tower.args),
            optimizer=job.tower.optimizer.name,
            lr=job.tower.optimizer.lr,
            weight_decay=job.tower.optimizer.weight_decay,
            loss=job.tower.loss,
            parts=tuple(part_spec(part) for part in job.tower.parts),
            mesh=mesh_spec(job.tower.mesh, towers=job.roles.towers.count),
        ),
        batch_size=job.train.batch_size,
        epochs=job.train.epochs,
        max_steps=job.train.max_steps,
        window=AUTO_WINDOW if job.train.window == "auto" else job.train.window,
        window_bytes=job.train.window_bytes,
        precision=job.train.precision,
        mode=Mode(job.train.mode),
        staleness=job.train.staleness or 0,
        geo_scale=1.0 / job.roles.towers.count if job.train.geo_scale == "1/towers" else 1.0,
        readers=_role(job.roles.readers),
        servers=_role(job.roles.servers),
        towers=_role(job.roles.towers),
        device=job.roles.towers.device,
        server_schedule=tuple(ServersAt(step=at.step, count=at.count) for at in job.roles.servers.schedule),
        nodes=places_of(job.roles),
        pool_on_servers=job.train.pooling == "server",
        shares=shares_of(job.roles),
        deadline_s=job.run.deadline_s,
        room_deadline_s=job.run.room_deadline_s,
        storage=_storage(job.storage),
        clock=Clock(day_steps=job.train.day_steps) if job.train.day_steps else None,
        warm_start=_warm_start(job, groups),
        snapshots=SnapshotSpec(
            every_steps=job.snapshots.every_steps,
            every_s=job.snapshots.every_s,
            keep=job.snapshots.keep,
            deltas=job.snapshots.deltas,
        ),
    )


def complete(job: Job, *, folder: Path = Path()) -> Job:
    """The job with its paths absolute and with means and standard deviations of the training data written in, so that
    it means the same in any directory and without its training data. A complete job is returned as it is.

    Raises as `resolve` does.
    """
    job = anchor(job, folder=folder)
    problems = [
        Problem(("data", name, number), f"no file at `{path}`, neither here ({Path.cwd()}) nor in {folder.resolve()}")
        for name in ("train", "test")
        for number, path in enumerate(getattr(job.data, name))
        if _is_relative(path) and not _found(path)
    ]
    if problems:
        raise job_problems(problems)
    absolute = {
        name: tuple(os.path.abspath(path) if _is_relative(path) else path for path in getattr(job.data, name))
        for name in ("train", "test")
    }
    changed: dict[str, object] = {"data": job.data.model_copy(update=absolute)}
    if job.warm_start is not None and _is_relative(job.warm_start.source):
        changed["warm_start"] = job.warm_start.model_copy(update={"source": os.path.abspath(job.warm_start.source)})
    changed["tower"] = job.tower.model_copy(update={"parts": absolute_parts(job.tower.parts)})
    changed["features"] = with_tokenizers(job.features, folder=folder)
    if job.snapshots.folder is not None and _is_relative(job.snapshots.folder):
        changed["snapshots"] = job.snapshots.model_copy(update={"folder": os.path.abspath(job.snapshots.folder)})
    return _with_statistics(job.model_copy(update=changed))


def anchor(job: Job, *, folder: Path) -> Job:
    """The job with `${VAR}` and `~` in data paths expanded, and relative ones that only `folder` has found there.

    Raises JobError for a variable that is not set.
    """
    problems: list[Problem] = []
    anchored: dict[str, tuple[str, ...]] = {}
    for name in ("train", "test"):
        found = []
        for number, path in enumerate(getattr(job.data, name)):
            unset = [variable for variable in _VARIABLE.findall(path) if variable not in os.environ]
            problems += [
                Problem(
                    ("data", name, number),
                    f"`${{{variable}}}` is not set in the environment; set {variable}, or write the path out",
                )
                for variable in unset
            ]
            found.append(path if unset else _anchored(path, folder))
        anchored[name] = tuple(found)
    if problems:
        raise job_problems(problems)
    return job.model_copy(update={"data": job.data.model_copy(update=anchored)})


def data_spec(job: Job, paths: Iterable[str], *, shuffle: bool) -> DataSpec:
    """What to read from `paths`, by the job's columns."""
    return DataSpec(
        paths=tuple(paths),
        dense=tuple(_dense(feature) for feature in job.features.dense),
        sparse=tuple(_sparse(feature) for feature in job.features.sparse),
        label=job.data.label,
        format=job.data.format,
        weight=job.data.weight,
        gauc_column=job.data.gauc,
        texts=tuple(text_feature(text) for text in job.features.text),
        tasks=tuple(TaskSpec(name=task.name, column=task.column, weight=task.weight) for task in job.data.tasks),
        columns=job.data.columns,
        max_malformed_fraction=job.data.max_malformed_fraction,
        text_block_bytes=job.data.text_block_bytes,
        shuffle=shuffle,
        seed=job.seed,
    )


def _is_relative(path: str) -> bool:
    return "://" not in path and not os.path.isabs(path)


def _found(path: str) -> bool:
    return os.path.exists(path) or bool(glob.glob(path, recursive=True))


def _anchored(path: str, folder: Path) -> str:
    path = _VARIABLE.sub(lambda match: os.environ[match[1]], path)
    if "://" not in path:
        path = os.path.expanduser(path)
    beside = os.path.join(folder, path)
    return beside if _is_relative(path) and not _found(path) and _found(beside) else path


def _with_statistics(job: Job) -> Job:
    def lacks(feature: Dense) -> bool:
        return feature.transform is DenseTransform.STANDARD and feature.mean is None

    if not any(lacks(feature) for feature in job.features.dense):
        return job
    from hetero.data.statistics import dense_statistics

    statistics: Mapping[str, tuple[float, float]] = dense_statistics(data_spec(job, job.data.train, shuffle=False))
    dense = []
    for feature in job.features.dense:
        if lacks(feature):
            mean, std = statistics[feature.name]
            feature = feature.model_copy(update={"mean": float(mean), "std": float(std)})
        dense.append(feature)
    return job.model_copy(update={"features": job.features.model_copy(update={"dense": tuple(dense)})})


def _dense(feature: Dense) -> DenseFeature:
    return DenseFeature(
        name=feature.name,
        column=feature.column,
        transform=feature.transform,
        fill=feature.fill,
        mean=0.0 if feature.mean is None else feature.mean,
        std=1.0 if feature.std is None else feature.std,
    )


def _sparse(feature: Sparse) -> SparseFeature:
    return SparseFeature(
        name=feature.name,
        column=feature.column,
        ids=feature.ids,
        missing=feature.missing,
        is_list=feature.is_list,
        max_length=feature.max_length,
        separator=feature.separator,
        boundaries=feature.buckets,
    )


def _warm_start(job: Job, groups: tuple[GroupSpec, ...]) -> WarmStartSpec | None:
    """The snapshot to begin with, and the tables wanted. Raises JobError for a table the job has not."""
    section = job.warm_start
    if section is None:
        return None
    names = [table.name for group in groups for table in group.tables]
    tables: tuple[str, ...] | None = None
    if section.tables != "all":
        for number, wanted in enumerate(section.tables):
            if not any(name == wanted or name.startswith(f"{wanted}/") for name in names):
                told = f"`{wanted}` is no table of this job (it has {', '.join(names)})"
                raise job_problems([Problem(("warm_start", "tables", number), told)])
        tables = tuple(n for n in names if any(n == w or n.startswith(f"{w}/") for w in section.tables))
    return WarmStartSpec(path=section.source, tables=tables, dense=section.dense)


def _role(role: Role) -> RoleSpec:
    return RoleSpec(count=role.count, threads=role.threads)


def _storage(storage: Storage) -> StorageSpec | None:
    if storage.memory_bytes is None or storage.ssd_bytes is None:
        return None
    return StorageSpec(
        memory_bytes=storage.memory_bytes,
        directories=tuple(os.path.abspath(os.path.expanduser(path)) for path in storage.directories),
        ssd_bytes=storage.ssd_bytes,
        io=storage.io,
    )


def _groups(job: Job) -> tuple[GroupSpec, ...]:
    """Logical tables numbered in job order, and fused where dim, optimizer, first values and policies agree."""
    from hetero.kernels.xxhash64 import hash_text

    fused: dict[GroupSpec, list[TableSpec]] = {}
    for index, (number, owner) in enumerate(logical_tables(job)):
        table = job.tables[number]
        name = f"{table.name}/{owner}"
        alike = GroupSpec(
            dim=table.dim,
            optimizer=_row_optimizer(table.optimizer),
            init=InitSpec(kind=table.init.kind, scale=table.init.scale),
            tables=(),
            admission=_admission(table.admission),
            eviction=_eviction(table.eviction),
        )
        fused.setdefault(alike, []).append(TableSpec(index=index, name=name, seed=hash_text(f"{job.seed}/{name}")))
    return tuple(replace(alike, tables=tuple(tables)) for alike, tables in fused.items())


def _admission(section: Admission | None) -> AdmissionSpec | None:
    """None where every key gets its row at once."""
    if section is None or 1 in (section.after, section.probability):
        return None
    return AdmissionSpec(
        after=section.after or 1,
        probability=section.probability or 1.0,
        score=section.score,
        forget_days=section.forget_days,
    )


def _eviction(section: Eviction | None) -> EvictionSpec | None:
    return None if section is None else EvictionSpec(**section.model_dump())


def _row_optimizer(section: RowOptimizerSection) -> RowOptimizerSpec:
    settings = section.model_dump()
    return RowOptimizerSpec(kind=RowOptimizer(settings.pop("name")), **settings)


def _lookups(job: Job, groups: tuple[GroupSpec, ...]) -> tuple[LookupSpec, ...]:
    places = {table.name: (group, table.index) for group, spec in enumerate(groups) for table in spec.tables}
    lookups = []
    for number, feature in enumerate(job.features.sparse):
        for table in (table for table in job.tables if table.name in (feature.tables or ())):
            group, index = places[f"{table.name}/{feature.keys_as or feature.name}"]
            lookups.append(
                LookupSpec(
                    name=lookup_name(feature, table, job.tables),
                    feature=number,
                    group=group,
                    table=index,
                    dim=table.dim,
                    pooling=feature.pooling,
                )
            )
    return tuple(sorted(lookups, key=lambda lookup: lookup.group))


def lookup_name(feature: Sparse, table: Table, tables: Iterable[Table]) -> str:
    """The name a tower finds the rows of `table` for `feature` under."""
    wide = [other.name for other in tables if other.dim > 1 and other.name in (feature.tables or ())]
    return feature.name if wide == [table.name] else f"{feature.name}@{table.name}"
